"""Time on a device: events put into its queues, read back when the device has long passed them."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Callable

import torch

_LONGEST_SINCE_BASE = 1000.0  # ms; events tell time in 32 bits, which is 60 ns at one second
_DRIFT = 100.0  # µs; asking takes a few


class Clock:
    """The clock of one device. Its events are used again and again: making one costs more than recording it."""

    def __init__(self, device: torch.device, make: Callable[[], Any], stream_of: Callable[[int], Any]) -> None:
        self.name = str(device)
        self.current_stream = partial(stream_of, device.index or 0)
        self._make = make
        self._free: list[Any] = []
        # a device with nothing to do gets there at once: that ties its time to the host's
        self._base = self.record()
        self._base.synchronize()
        self._moment_of_base = time.perf_counter_ns() / 1e3

    def record(self, stream: Any = None) -> Any:
        """An event that tells when the device gets to here: `stream`, or the current one, which costs less.

        It comes back by `read` or `give_back`.
        """
        try:
            event = self._free.pop()
        except IndexError:
            event = self._make()
        if stream is None:
            event.record()
        else:
            event.record(stream)
        return event

    def give_back(self, *events: Any) -> None:
        """Events that nobody reads."""
        self._free.extend(events)

    def read(self, start: Any, end: Any, not_before: float) -> tuple[float, float]:
        """Milliseconds between two events that the device has passed, and the host's time at the first in microseconds.

        The device cannot have begun before the host asked it to, at `not_before`: that shows when the two clocks have
        drifted apart, and brings them together again.
        """
        elapsed = start.elapsed_time(end)
        since = self._base.elapsed_time(start)
        moment = self._moment_of_base + since * 1e3
        if moment < not_before - _DRIFT:
            self._moment_of_base += not_before - moment
            moment = not_before
        self._free.append(end)
        if since > _LONGEST_SINCE_BASE:
            start, self._base, self._moment_of_base = self._base, start, moment
        self._free.append(start)
        return elapsed, moment


_clocks: dict[torch.device, Clock | None] = {}


def clock_of(device: torch.device) -> Clock | None:
    """The clock of a device; None where it has no events that tell time."""
    try:
        return _clocks[device]
    except KeyError:
        clock = _clocks[device] = None if device.type == "cpu" else _found(device)
        return clock


def stream_id(stream: Any) -> int:
    """The number of a stream; 0 where the backend has one stream only, or does not tell."""
    return int(getattr(stream, "stream_id", 0))


def _found(device: torch.device) -> Clock | None:
    for kind in (_torchs_events, _events_of_module):
        try:
            clock = Clock(device, *kind(device))
            first, second = clock.record(), clock.record(clock.current_stream())
            second.synchronize()
            clock.read(first, second, 0.0)
        except Exception:  # noqa: BLE001, S112  a backend may refuse in any way: the next kind, or the host's clock
            continue
        return clock
    return None


def _torchs_events(device: torch.device) -> tuple[Callable[[], Any], Callable[[int], Any]]:
    """torch.Event does its work without Python, but not every torch and backend has it."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != device.type:
        raise TypeError("torch.accelerator is another device")
    stream_of = getattr(torch._C, "_accelerator_getStream", torch.accelerator.current_stream)
    return lambda: torch.Event(device=device, enable_timing=True), stream_of


def _events_of_module(device: torch.device) -> tuple[Callable[[], Any], Callable[[int], Any]]:
    """What backends have had for long. They belong to the device that is current when they are recorded."""
    module: Any = (
        torch.get_device_module(device) if hasattr(torch, "get_device_module") else getattr(torch, device.type)
    )
    return lambda: module.Event(enable_timing=True), getattr(module, "current_stream", lambda index: None)
