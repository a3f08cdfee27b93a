"""How far two values may lie apart for the contract's `allclose`: atol and rtol by op and dtype, from the environment.

The most specific variable wins: LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16 (the op's last name, in capitals), then
AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16, then AUTOCOMPARE_ERROR_TOLERANCE, then the defaults below.
"""

from __future__ import annotations

import math
import os
import re
from typing import Any, NamedTuple

import torch
from torch import Tensor

from op_tools import settings

_HELP = 'two numbers "atol,rtol", such as 1e-3,1e-4'
_VARIABLE = re.compile(r"(?:(?P<op>.+)_)?AUTOCOMPARE_ERROR_TOLERANCE(?:_(?P<dtype>[A-Z0-9]+))?")
_DTYPES = {"FLOAT16": torch.float16, "BFLOAT16": torch.bfloat16, "FLOAT32": torch.float32, "FLOAT64": torch.float64}
# a complex tensor is a pair of these
_PARTS = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


class Tolerance(NamedTuple):
    """|got - expected| <= atol + rtol * |expected|."""

    atol: float
    rtol: float


NOTHING = Tolerance(0.0, 0.0)  # for None
NUMBER = Tolerance(1e-6, 1e-6)  # for a Python number
_OTHER_TENSORS = Tolerance(1e-3, 1e-3)
_DEFAULTS = {
    torch.float16: Tolerance(1e-4, 1e-4),
    torch.bfloat16: Tolerance(1e-3, 1e-3),
    torch.float32: Tolerance(1e-5, 1e-5),
    torch.float64: Tolerance(1e-8, 1e-8),
}


class Tolerances:
    """The tolerances of one run. Made when a tool starts: a variable that cannot be understood is an error then."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, torch.dtype | None], Tolerance] = {}
        for variable, text in os.environ.items():
            match = _VARIABLE.fullmatch(variable)
            if match and text.strip():
                dtype = _dtype(variable, match["dtype"])
                self._given[match["op"] or "", dtype] = settings.parse(variable, text, _pair, _HELP)
        self._known: dict[tuple[str, torch.dtype], Tolerance] = {}

    def of(self, op: str, value: Any) -> Tolerance:
        """For a value that the op with this full name was given, or gave."""
        if isinstance(value, Tensor):
            return self.for_dtype(op, value.dtype)
        return NOTHING if value is None else NUMBER

    def for_dtype(self, op: str, dtype: torch.dtype) -> Tolerance:
        """For tensors of this dtype."""
        known = self._known.get((op, dtype))
        if known is None:
            known = self._known[op, dtype] = self._find(op.rpartition(".")[2].upper(), _PARTS.get(dtype, dtype))
        return known

    def _find(self, op: str, dtype: torch.dtype) -> Tolerance:
        for key in ((op, dtype), (op, None), ("", dtype), ("", None)):
            if key in self._given:
                return self._given[key]
        return _DEFAULTS.get(dtype, _OTHER_TENSORS)


def _dtype(variable: str, name: str | None) -> torch.dtype | None:
    def parse(name: str) -> torch.dtype:
        if name not in _DTYPES:
            raise ValueError(f"a tolerance can be given for {', '.join(_DTYPES)}")
        return _DTYPES[name]

    return None if name is None else settings.parse(variable, name, parse, "the dtype that a tolerance is meant for")


def _pair(text: str) -> Tolerance:
    try:
        atol, rtol = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError("it must be two numbers with a comma between them: atol,rtol") from None
    if not (0 <= atol < math.inf and 0 <= rtol < math.inf):
        raise ValueError("neither number may be negative or infinite")
    return Tolerance(atol, rtol)
