"""What OpAutoCompare has found, in words: rows of the CSV, the tables of a call. summary.py is about the whole run."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from op_tools.autocompare.judging.comparer import Comparison
from op_tools.autocompare.judging.measures import EQUAL
from op_tools.autocompare.judging.verdict import RIGHT, Row
from op_tools.autocompare.observed import ObservedCall
from op_tools.autocompare.summary import Summary
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.output import messages, paths, tables
from op_tools.output.csv_files import CsvFile, cell
from op_tools.values import trees

# the contract's columns …
TABLE = ("name", "allclose", "max_abs_diff", "max_relative_diff", "atol", "rtol", "error_info")
CSV = (
    "forward_id", "name", "allclose", "cosine_similarity", "max_abs_diff", "max_relative_diff", "atol", "rtol",
    "error_info",
    # … and ours
    "cosine_distance", "max_ulp", "mean_ulp", "rmse_ratio", "first_bad_index", "bad_share", "nonfinite_mismatch",
    "verdict", "reason", "severity", "step", "module", "where",
)  # fmt: skip


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


# ---- the tables of a call --------------------------------------------------------------------------------------------

_TableRow = tuple[str, ...]


def tables_of(
    call: OpCall,
    observed: ObservedCall,
    comparison: Comparison,
    place: str,
    gradients: Gradients | None,
    flowing: Gradients | None,
) -> str:
    """Inputs and outputs, or gradients, those of the reference, which is at `place`, and how they compare.

    `flowing` are the device's own gradients, where the others are copies.
    """
    if gradients is None:
        rows = _forward_rows(call, observed, comparison, place)
    else:
        rows = _backward_rows(observed, gradients, flowing, comparison, place)
    parts = [_heading(call, comparison), tables.table(tables.ARGUMENT_COLUMNS, rows)]
    # as the contract has it
    parts.append(tables.table(TABLE, [_table_row(row) for row in comparison.rows], keep_empty=True))
    if comparison.is_wrong:
        parts.append(_reasons(comparison))
    return "\n\n\n" + "\n".join(parts) + "\n\n"


def short_text(call: OpCall, comparison: Comparison) -> str:
    """For a wrong call of a place of which enough were shown."""
    return f"forward_id: {call.id} {_reasons(comparison)}"


def _forward_rows(call: OpCall, observed: ObservedCall, comparison: Comparison, place: str) -> list[_TableRow]:
    name, has_tensors = call.name, bool(call.args or call.kwargs or call.result is not None)
    args, kwargs = (call.args, call.kwargs) if has_tensors else (observed.given.args, observed.given.kwargs)
    rows = tables.argument_rows(name, "inputs", trees.arguments(args, kwargs))
    rows += tables.argument_rows(name, "outputs", trees.results(call.result if has_tensors else observed.result))
    if not has_tensors:
        rows = _as_on_device(rows, observed)
    if comparison.run is not None:
        again = comparison.run.arguments
        rows += tables.argument_rows(name, f"inputs({place})", trees.arguments(again.args, again.kwargs))
        rows += tables.argument_rows(name, f"outputs({place})", trees.results(comparison.run.result))
    return rows


def _backward_rows(
    observed: ObservedCall, gradients: Gradients, flowing: Gradients | None, comparison: Comparison, place: str
) -> list[_TableRow]:
    name, shown = observed.name, gradients if flowing is None else flowing
    rows = tables.argument_rows(name, "grad_outputs", trees.arguments(tuple(shown.outputs), {}))
    rows += tables.argument_rows(name, "grad_inputs", trees.arguments(tuple(shown.inputs), {}))
    if flowing is None:
        rows = _as_on_device(rows, observed)
    if comparison.gradients is not None:
        rows += tables.argument_rows(name, f"grad_inputs({place})", trees.arguments(tuple(comparison.gradients), {}))
    return rows


_DEVICE, _POINTER = (tables.ARGUMENT_COLUMNS.index(column) for column in ("device", "data_ptr"))


def _as_on_device(rows: list[_TableRow], observed: ObservedCall) -> list[_TableRow]:
    """Copies are shown as what they are copies of; where that lay, nobody knows any more."""
    if observed.device is None:
        return rows
    for index, row in enumerate(rows):
        if row[_DEVICE]:
            cells = list(row)
            cells[_DEVICE], cells[_POINTER] = str(observed.device), ""
            rows[index] = tuple(cells)
    return rows


def _table_row(row: Row) -> tuple[str, ...]:
    measures = EQUAL if row.verdict is None else row.verdict.measures
    numbers = (measures.max_abs_diff, measures.max_relative_diff, row.atol, row.rtol)
    return (row.name, str(row.is_close), *(tables.number(value) for value in numbers), row.error_info)


def _heading(call: OpCall, comparison: Comparison) -> str:
    """Above the tables of a call."""
    first, _, rest = tables.heading(call).partition("\n")
    casts = ", ".join(f"{source}: {target}" for source, target in comparison.casts.items())
    return f"{first}    cpu_dtype_cast_info(from:to): {{{casts}}}\n{rest}"


def _reasons(comparison: Comparison) -> str:
    """A line for each value that is wrong."""
    wrong = [row for row in comparison.rows if row.is_wrong and row.verdict is not None]
    lines = [f"wrong: {row.name}: {row.verdict.reason}" for row in wrong if row.verdict is not None]
    return "\n".join([*lines, *([comparison.remark] if comparison.remark else [])])


# ---- the whole run ---------------------------------------------------------------------------------------------------


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
            self._rows += [(str(call.id), *_table_row(row)) for row in rows]
            if len(self._rows) >= self._max_rows:
                self._show_table()

    def _show_table(self) -> None:
        if self._rows:
            self._rows.sort(key=lambda row: int(row[0]))  # gradients beside the values of their call
            messages.say(f"\n{tables.table(('forward_id', *TABLE), self._rows, keep_empty=True)}")
            self._rows = []

    def close(self, is_shown: bool) -> None:
        self._csv.close()
        self._show_table()
        if is_shown:
            messages.say(self.summary.text())
            if self._csv.written:
                messages.say(f"{paths.shown(self._csv.path)} saved")
