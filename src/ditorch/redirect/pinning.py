"""Pinned memory is the accelerator's: before torch 2.6, pin_memory() and is_pinned() ask CUDA unless told otherwise."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch

from ditorch.backend import Backend
from ditorch.redirect.patch import Patches

_WHY = "torch before 2.6 asks CUDA for pinned memory, which is not there"


def apply(patches: Patches, backend: Backend) -> None:
    if hasattr(torch, "accelerator") or backend.device_type in ("cuda", "cpu"):
        return  # torch asks the accelerator that is there
    methods: Any = torch.Tensor
    patches.assign(methods, "pin_memory", _pinned(methods.pin_memory, backend.device_type), _WHY)
    patches.assign(methods, "is_pinned", _told(methods.is_pinned, backend.device_type), _WHY)


def _pinned(original: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def pin_memory(tensor: torch.Tensor, device: Any = None) -> Any:
        if device is not None:
            return original(tensor, device)
        try:
            return original(tensor)  # a vendor may have mended it
        except RuntimeError:
            return original(tensor, device_type)

    return pin_memory


def _told(original: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
        if device is not None:
            return bool(original(tensor, device))
        return bool(original(tensor)) or bool(original(tensor, device_type))

    return is_pinned
