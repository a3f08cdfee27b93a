"""The queue of a device: its events and streams, and looks at many tensors that are deferred to when it gets there.

Events tell whether, and when, the device has got so far. A batch gathers what is to be looked at in one stream. When it
is full it is launched: the device computes the batch's numbers, behind the work that makes the tensors, and copies them
to the host behind an event. They are read when they have come, or when they are needed: there is no wait. What is
computed is up to the consumer: the first look of OpAutoCompare, the largest values of OpOverflowCheck, the digests of
OpCapture's statistics.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import BuiltinFunctionType
from typing import Any, Callable, Generic, TypeVar

import torch
from torch import Tensor

from op_tools.device import progress

OUT_OF_MEMORY: type[BaseException] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
_MAX_MS_SINCE_BASE = 1000.0  # events tell time in 32 bits, which is 60 ns at one second
_MAX_DRIFT_US = 100.0  # of the two clocks; asking takes a few µs

EnterStream = Callable[[], AbstractContextManager[Any]]
_Kind = tuple[Callable[[], Any], Callable[[int], Any]]  # makes an event; gives a device's current stream


class DeviceQueue:
    """The only pool of events for one device. They are used again: making one costs more than recording it."""

    def __init__(self, device: torch.device, make_event: Callable[[], Any], stream_of: Callable[[int], Any]) -> None:
        self._device = device
        self.current_stream = partial(stream_of, device.index or 0)
        self.stream_number: Callable[[], int] = lambda: int(getattr(self.current_stream(), "stream_id", 0))
        self.enter_stream: Callable[[Any], AbstractContextManager[Any]] = nullcontext
        self.tells_time = True
        self.events_know_device = False  # else they are recorded where the current device is, if no stream is named
        self._make_event = make_event
        self._free: list[Any] = []
        # a device with nothing to do gets there at once: that ties its time to the host's
        self._base = self.record()
        self._base.synchronize()
        self._moment_of_base = time.perf_counter_ns() / 1e3

    @property
    def name(self) -> str:
        """As the device is called now: ditorch may have come or gone."""
        return str(self._device)

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
        """Events that are not read."""
        self._free.extend(events)

    def this_stream(self) -> EnterStream:
        """Gives a `with` in which the current stream is the one of now."""
        number, stream = self.stream_number(), self.current_stream()
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
    """None for the CPU, and for a device that can only be synchronized as a whole."""
    try:
        return _queues[device]
    except KeyError:
        queue = _queues[device] = None if device.type == "cpu" else _found(device)
        return queue


def all_queues() -> list[DeviceQueue]:
    """Those that are in use."""
    return [queue for queue in list(_queues.values()) if queue is not None]


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
        stream = _module(device).stream
        with stream(queue.current_stream()):
            queue.enter_stream = stream
    except Exception:  # noqa: BLE001  likewise: one stream has to do
        return


def _fast_stream_number(device: torch.device) -> Callable[[], int] | None:
    """It is asked for at every call."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    # ditorch puts a Python function there, for another accelerator that calls itself cuda
    if device.type != "cuda" or not isinstance(raw, BuiltinFunctionType):
        return None
    return partial(raw, device.index or 0)


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


# ---- deferred looks --------------------------------------------------------------------------------------------------


class Batch:
    """What is looked at together, in the stream that was current when the batch was made."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_launched = False
        self._queue = queue_of(device)
        self._stream = 0 if self._queue is None else self._queue.stream_number()
        self._enter_stream = nullcontext if self._queue is None else self._queue.this_stream()
        self._event: Any = None
        self._asked = 0
        self._numbers: Sequence[Tensor] | None = None

    def look(self) -> Sequence[Tensor]:
        """Has the device compute the numbers, without a wait."""
        raise NotImplementedError

    def suits(self, device: torch.device) -> bool:
        """Whether what the current stream of `device` makes can be added."""
        return device == self.device and (self._queue is None or self._queue.stream_number() == self._stream)

    def launch(self) -> None:
        """Lets the device look. Where its memory does not suffice, there will be no numbers."""
        self.is_launched = True
        self._asked = progress.last[0]
        modes = torch.inference_mode(False), torch.no_grad(), torch._C._DisableAutocast()
        with contextlib.suppress(OUT_OF_MEMORY), self._enter_stream(), modes[0], modes[1], modes[2]:
            numbers = self.look()
            if self._queue is None:
                self._numbers = numbers  # without events, a copy that is on its way could be read too early
            else:
                copies = [one.to("cpu", non_blocking=True) for one in numbers]
                self._event = self._queue.record()
                self._numbers = copies

    def is_ready(self) -> bool:
        """Whether `numbers` need not wait. True where the device has no events to ask."""
        return self._event is None or bool(self._event.query())

    def numbers(self) -> Sequence[Tensor] | None:
        """What was found, once, waiting if need be; None where the device's memory did not suffice."""
        event, numbers = self._event, self._numbers
        self._event = self._numbers = None
        if event is not None and self._queue is not None:
            self._queue.wait(event)
        elif numbers is not None:
            numbers = [one.cpu() for one in numbers]
        if numbers is not None:
            progress.proven.append(self._asked)
        return numbers


SomeBatch = TypeVar("SomeBatch", bound=Batch)


class Deferred(Generic[SomeBatch]):
    """One batch that is filled, and those whose numbers are on their way. Answers are given in their order.

    Any thread may add: backward has one of its own. `answer` is called without the lock: it may run a backward pass, in
    autograd's thread, which may be waiting to add something.
    """

    def __init__(self, answer: Callable[[SomeBatch], None], max_unread: int) -> None:
        self._answer = answer
        self._max_unread = max_unread  # batches; a device so far behind is waited for
        self.lock = threading.RLock()
        self.current: SomeBatch | None = None
        self.unread: deque[SomeBatch] = deque()

    def launch(self, batch: SomeBatch | None = None) -> None:
        """Lets the device look at the current batch, or at one beside it."""
        with self.lock:
            if batch is None:
                batch, self.current = self.current, None
            if batch is not None:
                self.unread.append(batch)
                batch.launch()

    def read(self, wait: bool) -> None:
        """Gives the answers that have come; `wait`: all of them."""
        while True:
            with self.lock:
                unread = self.unread
                if not unread or not (wait or len(unread) > self._max_unread or unread[0].is_ready()):
                    return
                batch = unread.popleft()
            self._answer(batch)
