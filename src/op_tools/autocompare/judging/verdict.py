"""Is a result right? Pure: the numbers in, a verdict with its reason in words out.

The rule. `expected` is the result in higher precision, `same` the result of the same op on the CPU in the device's own
dtype. The error of `same` is what the op costs in this dtype on these numbers; the device may cost about as much. So
every element's error is divided by a scale of its own, the largest of

- half a unit in the last place of the expected value: what rounding alone costs;
- the error of `same` at this element;
- half a unit in the last place of a typical value of the tensor, and the typical error of `same` in the element's row
  and column: a sum that happens to end near zero has the error of its terms, not of its value, and `same` may be lucky
  at one element (where an op computes each element in float32 and rounds it, a small share of that);
- in float32, half a unit of the largest value: differences of equal numbers on the way are exactly zero only in some
  orders;
- where a first look finds something: how far the expected value moves when the inputs are moved by a rounding error
  (`sensitivity`). It is large at cancellations, at jumps and at ties, where no device can be held to more.

Four statistics of the scaled errors decide, each against a limit per precision (limits.py):

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
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from op_tools.autocompare.judging import error_statistics
from op_tools.autocompare.judging.error_statistics import Found
from op_tools.autocompare.judging.limits import GivenTolerance, Precision, Tolerance
from op_tools.autocompare.judging.measures import (
    EQUAL,
    Measures,
    as_real,
    block_size,
    cosine,
    differing,
    or_infinite,
    ratio,
    unravel,
)


class Verdict(NamedTuple):
    """`right`, or the reason why not. `severity` ranks: how many times over the limit the errors are."""

    right: bool
    reason: str
    measures: Measures
    severity: float = 0.0


RIGHT = Verdict(True, "", EQUAL)
_NO_PLACE = "no single place"


@dataclass
class Row:
    """One value compared: a row of the tables. `verdict` is None where it was not compared: `reason` says why."""

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


@functools.lru_cache(maxsize=1000)
def error_info(got: torch.dtype, expected: torch.dtype) -> str:
    """What the contract's column of that name says."""
    return "" if got is expected else f"Inconsistent dtypes: {got} {expected}"


def judge(
    got: Tensor,
    expected: Tensor,
    same: Tensor | None,
    precision: Precision,
    tolerance: Tolerance,
    sensitivity: Tensor | None = None,
    may_overflow: Tensor | None = None,
    factor: float = 0.0,
) -> Verdict:
    """A floating-point or complex result.

    `sensitivity` is an error per element that roundings explain, `factor` one of them all; an element that
    `may_overflow` may be infinite.
    """
    if got.shape != expected.shape:
        return wrong_shape(got, expected)
    if got.numel() == 0:
        return RIGHT
    numbers = error_statistics.Matrix(got, expected, same, precision, sensitivity, may_overflow)
    found, limits = numbers.statistics(tolerance), precision.limits
    squares = numbers.allowed_squares()
    bulk, usual, allowed_bulk, bias, allowed_bias, severity = _weighed(found, precision, squares)
    if abs(bias) > allowed_bias:
        weighed = squares, numbers.distinct_values(), factor
        bulk, usual, allowed_bulk, bias, allowed_bias, severity = _weighed(found, precision, *weighed)
        if abs(bias) > allowed_bias:  # a factor is in every value: the one that weighs most is no whole
            others = numbers.without_heaviest(found)
            of_others = _weighed(found, precision, *weighed, others)
            if others is not None and abs(of_others[3]) <= of_others[4]:
                bulk, usual, allowed_bulk, bias, allowed_bias, severity = of_others
    measures = _measures_of(found, tolerance, got.numel(), same is not None)
    if not found.blamed and severity <= 1:
        return Verdict(True, "", measures, severity)
    first, share = numbers.bad(limits.peak if found.peak > limits.peak else 2 * max(1.0, usual))
    measures = measures._replace(bad_share=share, first_bad=first)
    place = place_of(got, expected, first, first)
    if found.blamed:
        return Verdict(False, _one_sided(found, got.numel(), place), measures, math.inf)
    cause = _cause(found, precision, same is not None, (bulk, usual, allowed_bulk, bias, allowed_bias))
    return Verdict(False, _with_share(cause, share, place), measures, severity)


def _one_sided(found: Found, elements: int, place: str) -> str:
    if _is_of_a_number(place):
        return f"NaN or Inf on one side only: {place}"
    count = f"{_number(found.blamed)} of {_number(elements)}"
    return f"NaN or Inf on one side only, at {count} elements, the first at {place}"


def _with_share(cause: str, share: float, place: str) -> str:
    if _is_of_a_number(place):
        return f"{cause}; {place}"
    return f"{cause}; {100 * share:.3g} % of the elements are wrong, the first at {place}"


def _cause(
    found: Found, precision: Precision, has_same: bool, weighed: tuple[float, float, float, float, float]
) -> str:
    """What is wrong with the numbers, in words."""
    bulk, usual, allowed_bulk, bias, allowed_bias = weighed
    is_factor = bias * bias * found.weight > found.squares / 2  # which explains most of the errors
    if abs(bias) > allowed_bias and (is_factor or bulk <= allowed_bulk):
        return f"off by a factor of {1 + bias:.6g} as a whole; {allowed_bias:.2g} more or less is usual"
    if bulk > allowed_bulk:
        known = f"those of {precision.name} on the CPU" if has_same else f"what {precision.name} costs"
        return f"errors are {_number(bulk / max(usual, 0.58))} times {known}"
    return f"an error is {_number(found.peak)} times what {precision.name} costs here"


class MeasuredErrors(NamedTuple):
    """What there is to see of one piece of a result, without a verdict."""

    found: Found
    first: tuple[int, ...] | None  # of the elements that are beyond the limits
    share: float  # of these


def look_at(
    got: Tensor, expected: Tensor, same: Tensor | None, precision: Precision, tolerance: Tolerance
) -> MeasuredErrors:
    """The statistics of `judge`, for a piece of a result of which nothing more is decided."""
    numbers = error_statistics.Matrix(got, expected, same, precision, None)
    found = numbers.statistics(tolerance)
    return MeasuredErrors(found, *numbers.bad(precision.limits.peak))


def together(
    worst: Verdict,
    look: MeasuredErrors,
    place: str,
    elements: int,
    precision: Precision,
    tolerance: Tolerance,
    has_same: bool,
) -> Verdict:
    """The verdict on a result in pieces, of which one was judged to be `worst`; `look` is of all of them."""
    found = look.found
    measures = _measures_of(found, tolerance, elements, has_same)
    if worst.right:
        return worst._replace(measures=measures)
    measures = measures._replace(bad_share=look.share, first_bad=look.first)
    if found.blamed:
        return Verdict(False, _one_sided(found, elements, place), measures, math.inf)
    *weighed, severity = _weighed(found, precision)
    if severity <= 1:  # it is one piece alone that stands out, or a tolerance of the user's that decides
        return worst._replace(measures=measures)
    bulk, usual, allowed_bulk, bias, allowed_bias = weighed
    cause = _cause(found, precision, has_same, (bulk, usual, allowed_bulk, bias, allowed_bias))
    return Verdict(False, _with_share(cause, look.share, place), measures, severity)


def _weighed(
    found: Found, precision: Precision, squares: float | None = None, distinct: float = 1.0, factor: float = 0.0,
    sloping: Found | None = None,
) -> tuple[float, float, float, float, float, float]:  # fmt: skip
    """The statistics that decide, beside what each may be: bulk, usual and allowed; bias, allowed; and the severity.

    `squares`: of the errors, where more is allowed than `found` knows. `sloping`: what the bias is taken of.
    """
    limits, count = precision.limits, max(found.nonzero, 1.0)
    bulk = math.sqrt((found.squares if squares is None else squares) / count)
    usual = math.sqrt(found.usual_squares / count)
    allowed_bulk = precision.allowed_bulk(usual, count)
    bias, allowed_bias = (sloping or found).bias(precision, count, count * distinct)
    allowed_bias = max(allowed_bias, factor)
    severity = max(found.peak / limits.peak, bulk / allowed_bulk, abs(bias) / allowed_bias)
    return bulk, usual, allowed_bulk, bias, allowed_bias, severity


def _measures_of(found: Found, tolerance: Tolerance, elements: int, has_same: bool) -> Measures:
    return Measures(
        allclose=found.excess <= tolerance.atol and not found.nonfinite,
        max_abs_diff=math.inf if found.nonfinite else found.max_abs,
        max_relative_diff=math.inf if found.nonfinite else or_infinite(found.max_relative),
        cosine=cosine(found.product, found.got_squares, found.expected_squares),
        max_ulp=found.max_ulp,
        mean_ulp=found.ulps / elements,
        rmse_ratio=ratio(found.errors, found.usual_errors) if has_same else math.nan,
        nonfinite=int(found.nonfinite),
    )


def by_tolerance(judged: Verdict, tolerance: Tolerance) -> Verdict:
    """The verdict where the user has set a tolerance for such results: it decides."""
    measures = judged.measures
    if not isinstance(tolerance, GivenTolerance) or measures.allclose == judged.right:
        return judged
    if measures.allclose:
        return judged._replace(right=True, reason="", severity=0.0)
    limits = f"atol {tolerance.atol:g}, rtol {tolerance.rtol:g}"
    reason = f"not within the tolerance that was set ({limits}): the largest difference is {measures.max_abs_diff:.3g}"
    return judged._replace(right=False, reason=reason, severity=max(judged.severity, 1.0))


def first_look(
    got: Tensor, expected: Tensor, precision: Precision, tolerance: Tolerance, allowance: Tensor | None = None
) -> Tensor:
    """The statistics of `judge` without `same`, as numbers that nobody has read from the device yet.

    `allowance`: what each element may be off by at least.
    """
    sensitivity = None if allowance is None else allowance * precision.limits.peak
    return error_statistics.Matrix(got, expected, None, precision, sensitivity).unread_statistics(tolerance)


def cleared(found: Found, precision: Precision, tolerance: Tolerance, elements: int) -> Verdict | None:
    """What `judge` says after such a first look where it finds nothing; None where there must be a second one."""
    if found.nonfinite or not math.isfinite(sum(found)):
        return None
    severity = _weighed(found, precision)[-1]
    if severity > 1:
        return None
    judged = Verdict(True, "", _measures_of(found, tolerance, elements, False), severity)
    return judged if by_tolerance(judged, tolerance).right else None


def is_as_good(got: Tensor, same: Tensor, precision: Precision) -> bool:
    """True where a result lies so near to that of the CPU in the same dtype that it cannot be beyond any limit."""
    nearness = Nearness(precision)
    return nearness.add(got, same) and nearness.is_enough()


class Nearness:
    """How near a result lies to that of the CPU in the same dtype, one piece of it after the other.

    An element's scale is at least half a unit of a typical value, and its error that of the CPU plus the distance.
    """

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        self._count = 0
        self._sums = [0.0] * 4
        self._peak = 0.0

    def add(self, got: Tensor, same: Tensor) -> bool:
        """One more piece. False where the two cannot be compared so."""
        if got.is_complex() or got.shape != same.shape or not same.is_floating_point():
            return False
        in_single = got.dtype is not same.dtype or self._precision.eps > 1e-6
        got, same = got.reshape(-1), same.reshape(-1)
        size = 4 * block_size(got)
        for mine, theirs in zip(got.split(size), same.split(size)):
            if not mine.numel():
                continue
            if in_single:
                mine, theirs = mine.float(), theirs.float()
            distance = mine - theirs
            least, most = torch.aminmax(distance)
            found = [theirs.abs().sum(), torch.dot(distance, distance), torch.dot(distance, theirs)]
            found += [torch.dot(theirs, theirs), torch.maximum(-least, most)]
            *more, largest = torch.stack(found).tolist()
            self._sums = [one + other for one, other in zip(self._sums, more)]
            self._peak = max(self._peak, largest)
        self._count += got.numel()
        return True

    def is_enough(self) -> bool:
        """Whether all pieces together cannot be beyond any limit."""
        precision, count = self._precision, self._count
        limits, (values, squares, slope, weight) = precision.limits, self._sums
        half_unit = values / count * precision.eps / 2 * precision.floor if count else 0.0
        if not (half_unit > precision.smallest and math.isfinite(squares) and weight > 0):
            return squares == 0.0
        return (
            self._peak / half_unit + 1 <= limits.peak
            and math.sqrt(squares / count) / half_unit + 1 <= limits.bulk
            and abs(slope / weight) <= limits.bias * precision.eps / 4
        )


def judge_exact(got: Tensor, expected: Tensor, excused: Tensor | None = None) -> Verdict:
    """A result that has no rounding errors: whole numbers, truth values, moved data. NaN equals NaN."""
    if got.shape != expected.shape:
        return wrong_shape(got, expected)
    differs = differing(got, expected)
    if excused is not None:
        differs &= ~excused
    if not bool(differs.any()):
        return RIGHT
    first = unravel(int(differs.flatten().to(torch.uint8).argmax()), got.shape)
    share = float(differs.double().mean())
    left, right = as_real(got).double(), as_real(expected).double()
    distance = torch.nan_to_num((left - right).abs(), nan=math.inf, posinf=math.inf)
    relative = distance / right.abs()
    measures = Measures(
        allclose=False,
        max_abs_diff=float(distance.max()),
        max_relative_diff=float(torch.nan_to_num(relative, nan=0.0, posinf=math.inf).max()),
        cosine=cosine(float((left * right).sum()), float(left.square().sum()), float(right.square().sum())),
        bad_share=share,
        first_bad=first,
        nonfinite=int((left.isfinite() != right.isfinite()).sum()) if got.is_floating_point() else 0,
    )
    place = place_of(got, expected, first, first)
    reason = f"{100 * share:.3g} % of the elements differ where none may, the first at {place}"
    reason = place if _is_of_a_number(place) else reason
    return Verdict(False, reason, measures, math.inf if measures.nonfinite else 1e6 * share + 1)


def judge_plain(got: Any, expected: Any, same: Any, tolerance: Tolerance) -> Verdict:
    """Python's numbers, and whatever else is no tensor."""
    numbers = isinstance(got, (int, float, complex)) and isinstance(expected, (int, float, complex))
    if not numbers or got in (expected, same) or (got != got and expected != expected):
        return RIGHT
    distance = abs(got - expected)
    close = distance <= tolerance.atol + tolerance.rtol * abs(expected)
    relative = distance / abs(expected) if expected else math.inf
    measures = Measures(close, distance, relative, 1.0 if close else math.nan)
    return Verdict(close, "" if close else f"{got} instead of {expected}", measures, 0.0 if close else math.inf)


def plain_row(name: str, got: Any, expected: Any, same: Any, tolerance: Tolerance) -> Row:
    """Of a value that is no tensor, or has none beside it: what a kernel keeps for its own backward pass."""
    if isinstance(got, Tensor) and expected is None:
        return Row(name, None, *tolerance, reason="the reference does not compute it")
    return Row(name, judge_plain(got, expected, same, tolerance), *tolerance)


def wrong_shape(got: Tensor, expected: Tensor) -> Verdict:
    """The shapes differ."""
    reason = f"its shape is {tuple(got.shape)}, it should be {tuple(expected.shape)}"
    return Verdict(False, reason, Measures(False, math.inf, math.inf, 0.0, bad_share=1.0), math.inf)


def place_of(got: Tensor, expected: Tensor, index: tuple[int, ...] | None, shown: tuple[int, ...] | None) -> str:
    """What stands at `index`, which is called `shown`: these may be pieces of something larger."""
    if index is None or shown is None:
        return _NO_PLACE
    values = f"{_value(got[index])} instead of {_value(expected[index])}"
    return f"{list(shown)}: {values}" if shown else values


def _is_of_a_number(place: str) -> bool:
    """Whether it is that of a number alone, which has no index."""
    return not place.startswith(("[", _NO_PLACE))


def _value(element: Tensor) -> str:
    value = element.item()
    return f"{value:.6g}" if isinstance(value, (float, complex)) else str(value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if 10 <= value < 1e9 else f"{value:.2g}"
