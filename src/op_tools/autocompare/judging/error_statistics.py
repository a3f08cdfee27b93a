"""The statistics that a verdict rests on: every element's error beside its own scale, summed up block by block.

verdict.py tells what they are for.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from op_tools.autocompare.judging.limits import (
    MIN_ROW_ELEMENTS,
    MIN_VALUE_TO_ERROR,
    MIN_VALUES_FOR_BIAS,
    Precision,
    Tolerance,
)
from op_tools.autocompare.judging.measures import as_real, block_size, dots, half_ulp, unravel

_MIN_LONG_ROW = 2**20  # elements: a shorter row is one block


class Found(NamedTuple):
    """Sums and maxima over all elements."""

    squares: float  # of the scaled errors
    slope: float  # scaled errors times scaled values
    usual_slope: float
    weight: float  # squares of scaled values
    usual_squares: float  # of the CPU's scaled errors
    got_squares: float
    product: float
    expected_squares: float
    errors: float  # squares, unscaled
    usual_errors: float
    ulps: float
    nonzero: float
    blamed: float  # NaN or Inf on one side only, and not on the CPU either
    nonfinite: float  # NaN or Inf on one side only
    peak: float
    max_abs: float
    max_relative: float
    max_ulp: float
    excess: float  # over rtol

    def and_more(self, other: Found) -> Found:
        """Of both pieces of a result together."""
        return Found(*map(sum, zip(self[:_SUMS], other[:_SUMS])), *map(max, zip(self[_SUMS:], other[_SUMS:])))

    def bias(self, precision: Precision, count: float, distinct: float) -> tuple[float, float]:
        """The slope of the errors over the values, and how large it may be."""
        # of few values, or of values no larger than their errors, there is none
        if count < MIN_VALUES_FOR_BIAS or self.weight < MIN_VALUE_TO_ERROR**2 * count:
            return 0.0, 1.0
        slope, usual = self.slope / self.weight, self.usual_slope / self.weight
        # that few errors happen to be alike says nothing: they vary as much as roundings do
        left_over = max(self.squares - slope * slope * self.weight, count / 3) / distinct
        return slope, precision.allowed_bias(usual, math.sqrt(left_over / self.weight))


_SUMS = Found._fields.index("peak")  # maxima follow


class Block:
    """Some rows of one tensor's numbers, in float64.

    `careful`: where NaN or Inf make a comparison senseless, both sides are zero, and `nonfinite` tells where.
    """

    __slots__ = ("blamed", "error", "expected", "got", "half_ulp", "magnitude", "nonfinite", "usual")

    def __init__(
        self,
        got: Tensor,
        expected: Tensor,
        same: Tensor | None,
        magnitude: Tensor | None,
        precision: Precision,
        careful: bool = False,
        may_overflow: Tensor | None = None,
    ) -> None:
        got, expected = got.double(), expected.double()
        same = None if same is None else same.double()
        self.nonfinite: Tensor | None = None
        self.blamed: Tensor | None = None
        self.got, self.expected, self.error = got, expected, got - expected
        self.usual = None if same is None else same - expected
        if careful:
            self._set_nonfinite_aside(got, expected, same, precision)
            if may_overflow is not None and self.blamed is not None:
                self.blamed &= got.isfinite() | ~may_overflow
            magnitude = None if magnitude is None else magnitude.nan_to_num(0.0, 0.0)
        self.magnitude = (self.expected.abs() if magnitude is None else magnitude).contiguous()
        self.half_ulp = half_ulp(self.magnitude, precision)

    def _set_nonfinite_aside(self, got: Tensor, expected: Tensor, same: Tensor | None, precision: Precision) -> None:
        beyond = expected.abs() > precision.largest
        is_overflow = beyond & expected.isfinite()
        expected = torch.where(beyond, expected.sign() * math.inf, expected)
        comparable = got.isfinite() & expected.isfinite()
        # of an overflow the end of the range is as good; what is infinite in higher precision, too, is no overflow
        at_end = is_overflow & (got * expected.sign() >= precision.largest * (1 - 2 * precision.eps))
        self.nonfinite = ~comparable & ~_alike(got, expected) & ~at_end
        # what becomes of an infinity, NaN or another one, depends on the order of operations
        harmless = ~got.isfinite() & ~expected.isfinite() & (got != -expected)
        self.blamed = self.nonfinite & ~harmless
        if same is not None:
            self.blamed &= ~_alike(got, same)
        self.got, self.expected = torch.where(comparable, got, 0.0), torch.where(comparable, expected, 0.0)
        self.error = self.got - self.expected
        if same is not None:
            # where the CPU is infinite in this dtype there is no telling what it costs
            usual = torch.nan_to_num(same - expected, nan=math.inf, posinf=math.inf, neginf=-math.inf)
            self.usual = torch.where(comparable, usual, 0.0)

    def usual_squares(self) -> Tensor | None:
        """What the op usually costs, squared; where the CPU has no number, nothing."""
        if self.usual is None:
            return None
        squares = self.usual.square()
        return squares if self.nonfinite is None else torch.where(squares.isfinite(), squares, 0.0)


class Position(NamedTuple):
    """Where a block is in the matrix: some whole rows, or a part of one long row."""

    rows: slice
    columns: slice

    @property
    def row(self) -> int:
        return int(self.rows.start)

    @property
    def column(self) -> int:
        return int(self.columns.start or 0)

    def of(self, matrix: Tensor) -> Tensor:
        return matrix[self.rows] if self.columns == _ALL else matrix[self.rows, self.columns]


_ALL = slice(None)


def _places(rows: int, columns: int, size: int) -> list[Position]:
    """Blocks of about `size` elements."""
    longest = max(size, _MIN_LONG_ROW)
    if columns > longest:
        parts = [slice(start, start + longest) for start in range(0, columns, longest)]
        return [Position(slice(row, row + 1), part) for row in range(rows) for part in parts]
    height = max(1, size // columns)
    return [Position(slice(start, start + height), _ALL) for start in range(0, rows, height)]


def _add(sums: dict[int, Tensor], key: int, more: Tensor) -> None:
    sums[key] = sums[key] + more if key in sums else more


def _end_to_end(parts: dict[int, Tensor], dimension: int) -> Tensor:
    (first, *others) = parts.values()
    return torch.cat([first, *others], dimension) if others else first


class Matrix:
    """One tensor's numbers as a matrix, block by block."""

    def __init__(
        self,
        got: Tensor,
        expected: Tensor,
        same: Tensor | None,
        precision: Precision,
        sensitivity: Tensor | None,
        may_overflow: Tensor | None = None,
    ) -> None:
        self._precision = precision
        self._shape = got.shape
        self._is_complex = got.is_complex() or expected.is_complex()
        parts: list[Tensor | None] = [got, expected, same, None]
        if self._is_complex:
            magnitude = expected.abs().double().unsqueeze(-1).expand(*expected.shape, 2)
            parts = [*(None if part is None else as_real(part.to(torch.complex128)) for part in parts[:3]), magnitude]
            sensitivity = None if sensitivity is None else sensitivity.unsqueeze(-1).expand(*expected.shape, 2)
            if may_overflow is not None and may_overflow.dim() == expected.dim():
                may_overflow = may_overflow.unsqueeze(-1).expand(*expected.shape, 2)
        shape = (*got.shape, 2) if self._is_complex else got.shape
        self._rows, self._columns = (math.prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (1, math.prod(shape))
        self._parts = [self._flat(part) for part in parts]
        self._sensitivity, self._may_overflow = self._flat(sensitivity), self._flat(may_overflow)
        self._places = _places(self._rows, self._columns, block_size(got))
        self._careful = False
        self._prepare()

    def _flat(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.detach().reshape(self._rows, self._columns)

    def _prepare(self) -> None:
        self._only = self._read(self._places[0]) if len(self._places) == 1 else None
        self._floor, self._typical, self._share_of_column = self._typical_errors()

    def _part(self, place: Position) -> list[Tensor | None]:
        return [None if part is None else place.of(part) for part in self._parts]

    def _read(self, place: Position) -> Block:
        got, expected, same, magnitude = self._part(place)
        assert got is not None
        assert expected is not None
        may_overflow = None if self._may_overflow is None else place.of(self._may_overflow)
        return Block(got, expected, same, magnitude, self._precision, self._careful, may_overflow)

    def _block(self, place: Position) -> Block:
        return self._read(place) if self._only is None else self._only

    def _costs(self, place: Position) -> tuple[Tensor, Tensor | None]:
        """The sizes of the values; and what the op usually costs, squared."""
        if self._only is not None or self._careful:
            block = self._block(place)
            return block.magnitude, block.usual_squares()
        _, expected, same, magnitude = self._part(place)
        assert expected is not None
        sizes = expected.abs() if magnitude is None else magnitude
        return sizes, None if same is None else (same.double() - expected.double()).square_()

    def _typical_errors(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Half a unit of a typical value; mean squares of what the op usually costs, by row; and shares by column."""
        share_of_largest = self._precision.share_of_largest
        values: Tensor | None = None
        largest: Tensor | None = None
        by_row: dict[int, Tensor] = {}  # by where they begin
        by_column: dict[int, Tensor] = {}
        for place in self._places:
            sizes, squares = self._costs(place)
            total = sizes.sum(dtype=torch.float64)
            values = total if values is None else values + total
            if share_of_largest:
                most = sizes.max().double()
                largest = most if largest is None else torch.maximum(largest, most)
            if squares is not None:
                _add(by_row, place.row, squares.sum(1, keepdim=True))
                if self._rows >= MIN_ROW_ELEMENTS:
                    _add(by_column, place.column, squares.sum(0, keepdim=True))
        assert values is not None
        count = self._rows * self._columns
        floor = values * (self._precision.floor * self._precision.eps / 2 / count)
        if largest is not None:
            floor = torch.maximum(floor, largest * share_of_largest)
        if not by_row:
            return floor, None, None
        sums = _end_to_end(by_row, 0)
        overall = sums.sum(0, keepdim=True) / count
        typical = sums / self._columns if self._columns >= MIN_ROW_ELEMENTS else overall.expand(self._rows, 1)
        share = _end_to_end(by_column, 1) / (self._rows * overall.clamp_min(1e-300)) if by_column else None
        return floor, typical, share

    def _scale(self, place: Position, block: Block) -> Tensor:
        """What each element may be off by."""
        scale = torch.maximum(block.half_ulp, self._floor)
        if self._typical is not None and block.usual is not None:
            typical = self._typical[place.rows].sqrt() * self._precision.floor
            if self._share_of_column is not None:
                typical = typical * self._share_of_column[:, place.columns].sqrt()
            scale = torch.maximum(torch.maximum(scale, typical), block.usual.abs())
        if self._sensitivity is not None:
            scale = torch.maximum(scale, place.of(self._sensitivity) / self._precision.limits.peak)
        return scale

    def allowed_squares(self) -> float | None:
        """Of the errors, scaled so that what `sensitivity` allows everywhere is just within the limit of all together.

        None where there is none. In the other statistics it is what it allows one element.
        """
        if self._sensitivity is None:
            return None
        total = 0.0
        for place in self._places:
            block = self._block(place)
            scale = torch.maximum(self._scale(place, block), place.of(self._sensitivity) / self._precision.limits.bulk)
            total += float((block.error / scale).square().sum())
        return total

    def statistics(self, tolerance: Tolerance) -> Found:
        found = self._statistics(tolerance)
        if not self._careful and not math.isfinite(sum(found)):
            self._careful = True
            self._prepare()
            found = self._statistics(tolerance)
        return found

    def _statistics(self, tolerance: Tolerance) -> Found:
        return Found(*self.unread_statistics(tolerance).tolist())

    def unread_statistics(self, tolerance: Tolerance) -> Tensor:
        """The numbers of Found, on the device."""
        sums: Tensor | None = None
        maxima: Tensor | None = None
        for place in self._places:
            block = self._block(place)
            scale = self._scale(place, block)
            scaled = block.error / scale
            block_sums, block_maxima = _sums(block, scale, scaled), _maxima(block, scaled, tolerance)
            sums = block_sums if sums is None else sums + block_sums
            maxima = block_maxima if maxima is None else torch.maximum(maxima, block_maxima)
        assert sums is not None
        assert maxima is not None
        return torch.cat([sums, maxima])

    def distinct_values(self) -> float:
        """Equal values have equal rounding errors: only different ones tell something new. In what works from step to
        step, one error goes on into many of them."""
        expected = self._parts[1]
        assert expected is not None
        sample = expected.flatten()[: 2**20]
        share = float(sample.unique().numel() / sample.numel())
        if self._precision.goes_on:
            share /= math.sqrt(self._rows * self._columns)
        return share

    def without_heaviest(self, found: Found) -> Found | None:
        """What the slope is made of, less the value that weighs most in it.

        None where that value's error is beyond what errors usually are, and says enough.
        """
        most, error, usual = 0.0, 0.0, 0.0
        for place in self._places:
            block = self._block(place)
            scale = self._scale(place, block)
            values = (block.expected / scale).flatten()
            index = int(values.abs().argmax())
            if abs(float(values[index])) > abs(most):
                costs = block.error if block.usual is None else block.usual
                most, error = float(values[index]), float(block.error.flatten()[index] / scale.flatten()[index])
                usual = float((costs.flatten()[index] / scale.flatten()[index]).nan_to_num(0.0))
        others = found._replace(
            squares=found.squares - error * error,
            slope=found.slope - error * most,
            usual_slope=found.usual_slope - usual * most,
            weight=found.weight - most * most,
        )
        return others if abs(error) <= self._precision.limits.bulk else None

    def bad(self, limit: float) -> tuple[tuple[int, ...] | None, float]:
        """The first element whose scaled error is beyond the limit, and the share of such elements."""
        first, count = None, 0
        for place in self._places:
            block = self._block(place)
            bad = (block.error / self._scale(place, block)).abs() > limit
            if block.blamed is not None:
                bad |= block.blamed
            here = int(bad.sum())
            if here and first is None:
                first = place.row * self._columns + place.column + int(bad.flatten().to(torch.uint8).argmax())
            count += here
        if first is None:
            return None, 0.0
        element = first // 2 if self._is_complex else first
        return unravel(element, self._shape), count / (self._rows * self._columns)


def _sums(block: Block, scale: Tensor, scaled: Tensor) -> Tensor:
    """The first part of Found."""
    value, usual = block.expected / scale, block.usual
    zero = block.error.new_zeros(1)
    pairs = [(scaled, scaled), (scaled, value), (zero, zero), (value, value), (zero, zero), (block.got, block.got)]
    pairs += [(block.got, block.expected), (block.expected, block.expected), (block.error, block.error), (zero, zero)]
    if usual is not None:
        cost = usual / scale
        if block.nonfinite is not None:
            usual, cost = torch.where(usual.isfinite(), usual, 0.0), torch.nan_to_num(cost, nan=0.0)
        pairs[2], pairs[4], pairs[9] = (cost, value), (cost, cost), (usual, usual)
    others = [(block.error / block.half_ulp).abs_().sum() / 2, block.expected.count_nonzero().double()]
    if block.blamed is not None and block.nonfinite is not None:
        others += [block.blamed.sum().double(), block.nonfinite.sum().double()]
    else:
        others += [zero[0], zero[0]]
    return torch.stack([*dots(pairs), *others])


def _maxima(block: Block, scaled: Tensor, tolerance: Tolerance) -> Tensor:
    """The second part of Found."""
    distance, magnitude = block.error.abs(), block.magnitude
    relative = distance / magnitude.clamp_min(1e-300)
    ulps = (distance / block.half_ulp).max() / 2
    excess = torch.sub(distance, magnitude, alpha=tolerance.rtol).max()
    return torch.stack([_farthest(scaled), distance.max(), relative.max(), ulps, excess])


def _farthest(values: Tensor) -> Tensor:
    least, most = torch.aminmax(values)
    return torch.maximum(-least, most)


def _alike(left: Tensor, right: Tensor) -> Tensor:
    """Both NaN, or infinite with the same sign; or equal."""
    return (left.isnan() & right.isnan()) | (left == right)
