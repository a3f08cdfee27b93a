"""Is a result right? Pure: the numbers in, a verdict with its reason in words out.

The rule. `expected` is the result in higher precision, `same` the result of the same op on the CPU in the device's own
dtype. The error of `same` is what the op costs in this dtype on these numbers; the device may cost about as much. So
every element's error is divided by a scale of its own, the largest of

- half a unit in the last place of the expected value: what rounding alone costs;
- the error of `same` at this element;
- half a unit in the last place of a typical value of the tensor, and the typical error of `same` in the element's row
  and column: a sum that happens to end near zero has the error of its terms, not of its value, and `same` may be lucky
  at one element (where an op computes each element in float32 and rounds it, a small share of that);
- where a first look finds something: how far the expected value moves when the inputs are moved by a rounding error
  (`sensitivity`). It is large at cancellations, at jumps and at ties, where no device can be held to more.

Four statistics of the scaled errors decide, each against a limit per precision (LIMITS):

- peak: the largest. Finds one wrong element, a stale tail, a wrong index.
- bulk: the root of their mean square, also against that of `same`. Finds noise, low precision inside, wrong algorithms.
- bias: the slope of the errors over the expected values, with its standard error. Finds a wrong factor that is hidden
  in noise, such as 1 % in bfloat16.
- NaN and Inf where neither the reference nor the CPU has any.

What it cannot find: a factor nearer to 1 than `bias` (0.5 % in bfloat16, 0.06 % in float16, 0.0004 % in float32 and
0.2 % where tf32 is allowed), and one wrong element that is off by less than `peak` scales (in bfloat16 about 6 % of a
typical element). An error of the reference itself is taken for one of the device.
"""

from __future__ import annotations

import functools
import math
from typing import Callable, NamedTuple

import torch
from torch import Tensor

from op_tools.comparing.tolerance import Tolerance

_BLOCK_ON_DEVICE = 2**24  # elements that are looked at together; a device is better asked seldom
_SLACK_OF_BIAS = 1.5
_FEWEST = 8  # values that a slope can be told from
_ENOUGH = 32  # a row or column of fewer elements says nothing of its own
_EXPONENT = 0x7FF0000000000000  # of a float64


class Limits(NamedTuple):
    """What an honest device stays below. Errors are in their scales; `bias` is in units of eps."""

    bulk: float
    ratio: float  # of the device's bulk to the CPU's
    peak: float
    bias: float


LOW = Limits(1.5, 3.0, 16.0, 0.6)  # computed in float32, then rounded once
LOW_NORM = Limits(1.5, 3.0, 16.0, 1 / 32)
LOW_NORM_ALONE = Limits(1.5, 3.0, 16.0, 1 / 3)  # where nobody knows whether factors on the way are rounded
LOW_SUMS = Limits(2.0, 4.0, 20.0, 0.6)  # parts of a sum may be rounded, too (allow_bf16_reduced_precision_reduction)
LOW_STEPS = Limits(3.0, 6.0, 64.0, 0.6)  # rounded again and again, from one time step to the next
SINGLE = Limits(32.0, 32.0, 256.0, 32.0)  # other orders of summation, approximations good to some units
SINGLE_LOOSE = Limits(128.0, 128.0, 1024.0, 64.0)  # Winograd's algorithm, attention in three passes of tf32
TF32 = Limits(4.0, 4.0, 32.0, 2.0**14)  # against a CPU that rounds to tf32 where a device may cut off
DOUBLE = Limits(256.0, 256.0, 4096.0, 256.0)  # the reference is no better


class Precision(NamedTuple):
    """The dtype that an op was computed in, and the limits for it."""

    name: str
    eps: float
    smallest: float  # an error below this is none
    largest: float  # what lies beyond is infinite
    limits: Limits
    floor: float = 1.0  # an error is small beside this share of what rounding costs a typical value


@functools.lru_cache(maxsize=1000)
def precision_of(dtype: torch.dtype, limits: Limits | None = None, slack: float = 1.0, floor: float = 1.0) -> Precision:
    """For results of this dtype; `limits` where the op is known to need others, `slack` where less is known."""
    info = torch.finfo(dtype)
    if limits is None:
        limits = LOW if info.bits <= 16 else SINGLE if info.bits == 32 else DOUBLE
    if slack != 1:
        # roundings have no direction, however many there are
        bulk, ratio, peak, bias = (slack * limit for limit in limits)
        limits = Limits(bulk, ratio, peak, min(bias, _SLACK_OF_BIAS * limits.bias))
    # float16 needs its subnormals; the tiny numbers of other dtypes may be flushed to zero
    smallest = 2.0**-25 if dtype is torch.float16 else float(info.tiny)
    return Precision(str(dtype).partition(".")[2], float(info.eps), smallest, float(info.max), limits, floor)


class Measures(NamedTuple):
    """How far a result lies from what is expected."""

    allclose: bool
    max_abs_diff: float
    max_relative_diff: float
    cosine: float
    max_ulp: float = 0.0
    mean_ulp: float = 0.0
    rmse_ratio: float = 0.0  # of the device's errors to those of the CPU in the same dtype; NaN where these are unknown
    bad_share: float = 0.0
    first_bad: tuple[int, ...] | None = None
    nonfinite: int = 0  # elements that are NaN or Inf on one side only


EQUAL = Measures(True, 0.0, 0.0, 1.0)


class Verdict(NamedTuple):
    """`right`, or the reason why not. `severity` ranks: how many times over the limit the errors are."""

    right: bool
    reason: str
    measures: Measures
    severity: float = 0.0


RIGHT = Verdict(True, "", EQUAL)


def judge(
    got: Tensor,
    expected: Tensor,
    same: Tensor | None,
    precision: Precision,
    tolerance: Tolerance,
    sensitivity: Tensor | None = None,
) -> Verdict:
    """A floating-point or complex result. `sensitivity` is an error per element that is nobody's fault."""
    if got.shape != expected.shape:
        return wrong_shape(got, expected)
    if got.numel() == 0:
        return RIGHT
    numbers = _Numbers(got, expected, same, precision, sensitivity)
    found, limits = numbers.statistics(tolerance), precision.limits
    weights = _weighed(found, precision, lambda: 1.0)
    if abs(weights.bias) > weights.allowed_bias:
        weights = _weighed(found, precision, numbers.distinct_values)
    measures = _measures_of(found, tolerance, got.numel(), same is not None)
    if not found.blamed and weights.severity <= 1:
        return Verdict(True, "", measures, weights.severity)
    bulk, usual, allowed_bulk, bias, allowed_bias, severity = weights
    first, share = numbers.bad(limits.peak if found.peak > limits.peak else 2 * max(1.0, usual))
    measures = measures._replace(bad_share=share, first_bad=first)
    place = _place(got, expected, first)
    if found.blamed:
        reason = f"NaN or Inf on one side only, at {_number(found.blamed)} of {_number(got.numel())} elements"
        return Verdict(False, f"{reason}, the first at {place}", measures, math.inf)
    if abs(bias) > allowed_bias:
        reason = f"off by a factor of {1 + bias:.6g} as a whole; {allowed_bias:.2g} more or less is usual"
    elif bulk > allowed_bulk:
        known = f"those of {precision.name} on the CPU" if same is not None else f"what {precision.name} costs"
        reason = f"errors are {_number(bulk / max(usual, 0.58))} times {known}"
    else:
        reason = f"an error is {_number(found.peak)} times what {precision.name} costs here"
    where = f"; {100 * share:.3g} % of the elements are wrong, the first at {place}"
    return Verdict(False, reason + where, measures, severity)


class _Weights(NamedTuple):
    """The statistics that decide, beside what each may be."""

    bulk: float
    usual: float
    allowed_bulk: float
    bias: float
    allowed_bias: float
    severity: float


def _weighed(found: Found, precision: Precision, distinct: Callable[[], float]) -> _Weights:
    limits, count = precision.limits, max(found.nonzero, 1.0)
    few = 1 + 3 / math.sqrt(count)  # the mean of a few squares is often far from typical
    bulk, usual = math.sqrt(found.squares / count), math.sqrt(found.usual_squares / count)
    allowed_bulk = few * max(limits.bulk, limits.ratio * usual)
    bias, allowed_bias = found.bias(precision.eps * limits.bias, count, count * distinct())
    severity = max(found.peak / limits.peak, bulk / allowed_bulk, abs(bias) / allowed_bias)
    return _Weights(bulk, usual, allowed_bulk, bias, allowed_bias, severity)


def _measures_of(found: Found, tolerance: Tolerance, elements: int, has_same: bool) -> Measures:
    return Measures(
        allclose=found.excess <= tolerance.atol and not found.nonfinite,
        max_abs_diff=math.inf if found.nonfinite else found.max_abs,
        max_relative_diff=math.inf if found.nonfinite else _or_infinite(found.max_relative),
        cosine=found.cosine(),
        max_ulp=found.max_ulp,
        mean_ulp=found.ulps / elements,
        rmse_ratio=_ratio(found.errors, found.usual_errors) if has_same else math.nan,
        nonfinite=int(found.nonfinite),
    )


def first_look(got: Tensor, expected: Tensor, precision: Precision, tolerance: Tolerance) -> Tensor:
    """The statistics of `judge` without `same`, as numbers that nobody has read from the device yet."""
    return _Numbers(got, expected, None, precision, None).unread_statistics(tolerance)


def cleared(found: Found, precision: Precision, tolerance: Tolerance, elements: int) -> Verdict | None:
    """What `judge` says after such a first look where it finds nothing; None where there must be a second one."""
    if found.nonfinite or not math.isfinite(sum(found)):
        return None
    weights = _weighed(found, precision, lambda: 1.0)
    if weights.severity > 1:
        return None
    return Verdict(True, "", _measures_of(found, tolerance, elements, False), weights.severity)


def is_as_good(got: Tensor, same: Tensor, precision: Precision) -> bool:
    """True where a result lies so near to that of the CPU in the same dtype that it cannot be beyond any limit.

    An element's scale is at least half a unit of a typical value, and its error that of the CPU plus the distance.
    """
    if got.is_complex() or got.shape != same.shape or not same.is_floating_point():
        return False
    limits, count = precision.limits, got.numel()
    got, same = got.reshape(-1), same.reshape(-1)
    if got.dtype is not same.dtype or precision.eps > 1e-6:
        got, same = got.float(), same.float()
    sums = [0.0] * 4
    peak, size = 0.0, 4 * _block_size(got)
    for start in range(0, count, size):
        mine, theirs = got[start : start + size], same[start : start + size]
        distance = mine - theirs
        least, most = torch.aminmax(distance)
        found = [theirs.abs().sum(), torch.dot(distance, distance), torch.dot(distance, theirs)]
        found += [torch.dot(theirs, theirs), torch.maximum(-least, most)]
        *more, largest = torch.stack(found).tolist()
        sums = [one + other for one, other in zip(sums, more)]
        peak = max(peak, largest)
    values, squares, slope, weight = sums
    half_unit = values / count * precision.eps / 2 * precision.floor
    if not (half_unit > precision.smallest and math.isfinite(squares) and weight > 0):
        return squares == 0.0
    return (
        peak / half_unit + 1 <= limits.peak
        and math.sqrt(squares / count) / half_unit + 1 <= limits.bulk
        and abs(slope / weight) <= limits.bias * precision.eps / 4
    )


def measured(got: Tensor, expected: Tensor, same: Tensor, precision: Precision, tolerance: Tolerance) -> Verdict:
    """For a result that is as good as that of the CPU in the same dtype: right, and only to be measured."""
    if got.numel() == 0 or got.is_complex():
        return judge(got, expected, same, precision, tolerance)._replace(right=True, reason="")
    parts = [part.detach().reshape(-1) for part in (got, expected, same)]
    sums, maxima, size = [0.0] * 6, [0.0] * 4, _block_size(got)
    for start in range(0, got.numel(), size):
        mine, right, theirs = (part[start : start + size] for part in parts)
        found = _measures(mine, right, theirs, precision, tolerance).tolist()
        sums = [one + other for one, other in zip(sums, found[:6])]
        maxima = [max(one, other) for one, other in zip(maxima, found[6:])]
    if not math.isfinite(sum(sums) + sum(maxima)):
        return judge(parts[0], parts[1], parts[2], precision, tolerance)._replace(right=True, reason="")
    ulps, got_squares, product, expected_squares, errors, usual = sums
    max_abs, max_relative, max_ulp, excess = maxima
    measures = Measures(
        allclose=excess <= tolerance.atol,
        max_abs_diff=max_abs,
        max_relative_diff=_or_infinite(max_relative),
        cosine=_cosine(product, got_squares, expected_squares),
        max_ulp=max_ulp,
        mean_ulp=ulps / got.numel(),
        rmse_ratio=_ratio(errors, usual),
    )
    return Verdict(True, "", measures)


def _measures(got: Tensor, expected: Tensor, same: Tensor, precision: Precision, tolerance: Tolerance) -> Tensor:
    block = _Block(got, expected, None, None, precision)
    usual = block.error if same is got else same.double() - block.expected
    distance = block.error.abs()
    ulps = distance / block.half_ulp
    pairs = [(block.got, block.got), (block.got, block.expected), (block.expected, block.expected)]
    sums = [ulps.sum() / 2, *_dots([*pairs, (block.error, block.error), (usual, usual)])]
    relative = distance / block.magnitude.clamp_min(1e-300)
    excess = torch.sub(distance, block.magnitude, alpha=tolerance.rtol).max()
    return torch.stack([*sums, distance.max(), relative.max(), ulps.max() / 2, excess])


def _block_size(tensor: Tensor) -> int:
    """Elements that are looked at together: what fits into the caches, and gives every thread something to do."""
    return min(2**20, 2**15 * max(2, torch.get_num_threads())) if tensor.is_cpu else _BLOCK_ON_DEVICE


def judge_exact(got: Tensor, expected: Tensor, excused: Tensor | None = None) -> Verdict:
    """A result that has no rounding errors: whole numbers, truth values, moved data. NaN equals NaN."""
    if got.shape != expected.shape:
        return wrong_shape(got, expected)
    differs = differing(got, expected)
    if excused is not None:
        differs &= ~excused
    if not bool(differs.any()):
        return RIGHT
    first = _unravel(int(differs.flatten().to(torch.uint8).argmax()), got.shape)
    share = float(differs.double().mean())
    left, right = _as_real(got).double(), _as_real(expected).double()
    distance = torch.nan_to_num((left - right).abs(), nan=math.inf, posinf=math.inf)
    relative = distance / right.abs()
    measures = Measures(
        allclose=False,
        max_abs_diff=float(distance.max()),
        max_relative_diff=float(torch.nan_to_num(relative, nan=0.0, posinf=math.inf).max()),
        cosine=_cosine(float((left * right).sum()), float(left.square().sum()), float(right.square().sum())),
        bad_share=share,
        first_bad=first,
        nonfinite=int((left.isfinite() != right.isfinite()).sum()) if got.is_floating_point() else 0,
    )
    reason = f"{share:.3g} of the elements differ where none may, the first at {_place(got, expected, first)}"
    return Verdict(False, reason, measures, math.inf if measures.nonfinite else 1e6 * share + 1)


def differing(got: Tensor, expected: Tensor) -> Tensor:
    """Where two tensors of the same shape differ. NaN equals NaN."""
    differs = got != expected.to(got.dtype)
    if got.is_floating_point() or got.is_complex():
        differs &= ~(got.isnan() & expected.isnan())
    return differs


def wrong_shape(got: Tensor, expected: Tensor) -> Verdict:
    """The shapes differ."""
    reason = f"its shape is {tuple(got.shape)}, it should be {tuple(expected.shape)}"
    return Verdict(False, reason, Measures(False, math.inf, math.inf, 0.0, bad_share=1.0), math.inf)


def same_bits(left: Tensor, right: Tensor) -> bool:
    """True where two tensors of one dtype hold exactly the same: also the same NaN, and zeros of the same sign."""
    if left.shape != right.shape or left.dtype is not right.dtype:
        return False
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(left.element_size())
    if left.is_complex():
        left, right, whole = _as_real(left), _as_real(right), None
    if whole is None or left.layout != torch.strided:
        return torch.equal(left, right)
    return torch.equal(left.view(whole), right.view(whole))


# ---- the statistics --------------------------------------------------------------------------------------------------


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

    def bias(self, floor: float, count: float, distinct: float) -> tuple[float, float]:
        """The slope of the errors over the values, and how large it may be."""
        # of few values, or of values no larger than their errors, there is none
        if count < _FEWEST or self.weight < 16 * count:
            return 0.0, 1.0
        slope, usual = self.slope / self.weight, self.usual_slope / self.weight
        # that few errors happen to be alike says nothing: they vary as much as roundings do
        left_over = max(self.squares - slope * slope * self.weight, count / 3) / distinct
        return slope, math.hypot(max(floor, 4 * abs(usual)), 6 * math.sqrt(left_over / self.weight))

    def cosine(self) -> float:
        return _cosine(self.product, self.got_squares, self.expected_squares)


class _Block:
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
    ) -> None:
        got, expected = got.double(), expected.double()
        same = None if same is None else same.double()
        self.nonfinite: Tensor | None = None
        self.blamed: Tensor | None = None
        self.got, self.expected, self.error = got, expected, got - expected
        self.usual = None if same is None else same - expected
        if careful:
            self._set_nonfinite_aside(got, expected, same, precision)
            magnitude = None if magnitude is None else magnitude.nan_to_num(0.0, 0.0)
        self.magnitude = (self.expected.abs() if magnitude is None else magnitude).contiguous()
        power_of_two = (self.magnitude.view(torch.int64) & _EXPONENT).view(torch.float64)
        self.half_ulp = (power_of_two * (precision.eps / 2)).clamp_min_(precision.smallest)

    def _set_nonfinite_aside(self, got: Tensor, expected: Tensor, same: Tensor | None, precision: Precision) -> None:
        beyond = expected.abs() > precision.largest
        expected = torch.where(beyond, expected.sign() * math.inf, expected)
        comparable = got.isfinite() & expected.isfinite()
        # near the end of the range either is right
        at_end = beyond & (got * expected.sign() >= precision.largest * (1 - 2 * precision.eps))
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


class _Numbers:
    """One tensor's numbers as a matrix, block by block."""

    def __init__(
        self, got: Tensor, expected: Tensor, same: Tensor | None, precision: Precision, sensitivity: Tensor | None
    ) -> None:
        self._precision = precision
        self._shape = got.shape
        self._is_complex = got.is_complex() or expected.is_complex()
        parts: list[Tensor | None] = [got, expected, same, None]
        if self._is_complex:
            magnitude = expected.abs().double().unsqueeze(-1).expand(*expected.shape, 2)
            parts = [*(None if part is None else _as_real(part.to(torch.complex128)) for part in parts[:3]), magnitude]
            sensitivity = None if sensitivity is None else sensitivity.unsqueeze(-1).expand(*expected.shape, 2)
        shape = (*got.shape, 2) if self._is_complex else got.shape
        self._rows, self._columns = (math.prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (1, math.prod(shape))
        self._parts = [self._flat(part) for part in parts]
        self._sensitivity = self._flat(sensitivity)
        size = max(1, _block_size(got) // self._columns)
        self._slices = [slice(start, start + size) for start in range(0, self._rows, size)]
        self._careful = False
        self._prepare()

    def _flat(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.detach().reshape(self._rows, self._columns)

    def _prepare(self) -> None:
        self._only = self._read(self._slices[0]) if len(self._slices) == 1 else None
        self._floor, self._typical, self._share_of_column = self._typical_errors()

    def _part(self, rows: slice) -> list[Tensor | None]:
        return [None if part is None else part[rows] for part in self._parts]

    def _read(self, rows: slice) -> _Block:
        got, expected, same, magnitude = self._part(rows)
        assert got is not None
        assert expected is not None
        return _Block(got, expected, same, magnitude, self._precision, self._careful)

    def _block(self, rows: slice) -> _Block:
        return self._read(rows) if self._only is None else self._only

    def _costs(self, rows: slice) -> tuple[Tensor, Tensor | None]:
        """The sum of the values' sizes; and what the op usually costs, squared."""
        if self._only is not None or self._careful:
            block = self._block(rows)
            return block.magnitude.sum(), block.usual_squares()
        _, expected, same, magnitude = self._part(rows)
        assert expected is not None
        total = (expected.abs() if magnitude is None else magnitude).sum(dtype=torch.float64)
        return total, None if same is None else (same.double() - expected.double()).square_()

    def _typical_errors(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Half a unit of a typical value; mean squares of what the op usually costs, by row; and shares by column."""
        values: Tensor | None = None
        by_row: list[Tensor] = []
        by_column: Tensor | None = None
        for rows in self._slices:
            total, squares = self._costs(rows)
            values = total if values is None else values + total
            if squares is not None:
                by_row.append(squares.sum(1, keepdim=True))
                if self._rows >= _ENOUGH:
                    columns = squares.sum(0, keepdim=True)
                    by_column = columns if by_column is None else by_column + columns
        assert values is not None
        count = self._rows * self._columns
        floor = values * (self._precision.floor * self._precision.eps / 2 / count)
        if not by_row:
            return floor, None, None
        sums = by_row[0] if len(by_row) == 1 else torch.cat(by_row)
        overall = sums.sum(0, keepdim=True) / count
        typical = sums / self._columns if self._columns >= _ENOUGH else overall.expand(self._rows, 1)
        share = None if by_column is None else by_column / (self._rows * overall.clamp_min(1e-300))
        return floor, typical, share

    def _scale(self, rows: slice, block: _Block) -> Tensor:
        """What each element may be off by."""
        scale = torch.maximum(block.half_ulp, self._floor)
        if self._typical is not None and block.usual is not None:
            typical = self._typical[rows].sqrt() * self._precision.floor
            if self._share_of_column is not None:
                typical = typical * self._share_of_column.sqrt()
            scale = torch.maximum(torch.maximum(scale, typical), block.usual.abs())
        if self._sensitivity is not None:
            scale = torch.maximum(scale, self._sensitivity[rows] / self._precision.limits.peak)
        return scale

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
        for rows in self._slices:
            block = self._block(rows)
            scale = self._scale(rows, block)
            scaled = block.error / scale
            block_sums, block_maxima = _sums(block, scale, scaled), _maxima(block, scaled, tolerance)
            sums = block_sums if sums is None else sums + block_sums
            maxima = block_maxima if maxima is None else torch.maximum(maxima, block_maxima)
        assert sums is not None
        assert maxima is not None
        return torch.cat([sums, maxima])

    def distinct_values(self) -> float:
        """Equal values have equal rounding errors: only different ones tell something new."""
        expected = self._parts[1]
        assert expected is not None
        sample = expected.flatten()[: 2**20]
        return float(sample.unique().numel() / sample.numel())

    def bad(self, limit: float) -> tuple[tuple[int, ...] | None, float]:
        """The first element whose scaled error is beyond the limit, and the share of such elements."""
        first, count = None, 0
        for rows in self._slices:
            block = self._block(rows)
            bad = (block.error / self._scale(rows, block)).abs() > limit
            if block.blamed is not None:
                bad |= block.blamed
            here = int(bad.sum())
            if here and first is None:
                first = rows.start * self._columns + int(bad.flatten().to(torch.uint8).argmax())
            count += here
        if first is None:
            return None, 0.0
        place = first // 2 if self._is_complex else first
        return _unravel(place, self._shape), count / (self._rows * self._columns)


def _sums(block: _Block, scale: Tensor, scaled: Tensor) -> Tensor:
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
    return torch.stack([*_dots(pairs), *others])


def _dots(pairs: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    return [torch.dot(left.reshape(-1), right.reshape(-1)) for left, right in pairs]


def _maxima(block: _Block, scaled: Tensor, tolerance: Tolerance) -> Tensor:
    """The second part of Found."""
    distance, magnitude = block.error.abs(), block.magnitude
    relative = distance / magnitude.clamp_min(1e-300)
    ulps = (distance / block.half_ulp).max() / 2
    excess = torch.sub(distance, magnitude, alpha=tolerance.rtol).max()
    return torch.stack([_farthest(scaled), distance.max(), relative.max(), ulps, excess])


def _farthest(values: Tensor) -> Tensor:
    least, most = torch.aminmax(values)
    return torch.maximum(-least, most)


def _or_infinite(value: float) -> float:
    """A relative difference from zero."""
    return value if value < 1e200 else math.inf


def _alike(left: Tensor, right: Tensor) -> Tensor:
    """Both NaN, or infinite with the same sign; or equal."""
    return (left.isnan() & right.isnan()) | (left == right)


def _cosine(product: float, left: float, right: float) -> float:
    if left == 0 and right == 0:
        return 1.0
    length = math.sqrt(left) * math.sqrt(right)
    return product / length if length and math.isfinite(length) else math.nan if length else 0.0


def _ratio(left: float, right: float) -> float:
    return math.sqrt(left / right) if right else (math.inf if left else 1.0)


def _as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _unravel(position: int, shape: torch.Size) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        position, rest = divmod(position, size)
        index.append(rest)
    return tuple(reversed(index))


def _place(got: Tensor, expected: Tensor, index: tuple[int, ...] | None) -> str:
    if index is None:
        return "no single place"
    return f"{list(index)}: {_value(got[index])} instead of {_value(expected[index])}"


def _value(element: Tensor) -> str:
    value = element.item()
    return f"{value:.6g}" if isinstance(value, (float, complex)) else str(value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if 10 <= value < 1e9 else f"{value:.2g}"
