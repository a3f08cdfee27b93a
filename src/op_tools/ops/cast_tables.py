"""Which dtype is replaced by which: OP_DTYPE_CAST_DICT, and the variables that say it for one op.

OP_DTYPE_CAST_DICT="torch.float16->torch.float32,torch.bfloat16->torch.float32"
LINEAR_OP_DTYPE_CAST_DICT="torch.bfloat16->torch.float64"      only for ops whose name ends in .linear
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Union

import torch

from op_tools.errors import SettingError
from op_tools.settings import Setting, parse

CastTable = dict[torch.dtype, torch.dtype]
Casts = Union[str, Mapping[torch.dtype, torch.dtype]]

_HELP = "dtypes to replace, and by which: torch.float16->torch.float32,torch.bfloat16->torch.float32"
_PER_OP = "_OP_DTYPE_CAST_DICT"


def parse_casts(text: str) -> CastTable:
    """`torch.half->torch.float,…` as a table; ValueError names the part that cannot be understood."""
    table: CastTable = {}
    for part in filter(None, map(str.strip, text.split(","))):
        source, arrow, target = part.partition("->")
        if not arrow:
            raise ValueError(f"{part!r} has no arrow, as in torch.float16->torch.float32")
        _add(table, _dtype(source.strip()), _dtype(target.strip()))
    if not table:
        raise ValueError("it names no dtypes")
    return table


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.partition("torch.")[2] if name.startswith("torch.") else name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype; they are called torch.float32, torch.bfloat16 and so on")
    return dtype


def _add(table: CastTable, source: torch.dtype, target: torch.dtype) -> None:
    if _kind(source) != _kind(target):
        raise ValueError(f"{source}->{target} would turn {_kind(source)} numbers into {_kind(target)} ones")
    if table.setdefault(source, target) is not target:
        raise ValueError(f"{source} cannot become both {table[source]} and {target}")


def _kind(dtype: torch.dtype) -> str:
    return "complex" if dtype.is_complex else "floating" if dtype.is_floating_point else "whole"


def casts_text(table: Mapping[torch.dtype, torch.dtype]) -> str:
    """A table in the form of the variable."""
    return ",".join(f"{source}->{target}" for source, target in table.items())


CAST_DICT: Setting[CastTable | None] = Setting("OP_DTYPE_CAST_DICT", None, parse_casts, _HELP)
DEFAULT_CASTS: CastTable = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


class CastTables:
    """The tables as they were when a tool started: one for all ops, and those of single ops."""

    def __init__(self, general: CastTable | None, by_op: Mapping[str, CastTable]) -> None:
        self._general = general
        self._by_op = by_op

    def cast_table(self, op_name: str) -> CastTable | None:
        """For the op of this full name; None where nothing is set."""
        if not self._by_op:
            return self._general
        return self._by_op.get(op_name.rpartition(".")[2].upper(), self._general)


def cast_variables() -> dict[str, str]:
    """All of them that are set, the one for all ops and those of single ops."""
    return {name: text for name, text in os.environ.items() if name == CAST_DICT.name or name.endswith(_PER_OP)}


def read_cast_tables() -> CastTables:
    """From the environment; SettingError says which variable cannot be understood, and which part of it."""
    by_op = {
        variable[: -len(_PER_OP)]: parse(variable, text.strip(), parse_casts, _HELP)
        for variable, text in cast_variables().items()
        if variable != CAST_DICT.name and text.strip()
    }
    return CastTables(CAST_DICT.get(), by_op)


def variables_of(op_name: str) -> tuple[str, str]:
    """The variables that concern an op: its own, and the one for all."""
    return op_name.rpartition(".")[2].upper() + _PER_OP, CAST_DICT.name


def tables_from(casts: Casts) -> CastTables:
    """From an argument: the same for every op."""
    if isinstance(casts, str):
        return CastTables(parse("casts", casts, parse_casts, _HELP), {})
    table: CastTable = {}
    try:
        if not isinstance(casts, Mapping):
            raise ValueError("give a dictionary of dtypes, or text such as torch.float16->torch.float32")
        for source, target in casts.items():
            if not isinstance(source, torch.dtype) or not isinstance(target, torch.dtype):
                raise ValueError(f"{source!r}: {target!r} are not both dtypes")
            _add(table, source, target)
    except ValueError as error:
        raise SettingError(f"casts={casts!r} cannot be used: {error}. It means: {_HELP}") from None
    return CastTables(table, {})
