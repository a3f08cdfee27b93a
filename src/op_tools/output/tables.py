"""Tables for the terminal: boxed, one row per tensor or value, columns that are empty for all rows left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Callable, Protocol, Union

import torch
from torch import Tensor
from torch.nn import Parameter

from op_tools.output.boxes import fitted as fitted
from op_tools.output.boxes import short
from op_tools.output.boxes import table as table
from op_tools.values import trees

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


class Place(Protocol):
    """What is shown of the place of a call: core.where.Where."""

    module: str
    stack: str | None

    def line(self) -> str: ...


class Call(Protocol):
    """What is shown of a call: core.call.OpCall. This room lies below core, and does not import it."""

    id: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    error: BaseException | None

    @property
    def autocast(self) -> object: ...

    @property
    def where(self) -> Place: ...


def number(value: float) -> str:
    """As the tables write numbers: nine places after the point."""
    return f"{value:.9f}"


def argument_rows(name: str, role: str, places: Iterable[tuple[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of ARGUMENT_COLUMNS; `role` is inputs, outputs, grad_inputs …, as in `torch.Tensor.mul inputs[0]`."""
    return [_argument_row(f"{name} {role}{place}", value) for place, value in places]


def _argument_row(label: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, Tensor):
        return (label, "", "", "", "", "", "", "", "", short(value))
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


def heading(call: Call) -> str:
    """What stands above each table: the op's name, its id, and the user's own source line."""
    where = call.where
    module, stack = where.module, where.stack
    autocast = "" if call.autocast is None else f"    {call.autocast}"
    text = f"{call.name}    forward_id: {call.id}{'    ' if module else ''}{module}{autocast}\n{where.line()}"
    return f"{text}\n{stack}" if stack else text


class Described:
    """What is new each time in rows of a table of arguments, as text. The C++ helper has a class of its own for it.

    The same op with the same shapes comes again and again: only addresses and numbers are new. All else is `known`, and
    remembered with gaps where these stand.
    """

    __slots__ = ("_texts", "known")
    known: _Template

    def __init__(self, values: list[float]) -> None:
        self._texts = list(map(str, values))

    def widths(self, second: Described | None) -> tuple[int, ...]:
        """How many letters each takes; with a second part, in both."""
        return tuple(map(len, self._texts if second is None else self._texts + second._texts))

    def fill(self, table: list[str], second: Described | None, above: str, below: str) -> str:
        """A table with these in its gaps, between what is to stand above it and below."""
        pieces = [above, *table, below]
        pieces[2:-1:2] = self._texts if second is None else self._texts + second._texts
        return "".join(pieces)


def _described(name: str, role: str, args: Sequence[Any], kwargs: dict[str, Any], is_result: bool) -> Described:
    """As they are now. An in-place op changes its inputs, so they are described before."""
    described: Any = None if _helper is None else _helper.rows_of(args, kwargs)
    if described is None:
        values: list[float] = []
        same = _key((args, kwargs), values)
        described = Described(values) if _helper is None else _helper.rows_with(values)
    else:
        same = described.key
    key = (name, role, same)
    known = _known.get(key)
    if known is None:
        places = trees.results(args[0]) if is_result else trees.arguments(tuple(args), kwargs)
        known = _remember(key, [_with_gap(f"{name} {role}{place}", value) for place, value in places])
    described.known = known
    return described  # type: ignore[no-any-return]


class _Template:
    """Rows with gaps, and the tables made of them."""

    __slots__ = ("rows", "tables")

    def __init__(self, rows: list[tuple[str, ...]]) -> None:
        self.rows = rows
        self.tables: dict[Any, _Table] = {}


# for the helper a text and where its gaps begin; without it texts and gaps by turns
_Table = Union[tuple[str, tuple[int, ...]], list[str]]
MAX_ROWS = 20_000  # that are remembered; an optimizer's call may have a thousand
MAX_TABLES = 8  # of one part, with numbers of other lengths
_GAP: Any = object()  # in place of a cell
_known: dict[Any, _Template] = {}
_helper: Any = None  # the C++ one
_TENSORS = frozenset((Tensor, Parameter))
_facts: Callable[[Tensor], Any] = attrgetter("dtype", "shape", "device", "requires_grad")
_stride: Callable[[Tensor], Any] = Tensor.stride
_pointer: Callable[[Tensor], int] = Tensor.data_ptr


def choose_way(helper: Any) -> None:
    """With the C++ helper, or without (None)."""
    global _helper
    _helper = helper
    _known.clear()  # devices may be called otherwise by now (ditorch)


def _remember(key: Any, rows: list[tuple[str, ...]]) -> _Template:
    if sum(len(known.rows) for known in list(_known.values())) >= MAX_ROWS:
        _known.clear()
    known = _known[key] = _Template(rows)
    return known


def _key(value: Any, values: list[float]) -> Any:
    """Equal for values whose rows are equal but for the gaps; what stands in these is added to the list."""
    kind = type(value)
    if kind in _TENSORS or isinstance(value, Tensor):
        try:
            stride, pointer = value.stride(), value.data_ptr()
        except RuntimeError:  # sparse and other layouts have neither
            return str(value.layout), _facts(value)
        if kind not in _TENSORS and value.layout is not torch.strided:  # a jagged one has both, and neither is shown
            return str(value.layout), _facts(value)
        values.append(pointer)
        return _facts(value), stride
    if kind is list or kind is tuple:
        if len(value) > 3 and _TENSORS.issuperset(map(type, value)):
            try:
                strides, addresses = tuple(map(_stride, value)), list(map(_pointer, value))
            except RuntimeError:
                pass
            else:
                values += addresses
                return kind, strides, *map(_facts, value)
        return kind, *[_key(part, values) for part in value]
    if value is None or kind is str or kind is bool:
        return value
    if kind is int or kind is float:
        values.append(value)
        return kind
    if isinstance(value, (list, tuple)) and kind is not torch.Size:
        return kind, *[_key(part, values) for part in value]
    if isinstance(value, dict):
        return kind, *[(name, _key(part, values)) for name, part in value.items()]
    return short(value)


def _with_gap(label: str, value: Any) -> tuple[str, ...]:
    row = _argument_row(label, value)
    if isinstance(value, Tensor):
        return (*row[:8], _GAP if row[8] else "", "")
    return (*row[:9], _GAP) if type(value) in (int, float) else row


def _described_table(first: Described, second: Described | None, above: str, below: str) -> str:
    widths = first.widths(second)
    tables = first.known.tables
    key = (second and second.known, widths)
    table: Any = tables.get(key)
    if table is None:
        rows = first.known.rows if second is None else first.known.rows + second.known.rows
        if len(tables) >= MAX_TABLES:
            tables.clear()
        table = tables[key] = _table_with_gaps(rows, widths)
    return first.fill(table, second, above, below)


def _table_with_gaps(rows: list[tuple[str, ...]], widths: tuple[int, ...] | bytes, mark: str = "\0") -> _Table:
    """A gap takes as much room as what will stand there."""
    lengths = memoryview(widths).cast("I").tolist() if isinstance(widths, bytes) else widths
    room = iter(lengths)
    wide = [tuple([mark * next(room) if cell is _GAP else cell for cell in row]) for row in rows]
    text = table(ARGUMENT_COLUMNS, wide)
    if text.count(mark) > sum(lengths):  # a value has this letter, too
        return _table_with_gaps(rows, widths, chr(ord(mark) + 1))
    if isinstance(widths, bytes):
        return text.replace(mark, " "), tuple([gap.start() for gap in re.finditer(f"{re.escape(mark)}+", text)])
    return re.split(f"({re.escape(mark)}+)", text)


def inputs(call: Call) -> Described:
    """The arguments of a call that has not run yet."""
    return _described(call.name, "inputs", call.args, call.kwargs, False)


def arguments_table(call: Call, inputs: Described, above: str = "", below: str = "") -> str:
    """Inputs and outputs of a call that has run; between other texts without being copied once more."""
    outputs = None if call.error is not None else _described(call.name, "outputs", (call.result,), {}, True)
    return _described_table(inputs, outputs, above, below)


def gradients_table(
    name: str, grad_outputs: Sequence[Any], grad_inputs: Sequence[Any], above: str = "", below: str = ""
) -> str:
    """What flowed through a call in backward; likewise."""
    outputs = _described(name, "grad_outputs", grad_outputs, {}, False)
    return _described_table(outputs, _described(name, "grad_inputs", grad_inputs, {}, False), above, below)
