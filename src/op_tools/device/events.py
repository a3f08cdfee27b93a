"""The queue of a device: its events tell whether, and when, the device has got so far; and its streams."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Callable

import torch

_MAX_MS_SINCE_BASE = 1000.0  # events tell time in 32 bits, which is 60 ns at one second
_MAX_DRIFT_US = 100.0  # of the two clocks; asking takes a few µs

EnterStream = Callable[[], AbstractContextManager[Any]]
_Kind = tuple[Callable[[], Any], Callable[[int], Any]]  # makes an event; gives a device's current stream


class DeviceQueue:
    """The only pool of events for one device. They are used again: making one costs more than recording it."""

    def __init__(self, device: torch.device, make_event: Callable[[], Any], stream_of: Callable[[int], Any]) -> None:
        self.name = str(device)
        self.current_stream = partial(stream_of, device.index or 0)
        self.stream_number: Callable[[], int] = lambda: stream_id(self.current_stream())
        self.stream_to_enter: Callable[[], Any] = self.current_stream
        self.enter_stream: Callable[[Any], AbstractContextManager[Any]] = nullcontext
        self.tells_time = True
        self.events_know_device = False  # else they are recorded where the current device is, if no stream is named
        self._make_event = make_event
        self._free: list[Any] = []
        # a device with nothing to do gets there at once: that ties its time to the host's
        self._base = self.record()
        self._base.synchronize()
        self._moment_of_base = time.perf_counter_ns() / 1e3

    def record(self, stream: Any = None) -> Any:
        """An event behind all that was asked of `stream`, or of the current one, which costs less.

        It comes back by `wait`, `read` or `give_back`.
        """
        try:
            event = self._free.pop()
        except IndexError:
            event = self._make_event()
        if stream is None and not self.events_know_device:
            stream = self.current_stream()
        if stream is None:
            event.record()
        else:
            event.record(stream)
        return event

    def wait(self, event: Any) -> None:
        """Returns when the device has got to the event, which is then used again."""
        event.synchronize()
        self._free.append(event)

    def give_back(self, *events: Any) -> None:
        """Events that nobody reads."""
        self._free.extend(events)

    def this_stream(self) -> EnterStream:
        """Gives a `with` in which the current stream is the one of now."""
        number, stream = self.stream_number(), self.stream_to_enter()
        return lambda: nullcontext() if self.stream_number() == number else self.enter_stream(stream)

    def read(self, start: Any, end: Any, not_before: float) -> tuple[float, float]:
        """Milliseconds between two events that the device has passed, and the host's time at the first in microseconds.

        The device cannot have begun before the host asked it to, at `not_before`: that shows when the two clocks have
        drifted apart, and brings them together again.
        """
        elapsed = start.elapsed_time(end)
        since = self._base.elapsed_time(start)
        moment = self._moment_of_base + since * 1e3
        if moment < not_before - _MAX_DRIFT_US:
            self._moment_of_base += not_before - moment
            moment = not_before
        self._free.append(end)
        if since > _MAX_MS_SINCE_BASE:
            start, self._base, self._moment_of_base = self._base, start, moment
        self._free.append(start)
        return elapsed, moment


_queues: dict[torch.device, DeviceQueue | None] = {}


def queue_of(device: torch.device) -> DeviceQueue | None:
    """None for the CPU, and for a device whose queue nobody can wait for but as a whole."""
    try:
        return _queues[device]
    except KeyError:
        queue = _queues[device] = None if device.type == "cpu" else _found(device)
        return queue


def clock_of(device: torch.device) -> DeviceQueue | None:
    """Likewise; None also where its events do not tell time."""
    queue = queue_of(device)
    return queue if queue is not None and queue.tells_time else None


def stream_number(device: torch.device) -> int:
    """Of the current stream."""
    queue = queue_of(device)
    return 0 if queue is None else queue.stream_number()


def this_stream(device: torch.device) -> EnterStream:
    """Gives a `with` in which the device's current stream is the one of now."""
    queue = queue_of(device)
    return nullcontext if queue is None else queue.this_stream()


def stream_id(stream: Any) -> int:
    """The number of a stream; 0 where the backend has one stream only, or does not tell."""
    return int(getattr(stream, "stream_id", 0))


# ---- what a backend has ----------------------------------------------------------------------------------------------


def _found(device: torch.device) -> DeviceQueue | None:
    for kind in (_torchs_events, _events_of_module, _events_without_time):
        try:
            queue = DeviceQueue(device, *kind(device))
            queue.tells_time = kind is not _events_without_time
            queue.events_know_device = kind is _torchs_events
            first, second = queue.record(), queue.record(queue.current_stream())
            second.synchronize()
            if queue.tells_time:
                queue.read(first, second, 0.0)
        except Exception:  # noqa: BLE001, S112  a backend may refuse in any way: the next kind, or none
            continue
        _find_streams(queue, device)
        return queue
    return None


def _find_streams(queue: DeviceQueue, device: torch.device) -> None:
    try:
        number = _fast_stream_number(device)
        if number is not None:
            number()
            queue.stream_number = number
        module = _module(device)
        stream = partial(module.current_stream, device)
        with module.stream(stream()):
            queue.stream_to_enter, queue.enter_stream = stream, module.stream
    except Exception:  # noqa: BLE001  likewise: one stream has to do
        return


def _fast_stream_number(device: torch.device) -> Callable[[], int] | None:
    """It is asked for at every call."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return partial(raw, device.index or 0) if device.type == "cuda" and raw is not None else None


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device) if hasattr(torch, "get_device_module") else getattr(torch, device.type)


def _torchs_events(device: torch.device) -> _Kind:
    """torch.Event does its work without Python, but not every torch and backend has it."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != device.type:
        raise TypeError("torch.accelerator is another device")
    stream_of = getattr(torch._C, "_accelerator_getStream", torch.accelerator.current_stream)
    return lambda: torch.Event(device=device, enable_timing=True), stream_of


def _events_of_module(device: torch.device) -> _Kind:
    """What backends have had for long."""
    module = _module(device)
    return lambda: module.Event(enable_timing=True), getattr(module, "current_stream", lambda index: None)


def _events_without_time(device: torch.device) -> _Kind:
    module = _module(device)
    return module.Event, getattr(module, "current_stream", lambda index: None)
