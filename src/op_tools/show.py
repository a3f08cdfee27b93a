"""Tables for the terminal: boxed, one row per tensor or value, columns that are empty for all rows left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
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
    rows = list(rows)
    cells = list(zip(*rows)) if rows else [()] * len(columns)
    kept = [index for index, _ in enumerate(columns) if keep_empty or not rows or any(cells[index])]
    widths = [max(map(len, (columns[index], *cells[index]))) for index in kept]
    border = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    line = "|" + "|".join(f" {{:^{width}}} " for width in widths) + "|"
    lines = [border, line.format(*(columns[index] for index in kept)), border]
    lines += [line.format(*row) for row in zip(*(cells[index] for index in kept))]
    if rows:
        lines.append(border)
    return "\n".join(lines)


def number(value: float) -> str:
    """As the tables write numbers: nine places after the point."""
    return f"{value:.9f}"


def argument_rows(name: str, role: str, places: Iterable[tuple[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of ARGUMENT_COLUMNS; `role` is inputs, outputs, grad_inputs …, as in `torch.Tensor.mul inputs[0]`."""
    return [_argument_row(f"{name} {role}{place}", value) for place, value in places]


def _argument_row(label: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, Tensor):
        return (label, "", "", "", "", "", "", "", "", _short(value))
    strided = value.layout is torch.strided
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


class Described:
    """Rows of a table of arguments, as they are now. An in-place op changes its inputs, so they are described before.

    The same op with the same shapes comes again and again: only addresses and numbers are new each time. They stand in
    `slots`, and rows and tables are remembered with the slots open.
    """

    __slots__ = ("key", "rows", "slots")

    def __init__(self, name: str, role: str, args: tuple[Any, ...], kwargs: dict[str, Any], is_result: bool) -> None:
        self.slots: list[str] = []
        self.key = (name, role, _key(args, self.slots), _key(kwargs, self.slots))
        rows = _rows.get(self.key)
        if rows is None:
            places = trees.results(args[0]) if is_result else trees.arguments(args, kwargs)
            rows = [_with_open_slot(f"{name} {role}{place}", value) for place, value in places]
            _remember(_rows, self.key, rows)
        self.rows = rows


_MOST_REMEMBERED = 1_000
_SLOT = "\0"
_rows: dict[Any, list[tuple[str, ...]]] = {}
_tables: dict[Any, str] = {}


def _key(value: Any, slots: list[str]) -> Any:
    """Equal for values whose rows are equal but for the slots."""
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            return (str(value.layout), value.dtype, value.shape, value.device, value.requires_grad)
        slots.append(str(value.data_ptr()))
        return (value.dtype, value.shape, value.stride(), value.device, value.requires_grad)
    kind = type(value)
    if value is None or kind is str:
        return value
    if kind is int or kind is float:
        slots.append(str(value))
        return kind
    if isinstance(value, (list, tuple)) and kind is not torch.Size:
        return (kind, *[_key(part, slots) for part in value])
    if isinstance(value, dict):
        return (kind, *[(name, _key(part, slots)) for name, part in value.items()])
    return _short(value)


def _with_open_slot(label: str, value: Any) -> tuple[str, ...]:
    row = _argument_row(label, value)
    if isinstance(value, Tensor):
        return (*row[:8], _SLOT if row[8] else "", "")
    return (*row[:9], _SLOT) if type(value) in (int, float) else row


def _remember(memory: dict[Any, Any], key: Any, value: Any) -> None:
    if len(memory) >= _MOST_REMEMBERED:
        memory.clear()
    memory[key] = value


def described_table(parts: Sequence[Described]) -> str:
    """A table of arguments."""
    slots = [slot for part in parts for slot in part.slots]
    key = (*(part.key for part in parts), *map(len, slots))
    template = _tables.get(key)
    if template is None:
        # an open slot takes as much room as what will stand there
        lengths = iter(slots)
        rows = [
            tuple(_SLOT * len(next(lengths)) if cell == _SLOT else cell for cell in row)
            for part in parts
            for row in part.rows
        ]
        template = re.sub(f"{_SLOT}+", "%s", table(ARGUMENT_COLUMNS, rows).replace("%", "%%"))
        _remember(_tables, key, template)
    return template % tuple(slots)


def inputs(call: OpCall) -> Described:
    """The arguments of a call that has not run yet."""
    return Described(call.name, "inputs", call.args, call.kwargs, False)


def arguments_table(call: OpCall, inputs: Described) -> str:
    """Inputs and outputs of a call that has run."""
    if call.error is not None:
        return described_table([inputs])
    return described_table([inputs, Described(call.name, "outputs", (call.result,), {}, True)])


def gradients_table(name: str, grad_outputs: Sequence[Any], grad_inputs: Sequence[Any]) -> str:
    """What flowed through a call in backward."""
    outputs = Described(name, "grad_outputs", tuple(grad_outputs), {}, False)
    return described_table([outputs, Described(name, "grad_inputs", tuple(grad_inputs), {}, False)])
