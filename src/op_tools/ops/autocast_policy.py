"""What torch.autocast is doing now, and which dtype it gives an op on accelerators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

import torch

from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.values import trees

_BY_DEVICE = hasattr(torch, "get_autocast_dtype")  # torch 2.4

# autocast touches tensors of these dtypes
ELIGIBLE = (torch.float32, torch.float16, torch.bfloat16)

is_any_enabled: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


@contextlib.contextmanager
def autocast(device_type: str, **options: Any) -> Iterator[None]:
    """torch.autocast for ops of ours.

    The end of an outermost region empties the cache of the whole process. In a thread of autograd, ours would be one,
    and the program would cast its weights anew, to other autograd nodes: so it counts as an inner one.
    """
    torch.autocast_increment_nesting()
    try:
        with torch.autocast(device_type, **options):
            yield
    finally:
        torch.autocast_decrement_nesting()


class Autocast(NamedTuple):
    """The autocast that a call runs under."""

    device_type: str
    dtype: torch.dtype
    caches: bool  # whether the low-precision copies of weights are kept

    def noted(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {"device": self.device_type, "dtype": str(self.dtype).partition(".")[2], "cache": self.caches}

    def __str__(self) -> str:
        return f"autocast: {str(self.dtype).partition('.')[2]}{'' if self.caches else ' without cache'}"


def of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Autocast | None:
    """The autocast that is on for the device of these arguments. To be asked only where `is_any_enabled`."""
    device_types = [tensor.device.type for tensor in trees.tensors((args, kwargs))]
    device_type = next((kind for kind in device_types if kind != "cpu"), "cpu")  # a scalar on the CPU does not decide
    dtype = active_dtype(device_type) if device_types else None
    return None if dtype is None else Autocast(str(device_type), dtype, torch.is_autocast_cache_enabled())


def from_note(note: Any) -> Autocast | None:
    """What `noted` gave, from JSON. Raises ValueError where that cannot have come from it."""
    if note is None:
        return None
    dtype = getattr(torch, str(note.get("dtype")), None) if isinstance(note, dict) else None
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"autocast cannot have been {note!r}")
    return Autocast(str(note.get("device", "")), dtype, note.get("cache") is not False)


def active_dtype(device_type: str) -> torch.dtype | None:
    """The low precision of the autocast that is on for this device; None where none is."""
    if not is_any_enabled():
        return None
    if _BY_DEVICE:
        return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None
    if device_type == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def active_device_type(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The kind of device that a call runs on, if autocast is on for it."""
    if not is_any_enabled():
        return None
    for tensor in trees.tensors((args, kwargs)):
        device_type = tensor.device.type
        return device_type if active_dtype(device_type) is not None else None
    return None


def chosen_dtype(name: str, device_type: str) -> torch.dtype | None:
    """The dtype that autocast gives an op; None where it leaves the choice to the arguments, or is off."""
    active = active_dtype(device_type)
    return None if active is None else dtype_by_policy(name, active)


def dtype_by_policy(name: str, active: torch.dtype) -> torch.dtype | None:
    """The same, where autocast is on with this low precision. The policy is torch's for CUDA."""
    if catalogue.has(name, Trait.AUTOCAST_LOW):
        return active
    return torch.float32 if catalogue.has(name, Trait.AUTOCAST_FLOAT32) else None
