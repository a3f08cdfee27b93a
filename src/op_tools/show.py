"""Tables for the terminal: boxed, one row per tensor or value, columns that are empty for all rows left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn import Parameter

from op_tools import native, trees
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
    """A box with every cell in the middle of its column, as the reference draws it."""
    rows = list(rows)
    cells = list(zip(*rows)) if rows else [()] * len(columns)
    kept = [index for index, _ in enumerate(columns) if keep_empty or not rows or any(cells[index])]
    widths = [max(map(len, (columns[index], *cells[index]))) for index in kept]
    border = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [border, _line([columns[index] for index in kept], widths), border]
    lines += [_line(row, widths) for row in zip(*(cells[index] for index in kept))]
    if rows:
        lines.append(border)
    return "\n".join(lines)


def _line(row: Iterable[str], widths: Iterable[int]) -> str:
    return "| " + " | ".join(map(str.center, row, widths)) + " |"


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
    where = call.where
    module, stack = where.module, where.stack
    text = f"{call.name}    forward_id: {call.id}{'    ' if module else ''}{module}\n{where.line()}"
    return f"{text}\n{stack}" if stack else text


class Described:
    """Rows of a table of arguments, as they are now. An in-place op changes its inputs, so they are described before.

    The same op with the same shapes comes again and again: only addresses and numbers are new each time. All else is
    `known`, and remembered with gaps where these stand.
    """

    __slots__ = ("known", "numbers", "pointers")
    pointers: list[int]
    numbers: list[float]

    def __init__(self, name: str, role: str, args: Sequence[Any], kwargs: dict[str, Any], is_result: bool) -> None:
        noted = None if _helper is None else _helper.row_key(args, kwargs)
        if noted is None:
            pointers: list[int] = []
            numbers: list[float] = []
            noted = (_key((args, kwargs), pointers, numbers), pointers, numbers)
        same, self.pointers, self.numbers = noted
        key = (name, role, same)
        known = _known.get(key)
        if known is None:
            places = trees.results(args[0]) if is_result else trees.arguments(tuple(args), kwargs)
            known = _remember(key, [_with_gap(f"{name} {role}{place}", value) for place, value in places])
        self.known = known


class _Known:
    """Rows with gaps, and the tables that were made of them: texts between gaps, and what belongs into which gap."""

    __slots__ = ("rows", "tables")

    def __init__(self, rows: list[tuple[str, ...]]) -> None:
        self.rows = rows
        self.tables: dict[Any, _Table] = {}


_Table = tuple[list[str], tuple[int, ...]]
_MOST_ROWS = 20_000  # that are remembered; an optimizer's call may have a thousand
_MOST_TABLES = 8  # of one part, with numbers of other lengths
_POINTER, _NUMBER = "\0", "\1"  # gaps
_known: dict[Any, _Known] = {}
_helper: Any = None  # the C++ one
_TENSORS = frozenset((Tensor, Parameter))
_facts: Callable[[Tensor], Any] = attrgetter("dtype", "shape", "device", "requires_grad")
_stride: Callable[[Tensor], Any] = Tensor.stride
_pointer: Callable[[Tensor], int] = Tensor.data_ptr


def choose_way() -> None:
    """With the C++ helper or without; asked when a tool starts that shows every call."""
    global _helper
    _helper = native.library()


def _remember(key: Any, rows: list[tuple[str, ...]]) -> _Known:
    if sum(len(known.rows) for known in list(_known.values())) >= _MOST_ROWS:
        _known.clear()
    known = _known[key] = _Known(rows)
    return known


def _key(value: Any, pointers: list[int], numbers: list[float]) -> Any:
    """Equal for values whose rows are equal but for the gaps; what stands in these is added to the two lists."""
    kind = type(value)
    if kind in _TENSORS or isinstance(value, Tensor):
        try:
            stride = value.stride()
            pointers.append(value.data_ptr())
            return _facts(value), stride
        except RuntimeError:  # sparse and other layouts have neither
            return str(value.layout), _facts(value)
    if kind is list or kind is tuple:
        if len(value) > 3 and _TENSORS.issuperset(map(type, value)):
            try:
                strides, addresses = tuple(map(_stride, value)), list(map(_pointer, value))
            except RuntimeError:
                pass
            else:
                pointers += addresses
                return kind, strides, *map(_facts, value)
        return kind, *[_key(part, pointers, numbers) for part in value]
    if value is None or kind is str or kind is bool:
        return value
    if kind is int or kind is float:
        numbers.append(value)
        return kind
    if isinstance(value, (list, tuple)) and kind is not torch.Size:
        return kind, *[_key(part, pointers, numbers) for part in value]
    if isinstance(value, dict):
        return kind, *[(name, _key(part, pointers, numbers)) for name, part in value.items()]
    return _short(value)


def _with_gap(label: str, value: Any) -> tuple[str, ...]:
    row = _argument_row(label, value)
    if isinstance(value, Tensor):
        return (*row[:8], _POINTER if row[8] else "", "")
    return (*row[:9], _NUMBER) if type(value) in (int, float) else row


def described_table(first: Described, second: Described | None = None) -> str:
    """A table of arguments: one part, or two."""
    pointers, numbers = first.pointers, first.numbers
    if second is not None:
        pointers, numbers = pointers + second.pointers, numbers + second.numbers
    widths = _lengths(pointers, numbers) if _helper is None else _helper.row_widths(pointers, numbers)
    key = (second and second.known, widths)
    table = first.known.tables.get(key)
    if table is None:
        rows = first.known.rows if second is None else first.known.rows + second.known.rows
        table = _table_with_gaps(rows, pointers, numbers)
        if len(first.known.tables) >= _MOST_TABLES:
            first.known.tables.clear()
        first.known.tables[key] = table
    if _helper is not None:
        filled: str = _helper.row_fill(*table, pointers, numbers)
        return filled
    texts, order = table
    pieces = [""] * (2 * len(texts) - 1)
    pieces[::2] = texts
    pieces[1::2] = map(str, map([*pointers, *numbers].__getitem__, order))
    return "".join(pieces)


def _lengths(pointers: list[int], numbers: list[float]) -> Any:
    """How many letters each takes; of addresses one number where that is the same for all, which is usual."""
    shortest = longest = 0
    if pointers:
        shortest, longest = len(str(min(pointers))), len(str(max(pointers)))
    of_numbers = tuple([len(str(number)) for number in numbers]) if numbers else ()
    return (longest if shortest == longest else tuple([len(str(pointer)) for pointer in pointers]), of_numbers)


def _table_with_gaps(rows: list[tuple[str, ...]], pointers: list[int], numbers: list[float]) -> _Table:
    """The text between the gaps. A gap takes as much room as what will stand there."""
    indices = {_POINTER: iter(range(len(pointers))), _NUMBER: iter(range(len(pointers), len(pointers) + len(numbers)))}
    values = [*pointers, *numbers]
    order: list[int] = []

    def gap(cell: str) -> str:
        if cell not in indices:
            return cell
        order.append(next(indices[cell]))
        return _POINTER * len(str(values[order[-1]]))

    wide = [tuple([gap(cell) for cell in row]) for row in rows]
    return re.split(f"{_POINTER}+", table(ARGUMENT_COLUMNS, wide)), tuple(order)


def inputs(call: OpCall) -> Described:
    """The arguments of a call that has not run yet."""
    return Described(call.name, "inputs", call.args, call.kwargs, False)


def arguments_table(call: OpCall, inputs: Described) -> str:
    """Inputs and outputs of a call that has run."""
    if call.error is not None:
        return described_table(inputs)
    return described_table(inputs, Described(call.name, "outputs", (call.result,), {}, True))


def gradients_table(name: str, grad_outputs: Sequence[Any], grad_inputs: Sequence[Any]) -> str:
    """What flowed through a call in backward."""
    outputs = Described(name, "grad_outputs", grad_outputs, {}, False)
    return described_table(outputs, Described(name, "grad_inputs", grad_inputs, {}, False))
