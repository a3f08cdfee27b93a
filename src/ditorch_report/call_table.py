"""One row for each op call of a run: what was called where, how long it took, and how far off it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ditorch_report import run_folder
from ditorch_report.packing import Texts, differences, short
from ditorch_report.run_folder import Row, RunFolder, number, whole

MAX_CALLS = 100_000  # that the page lists; sums are of all
CALLS_PER_PIECE = 4096  # whose values are in one piece
NOT_COMPARED, RIGHT, WRONG = 0, 1, 2
_VERDICTS = {"right": RIGHT, "wrong": WRONG}
_MEASURES = ("max_abs_diff", "max_relative_diff")
_OF_WRONG = ("cosine_similarity", "max_ulp", "bad_share", "first_bad_index", "atol", "rtol", "reason")

Key = tuple[int, int]  # process, forward_id


@dataclass
class Call:
    """One op call. Times are in µs."""

    process: int
    id: int
    op: str
    step: int
    module: str
    where: str
    forward: float | None = None
    backward: float | None = None
    arguments: str = ""
    results: str = ""
    verdict: int = NOT_COMPARED
    forward_severity: float | None = None  # how far off it is, in allowances; above 1 is wrong
    backward_severity: float | None = None
    values: list[list[Any]] = field(default_factory=list)
    statistics: list[list[Any]] = field(default_factory=list)

    @property
    def severity(self) -> float:
        return max(self.forward_severity or 0.0, self.backward_severity or 0.0)


@dataclass
class CallTable:
    """All calls by process and forward_id. `processes`: (host, rank, pid)."""

    processes: list[tuple[str, int, int]] = field(default_factory=list)
    calls: dict[Key, Call] = field(default_factory=dict)
    whats: Texts = field(default_factory=Texts)
    _numbers: dict[Any, int] = field(default_factory=dict)  # of processes

    def process(self, row: Row) -> int:
        identity = (row.get("host", ""), row.get("rank", 0), row["pid"])
        found = self._numbers.get(identity)
        if found is None:
            known = (str(identity[0]), whole(identity[1]), whole(identity[2]))
            if known not in self.processes:
                self.processes.append(known)
            found = self._numbers[identity] = self.processes.index(known)
        return found

    def call(self, row: Row, op: str) -> Call:
        key = (self.process(row), whole(row.get("forward_id")))
        known = self.calls.get(key)
        if known is None:
            place = (row.get("module", ""), row.get("where", ""))
            known = self.calls[key] = Call(*key, op, whole(row.get("step")), *place)
        return known

    def ordered(self) -> list[Call]:
        """By process and the order in which they ran."""
        return [self.calls[key] for key in sorted(self.calls)]

    def listed(self) -> list[Call]:
        """Those that the page lists: all that are wrong, and of the others the first ones."""
        calls = self.ordered()
        if len(calls) <= MAX_CALLS:
            return calls
        room = MAX_CALLS - sum(call.verdict == WRONG for call in calls)
        found = []
        for call in calls:
            if call.verdict == WRONG:
                found.append(call)
            elif room > 0:
                room -= 1
                found.append(call)
        return found


def read(folder: RunFolder) -> CallTable:
    table = CallTable()
    for path in folder.files("timed"):
        for row in run_folder.rows(path):
            _take_time(table, row)
    for path in folder.files("compared"):
        for row in run_folder.rows(path):
            _take_value(table, row)
    return table


def _take_time(table: CallTable, row: Row) -> None:
    call = table.call(row, row.get("name", ""))
    forward, backward = number(row.get("forward_elasped")), number(row.get("backward_elasped"))
    call.forward = forward * 1e3 if forward is not None else call.forward
    if backward is not None:
        call.backward = (call.backward or 0.0) + backward * 1e3
    call.arguments, call.results = row.get("input", ""), row.get("output", "")


def _take_value(table: CallTable, row: Row) -> None:
    """One compared value: an input, an output or a gradient."""
    op, _, what = row.get("name", "").partition(" ")
    call = table.call(row, op)
    verdict = _VERDICTS.get(row.get("verdict", ""), NOT_COMPARED)
    severity = number(row.get("severity")) or 0.0
    call.verdict = max(call.verdict, verdict)
    if verdict != NOT_COMPARED:
        phase = "backward_severity" if what.startswith("grad") else "forward_severity"
        setattr(call, phase, max(getattr(call, phase) or 0.0, severity))
    measures = [short(number(row.get(name)), 2) for name in _MEASURES]
    value: list[Any] = [table.whats.number(what), verdict, short(severity), *measures]
    if verdict == WRONG:
        value.append({name: row.get(name, "") for name in _OF_WRONG})
    elif verdict == NOT_COMPARED and row.get("reason"):
        value.append({"reason": row["reason"]})
    call.values.append(value)


# -- as the page wants it ----------------------------------------------------------------------------------------------


class Columns:
    """The calls that the page lists, column by column, and their values in pieces."""

    def __init__(self, table: CallTable) -> None:
        self.calls = table.listed()
        self.index = {(call.process, call.id): place for place, call in enumerate(self.calls)}
        self._all = len(table.calls)
        self._whats = table.whats
        self._texts = Texts()

    def main(self) -> Row:
        """What lists and filters need."""
        ops, modules, wheres = Texts(), Texts(), Texts()
        calls = self.calls
        found: Row = {
            "process": [call.process for call in calls],
            "id": differences([call.id for call in calls]),
            "op": [ops.number(call.op) for call in calls],
            "module": [modules.number(call.module) for call in calls],
            "where": [wheres.number(call.where) for call in calls],
            "step": [call.step for call in calls],
            "forward": [_time(call.forward) for call in calls],
            "backward": [_time(call.backward) for call in calls],
            "verdict": [call.verdict for call in calls],
            "severity": [short(call.severity, 3) for call in calls],
            "arguments": [self._texts.number(call.arguments) for call in calls],
            "results": [self._texts.number(call.results) for call in calls],
        }
        return {"all": self._all, "columns": found, "ops": ops.all, "modules": modules.all, "wheres": wheres.all}

    def texts(self) -> Row:
        """Arguments and results in words; only the page of a call shows them."""
        return {"texts": self._texts.all, "whats": self._whats.all}

    def what(self, value: list[Any]) -> str:
        """Which value of its call it is: `output`, `grad[0]`."""
        return self._whats.all[int(value[0])]

    def details(self) -> Iterator[Row]:
        """What was compared of each call, and statistics of its tensors, in pieces."""
        for start in range(0, len(self.calls), CALLS_PER_PIECE):
            calls = self.calls[start : start + CALLS_PER_PIECE]
            yield {"values": [call.values for call in calls], "statistics": [call.statistics for call in calls]}


def _time(value: float | None) -> float | int:
    found = short(value)
    return -1 if found is None else found
