"""How far two tensors are apart, as their statistics tell, relative to their norm.

A lower bound comes from what differs by no more than the distance does: range, norm, mean and deviation times the root
of the number of elements. An estimate comes from projections, whose mean square is the distance's: the four numbers of
the sketch, and, for a difference without a pattern, the sum of the elements and the norm. A small tensor's sketch is
one number four times, which a difference may happen to miss: for what goes into a call the estimate counts as well, so
that the call is not blamed for what came in.
"""

from __future__ import annotations

import math

from op_tools.compare_runs.calls import CHECKSUM, INF, MAX, MEAN, MIN, NAN, NORM, NUMEL, SKETCH, STD, Seen

# how far rounding moves a tensor: about half of the last place, or what the statistics' own sums are off by
_SUMS = 2.0**-21  # of statistics that a kernel adds up in float32
UNITS = {"float64": _SUMS, "float32": _SUMS, "complex64": _SUMS, "complex128": _SUMS}
UNITS.update({"bfloat16": 2.0**-9, "float16": 2.0**-12, "complex32": 2.0**-12})
UNITS.update({"float8_e4m3fn": 2.0**-5, "float8_e4m3fnuz": 2.0**-5, "float8_e5m2": 2.0**-4, "float8_e5m2fnuz": 2.0**-4})
TF32_UNIT = 2.0**-12
_SINGLE_NUMBER = 512  # elements up to which the sketch is one number
_TINY = 1e-300


def is_float(seen: Seen) -> bool:
    return seen.kind.dtype in UNITS


def same_bits(a: Seen, b: Seen) -> bool:
    """Whether they are the same numbers, as far as a checksum tells."""
    return a.numbers[CHECKSUM] == b.numbers[CHECKSUM] and a.kind.shape == b.kind.shape and a.kind.dtype == b.kind.dtype


class Distance:
    """`told` is a good guess; `at_most` one that is rarely too low, where there is no pattern in the difference.

    Infinite where one has NaN that the other has not; None where they cannot be compared: other shapes, no numbers.
    """

    __slots__ = ("at_most", "told")

    def __init__(self, told: float, at_most: float) -> None:
        self.told = told
        self.at_most = at_most


NONE = Distance(0.0, 0.0)
_INFINITE = Distance(math.inf, math.inf)


def distance(a: Seen, b: Seen, with_sketch: bool = True) -> Distance | None:
    """`with_sketch`: theirs are of one version."""
    if same_bits(a, b):
        return NONE
    x, y = a.numbers, b.numbers
    if a.kind.shape != b.kind.shape or x[NUMEL] != y[NUMEL]:
        return None
    if x[NAN] != y[NAN] or x[INF] != y[INF]:
        return _INFINITE
    count = x[NUMEL] - x[NAN] - x[INF]
    if count <= 0:
        return NONE
    norm = max(x[NORM], y[NORM], _TINY)
    if not norm < math.inf:  # no numbers, or ones that overflow
        return None
    root = math.sqrt(count)
    bound = max(
        root * abs(x[MEAN] - y[MEAN]),
        root * abs(x[STD] - y[STD]) if _deviations_are_good(x, y) else 0.0,
        abs(x[NORM] - y[NORM]),
        abs(x[MIN] - y[MIN]),
        abs(x[MAX] - y[MAX]),
    )
    projections = [count * abs(x[MEAN] - y[MEAN]), root * abs(x[NORM] - y[NORM])]
    told = bound
    if with_sketch:
        differences = [one - other for one, other in zip(x[SKETCH], y[SKETCH])]
        mean_square = sum(one * one for one in differences) / len(differences)
        told = max(bound, math.sqrt(mean_square))
        projections += [math.sqrt(mean_square)] if x[NUMEL] <= _SINGLE_NUMBER else map(abs, differences)
    pooled = math.sqrt(sum(one * one for one in projections) / len(projections))
    return Distance(told / norm, max(told, pooled) / norm)


def _deviations_are_good(x: tuple[float, ...], y: tuple[float, ...]) -> bool:
    """A deviation is a difference of squares: beside a large mean, nothing is left of it."""
    return min(x[STD], y[STD]) > 0.01 * max(abs(x[MEAN]), abs(y[MEAN]))
