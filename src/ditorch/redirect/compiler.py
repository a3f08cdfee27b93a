"""torch.compile: where a backend cannot do the accelerator, the graph runs there op by op."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

import torch

from ditorch.backend import Backend
from ditorch.redirect.patch import Patches

_INSTEAD = "aot_eager"  # the same graph, forward and backward, op by op


def apply(patches: Patches, backend: Backend) -> None:
    if backend.device_type == "cpu" or not hasattr(torch, "compile"):
        return  # Inductor knows the CPU
    original = torch.compile
    told: set[str] = set()

    @functools.wraps(original)
    def compile(model: Callable[..., Any] | None = None, **options: Any) -> Any:
        reason = _missing(options.get("backend", "inductor"), backend)
        if reason is None:
            return original(model, **options) if model is not None else original(**options)
        if reason not in told:
            told.add(reason)
            print(f"ditorch: torch.compile: {reason}; using {_INSTEAD}", file=sys.stderr)
        kept = {name: value for name, value in options.items() if name not in ("mode", "options")}  # Inductor's own
        kept["backend"] = _INSTEAD
        return original(model, **kept) if model is not None else original(**kept)

    patches.assign(torch, "compile", compile, "Inductor would take the accelerator for CUDA and look for Triton")


def _missing(compiler: Any, backend: Backend) -> str | None:
    """Why this compiler of torch.compile's cannot do the accelerator; None: it can, or is the user's own."""
    if compiler == "inductor" and not _has_code_generator(backend.device_type):
        return f"Inductor has no code generator for {backend.name}"
    if compiler == "cudagraphs":  # it calls CUDA's allocator, which only a PyTorch built with CUDA has
        return f"cudagraphs needs memory pools of CUDA's allocator, which {backend.name} does not have"
    return None


@functools.cache
def _has_code_generator(device_type: str) -> bool:
    from torch._inductor.codegen import common  # slow to import, and only here

    getattr(common, "init_backend_registration", lambda: None)()  # not in torch 2.4
    return common.get_scheduling_for_device(device_type) is not None
