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
from functools import lru_cache

import torch

from op_tools.compare_runs.calls import CHECKSUM, INF, MAX, MEAN, MIN, NAN, NORM, NUMEL, SKETCH, STD, Numbers, Seen
from op_tools.device import digest

# how far rounding moves a tensor: about half of the last place, or what the statistics' own sums are off by
_SUMS = 2.0**-22  # of statistics that a kernel adds up in float32
UNITS = {"float64": _SUMS, "float32": _SUMS, "complex64": _SUMS, "complex128": _SUMS}
UNITS.update({"bfloat16": 2.0**-9, "float16": 2.0**-12, "complex32": 2.0**-12})
UNITS.update({"float8_e4m3fn": 2.0**-5, "float8_e4m3fnuz": 2.0**-5, "float8_e5m2": 2.0**-4, "float8_e5m2fnuz": 2.0**-4})
TF32_UNIT = 2.0**-12
_OLD_SKETCH = 4  # numbers of the sketch's first version
_OLD_SINGLE_NUMBER = 512  # elements up to which these were one number
_TINY = 1e-300


def is_float(seen: Seen) -> bool:
    return seen.kind.dtype in UNITS


def same_bits(a: Seen, b: Seen) -> bool:
    """Whether they are the same numbers, as far as a checksum tells, and a number that depends on all of them."""
    x, y = a.numbers, b.numbers
    if x[CHECKSUM] != y[CHECKSUM] or a.kind.shape != b.kind.shape or a.kind.dtype != b.kind.dtype:
        return False
    first = SKETCH.start
    return len(x) != len(y) or not abs(x[first] - y[first]) > 1e-5 * (1 + abs(x[first]))


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
    estimate, at_most = _by_sketch(sketch[0], sketch[1], a.kind.real_shape)
    return Distance(max(told, estimate), max(told, at_most))


def distances(pairs: Sequence[tuple[Seen, Seen]]) -> dict[tuple[int, int], Distance]:
    """The same for many tensors at once, by their ids; those that need a closer look are left out."""
    easy = [(a, b) for a, b in pairs if _is_easy(a, b)]
    if len(easy) < _MIN_AT_ONCE:
        return {}
    x, y = (torch.tensor([pair[side].numbers for pair in easy], dtype=torch.float64, device="cpu") for side in (0, 1))
    norm = torch.maximum(x[:, NORM], y[:, NORM])
    root = (x[:, NUMEL] - x[:, NAN] - x[:, INF]).sqrt()
    apart = (x - y).abs()
    spread = torch.minimum(x[:, STD], y[:, STD]) > 0.01 * torch.maximum(x[:, MEAN].abs(), y[:, MEAN].abs())
    bounds = [root * apart[:, MEAN], root * apart[:, STD] * spread, apart[:, NORM], apart[:, MIN], apart[:, MAX]]
    told = torch.stack(bounds).nan_to_num(0.0).amax(0) / norm
    sketch = x[:, SKETCH] * (x[:, NORM] / norm)[:, None] - y[:, SKETCH] * (y[:, NORM] / norm)[:, None]
    by = torch.tensor([_norms(a.kind.real_shape) for a, _ in easy], dtype=torch.float64, device="cpu")
    parts = [sketch[:, begin:end].square().sum(1) / count for begin, end, count in _PARTS]
    numbers = sketch[:, : 2 * digest.NUMBERS].square().view(-1, digest.NUMBERS, 2).sum(2)
    trimmed = (numbers.sum(1) - numbers.amax(1)).clamp(min=0) / _OF_ALL_BUT_ONE
    estimates = [trimmed.sqrt(), parts[1].sqrt() / by[:, 1], parts[2].sqrt() / by[:, 0]]
    estimates += [sketch[:, -2].abs() / by[:, 2], sketch[:, -1].abs() / by[:, 3]]
    told = torch.maximum(told, torch.stack(estimates).nan_to_num(0.0).amax(0))
    at_most = torch.maximum(told, parts[0].sqrt().nan_to_num(0.0))
    return {(id(a), id(b)): Distance(*both) for (a, b), *both in zip(easy, told.tolist(), at_most.tolist())}


_MIN_AT_ONCE = 8
_PARTS = [
    (0, 2 * digest.NUMBERS, digest.NUMBERS),
    (2 * digest.NUMBERS, 2 * digest.NUMBERS + 2 * digest.PROFILES, digest.PROFILES),
    (2 * digest.NUMBERS + 2 * digest.PROFILES, digest.SKETCH - 2, digest.PROFILES),
]


def _is_easy(a: Seen, b: Seen) -> bool:
    x, y = a.numbers, b.numbers
    return (
        len(x) == len(y) == SKETCH.start + digest.SKETCH
        and x[CHECKSUM] != y[CHECKSUM]
        and a.kind.shape == b.kind.shape
        and x[:CHECKSUM] == y[:CHECKSUM]
        and 0 < x[NORM] < math.inf
        and 0 < y[NORM] < math.inf
    )


def _scaled(numbers: Numbers, norm: float) -> list[float]:
    """The sketch, relative to the larger norm of the two; files have it relative to the tensor's own."""
    own = numbers[NORM]
    scale = (own if 0 < own < math.inf else 1.0) / norm
    return [scale * number for number in numbers[SKETCH]]


def _by_sketch(x: list[float], y: list[float], shape: tuple[int, ...]) -> tuple[float, float]:
    """What its parts tell; and with the largest of the four numbers, which a smooth difference makes too large."""
    squares = [(one - other) ** 2 for one, other in zip(x, y)]
    first, second = 2 * digest.NUMBERS, 2 * digest.NUMBERS + 2 * digest.PROFILES
    last = second + 2 * digest.PROFILES
    by_row, by_column, of_columns, of_rows = _norms(shape)
    numbers = sorted(squares[at] + squares[at + 1] for at in range(0, first, 2))
    found = [
        math.sqrt(sum(numbers[:-1]) / _OF_ALL_BUT_ONE),
        math.sqrt(sum(squares[first:second]) / digest.PROFILES) / by_column,
        math.sqrt(sum(squares[second:last]) / digest.PROFILES) / by_row,
        math.sqrt(squares[last]) / of_columns,
        math.sqrt(squares[last + 1]) / of_rows,
    ]
    told = max((one for one in found if one == one), default=0.0)
    mean = math.sqrt(sum(numbers) / digest.NUMBERS)
    return told, mean if mean > told else told


# what the three smaller ones of four sum up to, where a difference has no pattern and the mean is 1
_OF_ALL_BUT_ONE = 1 / 4 + (1 / 4 + 1 / 3) + (1 / 4 + 1 / 3 + 1 / 2)


@lru_cache(4096)
def _norms(shape: tuple[int, ...]) -> tuple[float, float, float, float]:
    """By which profiles and moments are divided, so that they are no larger than the distance."""
    rows, columns = (max(size, 1) for size in digest.matrix(shape))

    def of_ramp(length: int) -> float:
        return math.sqrt((length * length - 1) / (12 * length)) if length > 1 else math.inf

    return math.sqrt(columns), math.sqrt(rows), of_ramp(columns) * math.sqrt(rows), of_ramp(rows) * math.sqrt(columns)


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
