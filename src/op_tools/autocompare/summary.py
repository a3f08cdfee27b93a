"""What OpAutoCompare has found in a whole run: what is wrong, place by place, and what was not compared."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from op_tools.autocompare.judging.comparer import Comparison
from op_tools.autocompare.judging.verdict import Row
from op_tools.core.call import OpCall
from op_tools.output import tables
from op_tools.output.results import Results

_GRADIENTS = "gradients"  # of calls for which there was no memory
_MAX_ROWS = 30
_MAX_NOT_COMPARED = 12  # ops, with a reason for each
_COLUMNS = ("op", "what", "where", "module", "forward_id", "step", "reason", "severity", "calls", "capture")


@dataclass
class WrongPlace:
    """A place in the program where an op is wrong: the worst of its calls."""

    name: str
    what: str
    where: str
    module: str
    forward_id: int
    step: int
    reason: str
    severity: float
    calls: int = 0
    capture: str = ""  # the folder with its tensors

    def __str__(self) -> str:
        place = f"{self.module}, {self.where}" if self.module else self.where
        return f"{self.name} {self.what}: {self.reason} ({place})"


class Summary:
    """Counts calls, and keeps what is wrong by place. Any thread may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str, str], WrongPlace] = {}
        self._not_compared: dict[tuple[str, str], int] = {}  # calls, by op and reason
        self._without_dropout: dict[str, int] = {}  # calls, by op
        self.calls = 0
        self.wrong_calls = 0
        self.values = 0
        self.not_close = 0
        self.gradients_left_out = 0  # of calls, for lack of memory
        self.coverage = ""  # where the calls of a step are compared in turns

    def add(self, call: OpCall, comparison: Comparison, saved: Sequence[str] = (), is_second: bool = False) -> int:
        """Takes a comparison in; returns how many calls at this place are wrong, with this one."""
        with self._lock:
            self.calls += not is_second
            reason = comparison.failure or comparison.skipped
            if reason:
                self._not_compared[call.name, reason] = self._not_compared.get((call.name, reason), 0) + 1
                return 0
            rows, most = comparison.rows, 0
            self.values += len(rows)
            for row in rows:
                judged = row.verdict
                if judged is None:
                    continue
                if not judged.right:
                    most = max(most, self._add_row(call, row, saved))
                elif not judged.measures.allclose:
                    self.not_close += 1
            self.wrong_calls += most > 0
            return most

    def _add_row(self, call: OpCall, row: Row, saved: Sequence[str]) -> int:
        assert row.verdict is not None
        what, where = row.name.partition(" ")[2], call.where.line()
        known = self._found.get((call.name, what, where))
        if known is None or row.verdict.severity > known.severity:
            found = WrongPlace(
                call.name, what, where, call.where.module, call.id, call.step, row.verdict.reason, row.verdict.severity
            )
            if known is not None:
                found.calls, found.capture = known.calls, known.capture
            known = self._found[call.name, what, where] = found
        known.calls += 1
        if saved and not known.capture:
            known.capture = os.path.dirname(os.path.dirname(saved[0]))
        return known.calls

    def drops_inside(self, name: str) -> None:
        """One more call of this op that was compared without its dropout."""
        with self._lock:
            self._without_dropout[name] = self._without_dropout.get(name, 0) + 1

    def ranked(self) -> list[WrongPlace]:
        """The worst first; among equals, the first in the program."""
        return sorted(self._found.values(), key=lambda found: (-found.severity, found.forward_id))

    def results(self, files: Sequence[str]) -> Results:
        """As data, the worst first."""
        with self._lock:
            ranked, left_out = self.ranked(), self._left_out()
        rows = [astuple(one) for one in ranked]
        facts: dict[str, Any] = {"values": self.values, "wrong_calls": self.wrong_calls, "not_allclose": self.not_close}
        facts["without_dropout"] = dict(self._without_dropout)
        return Results("OpAutoCompare", _COLUMNS, rows, self.calls, left_out, files, **facts)

    def _left_out(self) -> list[tuple[str, int, str]]:
        """What was not compared, how often, and why."""
        found = [(name, calls, reason) for (name, reason), calls in self._not_compared.items()]
        if self.gradients_left_out and not self._is_covered():
            reason = f"the memory for calls that wait is full; {self.coverage}" if self.coverage else "no memory"
            found.append((_GRADIENTS, self.gradients_left_out, reason))
        return found

    def _is_covered(self) -> bool:
        """Whether each call of a step has been compared, in turns."""
        return self.coverage.startswith("coverage: all")

    def text(self) -> str:
        """For the end of a run: one line where nothing is wrong, and the places where something is."""
        ranked = self.ranked()
        lines = ["; ".join(self._said())]
        if ranked:
            lines.append(_ranking(ranked[:_MAX_ROWS]))
            if len(ranked) > _MAX_ROWS:
                lines.append(f"… and {len(ranked) - _MAX_ROWS} more places")
        return "\n".join(lines)

    def _said(self) -> Iterator[str]:
        values = f"{self.values:,} values compared"
        if self._found:
            yield f"OpAutoCompare: {self.calls:,} calls, {values}, {self.wrong_calls:,} calls wrong"
        else:
            yield f"OpAutoCompare: nothing wrong in {_counted(self.calls)}, {values}"
        left_out = self._left_out()
        whole = self.calls + sum(calls for name, calls, _ in left_out if name == _GRADIENTS)
        compared = whole - sum(calls for _, calls, _ in left_out)
        if whole:
            yield f"{_percent(compared, whole)} of all calls were compared"
        if self._is_covered():
            yield self.coverage
        if self.not_close:
            yield f"{self.not_close:,} values are not allclose but no worse than their dtype"
        if self._without_dropout:
            names = (f"{name} ({_counted(calls)})" for name, calls in self._without_dropout.items())
            yield f"compared without their dropout: {', '.join(names)}"
        left_out.sort(key=lambda one: (-one[1], one[0]))
        shown = [f"{name} ({_counted(calls)}, {_percent(calls, whole)}): {reason}" for name, calls, reason in left_out]
        if len(shown) > _MAX_NOT_COMPARED:
            shown[_MAX_NOT_COMPARED:] = [f"and {len(shown) - _MAX_NOT_COMPARED} more"]
        if shown:
            yield f"not compared: {', '.join(shown)}"


def _counted(calls: int) -> str:
    return "1 call" if calls == 1 else f"{calls:,} calls"


def _percent(part: int, whole: int) -> str:
    share = 100 * part / whole
    return f"{share:.2g} %" if share < 1 else f"{int(10 * share) / 10:g} %"  # rounded down: 100 % means all


def _ranking(found: Sequence[WrongPlace]) -> str:
    columns = ("name", "what", "calls", "reason", "module", "where")
    rows = [(one.name, one.what, f"{one.calls:,}", one.reason, one.module, one.where) for one in found]
    return tables.table(columns, rows)
