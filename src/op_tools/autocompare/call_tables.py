"""What is printed about one call that OpAutoCompare has compared: its arguments, the reference's, how they compare."""

from __future__ import annotations

from op_tools.autocompare.judging.comparer import Comparison
from op_tools.autocompare.judging.measures import EQUAL
from op_tools.autocompare.judging.verdict import Row
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.output import tables
from op_tools.values import trees

# the contract's
COLUMNS = ("name", "allclose", "max_abs_diff", "max_relative_diff", "atol", "rtol", "error_info")

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
    parts.append(tables.table(COLUMNS, [comparison_row(row) for row in comparison.rows], keep_empty=True))
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
    """Copies are shown as what they are copies of; their addresses are not kept."""
    if observed.device is None:
        return rows
    for index, row in enumerate(rows):
        if row[_DEVICE]:
            cells = list(row)
            cells[_DEVICE], cells[_POINTER] = str(observed.device), ""
            rows[index] = tuple(cells)
    return rows


def comparison_row(row: Row) -> tuple[str, ...]:
    """Under COLUMNS."""
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
