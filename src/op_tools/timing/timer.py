"""What OpTimeMeasure's clock does without the C++ helper (native/csrc/timer.h has the same, faster).

A span is one stretch of time: a call's forward, or autograd nodes of its backward that run one after the other.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch

from op_tools.device.queues import DeviceQueue, clock_of, stream_id
from op_tools.timing import signature
from op_tools.values import trees

MAX_NESTED_CALLS = 200  # calls inside calls; checkpointing leaves some behind when it stops in the middle of an op

# What `take` gives for a stretch of time: (timing, backward, is last, thread, began µs, host ms, device, stream,
# elapsed ms, moment µs, own ms, has inner), where the device is None if it has no events; for gradients that have
# flowed: (timing, inputs, outputs).
Entry = tuple[Any, ...]


class Span:
    """One call on its way: made before it runs, finished after, and in backward the one its nodes belong to."""

    __slots__ = ("clock", "is_guess", "stretch", "timer", "timing")

    def __init__(self, timer: Timer, timing: Any, clock: DeviceQueue | None, is_guess: bool) -> None:
        self.timer = timer
        self.timing = timing
        self.clock = clock
        self.is_guess = is_guess  # of the device: we never hear again of a call whose result turns out to be on the CPU
        self.stretch = timer.begin_stretch(self, backward=False, may_vanish=is_guess)

    def finish(self, result: Any, is_recorded: bool) -> bool:
        """Right after the op, which autograd may have recorded. Will gradients flow?"""
        stretch = self.stretch
        stretch.finish()
        if not self.is_guess:
            self.timer.leave(stretch)
        else:
            device = _device_among(result)
            if device is None or clock_of(device) is not self.clock:
                stretch.without_events()
                self.clock = None
        flows = is_recorded and any(tensor.requires_grad for tensor in trees.tensors(result))
        stretch.is_last = not flows
        self.timer.add(stretch)
        return flows

    def give_up(self) -> None:
        """The op raised."""
        self.stretch.finish()
        self.stretch.without_events()
        if not self.is_guess:
            self.timer.leave(self.stretch)


class Stretch:
    """When something began and ended."""

    __slots__ = (
        "backward",
        "began",
        "clock",
        "end",
        "ended",
        "inner",
        "is_last",
        "outer",
        "span",
        "start",
        "stream",
        "thread",
    )

    def __init__(self, span: Span, backward: bool, outer: Stretch | None, thread: int) -> None:
        self.span = span
        self.backward = backward
        self.outer = outer  # that of the call which this one is inside of
        self.inner = 0.0  # ms of the calls inside this one
        self.thread = thread
        self.is_last = False  # nothing more will come for its call
        self.clock = span.clock
        self.start: Any = None
        self.end: Any = None
        self.stream: Any = None
        if self.clock is not None:
            self.stream = self.clock.current_stream()
            self.start = self.clock.record()
        self.began = self.ended = perf_counter_ns()

    def finish(self) -> None:
        """To be called right after the op; again, after its next node."""
        self.ended = perf_counter_ns()
        if self.end is not None:
            self.end.record()
        elif self.clock is not None:
            self.end = self.clock.record()

    def without_events(self) -> None:
        """They were put into the queue of another device: the host's time has to do."""
        if self.clock is not None:
            self.clock.give_back(self.start, self.end)
            self.clock = self.start = self.end = None

    def read(self) -> Entry:
        """As `take` gives it."""
        timing, began, host = self.span.timing, self.began / 1e3, (self.ended - self.began) / 1e6
        device, stream, elapsed, moment = None, 0, host, began
        if self.clock is not None:
            device, stream = self.clock.name, stream_id(self.stream)
            elapsed, moment = self.clock.read(self.start, self.end, began)
        if self.outer is not None:
            self.outer.inner += elapsed
        times = (elapsed, moment, max(elapsed - self.inner, 0.0), self.inner > 0)
        return (timing, self.backward, self.is_last, self.thread, began, host, device, stream, *times)


class _Thread:
    """What one thread is in the middle of."""

    __slots__ = ("ended", "running")

    def __init__(self) -> None:
        self.running: list[Stretch] = []  # calls inside calls, the innermost last
        self.ended: Stretch | None = None  # in backward: the op may have another node, which would be the next to run


class Timer:
    """Any thread may begin and finish; one at a time takes."""

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = defaultdict(_Thread)
        self._latest_clock: DeviceQueue | None = None
        self._entries: list[Stretch | tuple[Any, str, str]] = []
        self._lock = threading.Lock()

    def begin(self, timing: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span:
        """Right before the op. An op that makes its tensors will put them where the last ones were."""
        device = _device_among(args) or (_device_among(kwargs) if kwargs else None)
        if device is not None:
            self._latest_clock = clock_of(device)
        return Span(self, timing, self._latest_clock, device is None)

    def node_begins(self, span: Span) -> None:
        thread = self._threads[get_ident()]
        stretch = thread.ended
        if stretch is not None and stretch.span is span:
            # the op's next node follows its last one: one stretch for both costs half
            thread.ended = None
            thread.running.append(stretch)
        else:
            self.begin_stretch(span, backward=True)

    def node_ends(self, span: Span) -> None:
        thread = self._threads[get_ident()]
        for stretch in reversed(thread.running):
            if stretch.span is span and stretch.backward:
                stretch.finish()
                self.leave(stretch)
                thread.ended = stretch
                return

    def flowed(self, span: Span, inputs: list[Any], outputs: list[Any]) -> None:
        for thread in list(self._threads.values()):
            if thread.ended is not None and thread.ended.span is span:
                self._hand_over(thread)
        self._entries.append((span.timing, signature.of(inputs), signature.of(outputs)))

    def close(self) -> None:
        """The last listener is gone."""

    def unread(self) -> int:
        """How much there is to take."""
        return len(self._entries)

    def take(self, everything: bool, wait: bool) -> list[Entry]:
        """The older half, or everything. Nothing where the device has not passed it, unless `wait`."""
        with self._lock:
            if everything:
                for thread in list(self._threads.values()):
                    self._hand_over(thread)
            count = len(self._entries)
            entries = self._entries[: count if everything else count // 2]
            if not _passed(entries, wait):
                return []
            del self._entries[: len(entries)]
            return [entry.read() if type(entry) is Stretch else entry for entry in entries]  # type: ignore[misc]

    # -----------------------------------------------------------------------------------------------------------------

    def begin_stretch(self, span: Span, backward: bool, may_vanish: bool = False) -> Stretch:
        identity = get_ident()
        thread = self._threads[identity]
        self._hand_over(thread)
        running = thread.running
        if len(running) > MAX_NESTED_CALLS:
            running.clear()
        stretch = Stretch(span, backward, running[-1] if running else None, identity)
        if not may_vanish:
            running.append(stretch)
        return stretch

    def add(self, stretch: Stretch) -> None:
        self._entries.append(stretch)

    def leave(self, stretch: Stretch) -> None:
        """Whatever is above it on the stack was given up in the middle: an error went through it."""
        thread = self._threads[stretch.thread]
        self._hand_over(thread)
        running = thread.running
        while running and running.pop() is not stretch:
            pass

    def _hand_over(self, thread: _Thread) -> None:
        if thread.ended is not None:
            self._entries.append(thread.ended)
            thread.ended = None


def _passed(entries: list[Any], wait: bool) -> bool:
    """Whether the device has passed all of them; a stream's last event tells of those before it."""
    last = {entry.stream: entry.end for entry in entries if type(entry) is Stretch and entry.clock is not None}
    for event in last.values():
        if wait:
            event.synchronize()
        elif not event.query():
            return False
    return True


def _device_among(value: Any) -> torch.device | None:
    """That of the first tensor that is not on the CPU."""
    return next((tensor.device for tensor in trees.tensors(value) if not tensor.is_cpu), None)
