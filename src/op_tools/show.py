"""Tables for the terminal: boxed, one row per tensor or value, columns that are empty for all rows left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from op_tools import signature, trees
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

    The same op with the same shapes comes again and again: only the addresses of its tensors are new each time.
    """

    __slots__ = ("addresses", "key", "rows")

    def __init__(self, name: str, role: str, args: tuple[Any, ...], kwargs: dict[str, Any], is_result: bool) -> None:
        tensors = [*trees.tensors(args), *trees.tensors(kwargs)]
        noted = None
        if len(tensors) <= _MOST_REMEMBERED_TENSORS and all(tensor.layout is torch.strided for tensor in tensors):
            noted = (name, role, signature.of_call(args, kwargs))
        self.addresses = [str(tensor.data_ptr()) for tensor in tensors] if noted else []
        self.key = noted
        rows = _rows.get(noted) if noted else None
        if rows is None:
            places = trees.results(args[0]) if is_result else trees.arguments(args, kwargs)
            rows = argument_rows(name, role, places)
            if noted:
                rows = [(*row[:8], "%s" if row[8] else "", row[9]) for row in rows]
                _remember(_rows, noted, rows)
        self.rows = rows


_MOST_REMEMBERED = 5_000
_MOST_REMEMBERED_TENSORS = 8
_rows: dict[Any, list[tuple[str, ...]]] = {}
_tables: dict[Any, str] = {}


def _remember(memory: dict[Any, Any], key: Any, value: Any) -> None:
    if len(memory) >= _MOST_REMEMBERED:
        memory.clear()
    memory[key] = value


def described_table(parts: Sequence[Described]) -> str:
    """A table of arguments."""
    if any(part.key is None for part in parts):
        return table(ARGUMENT_COLUMNS, [row for part in parts for row in _filled(part)])
    addresses = [address for part in parts for address in part.addresses]
    key = (*(part.key for part in parts), *map(len, addresses))
    template = _tables.get(key)
    if template is None:
        # zeros take as much room as the address that will stand there
        rows = [row for part in parts for row in part.rows]
        lengths = iter(addresses)
        rows = [(*row[:8], "\0" * len(next(lengths)) if row[8] else "", row[9]) for row in rows]
        template = re.sub("\0+", "%s", table(ARGUMENT_COLUMNS, rows).replace("%", "%%"))
        _remember(_tables, key, template)
    return template % tuple(addresses)


def _filled(part: Described) -> list[tuple[str, ...]]:
    if part.key is None:
        return part.rows
    addresses = iter(part.addresses)
    return [(*row[:8], next(addresses) if row[8] else "", row[9]) for row in part.rows]


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
