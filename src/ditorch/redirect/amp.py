"""Mixed precision: autocast("cuda"), GradScaler("cuda") and what torch.cuda.amp makes of them."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

import torch

from ditorch.backend import Backend
from ditorch.redirect.names import translated
from ditorch.redirect.patch import Patches

# Functions that mean CUDA when no device is named, or by their name; and the one for the accelerator.
_WITHOUT_DEVICE = ("is_autocast_enabled", "set_autocast_enabled")
_FOR_GPU = {"get_autocast_gpu_dtype": "get_autocast_dtype", "set_autocast_gpu_dtype": "set_autocast_dtype"}


def apply(patches: Patches, backend: Backend) -> None:
    device_type = backend.device_type
    why = 'autocast and GradScaler switch themselves off without a word where "cuda" is not there'
    _translate(patches, torch.amp.autocast_mode.autocast, "device_type", backend, why)
    scaler = getattr(torch.amp, "GradScaler", None)  # torch 2.3 and newer
    if scaler is not None:
        _translate(patches, scaler, "device", backend, why)
    patches.assign(torch.cuda.amp.common, "amp_definitely_not_available", lambda: not backend.has_devices(), why)
    for name in _WITHOUT_DEVICE:
        patches.assign(torch, name, _with_default_device(getattr(torch, name), device_type), "means CUDA unless told")
    for name, general in _FOR_GPU.items():
        if hasattr(torch, general):
            patches.assign(torch, name, functools.partial(getattr(torch, general), device_type), "means CUDA")


def _translate(patches: Patches, owner: type, argument: str, backend: Backend, why: str) -> None:
    original = vars(owner)["__init__"]
    default = inspect.signature(original).parameters[argument].default
    is_there = functools.lru_cache(maxsize=1)(backend.has_devices)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if not is_there():  # all are hidden: "cuda" is switched off with a warning, as it should be
            is_there.cache_clear()
        elif args:
            args = (translated(args[0], backend.device_type), *args[1:])
        elif argument in kwargs or default == "cuda":
            kwargs[argument] = translated(kwargs.get(argument, default), backend.device_type)
        original(self, *args, **kwargs)

    patches.assign(owner, "__init__", init, why)


def _with_default_device(original: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    """is_autocast_enabled() is is_autocast_enabled("cuda"), and set_autocast_enabled(True) likewise."""

    @functools.wraps(original)
    def function(*args: Any) -> Any:
        if args and isinstance(args[0], str):
            return original(translated(args[0], device_type), *args[1:])
        return original(device_type, *args)

    return function
