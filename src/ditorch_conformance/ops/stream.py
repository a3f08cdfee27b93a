"""The stream of calls that reach the device's kernels: which ones an op is made of, and which one raised."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_NO_KERNELS = ("profiler::", "prim::", "ditorch_")


class Stream(TorchDispatchMode):
    """Notes every kernel that is called. `raising`: the first one that did not come back."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: dict[str, None] = {}
        self.raising = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        try:
            result = func(*args, **(kwargs or {}))
        except Exception:  # noted, and raised again
            self.raising = self.raising or name
            raise
        if not name.startswith(_NO_KERNELS):
            self.kernels[name] = None
        return result


def falls_back(kernels: list[str], device: torch.device) -> list[str]:
    """Those that have no kernel of the device's own, so that the fall-back of its key runs: on the CPU."""
    key = _dispatch_key(device)
    return [name for name in kernels if _is_fallback(name, key)] if key else []


def _dispatch_key(device: torch.device) -> str:
    """Asked of a tensor: a device may go by another name. Nothing for the CPU, and where this torch does not tell."""
    try:
        keys = torch._C._dispatch_keys(torch.empty(0, device=device))
        found = ("PrivateUse1", "CUDA", "XPU", "MPS", "HPU")
        return next((name for name in found if keys.has(getattr(torch._C.DispatchKey, name))), "")
    except AttributeError:
        return ""


def _is_fallback(name: str, key: str) -> bool:
    """By the dispatcher's own table: a line such as `PrivateUse1: … [backend fallback]`."""
    try:
        table = torch._C._dispatch_dump_table(name)
    except (AttributeError, RuntimeError):  # another release
        return False
    line = next((line for line in table.splitlines() if line.startswith(f"{key}:")), "")
    return "[backend fallback]" in line
