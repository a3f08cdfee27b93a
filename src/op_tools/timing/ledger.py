"""The table, the trace and the sums of times, from spans that the device has passed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Callable

import torch

from op_tools.core.call import OpCall
from op_tools.device import failure
from op_tools.output import csv_files
from op_tools.timing import signature
from op_tools.timing.collectives import Collective, TimedCollectives
from op_tools.timing.timer import Span, Timer
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
READ_AT_ENTRIES = 1024  # the older half of them is read then
MAX_UNREAD_ENTRIES = 16 * READ_AT_ENTRIES  # a device so far behind is waited for
MAX_WAITING_CALLS = 10_000  # calls whose gradients have not flowed yet


class Timing:
    """The times of one call, as they become known. A second backward pass makes a second row, without the forward."""

    __slots__ = (
        "backward",
        "backward_host",
        "forward",
        "forward_host",
        "id",
        "inputs",
        "is_written",
        "name",
        "outputs",
        "step",
        "where",
    )

    def __init__(self, call: OpCall, inputs: str) -> None:
        self.id = call.id
        self.name = call.name
        self.where = call.where
        self.step = call.step
        self.inputs = inputs
        self.outputs = ""
        self.begin_row()

    def begin_row(self) -> None:
        self.forward = self.forward_host = self.backward = self.backward_host = -1.0  # ms; none yet
        self.is_written = False


class Total:
    """The sums of all calls of one op, in ms. What ops inside it took is theirs, not its own."""

    __slots__ = ("all_in_all", "backward", "calls", "forward", "has_inner")

    def __init__(
        self,
        calls: int = 0,
        forward: float = 0.0,
        backward: float = 0.0,
        all_in_all: float = 0.0,
        has_inner: bool = False,
    ) -> None:
        self.calls = calls
        self.forward = forward
        self.backward = backward
        self.all_in_all = all_in_all  # with the ops inside
        self.has_inner = has_inner

    @property
    def own(self) -> float:
        return self.forward + self.backward

    def add(self, other: Total) -> None:
        self.calls += other.calls
        self.forward += other.forward
        self.backward += other.backward
        self.all_in_all += other.all_in_all
        self.has_inner |= other.has_inner


class Book:
    """A table, a trace and sums of times. Takes in what its timer has, now and then; one thread at a time."""

    timer: Any

    def __init__(self, csv: Path, most_rows: int, most_events: int, collectives: TimedCollectives) -> None:
        self.rows = csv_files.CsvFile(csv, COLUMNS, most_rows)
        self.trace = TraceFile(csv.with_suffix(".json"), most_events)
        self.totals: dict[str, Total] = {}
        self.collectives = collectives
        self._of_collectives: dict[str, Total] = {}
        self._latest_end: dict[str, float] = {}  # of collectives on a device, µs
        self._reading = threading.Lock()

    def begin(self, call: OpCall) -> Any:
        """A span, right before the op."""
        raise NotImplementedError

    def end(self, span: Any, call: OpCall) -> bool:
        """Right after the op. Will gradients flow?"""
        raise NotImplementedError

    def shortcut(self, name: str, report: Callable[[Exception], None], otherwise: object) -> Callable[..., Any] | None:
        """See Tool.shortcut."""
        return None

    def close(self) -> None:
        """Waits for the device and writes everything."""
        self.collectives.stop()
        self.timer.close()
        with failure.tolerated():
            self.read(everything=True)
        self.sum_up()
        for name, total in self._of_collectives.items():
            self.totals.setdefault(name, Total()).add(total)
        self.rows.close()
        self.trace.close()

    def read(self, everything: bool = False) -> None:
        """Takes in what the device has passed: the older half, which costs no waiting, or everything."""
        if self._reading.acquire(blocking=everything):
            try:
                self.take(everything)
                for collective in self.collectives.take(everything):
                    self._take_collective(collective)
            finally:
                self._reading.release()

    def _take_collective(self, collective: Collective) -> None:
        """One after the other: a collective that waits for its turn takes no time yet."""
        call, began, ended = collective.call, *collective.read()
        device = self.name_of(collective.device)
        began = max(began, self._latest_end.get(device, began))
        ended = self._latest_end[device] = max(began, ended)
        elapsed = (ended - began) / 1e3
        self._of_collectives.setdefault(call.name, Total()).add(Total(1, elapsed, 0.0, elapsed))
        if not self.trace.ended:
            notes = self.trace.notes(call.id, call.where.module)
            thread = self.trace.thread(collective.thread)
            self.trace.add(call.name, "forward", thread, collective.began / 1e3, collective.host * 1e3, notes)
            self.trace.add(call.name, "forward", self.trace.collectives(device), began, ended - began, notes)
        cell = csv_files.cell
        self.rows.add(
            f"{cell(call.name)},{call.id},{_as_text(elapsed)},,ms,{cell(collective.inputs)},,,,"
            f"{_as_text(collective.host)},,{call.step},{cell(call.where.module)},{cell(call.where.line())}"
        )

    def take(self, everything: bool) -> None:
        raise NotImplementedError

    def name_of(self, device: torch.device) -> str:
        """As the timer calls it."""
        return str(device)

    def sum_up(self) -> None:
        """Everything has been read."""


class Ledger(Book):
    """The ledger in Python. `row_written` is called with each row."""

    def __init__(
        self,
        csv: Path,
        most_rows: int,
        most_events: int,
        collectives: TimedCollectives,
        row_written: Callable[[tuple[str, ...]], None],
    ) -> None:
        super().__init__(csv, most_rows, most_events, collectives)
        self.timer: Timer = Timer()
        self._row_written = row_written
        self._waiting: dict[int, Timing] = {}
        self._until_read = READ_AT_ENTRIES // 3  # calls: each makes three entries, forward, backward, gradients

    def begin(self, call: OpCall) -> Span:
        return self.timer.begin(Timing(call, signature.of_call(call.args, call.kwargs)), call.args, call.kwargs)

    def end(self, span: Span, call: OpCall) -> bool:
        will_flow = span.finish(call.result, call.is_recorded)
        timing: Timing = span.timing
        timing.outputs = signature.of(call.result)
        if will_flow:  # then its row is not complete yet; only so many can wait
            self._waiting[timing.id] = timing
            if len(self._waiting) > MAX_WAITING_CALLS:
                self.read()  # some of their gradients may have flowed
                self._give_up_waiting(len(self._waiting) - MAX_WAITING_CALLS * 9 // 10)
        self._until_read -= 1
        if self._until_read <= 0:
            self.read()
        return will_flow

    def _give_up_waiting(self, count: int) -> None:
        for timing in list(self._waiting.values())[: max(count, 0)]:
            if timing.forward >= 0:  # its forward has been read
                del self._waiting[timing.id]
                self._write(timing, "", "")

    def sum_up(self) -> None:
        self._give_up_waiting(len(self._waiting))

    def take(self, everything: bool) -> None:
        unread = self.timer.unread()
        entries = self.timer.take(everything, everything or unread >= MAX_UNREAD_ENTRIES)
        for entry in entries:
            if len(entry) == 3:
                timing, inputs, outputs = entry
                self._waiting.pop(timing.id, None)
                self._write(timing, inputs, outputs)
            else:
                self._take_in(*entry)
        self._until_read = max(READ_AT_ENTRIES, unread - len(entries) + READ_AT_ENTRIES // 2) // 3

    def _take_in(
        self,
        timing: Timing,
        backward: bool,
        is_last: bool,
        thread: int,
        began: float,
        host: float,
        device: str | None,
        stream: int,
        elapsed: float,
        moment: float,
        own: float,
        has_inner: bool,
    ) -> None:
        name, trace = timing.name, self.trace
        if timing.is_written:
            timing.begin_row()
        if not trace.ended:
            phase, notes = "backward" if backward else "forward", trace.notes(timing.id, timing.where.module)
            trace.add(name, phase, trace.thread(thread), began, host * 1e3, notes)
            if device is not None:
                trace.add(name, phase, trace.stream(device, stream), moment, elapsed * 1e3, notes)
        total = self.totals.get(name)
        if total is None:
            total = self.totals[name] = Total()
        total.has_inner |= has_inner
        total.all_in_all += elapsed
        if backward:
            total.backward += own
            timing.backward = max(timing.backward, 0.0) + elapsed
            timing.backward_host = max(timing.backward_host, 0.0) + host
        else:
            total.forward += own
            total.calls += 1
            timing.forward, timing.forward_host = elapsed, host
            if is_last:
                self._write(timing, "", "")

    def _write(self, timing: Timing, grad_inputs: str, grad_outputs: str) -> None:
        forward, backward = _as_text(timing.forward), _as_text(timing.backward)
        where, cell = timing.where, csv_files.cell
        self.rows.add(
            f"{cell(timing.name)},{timing.id},{forward},{backward},ms,{cell(timing.inputs)},{cell(timing.outputs)},"
            f"{cell(grad_inputs)},{cell(grad_outputs)},{_as_text(timing.forward_host)},"
            f"{_as_text(timing.backward_host)},{timing.step},{cell(where.module)},{cell(where.line())}"
        )
        timing.is_written = True
        self._row_written((timing.name, str(timing.id), forward, backward, "ms"))


def _as_text(elapsed: float) -> str:
    return "" if elapsed < 0 else f"{elapsed:.8f}"
