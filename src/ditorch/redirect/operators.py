"""Operators of the program's own: a kernel that it registers for CUDA (torch.library) is the accelerator's."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

import torch

from ditorch.backend import Backend
from ditorch.redirect.patch import Patches

_WHY = 'kernels are registered for the key "CUDA"'


def apply(patches: Patches, backend: Backend) -> None:
    if backend.device_type == "cpu":
        return  # a program that has kernels for CUDA mostly brings its own for the CPU
    key_of = getattr(torch._C, "_dispatch_key_for_device", None)
    own = key_of(backend.device_type) if key_of is not None else "PrivateUse1"
    keys = {f"{kind}CUDA": f"{kind}{own}" for kind in ("", "Autograd", "Autocast")}
    library: Any = torch.library.Library
    initialize, implement = library.__init__, library.impl

    @functools.wraps(initialize)
    def __init__(self: Any, ns: str, kind: str, dispatch_key: str = "") -> None:  # noqa: N807 - it replaces that one
        initialize(self, ns, kind, dispatch_key if _torch_calls() else keys.get(dispatch_key, dispatch_key))

    @functools.wraps(implement)
    def impl(self: Any, op_name: Any, fn: Callable[..., Any], dispatch_key: str = "", **options: Any) -> Any:
        if not (_torch_calls() and _is_torchs(fn)):  # a decorator of torch.library calls for the program
            dispatch_key = keys.get(dispatch_key, dispatch_key)
        return implement(self, op_name, fn, dispatch_key, **options)

    def _cuda_getCurrentRawStream(device: int) -> int:  # noqa: N802 - PyTorch's name
        return int(getattr(torch.cuda.current_stream(device), "cuda_stream", 0))

    patches.assign(
        torch._C, "_cuda_getCurrentRawStream", _cuda_getCurrentRawStream, "libraries that launch kernels look for it"
    )
    if not hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
        patches.assign(
            torch._C, "_cuda_clearCublasWorkspaces", _clear_nothing, "programs call it before they look at memory"
        )
    patches.assign(library, "__init__", __init__, _WHY)
    patches.assign(library, "impl", impl, _WHY)


def _clear_nothing() -> None:
    """There is no cuBLAS, which would keep memory between calls."""


# torch registers kernels for CUDA and for outside devices itself, and must not do so twice.
def _torch_calls() -> bool:
    return _in_torch(sys._getframe(2).f_globals.get("__name__"))


def _is_torchs(function: Callable[..., Any]) -> bool:
    return _in_torch(getattr(function, "__module__", None))


def _in_torch(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "torch"
