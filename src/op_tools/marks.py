"""Marks in a device's queue: who needs to know that the device has got so far waits for the mark, and nobody else."""

from __future__ import annotations

from typing import Any, Callable

import torch


class Marker:
    """Sets marks in the current stream of one device. They are used again and again."""

    def __init__(self, make: Callable[[], Any], current_stream: Callable[[], Any]) -> None:
        self._make = make
        self._current_stream = current_stream
        self._free: list[Any] = []

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

    def stream(self) -> int:
        """The number of the current stream."""
        stream = self._current_stream()
        return int(getattr(stream, "stream_id", 0))


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
        marker = Marker(event, lambda: current_stream(device))
        marker.wait(marker.set())
    except Exception:  # noqa: BLE001  a backend may lack this in any way: then copies are waited for
        return None
    return marker
