"""Misspellings, said once when a tool starts: variables that are not read, names in lists that no op has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from ditorch_shared.settings import meant
from op_tools import settings
from op_tools.ops.selection import Selection
from op_tools.output import messages

_BEFORE_FAMILY = re.compile(r"^\w+_(?=OP_DTYPE_CAST|AUTOCOMPARE_ERROR)")  # the op in LINEAR_OP_DTYPE_CAST_DICT
_DTYPES = ("FLOAT16", "BFLOAT16", "FLOAT32", "FLOAT64")


def check(tool: str, selection: Selection, prefixes: Iterable[str]) -> None:
    """`prefixes` are those of all tools' lists, such as OP_CAPTURE."""
    for doubt in selection.doubts():
        messages.complain_once("spelling", tool, doubt, text=f"{tool}: {doubt}")
    for doubt in _unread_variables(list(prefixes)):
        messages.complain_once("spelling", doubt, text=doubt)


def _unread_variables(prefixes: list[str]) -> list[str]:
    suspects = [name for name in os.environ if name.startswith("OP") or "AUTOCOMPARE" in name or "DTYPE_CAST" in name]
    lists = [f"{prefix}_{kind}" for prefix in ("OP_TOOLS", *prefixes) for kind in ("LIST", "DISABLE_LIST")]
    known = {*(setting.name for setting in settings.ALL), *lists}
    unread = [name for name in suspects if name not in known and not any(f.fullmatch(name) for f in settings.FAMILIES)]
    if not unread:
        return []
    tolerance = "AUTOCOMPARE_ERROR_TOLERANCE"
    readable = {*known, tolerance, *(f"{tolerance}_{dtype}" for dtype in _DTYPES), "OP_DTYPE_CAST_DICT"}
    ours = ("OP_TOOLS_", *(f"{prefix}_" for prefix in prefixes))
    doubts = []
    for name in sorted(unread):
        family = _BEFORE_FAMILY.sub("", name)
        close = meant(family, readable)
        if close or family.startswith(ours):
            hint = f"did you mean {close}?" if close else "docs/settings.md lists those that are."
            doubts.append(f"the variable {name} is set, and no tool reads it; {hint}")
    return doubts
