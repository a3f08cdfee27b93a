"""torch.compile: where Inductor has no code generator for the accelerator, the graph runs there op by op."""

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
    told: list[bool] = []

    @functools.wraps(original)
    def compile(model: Callable[..., Any] | None = None, **options: Any) -> Any:
        if options.get("backend", "inductor") != "inductor" or _has_code_generator(backend.device_type):
            return original(model, **options) if model is not None else original(**options)
        if not told:
            told.append(True)
            print(
                f"ditorch: torch.compile: Inductor has no code generator for {backend.name}; using {_INSTEAD}",
                file=sys.stderr,
            )
        kept = {name: value for name, value in options.items() if name not in ("mode", "options")}  # Inductor's own
        kept["backend"] = _INSTEAD
        return original(model, **kept) if model is not None else original(**kept)

    patches.assign(torch, "compile", compile, "Inductor would take the accelerator for CUDA and look for Triton")


@functools.cache
def _has_code_generator(device_type: str) -> bool:
    from torch._inductor.codegen import common  # slow to import, and only here

    getattr(common, "init_backend_registration", lambda: None)()  # not in torch 2.4
    return common.get_scheduling_for_device(device_type) is not None
