"""How NaN or Inf went on from where it arose: a table of the calls that it reached, in their order.

Infinities that a program means (a mask of -inf) are carried on in every healthy run: nothing is written until some call
has made NaN or Inf out of numbers, and after a NaN only what has NaN.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from pathlib import Path
from typing import NamedTuple

from op_tools.output.csv_files import CsvFile
from op_tools.overflow.calls import CheckedCall
from op_tools.overflow.findings import Finding, finding

COLUMNS = ("forward_id", "name", "phase", "role", "what", "given", "made", "order", "step", "module", "where")
MADE, CARRIED, CAME_IN = "made", "carried", "came in"
MAX_ROWS = 5_000
MAX_BEFORE = 256  # calls that carried something before it is known who made it: the device answers late


class _Reached(NamedTuple):
    found: Finding
    role: str
    given: float
    made: float
    order: int

    def cells(self) -> tuple[object, ...]:
        one = self.found
        numbers = (f"{self.given:.6g}", f"{self.made:.6g}", self.order)
        return (one.forward_id, one.name, one.phase, self.role, one.what, *numbers, one.step, one.module, one.where)


class Spread:
    """Takes in the calls that have NaN or Inf in what they made; writes those from the first guilty one on."""

    def __init__(self, path: Path, most_rows: int) -> None:
        self._csv = CsvFile(path, COLUMNS, most_rows)
        self._orders = itertools.count(1)
        self._before: deque[_Reached] = deque(maxlen=MAX_BEFORE)
        self._first: _Reached | None = None
        self._rows = 0

    def reached(self, checked: CheckedCall) -> None:
        """It has NaN or Inf in what it made; whether it is guilty may turn out later."""
        checked.order = next(self._orders)

    def carried(self, checked: CheckedCall) -> None:
        kind = "NaN" if math.isnan(checked.made) else "Inf"
        self._add(_Reached(finding(checked, f"carried {kind} on"), CARRIED, checked.given, checked.made, checked.order))

    def began(self, checked: CheckedCall, what: str, role: str) -> None:
        """It has made NaN or Inf, or was given some that no op had made."""
        one = _Reached(finding(checked, what), role, checked.given, checked.made, checked.order)
        if self._first is None:
            self._first = one
            self._write(one)
            for before in self._before:
                self._add(before)
            self._before.clear()
        else:
            self._write(one)

    def close(self) -> None:
        self._csv.close()

    def files(self) -> list[str]:
        return [str(self._csv.path)] if self._csv.written else []

    def _add(self, one: _Reached) -> None:
        if self._first is None:
            self._before.append(one)
        elif one.order > self._first.order and (math.isnan(one.made) or not math.isnan(self._first.made)):
            self._write(one)

    def _write(self, one: _Reached) -> None:
        self._rows += 1
        if self._rows <= MAX_ROWS:
            self._csv.add(one.cells())
