"""How far two tensors are apart, as their statistics tell, relative to their norm.

A lower bound comes from what differs by no more than the distance does: range, norm, mean and deviation times the
root of the number of elements. An estimate comes from the sketch (device/digest.py): the mean square of its four
complex numbers is the distance's square, where the difference has no pattern; what is the same in all rows, or in all
columns, its profiles and moments tell. Numbers that are NaN are not known, as of a tensor put together from shards,
and left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from op_tools.compare_runs.calls import INF, MAX, MEAN, MIN, NAN, NORM, NUMEL, SKETCH, STD, Distance, Numbers, Seen
from op_tools.device.sketch import NUMBERS, PROFILES
from op_tools.device.sketch import SKETCH as SKETCH_LENGTH
from op_tools.storage.blocks import Lines

if TYPE_CHECKING:
    from numpy.typing import NDArray

TF32_UNIT = 2.0**-12
_OLD_SKETCH = 4  # numbers of the sketch's first version
_OLD_SINGLE_NUMBER = 512  # elements up to which these were one number
_TINY = 1e-300


def same_bits(a: Seen, b: Seen) -> bool:
    """Whether they are the same numbers, as far as a checksum tells, and a number that depends on all of them."""
    if a.checksum != b.checksum or a.kind.shape != b.kind.shape or a.kind.dtype != b.kind.dtype:
        return False
    x, y, first = a.numbers, b.numbers, SKETCH.start
    if x[NORM] != x[NORM] and x[NUMEL] > x[NAN] + x[INF]:
        return False  # nothing is known of its elements: it is sparse, or quantized
    return len(x) != len(y) or not abs(x[first] - y[first]) > _SAME * (1 + abs(x[first]))


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
    norm = max((one for one in (x[NORM], y[NORM]) if one == one), default=math.nan)
    if not norm < math.inf:  # no numbers, or ones that overflow
        return None
    norm, root = max(norm, _TINY), math.sqrt(count)
    bounds = [
        root * abs(x[MEAN] - y[MEAN]),
        root * abs(x[STD] - y[STD]) if _deviations_are_good(x, y) else 0.0,
        abs(x[NORM] - y[NORM]),
        abs(x[MIN] - y[MIN]),
        abs(x[MAX] - y[MAX]),
    ]
    told = max((one for one in bounds if one == one), default=0.0) / norm
    if not with_sketch:
        return Distance(told, max(told, _pooled(x, y, [], root) / norm))
    sketch = _scaled(x, norm), _scaled(y, norm)
    if len(sketch[0]) == _OLD_SKETCH:
        return _by_old_sketch(x, y, sketch, told, root, norm)
    estimate, at_most = _by_sketch(sketch[0], sketch[1], a.kind.norms)
    return Distance(max(told, estimate), max(told, at_most))


def find_distances(pairs: Sequence[tuple[Seen, Seen]]) -> None:
    """The same for many tensors at once, kept with them (`apart`); those that need a closer look are left out."""
    pairs = [(a, b) for a, b in pairs if a.lines is not None and b.lines is not None and a.kind.shape == b.kind.shape]
    if len(pairs) < _MIN_AT_ONCE:
        return
    import numpy

    lines = pairs[0][0].lines, pairs[0][1].lines
    pairs = [(a, b) for a, b in pairs if a.lines is lines[0] and b.lines is lines[1]]
    x, y = (_LinesOf(one, [pair[side].row for pair in pairs]) for side, one in enumerate(lines) if one is not None)
    if not x.sketch.shape[1] == y.sketch.shape[1] == SKETCH_LENGTH:
        return
    with numpy.errstate(all="ignore"):
        told, at_most = _many(x, y, numpy.array([a.kind.norms for a, _ in pairs]))
        first, other = x.sketch[:, 0], y.sketch[:, 0]
        same = (x.checksum == y.checksum) & ~(numpy.abs(first - other) > _SAME * (1 + numpy.abs(first)))
        same &= x.norm == x.norm
        easy = (x.checksum != y.checksum) & (x.counts == y.counts).all(1)
        for norm in (x.norm, y.norm):
            easy &= (norm > 0) & (norm < math.inf)
    columns = (same.tolist(), easy.tolist(), told.tolist(), at_most.tolist())
    for (a, b), is_same, is_easy, guess, most in zip(pairs, *columns):
        if is_easy:
            a.other, a.apart = b, Distance(guess, most)
        elif is_same and a.kind.dtype == b.kind.dtype:
            a.other, a.apart = b, NONE


class _LinesOf:
    """Some lines of a step, as columns."""

    def __init__(self, lines: Lines, rows: list[int]) -> None:
        whole, self.numbers, self.sketch = lines.at(rows)
        self.counts, self.checksum = whole[:, -4:-1], whole[:, -1]
        self.sketch = self.sketch.astype("f8")

    def __getattr__(self, name: str) -> NDArray[Any]:
        found: NDArray[Any] = self.numbers[:, ("min", "max", "mean", "std", "norm").index(name)]
        return found


def _many(x: _LinesOf, y: _LinesOf, by: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """What `distance` tells, and the most that it may be, of each line."""
    import numpy

    norm = numpy.maximum(x.norm, y.norm)
    root = numpy.sqrt(x.counts[:, 0] - x.counts[:, 1] - x.counts[:, 2])
    apart = numpy.abs(x.numbers - y.numbers)
    spread = numpy.minimum(x.std, y.std) > 0.01 * numpy.maximum(numpy.abs(x.mean), numpy.abs(y.mean))
    one = numpy.ones_like(root)
    scales = numpy.stack([one, one, root, root * spread, one], 1)  # as `distance` has them: min, max, mean, std, norm
    told = numpy.nan_to_num(apart * scales).max(1) / norm
    sketch = x.sketch * (x.norm / norm)[:, None] - y.sketch * (y.norm / norm)[:, None]
    squares = sketch * sketch
    parts = [squares[:, begin:end].sum(1) / count for begin, end, count in _PARTS]
    numbers = squares[:, : 2 * NUMBERS].reshape(-1, NUMBERS, 2).sum(2)
    trimmed = numpy.maximum(numbers.sum(1) - numbers.max(1), 0) / _OF_ALL_BUT_ONE
    estimates = [numpy.sqrt(trimmed), numpy.sqrt(parts[1]) / by[:, 1], numpy.sqrt(parts[2]) / by[:, 0]]
    estimates += [numpy.abs(sketch[:, -2]) / by[:, 2], numpy.abs(sketch[:, -1]) / by[:, 3]]
    told = numpy.maximum(told, numpy.nan_to_num(numpy.stack(estimates)).max(0))
    return told, numpy.maximum(told, numpy.nan_to_num(numpy.sqrt(parts[0])))


_MIN_AT_ONCE = 8
_SAME = 1e-5  # by how much the sketches of equal tensors may differ: devices add up in another order
_PARTS = [
    (0, 2 * NUMBERS, NUMBERS),
    (2 * NUMBERS, 2 * NUMBERS + 2 * PROFILES, PROFILES),
    (2 * NUMBERS + 2 * PROFILES, SKETCH_LENGTH - 2, PROFILES),
]


def _scaled(numbers: Numbers, norm: float) -> list[float]:
    """The sketch, relative to the larger norm of the two; files have it relative to the tensor's own."""
    own = numbers[NORM]
    scale = (own if 0 < own < math.inf else 1.0) / norm
    return [scale * number for number in numbers[SKETCH]]


def _by_sketch(x: list[float], y: list[float], norms: tuple[float, ...]) -> tuple[float, float]:
    """What its parts tell; and with the largest of the four numbers, which a smooth difference makes too large."""
    squares = [(one - other) ** 2 for one, other in zip(x, y)]
    first, second = 2 * NUMBERS, 2 * NUMBERS + 2 * PROFILES
    last = second + 2 * PROFILES
    by_row, by_column, of_columns, of_rows = norms
    numbers = sorted(squares[at] + squares[at + 1] for at in range(0, first, 2))
    found = [
        math.sqrt(sum(numbers[:-1]) / _OF_ALL_BUT_ONE),
        math.sqrt(sum(squares[first:second]) / PROFILES) / by_column,
        math.sqrt(sum(squares[second:last]) / PROFILES) / by_row,
        math.sqrt(squares[last]) / of_columns,
        math.sqrt(squares[last + 1]) / of_rows,
    ]
    told = max((one for one in found if one == one), default=0.0)
    mean = math.sqrt(sum(numbers) / NUMBERS)
    return told, mean if mean > told else told


# what the three smaller ones of four sum up to, where a difference has no pattern and the mean is 1
_OF_ALL_BUT_ONE = 1 / 4 + (1 / 4 + 1 / 3) + (1 / 4 + 1 / 3 + 1 / 2)


def _by_old_sketch(
    x: Numbers, y: Numbers, sketch: tuple[list[float], list[float]], told: float, root: float, norm: float
) -> Distance:
    """A small tensor's was one number four times, which a difference may happen to miss."""
    differences = [one - other for one, other in zip(*sketch)]
    mean = math.sqrt(sum(one * one for one in differences) / len(differences))
    told = max(told, mean)
    own = [mean * norm] if x[NUMEL] <= _OLD_SINGLE_NUMBER else [abs(one) * norm for one in differences]
    return Distance(told, max(told, _pooled(x, y, own, root) / norm))


def _pooled(x: Numbers, y: Numbers, projections: list[float], root: float) -> float:
    """For a difference without a pattern the sum of the elements and the norm are projections as well."""
    projections = [root * root * abs(x[MEAN] - y[MEAN]), root * abs(x[NORM] - y[NORM]), *projections]
    return math.sqrt(sum(one * one for one in projections) / len(projections))


def _deviations_are_good(x: Numbers, y: Numbers) -> bool:
    """A deviation is a difference of squares: beside a large mean, nothing is left of it."""
    return bool(min(x[STD], y[STD]) > 0.01 * max(abs(x[MEAN]), abs(y[MEAN])))
