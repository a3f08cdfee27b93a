"""Marks in a device's queue: who needs to know that the device has got so far waits for the mark, and nobody else."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import torch


class Marker:
    """Sets marks in the current stream of one device. They are used again and again."""

    def __init__(self, make: Callable[[], Any], current_stream: Callable[[], Any], stream: Callable[[], int]) -> None:
        self._make = make
        self._current_stream = current_stream
        self._free: list[Any] = []
        self.stream = stream  # the number of the current stream

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
        event, current_stream = module.Event, module.current_stream
        marker = Marker(event, lambda: current_stream(device), _stream_number(device, current_stream))
        marker.wait(marker.set())
        marker.stream()
    except Exception:  # noqa: BLE001  a backend may lack this in any way: then copies are waited for
        return None
    return marker


def _stream_number(device: torch.device, current_stream: Callable[[torch.device], Any]) -> Callable[[], int]:
    """Asked for at every call, so in the fastest way that there is."""
    if device.type == "cuda" and hasattr(torch._C, "_cuda_getCurrentRawStream"):
        return partial(torch._C._cuda_getCurrentRawStream, device.index)
    if hasattr(torch, "accelerator") and torch.accelerator.current_accelerator() == torch.device(device.type):
        return lambda: torch.accelerator.current_stream(device.index).stream_id
    return lambda: int(getattr(current_stream(device), "stream_id", 0))
