"""Positions that an op may choose among equals: those of a maximum, of a sorted element, of a median."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from op_tools.comparing import traits
from op_tools.comparing.reference import Arguments

# where an op has its dimension among the arguments, and which one it takes if none is given
_DIMENSIONS: dict[str, tuple[int, int | None]] = {
    "argmax": (1, None),
    "argmin": (1, None),
    "argsort": (1, -1),
    "sort": (1, -1),
    "topk": (2, -1),
    "kthvalue": (2, -1),
    "mode": (1, -1),
    "median": (1, -1),
    "nanmedian": (1, -1),
    "max": (1, -1),
    "min": (1, -1),
    "cummax": (1, -1),
    "cummin": (1, -1),
}
_ALL_DIFFERENT = ("argsort", "sort", "topk")
_POOL = re.compile(r"(adaptive_)?max_pool(\d)d.*")


def same_values(name: str, given: Arguments, got: Tensor, expected: Tensor) -> bool:
    """True where both positions lead to the same values, so that either is right."""
    base = traits.base_name(name)
    values = given.tensors[0].detach()
    pool = _POOL.fullmatch(base)
    if pool:
        planes = int(pool[2])
        return _same(values.flatten(-planes), got.flatten(-planes), expected.flatten(-planes), -1)
    if base not in _DIMENSIONS:
        return False
    position, default = _DIMENSIONS[base]
    dimension = given.args[position] if len(given.args) > position else given.kwargs.get("dim", default)
    if isinstance(dimension, bool) or not isinstance(dimension, (int, type(None))):
        return False
    if dimension is None:
        return _same(values.flatten(), got.flatten(), expected.flatten(), 0)
    if values.dim() == 0:
        return True
    if got.dim() < values.dim():
        got, expected = got.unsqueeze(dimension), expected.unsqueeze(dimension)
    if base in _ALL_DIFFERENT and _has_repetitions(got, dimension):
        return False
    return _same(values, got, expected, dimension)


def _same(values: Tensor, got: Tensor, expected: Tensor, dimension: int) -> bool:
    size: Any = values.shape[dimension]
    if bool(((got < 0) | (got >= size)).any()):
        return False
    left, right = values.gather(dimension, got.long()), values.gather(dimension, expected.long())
    return bool(((left == right) | (left.isnan() & right.isnan())).all())


def _has_repetitions(positions: Tensor, dimension: int) -> bool:
    if positions.shape[dimension] < 2:
        return False
    ordered = positions.sort(dimension).values
    return bool((ordered.diff(dim=dimension) == 0).any())
