"""One value compared: a row of the tables."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare.arguments import numbered
from op_tools.autocompare.judging import verdict
from op_tools.autocompare.judging.tolerance import Tolerance
from op_tools.autocompare.judging.verdict import Verdict


@dataclass
class Row:
    """One value compared. `verdict` is None where it was not: `reason` says why."""

    name: str
    verdict: Verdict | None
    atol: float = 0.0
    rtol: float = 0.0
    error_info: str = ""
    reason: str = ""

    @property
    def is_wrong(self) -> bool:
        return self.verdict is not None and not self.verdict.right

    @property
    def is_close(self) -> bool:
        return self.verdict is None or self.verdict.measures.allclose


def judge_plain(got: Any, expected: Any, same: Any, tolerance: Tolerance) -> Verdict:
    """Python's numbers, and whatever else is no tensor."""
    numbers = isinstance(got, (int, float, complex)) and isinstance(expected, (int, float, complex))
    if not numbers or got in (expected, same) or (got != got and expected != expected):
        return verdict.RIGHT
    distance = abs(got - expected)
    close = distance <= tolerance.atol + tolerance.rtol * abs(expected)
    relative = distance / abs(expected) if expected else math.inf
    measures = verdict.Measures(close, distance, relative, 1.0 if close else math.nan)
    return Verdict(close, "" if close else f"{got} instead of {expected}", measures, 0.0 if close else math.inf)


@functools.lru_cache(maxsize=1000)
def output_names(op: str, count: int) -> list[str]:
    """What the results of a call are called."""
    return numbered(f"{op} output", count)


def range_of(names: Sequence[str]) -> str:
    """`input[0..51]` for many names."""
    return f"{names[0][:-1]}..{names[-1].rpartition('[')[2]}"


def error_info(got: Tensor, expected: Any) -> str:
    """What the contract's column of that name says."""
    if isinstance(expected, Tensor) and expected.dtype is not got.dtype:
        return inconsistent(got.dtype, expected.dtype)
    return ""


@functools.lru_cache(maxsize=1000)
def inconsistent(got: torch.dtype, expected: torch.dtype) -> str:
    """The same, for two dtypes that differ."""
    return f"Inconsistent dtypes: {got} {expected}"
