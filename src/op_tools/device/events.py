"""Marks in a device's queue: who needs to know that the device has got so far waits for the mark, and nobody else."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Callable

import torch
from torch import Tensor


class Marker:
    """Sets marks in the current stream of one device. They are used again and again."""

    def __init__(self, module: Any, device: torch.device) -> None:
        self._make = module.Event
        self._current_stream = partial(module.current_stream, device)
        self._enter = module.stream
        self._free: list[Any] = []
        self.stream = _stream_number(device, module.current_stream)  # the number of the current stream

    def set(self) -> Any:
        """A mark behind all that this thread has asked of the device until now."""
        try:
            mark = self._free.pop()
        except IndexError:
            mark = self._make()
        mark.record(self._current_stream())
        return mark

    def wait(self, mark: Any) -> None:
        """Returns when the device has got to the mark, which is then used again."""
        mark.synchronize()
        self._free.append(mark)

    def this_stream(self) -> Callable[[], AbstractContextManager[Any]]:
        """Gives a `with` in which the current stream is the one of now."""
        number, stream = self.stream(), self._current_stream()
        return lambda: nullcontext() if self.stream() == number else self._enter(stream)


_markers: dict[torch.device, Marker | None] = {}


def marker_of(device: torch.device) -> Marker | None:
    """None for the CPU, and for a device whose queue nobody can wait for but as a whole."""
    try:
        return _markers[device]
    except KeyError:
        marker = _markers[device] = None if device.type == "cpu" else _found(device)
        return marker


def _found(device: torch.device) -> Marker | None:
    try:
        module: Any = (
            torch.get_device_module(device) if hasattr(torch, "get_device_module") else getattr(torch, device.type)
        )
        marker = Marker(module, device)
        marker.wait(marker.set())
        with marker.this_stream()():
            pass
    except Exception:  # noqa: BLE001  a backend may lack this in any way: then copies are waited for
        return None
    return marker


def _stream_number(device: torch.device, current_stream: Callable[[torch.device], Any]) -> Callable[[], int]:
    """Asked for at every call, so in the fastest way that there is."""
    if device.type == "cuda" and hasattr(torch._C, "_cuda_getCurrentRawStream"):
        return partial(torch._C._cuda_getCurrentRawStream, device.index)
    if hasattr(torch, "accelerator") and torch.accelerator.current_accelerator() == torch.device(device.type):
        of_device, index = getattr(torch._C, "_accelerator_getStream", None), device.index
        if of_device is not None and index is not None:
            return lambda: int(of_device(index).stream_id)
        return lambda: torch.accelerator.current_stream(index).stream_id
    return lambda: int(getattr(current_stream(device), "stream_id", 0))


def stream_of(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Gives a `with` in which the device's current stream is the one of now."""
    marker = marker_of(device)
    return nullcontext if marker is None else marker.this_stream()


class OnTheWay:
    """Results that the device copies to the host when it gets there."""

    __slots__ = ("_mark", "_marker")

    def __init__(self) -> None:
        self._marker: Marker | None = None
        self._mark: Any = None

    def add(self, tensor: Tensor) -> Tensor:
        """Its copy, for when `wait` is over."""
        if tensor.is_cpu or marker_of(tensor.device) is None:
            return tensor.cpu()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def mark(self, device: torch.device) -> None:
        """All were added."""
        self._marker = marker_of(device)
        self._mark = None if self._marker is None else self._marker.set()

    def wait(self) -> None:
        """Returns when they are there."""
        if self._marker is not None:
            self._marker.wait(self._mark)
