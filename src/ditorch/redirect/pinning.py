"""Pinned memory is the accelerator's: a torch that was built for CUDA asks CUDA for it, up to torch 2.6 at least."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch

from ditorch.backend import Backend
from ditorch.redirect.patch import Patches

_WHY = "a torch that was built for CUDA asks CUDA for pinned memory, which is not there"


def apply(patches: Patches, backend: Backend) -> None:
    if not torch.version.cuda or backend.device_type == "cuda":
        return  # without CUDA in it, torch asks the accelerator
    methods: Any = torch.Tensor
    patches.assign(methods, "pin_memory", _pinned(methods.pin_memory, backend.device_type), _WHY)
    patches.assign(methods, "is_pinned", _told(methods.is_pinned, backend.device_type), _WHY)


def _pinned(original: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def pin_memory(tensor: torch.Tensor, *device: Any, **named: Any) -> Any:
        if device or named:
            return original(tensor, *device, **named)
        try:
            return original(tensor)  # newer releases ask the accelerator that is there
        except RuntimeError:
            return original(tensor, device_type)

    return pin_memory


def _told(original: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def is_pinned(tensor: torch.Tensor, *device: Any, **named: Any) -> bool:
        if device or named:
            return bool(original(tensor, *device, **named))
        return bool(original(tensor)) or bool(original(tensor, device_type))

    return is_pinned
