"""Tables for the terminal: boxed, one row per tensor or value, columns that are empty for all rows left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from op_tools import trees
from op_tools.call import OpCall

ARGUMENT_COLUMNS = (
    "name",
    "shape",
    "stride",
    "numel",
    "dtype",
    "device",
    "requires_grad",
    "layout",
    "data_ptr",
    "value",
)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], keep_empty: bool = False) -> str:
    """A box with centred cells."""
    rows = [tuple(row) for row in rows]
    kept = [index for index, _ in enumerate(columns) if keep_empty or not rows or any(row[index] for row in rows)]
    widths = [max(len(columns[index]), *(len(row[index]) for row in rows), 0) for index in kept]
    border = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [border, _line([columns[index] for index in kept], widths), border]
    lines += [_line([row[index] for index in kept], widths) for row in rows]
    if rows:
        lines.append(border)
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "|" + "|".join(f" {cell:^{width}} " for cell, width in zip(cells, widths)) + "|"


def number(value: float) -> str:
    """As the tables write numbers: nine places after the point."""
    return f"{value:.9f}"


def argument_rows(name: str, role: str, places: Iterable[tuple[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of ARGUMENT_COLUMNS; `role` is inputs, outputs, grad_inputs …, as in `torch.Tensor.mul inputs[0]`."""
    return [_argument_row(f"{name} {role}{place}", value) for place, value in places]


def _argument_row(label: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, Tensor):
        return (label, "", "", "", "", "", "", "", "", _short(value))
    strided = str(value.layout) == "torch.strided"
    return (
        label,
        str(tuple(value.shape)),
        str(value.stride()) if strided else "",
        str(value.numel()),
        str(value.dtype).partition(".")[2],
        str(value.device),
        str(value.requires_grad),
        str(value.layout),
        str(value.data_ptr()) if strided else "",
        "",
    )


def _short(value: Any, longest: int = 60) -> str:
    text = str(value).replace("\n", " ")
    return text if len(text) <= longest else text[: longest - 1] + "…"


def heading(call: OpCall) -> str:
    """What stands above each table: the op's name, its id, and the user's own source line."""
    module = f"    {call.where.module}" if call.where.module else ""
    text = f"{call.name}    forward_id: {call.id}{module}\n{call.where.line()}"
    return f"{text}\n{call.where.stack}" if call.where.stack else text


def inputs(call: OpCall) -> list[tuple[str, ...]]:
    """Rows for the arguments. Made before the op runs: in-place ops change them."""
    return argument_rows(call.name, "inputs", trees.arguments(call.args, call.kwargs))


def arguments_table(call: OpCall, inputs: list[tuple[str, ...]]) -> str:
    """Inputs and outputs of a call that has run."""
    rows = list(inputs)
    if call.error is None:
        rows += argument_rows(call.name, "outputs", trees.results(call.result))
    return table(ARGUMENT_COLUMNS, rows)


def gradients_table(name: str, grad_outputs: Any, grad_inputs: Any) -> str:
    """What flowed through a call in backward."""
    rows = argument_rows(name, "grad_outputs", _gradient_places(grad_outputs))
    rows += argument_rows(name, "grad_inputs", _gradient_places(grad_inputs))
    return table(ARGUMENT_COLUMNS, rows)


def _gradient_places(gradients: Sequence[Any]) -> Iterable[tuple[str, Any]]:
    return trees.arguments(tuple(gradients), {})
