"""OpDtypeCast: runs chosen ops in another dtype and casts their results back.

    +----------------------------+---------------------------------+-------+
    |             op             |              casts              | calls |
    +----------------------------+---------------------------------+-------+
    | torch.nn.functional.linear | torch.bfloat16 -> torch.float32 |  180  |
    +----------------------------+---------------------------------+-------+

Ops that only move data and ops that make numbers out of nothing are left alone (ops/catalogue.py lists them). One that
moves data is cast where the user's list holds its very name. Under autocast, the dtype that autocast would give an op
is the one that is looked up, and autocast does not undo the cast.

The variables are read when the tool starts. Under apply_feature, which starts at once, they count from when they are
set: the reference's own example sets OP_DTYPE_CAST_DICT after it.
"""

from __future__ import annotations

import os
from typing import Any, Callable

import torch

from op_tools.core.call import OpCall
from op_tools.core.tool import Tool
from op_tools.device import failure
from op_tools.errors import SettingError
from op_tools.ops import catalogue
from op_tools.ops.cast_tables import (
    DEFAULT_CASTS,
    Casts,
    CastTable,
    CastTables,
    cast_variables,
    casts_text,
    read_cast_tables,
    tables_from,
    variables_of,
)
from op_tools.ops.catalogue import Trait
from op_tools.output import messages, tables
from op_tools.output.results import Results
from op_tools.reroute.cast_call import Cast, CastKind, ForeachCast, cast_call
from op_tools.values import trees

COLUMNS = ("name", "target", "action", "config")


class OpDtypeCast(Tool[None, None]):
    """Casts tensors of some dtypes among an op's arguments, runs it, and casts its results back.

    `casts`: the dtypes to replace, and by which, as a dictionary or in the form of OP_DTYPE_CAST_DICT, for which it
    stands in, as for the variables of single ops.
    """

    hook = "OpDtypeCastHook"
    prefix = "OP_DTYPE_CAST"
    feature = "cast_dtype"
    changes = True
    runs_again = True

    def __init__(self, *, casts: Casts | None = None, **common: Any) -> None:
        super().__init__(**common)
        self._casts = casts
        self._tables: CastTables
        self._by_op: dict[str, CastTable] = {}
        self._variables: dict[str, str] = {}  # as they were when they were read
        self._kinds: dict[Any, CastKind] = {}

    def started(self) -> None:
        self._variables = cast_variables()
        self._tables = read_cast_tables() if self._casts is None else tables_from(self._casts)
        self._by_op, self._kinds = {}, {}
        self.selection.leave_alone("OpDtypeCast", _reason_to_leave)

    def collected(self) -> Results:
        """Which ops were cast, by name."""
        calls: dict[tuple[str, str], int] = {}
        for kind in self._kinds.values():
            row = kind.name, ", ".join(sorted(_action(*pair) for pair in kind.casts))
            calls[row] = calls.get(row, 0) + kind.calls
        rows = [(*row, count) for row, count in sorted(calls.items())]
        return Results("OpDtypeCast", ("op", "casts", "calls"), rows, sum(calls.values()))

    def stopped(self) -> None:
        if self._kinds and self.verbose >= 1:
            found = self.results
            rows = [tuple(map(str, row.values())) for row in found]
            messages.say(f"\n{tables.table(found.columns, rows)}\n")

    def run(self, call: OpCall, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.condition is not None and self._casts is None:
            self._look_at_variables(call.name)
        table = self._by_op.get(call.name)
        if table is None:
            table = self._by_op[call.name] = self._tables.cast_table(call.name) or DEFAULT_CASTS
        try:
            with torch._C.DisableTorchFunction():
                cast = cast_call(call.name, args, kwargs, table, lists_whole=self.verbose < 2)
        except Exception as error:  # noqa: BLE001  the op itself must not be lost
            cast = None
            if not failure.is_noticed(error):
                text = f"OpDtypeCast could not cast the arguments of {call.name}: {messages.in_short(error)}"
                messages.complain_once("cast", call.name, text=text)
        if cast is None:
            return proceed(*args, **kwargs)
        result = cast.run(proceed)
        with torch._C.DisableTorchFunction():
            kind = self._kind(cast)
            kind.calls += 1
            result = cast.finish(result, call.func, kind)
        if self.verbose >= 2 and isinstance(cast, Cast):
            rows = _rows(call.name, cast, args, kwargs, casts_text(table))
            messages.say(f"\n\n\n{tables.heading(call)}\n{tables.table(COLUMNS, rows)}\n")
        return result

    def _look_at_variables(self, name: str) -> None:
        """Reads them anew where one that concerns this op has changed."""
        if all(os.environ.get(variable) == self._variables.get(variable) for variable in variables_of(name)):
            return
        self._variables = cast_variables()
        try:
            self._tables = read_cast_tables()
            self._by_op = {}
        except SettingError as error:
            messages.complain_once("casts", str(error), text=f"{error}; what was set before still counts")

    def _kind(self, cast: Cast | ForeachCast) -> CastKind:
        key = cast.key()
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = cast.new_kind()
        return kind


def _reason_to_leave(name: str, spelt_out: bool) -> str | None:
    if catalogue.has(name, catalogue.MAY_BE_VIEW | Trait.NO_ARITHMETIC):
        return "its result shares memory with its argument, or is there to have this dtype"
    if catalogue.has(name, Trait.FILLS | Trait.CONSTRUCTS):
        return "it does not compute with its arguments"
    if catalogue.has(name, Trait.MOVES_DATA) and not spelt_out:
        return "it only moves data"
    return None


def _rows(
    name: str, cast: Cast, args: tuple[Any, ...], kwargs: dict[str, Any], config: str
) -> list[tuple[str, str, str, str]]:
    rows = []
    pairs = zip(cast.stand_ins.originals, cast.stand_ins.stand_ins)
    done = {id(original): _action(original.dtype, stand_in.dtype) for original, stand_in in pairs}
    for place, value in (*trees.leaves(args), *trees.leaves(kwargs)):
        if id(value) in done:
            rows.append((name, f"input{place}", done[id(value)], config))
    return rows + [(name, f"output[{place}]", _action(*dtypes), config) for place, *dtypes in cast.outputs]


def _action(source: torch.dtype, target: torch.dtype) -> str:
    return f"{source} -> {target}"
