"""The book of times: takes in every span, reads its events when the device has passed them, writes and sums up."""

from __future__ import annotations

import threading
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Callable

from op_tools import rows
from op_tools.call import OpCall
from op_tools.timing.clock import Clock
from op_tools.timing.trace import TraceFile

COLUMNS = (
    "name",
    "forward_id",
    "forward_elasped",
    "backward_elasped",
    "unit",
    "input",
    "output",
    "grad_inputs",
    "grad_outputs",
    "forward_host_elasped",
    "backward_host_elasped",
    "step",
    "module",
    "where",
)
_READ_AT = 1024  # entries; the older half of them is read then
_MOST_UNREAD = 16 * _READ_AT  # a device so far behind is waited for
_MOST_WAITING = 10_000  # calls whose gradients have not flowed yet


class Timing:
    """The times of one call, as they become known. A second backward pass makes a second row, without the forward."""

    __slots__ = (
        "backward",
        "backward_host",
        "clock",
        "forward",
        "forward_host",
        "id",
        "inputs",
        "name",
        "outputs",
        "step",
        "where",
    )

    def __init__(self, call: OpCall, clock: Clock | None, inputs: str) -> None:
        self.id = call.id
        self.name = call.name
        self.where = call.where
        self.step = call.step
        self.clock = clock
        self.inputs = inputs
        self.outputs = ""
        self.forward = self.forward_host = self.backward = self.backward_host = -1.0  # ms; none yet


class Span:
    """One stretch of time: a call's forward, or autograd nodes of its backward that run one after the other."""

    __slots__ = (
        "backward",
        "began",
        "elapsed",
        "end",
        "ended",
        "inner",
        "is_last",
        "outer",
        "start",
        "stream",
        "thread",
        "timing",
    )

    def __init__(self, timing: Timing, backward: bool, outer: Span | None, thread: int) -> None:
        self.timing = timing
        self.backward = backward
        self.outer = outer  # that of the call which this one is inside of
        self.inner = 0.0  # ms of the calls inside this one
        self.thread = thread
        self.is_last = False  # nothing more will come for its call
        self.elapsed = 0.0  # ms, once it is read
        self.start: Any = None
        self.end: Any = None
        self.stream: Any = None
        clock = timing.clock
        if clock is not None:
            self.stream = clock.current_stream()
            self.start = clock.record()
        self.began = perf_counter_ns()

    def finish(self) -> None:
        """To be called right after the op; again, after its next node."""
        self.ended = perf_counter_ns()
        clock = self.timing.clock
        if self.end is not None:
            self.end.record()
        elif clock is not None:
            self.end = clock.record()

    def without_events(self) -> None:
        """They were put into the queue of another device: the host's time has to do."""
        clock, self.timing.clock = self.timing.clock, None
        if clock is not None:
            clock.give_back(self.start, self.end)
            self.start = self.end = None


class Total:
    """The sums of all calls of one op, in ms. What ops inside it took is theirs, not its own."""

    __slots__ = ("all_in_all", "backward", "calls", "forward", "has_inner")

    def __init__(self) -> None:
        self.calls = 0
        self.forward = 0.0
        self.backward = 0.0
        self.all_in_all = 0.0  # with the ops inside
        self.has_inner = False

    @property
    def own(self) -> float:
        return self.forward + self.backward


class Ledger:
    """Any thread may add; one at a time reads."""

    def __init__(
        self, csv: Path, most_rows: int, most_events: int, row_written: Callable[[tuple[str, ...]], None]
    ) -> None:
        self.rows = rows.CsvFile(csv, COLUMNS, most_rows)
        self.trace = TraceFile(csv.with_suffix(".json"), most_events)
        self.totals: dict[str, Total] = {}
        self._row_written = row_written
        self._entries: list[Span | tuple[Timing, str, str]] = []
        self._read_at = _READ_AT
        self._reading = threading.Lock()
        self._waiting: dict[int, Timing] = {}

    def add(self, span: Span) -> None:
        """A span that has ended."""
        self._entries.append(span)
        if len(self._entries) >= self._read_at:
            self.read()

    def wait_for_gradients(self, timing: Timing) -> None:
        """The row of this call is not complete yet. Only so many can wait: some gradients never flow."""
        self._waiting[timing.id] = timing
        if len(self._waiting) > _MOST_WAITING:
            self._give_up_waiting(_MOST_WAITING // 10)

    def gradients_flowed(self, timing: Timing, inputs: str, outputs: str) -> None:
        """The row of this call is complete."""
        self._waiting.pop(timing.id, None)
        self._entries.append((timing, inputs, outputs))

    def _give_up_waiting(self, count: int) -> None:
        for number in list(self._waiting)[:count]:
            timing = self._waiting.pop(number, None)  # its gradients may flow in this very moment
            if timing is not None:
                self._entries.append((timing, "", ""))

    def close(self) -> None:
        """Waits for the device and writes everything."""
        self._give_up_waiting(len(self._waiting))
        self.read(everything=True)
        self.rows.close()
        self.trace.close()

    def read(self, everything: bool = False) -> None:
        """Takes in what the device has passed: the older half, which costs no waiting, or everything."""
        if not self._reading.acquire(blocking=everything):
            return
        try:
            count = len(self._entries)
            entries = self._entries[: count if everything else count // 2]
            if self._passed(entries, wait=everything or count >= _MOST_UNREAD):
                del self._entries[: len(entries)]
                for entry in entries:
                    if type(entry) is Span:
                        self._take_in(entry)
                    else:
                        self._write(*entry)  # type: ignore[misc]
            self._read_at = max(len(self._entries) + _READ_AT // 2, _READ_AT)
        finally:
            self._reading.release()

    @staticmethod
    def _passed(entries: list[Any], wait: bool) -> bool:
        """Whether the device has passed all of them; a stream's last event tells of those before it."""
        last = {entry.stream: entry.end for entry in entries if type(entry) is Span and entry.start is not None}
        for event in last.values():
            if wait:
                event.synchronize()
            elif not event.query():
                return False
        return True

    def _take_in(self, span: Span) -> None:
        timing, clock, trace, began = span.timing, span.timing.clock, self.trace, span.began / 1e3
        name, host = timing.name, (span.ended - span.began) / 1e6
        phase, notes = "backward" if span.backward else "forward", trace.notes(timing.id, timing.where.module)
        trace.add(name, phase, trace.thread(span.thread), began, host * 1e3, notes)
        if clock is None:
            elapsed = span.elapsed = host
        else:
            elapsed, moment = clock.read(span.start, span.end, began)
            span.elapsed = elapsed
            trace.add(name, phase, trace.stream(clock.name, span.stream), moment, elapsed * 1e3, notes)
        total = self.totals.get(name)
        if total is None:
            total = self.totals[name] = Total()
        own = elapsed
        if span.inner:
            own = max(elapsed - span.inner, 0.0)
            total.has_inner = True
        if span.outer is not None:
            span.outer.inner += elapsed
            span.outer = None
        total.all_in_all += elapsed
        if span.backward:
            total.backward += own
            timing.backward = max(timing.backward, 0.0) + elapsed
            timing.backward_host = max(timing.backward_host, 0.0) + host
        else:
            total.forward += own
            total.calls += 1
            timing.forward, timing.forward_host = elapsed, host
            if span.is_last:
                self._write(timing, "", "")

    def _write(self, timing: Timing, grad_inputs: str, grad_outputs: str) -> None:
        forward, backward = _as_text(timing.forward), _as_text(timing.backward)
        where, cell = timing.where, rows.cell
        self.rows.add(
            f"{cell(timing.name)},{timing.id},{forward},{backward},ms,{cell(timing.inputs)},{cell(timing.outputs)},"
            f"{cell(grad_inputs)},{cell(grad_outputs)},{_as_text(timing.forward_host)},"
            f"{_as_text(timing.backward_host)},{timing.step},{cell(where.module)},{cell(where.line())}"
        )
        timing.forward = timing.forward_host = timing.backward = timing.backward_host = -1.0
        self._row_written((timing.name, str(timing.id), forward, backward, "ms"))


def _as_text(elapsed: float) -> str:
    return "" if elapsed < 0 else f"{elapsed:.8f}"
