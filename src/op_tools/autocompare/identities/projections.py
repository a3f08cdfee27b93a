"""A result multiplied by random signs, beside what that should be, and how far apart rounding may drive the two.

With signs drawn at random, the variance of a projection's error is the sum of the squared errors of its elements,
however those hang together. So the noise of a healthy result can be predicted from its row, and a fault can hardly
hide. Only products by element and sums are used here: no matrix product, which is what is to be proven.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from op_tools.autocompare.reference.ways import has_float64
from op_tools.device.row_sums import row_sums

COLUMNS = 4  # signs for each element: two equal errors in a row cancel out with a probability of 1 / 2**COLUMNS
ACCUMULATOR = 2.0**-24  # a device adds up in float32
_TF32 = 2.0**-11
_ROUNDING = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
}
# half of the smallest number that a dtype has
_SMALLEST = {torch.float64: 0.0, torch.float32: 2.0**-150, torch.bfloat16: 2.0**-134, torch.float16: 2.0**-25}
_TYPICAL = 0.58  # root of the mean square of a rounding, where all mantissas are near 1; 0.425 where they are spread
# of the squared error of sequential sums in float32: of terms of one sign, and of terms that cancel out
_SAME_SIGN, _CANCELLING = 0.12, 0.18
_MIN_ROWS_FOR_MEAN = 64
_SLOPE_SIGMAS = 8.0
_SUMS_IN_FLOAT32 = 9.0  # times the accumulator's variance, where the sums of a proof have no float64 themselves
_MIN_TABLE_ROWS = 2**18
_MAX_ELEMENTS_AT_ONCE = 2**20  # multiplied by all columns together, which takes so many times their memory

NUMBERS = ("row", "mean", "slope", "unexpected")


class Rounding(NamedTuple):
    """What a result was computed with."""

    result: float
    smallest: float
    accumulator: float
    is_tf32: bool = False

    @classmethod
    def of(cls, dtypes: Iterable[torch.dtype], is_tf32: bool = False) -> Rounding | None:
        """For the coarsest of these dtypes; None where one of them is not known."""
        found = list(dtypes)
        if not all(dtype in _ROUNDING for dtype in found):
            return None
        coarsest = max(found, key=_ROUNDING.__getitem__)
        accumulator = min(ACCUMULATOR, _ROUNDING[coarsest])
        return cls(_ROUNDING[coarsest], _SMALLEST[coarsest], accumulator, is_tf32)

    def of_values(self, squares: Tensor, count: int) -> Tensor:
        """The variance that rounding `count` values brings, whose squares add up to `squares`."""
        return (_TYPICAL * self.result) ** 2 * squares + count * self.smallest**2

    def of_sums(self, terms: int, squares: Tensor, squared_terms: Tensor) -> Tensor:
        """Of sums of so many terms: `squares` of the sums, `squared_terms` the squares of all terms added up."""
        variance = self.accumulator**2 * terms * (_SAME_SIGN * squares + _CANCELLING * squared_terms)
        if self.is_tf32:
            variance = variance + 2 * (_TYPICAL * _TF32) ** 2 * squared_terms
        return variance

    def of_slope(self, terms: int = 1) -> float:
        """Equal numbers round alike: a common factor of less than this proves nothing."""
        return 2.0 * (self.result + self.accumulator * math.sqrt(terms) + (_TF32 if self.is_tf32 else 0.0))


class Residual(NamedTuple):
    """Projections (rows, columns) as they are and should be, the variance of each row, and the limit of the slope."""

    got: Tensor
    wanted: Tensor
    variance: Tensor
    slope: float


def numbers(residual: Residual) -> Tensor:
    """On the device, in units of what rounding brings: those of NUMBERS."""
    columns = residual.got.shape[-1]
    got, wanted = residual.got.reshape(-1, columns), residual.wanted.reshape(-1, columns)
    variance = residual.variance.reshape(-1, 1)
    if got.dtype is torch.float32:  # the device has no float64
        variance = variance * (1 + _SUMS_IN_FLOAT32)
    error = got - wanted
    is_sure = (torch.isfinite(error) & torch.isfinite(variance)).all(-1, keepdim=True) & (variance > 0)
    nothing = error.new_zeros(())
    variance = torch.where(is_sure, variance, error.new_ones(()))
    error, size = torch.where(is_sure, error, nothing), torch.where(is_sure, wanted, nothing)
    squares = (error * error / variance).sum(-1)
    rows = is_sure.sum()
    mean = torch.where(rows >= _MIN_ROWS_FOR_MEAN, squares.sum() / (rows.clamp(min=1) * columns), nothing)
    weight = (size * size / variance).sum().clamp(min=1e-300 if got.dtype is torch.float64 else 1e-30)
    slope = (error * size / variance).sum().abs()
    slope = torch.minimum(slope / weight.sqrt() / _SLOPE_SIGMAS, slope / weight / residual.slope)
    unexpected = (torch.isfinite(residual.wanted) != torch.isfinite(residual.got)).sum()
    return torch.stack([squares.max(), mean, slope, unexpected.to(mean.dtype)])


# ---- sums ------------------------------------------------------------------------------------------------------------


class Sums(NamedTuple):
    """Of each row: its projections (…, columns) and the squares of its elements, added up."""

    projections: Tensor
    squares: Tensor


def sums_of(tensor: Tensor, weights: Tensor, of_squares: Tensor | None = None) -> Sums:
    """Over the last dimension, with each column of `weights`; squares times weights of their own, if there are any."""
    found = row_sums(tensor, weights, of_squares)
    if found is not None:
        return Sums(*found)
    if of_squares is None:
        return Sums(projected(tensor, weights), squared(tensor))
    squares = (tensor if tensor.dtype is torch.float64 else tensor.float()).square()
    return Sums(projected(tensor, weights), projected(squares, of_squares.unsqueeze(-1)).squeeze(-1))


def projected(tensor: Tensor, weights: Tensor) -> Tensor:
    """Sums over the last dimension with each column of `weights` (…, elements, columns): (…, columns)."""
    found = row_sums(tensor, weights)
    if found is not None:
        return found[0]
    dtype = _wide(tensor)
    weights = weights.to(torch.float64 if tensor.dtype is torch.float64 else torch.float32)
    if tensor.numel() <= _MAX_ELEMENTS_AT_ONCE:  # small ones take as long as their kernels are many
        return (tensor.unsqueeze(-1) * weights.unsqueeze(-3)).sum(-2, dtype=dtype)
    columns = [(tensor * column.unsqueeze(-2)).sum(-1, dtype=dtype) for column in weights.unbind(-1)]
    return torch.stack(columns, -1)


def squared(tensor: Tensor) -> Tensor:
    """The squares of the last dimension, added up."""
    wide = tensor if tensor.dtype is torch.float64 else tensor.float()
    return wide.square().sum(-1, dtype=_wide(tensor))


def wide(tensor: Tensor) -> Tensor:
    """In the best precision that its device has."""
    return tensor.to(_wide(tensor))


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if has_float64(tensor.device) else torch.float32


# ---- signs -----------------------------------------------------------------------------------------------------------

_places = random.Random(0x51675)  # noqa: S311  nothing secret; the program's own generators stay as they are


def signs(count: int, device: torch.device) -> Tensor:
    """(count, COLUMNS), others at every call, without a kernel: a part of a table."""
    rows = max(_MIN_TABLE_ROWS, 1 << (2 * count).bit_length())
    start = _places.randrange(rows - count)
    return _table(device, rows)[start : start + count]


def some(count: int, of: int) -> int:
    """Where a part of `count` begins among so many: at the end and at the beginning more often than elsewhere."""
    last = max(of - count, 0)
    return _places.choice((0, last, _places.randint(0, last), _places.randint(0, last)))


@functools.lru_cache(maxsize=64)
def _table(device: torch.device, rows: int) -> Tensor:
    own = torch.Generator().manual_seed(rows)
    with torch.inference_mode(False):
        return (torch.randint(0, 2, (rows, COLUMNS), generator=own, dtype=torch.float32) * 2 - 1).to(device)
