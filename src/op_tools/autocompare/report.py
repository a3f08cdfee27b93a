"""What OpAutoCompare has found in a run: a line of the CSV for each value, what is wrong place by place, and the end.

call_tables.py draws the tables of one call.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from ditorch_shared.shares import percent
from op_tools.autocompare import call_tables
from op_tools.autocompare.judging.comparer import Comparison
from op_tools.autocompare.judging.verdict import RIGHT, Row
from op_tools.core.call import OpCall
from op_tools.output import messages, paths, tables
from op_tools.output.csv_files import CsvFile, cell
from op_tools.output.results import Results

CSV = (
    # the contract's columns …
    "forward_id", "name", "allclose", "cosine_similarity", "max_abs_diff", "max_relative_diff", "atol", "rtol",
    "error_info",
    # … and ours
    "cosine_distance", "max_ulp", "mean_ulp", "rmse_ratio", "first_bad_index", "bad_share", "nonfinite_mismatch",
    "verdict", "reason", "severity", "step", "module", "where",
)  # fmt: skip
_GRADIENTS = "gradients"  # of calls for which there was no memory
_MAX_ROWS = 30
_MAX_NOT_COMPARED = 12  # ops, with a reason for each
_MAX_WRONG_LATELY = 10_000  # values that are remembered, so that none counts twice
_COLUMNS = ("op", "what", "where", "module", "forward_id", "step", "reason", "severity", "calls", "capture")


@dataclass
class Outcome:
    """What is left of a comparison when its tensors are gone."""

    comparison: Comparison
    text: str = ""
    saved: list[str] = field(default_factory=list)
    is_second: bool = False  # of a call that has been counted already


class Report:
    """Takes in what came out of the calls: counts it, writes it to the CSV, shows it. Any thread may.

    `max_rows`: of the table of all comparisons; 0 where it is not wanted. A longer one is shown in parts.
    """

    def __init__(self, csv: CsvFile, max_rows: int = 0) -> None:
        self.summary = Summary()
        self._csv = csv
        self._max_rows = max_rows
        self._rows: list[tuple[str, ...]] = []
        self._lock = threading.Lock()

    def take(self, call: OpCall, outcome: Outcome) -> None:
        """One call, or its gradients."""
        comparison = outcome.comparison
        self.summary.add(call, comparison, outcome.saved, outcome.is_second)
        rows = comparison.rows
        if rows:
            self._csv.add_lines(csv_lines(call, rows).encode(), len(rows))
            if self._max_rows:
                self._add_to_table(call, rows)
        if comparison.failure:
            messages.complain_once(
                "not compared", call.name, text=f"OpAutoCompare could not compare {call.name}: {comparison.failure}"
            )
        if outcome.text:
            saved = "".join(f"{paths.shown(path)} saved\n" for path in outcome.saved)
            messages.say(outcome.text + saved)

    def files(self) -> list[str]:
        return [str(self._csv.path)] if self._csv.written else []

    def _add_to_table(self, call: OpCall, rows: Sequence[Row]) -> None:
        with self._lock:
            self._rows += [(str(call.id), *call_tables.comparison_row(row)) for row in rows]
            if len(self._rows) >= self._max_rows:
                self._show_table()

    def _show_table(self) -> None:
        if self._rows:
            self._rows.sort(key=lambda row: int(row[0]))  # gradients beside the values of their call
            messages.say(f"\n{tables.table(('forward_id', *call_tables.COLUMNS), self._rows, keep_empty=True)}")
            self._rows = []

    def close(self, is_shown: bool) -> None:
        self._csv.close()
        self._show_table()
        if is_shown:
            messages.say(self.summary.text())
            if self._csv.written:
                messages.say(f"{paths.shown(self._csv.path)} saved")


# ---- the file --------------------------------------------------------------------------------------------------------


def csv_lines(call: OpCall, rows: Sequence[Row]) -> str:
    """The values of one call, with everything that is known about them, as they stand in the file."""
    where = call.where
    start, end = f"{call.id},", f",{call.step},{cell(where.module)},{cell(where.line())}\r\n"
    return "".join([f"{start}{_line(row)}{end}" for row in rows])


def _line(row: Row) -> str:
    judged = row.verdict
    if judged is None or judged is RIGHT:
        return _equal_line(row.name, row.atol, row.rtol, row.error_info, judged is not None, row.reason)
    allclose, most, relative, cosine, max_ulp, mean_ulp, ratio, share, bad, nonfinite = judged.measures
    end = f"right,,{judged.severity:.4g}" if judged.right else f"wrong,{cell(judged.reason)},{_short(judged.severity)}"
    first = "" if bad is None else cell(str(list(bad)))
    return (
        f"{cell(row.name)},{allclose},{cosine:.9f},{most:.9f},{relative:.9f},{_limits(row.atol, row.rtol)},"
        f"{cell(row.error_info)},{_short(1 - cosine)},{max_ulp:.4g},{mean_ulp:.4g},{_short(ratio)},{first},{share:.4g},"
        f"{nonfinite},{end}"
    )


@functools.lru_cache(maxsize=10_000)
def _equal_line(name: str, atol: float, rtol: float, error_info: str, is_right: bool, reason: str) -> str:
    """For a value that is what it should be to the bit, or with which nothing is compared."""
    end = "right,,0" if is_right else f"skipped,{cell(reason)},0"
    return (
        f"{cell(name)},True,1.000000000,0.000000000,0.000000000,{_limits(atol, rtol)},{cell(error_info)},"
        f"0,0,0,0,,0,0,{end}"
    )


@functools.lru_cache(maxsize=1000)
def _limits(atol: float, rtol: float) -> str:
    return f"{tables.number(atol)},{tables.number(rtol)}"


def _short(value: float) -> str:
    return "" if value != value else f"{value:.4g}"


# ---- the whole run ---------------------------------------------------------------------------------------------------


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
        self._wrong_lately: dict[tuple[int, str], None] = {}  # calls and their values: a proof may doubt one again
        self.calls = 0
        self.wrong_calls = 0
        self.values = 0
        self.not_close = 0
        self.gradients_left_out = 0  # of calls, for lack of memory
        self.coverage = ""  # where the calls of a step are compared in turns
        self.coverage_of_proofs = ""  # where some of the calls are proven, too

    def add(self, call: OpCall, comparison: Comparison, saved: Sequence[str] = (), is_second: bool = False) -> int:
        """Takes a comparison in; returns how many calls at this place are wrong, with this one; 0 if it is known."""
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
        if (call.id, what) in self._wrong_lately:
            return 0
        if len(self._wrong_lately) >= _MAX_WRONG_LATELY:
            del self._wrong_lately[next(iter(self._wrong_lately))]
        self._wrong_lately[call.id, what] = None
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
        facts["compared_calls"], facts["all_calls"] = self._coverage(left_out)
        facts["coverage"] = self.coverage
        return Results("OpAutoCompare", _COLUMNS, rows, self.calls, left_out, files, **facts)

    def _left_out(self) -> list[tuple[str, int, str]]:
        """What was not compared, how often, and why."""
        found = [(name, calls, reason) for (name, reason), calls in self._not_compared.items()]
        if self.gradients_left_out and not self._is_covered():
            reason = f"the memory for calls that wait is full; {self.coverage}" if self.coverage else "no memory"
            found.append((_GRADIENTS, self.gradients_left_out, reason))
        return found

    def _coverage(self, left_out: list[tuple[str, int, str]]) -> tuple[int, int]:
        """How many calls were compared, of how many; those whose gradients were left out count once more."""
        whole = self.calls + sum(calls for name, calls, _ in left_out if name == _GRADIENTS)
        return whole - sum(calls for _, calls, _ in left_out), whole

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
        if not self.calls and not self._left_out():
            yield "OpAutoCompare: nothing to compare: no op that was asked for had a tensor on an accelerator"
        elif self._found:
            yield f"OpAutoCompare: {self.calls:,} calls, {values}, {self.wrong_calls:,} calls wrong"
        else:
            yield f"OpAutoCompare: nothing wrong in {_counted(self.calls)}, {values}"
        left_out = self._left_out()
        compared, whole = self._coverage(left_out)
        if self._is_covered():
            yield self.coverage
        if whole and not (self._is_covered() and compared == whole):
            yield f"{percent(compared / whole)} of all calls were compared"
        if self.coverage_of_proofs:
            yield self.coverage_of_proofs
        if self.not_close:
            yield f"{self.not_close:,} values are not allclose but no worse than their dtype"
        if self._without_dropout:
            names = (f"{name} ({_counted(calls)})" for name, calls in self._without_dropout.items())
            yield f"compared without their dropout: {', '.join(names)}"
        left_out.sort(key=lambda one: (-one[1], one[0]))
        shown = [f"{name} ({_counted(calls)}, {percent(calls / whole)}): {reason}" for name, calls, reason in left_out]
        if len(shown) > _MAX_NOT_COMPARED:
            shown[_MAX_NOT_COMPARED:] = [f"and {len(shown) - _MAX_NOT_COMPARED} more"]
        if shown:
            yield f"not compared: {', '.join(shown)}"


def _counted(calls: int) -> str:
    return "1 call" if calls == 1 else f"{calls:,} calls"


def _ranking(found: Sequence[WrongPlace]) -> str:
    columns = ("name", "what", "calls", "reason", "module", "where")
    rows = [(one.name, one.what, f"{one.calls:,}", one.reason, one.module, one.where) for one in found]
    return tables.table(columns, rows)
