"""Positions that an op may choose among equals: those of a maximum, of a sorted element, of a median."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare.arguments import Arguments
from op_tools.ops.names import normalized

# where an op has its dimension among the arguments, and which one it takes if none is given
_DIMENSIONS: dict[str, tuple[int, int | None]] = {
    "argmax": (1, None),
    "argmin": (1, None),
    "argsort": (1, -1),
    "sort": (1, -1),
    "msort": (1, 0),
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
    base = normalized(name).base
    values = given.tensors[0].detach()
    pool = _POOL.fullmatch(base)
    if pool:
        planes = int(pool[2])
        return _same(values.flatten(-planes), got.flatten(-planes), expected.flatten(-planes), -1)
    known = _dimension(base, given)
    if known is None:
        return False
    (dimension,) = known
    if dimension is None:
        return _same(values.flatten(), got.flatten(), expected.flatten(), 0)
    if values.dim() == 0:
        return True
    if got.dim() < values.dim():
        got, expected = got.unsqueeze(dimension), expected.unsqueeze(dimension)
    if base in _ALL_DIFFERENT and _has_repetitions(got, dimension):
        return False
    return _same(values, got, expected, dimension)


def _dimension(base: str, given: Arguments) -> tuple[int | None] | None:
    """The dimension that a call chooses along, itself None for all of them; None where that is unknown."""
    if base not in _DIMENSIONS:
        return None
    position, default = _DIMENSIONS[base]
    dimension = given.args[position] if len(given.args) > position else given.kwargs.get("dim", default)
    if isinstance(dimension, bool) or not isinstance(dimension, (int, type(None))):
        return None
    return (dimension,)


class Ties:
    """Where the values that a call chooses among are equal. A gradient may go to any of them: only its sum is known."""

    def __init__(self, name: str, given: Arguments) -> None:
        base = normalized(name).base
        known, pool = _dimension(base, given), _POOL.fullmatch(base)
        self.exist = False
        if (known is None and pool is None) or not given.tensors or not given.tensors[0].dim():
            return
        values = given.tensors[0].detach()
        self._shape = values.shape
        self._planes = int(pool[2]) if pool else 0  # dimensions in which a pool chooses
        self._dimension = -1 if known is None or known[0] is None else known[0]
        self._flat = known is not None and known[0] is None
        ordered, self._places = self._lines(values).sort(-1)
        differs = ordered.diff(dim=-1) != 0
        differs &= ~(ordered[..., 1:].isnan() & ordered[..., :-1].isnan())
        self.exist = not bool(differs.all())
        self._groups = torch.nn.functional.pad(differs.long().cumsum(-1), (1, 0))

    def _lines(self, tensor: Tensor) -> Tensor:
        """With the dimension that the call chooses along as the last one."""
        if self._planes:
            return tensor.flatten(-self._planes)
        return tensor.flatten() if self._flat else tensor.movedim(self._dimension, -1)

    def summed(self, gradient: Tensor) -> Tensor:
        """The sums over equal values; a gradient of another shape is left alone."""
        if gradient.shape != self._shape:
            return gradient
        lines = self._lines(gradient).gather(-1, self._places)
        return torch.zeros_like(lines).scatter_add_(-1, self._groups, lines)


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
