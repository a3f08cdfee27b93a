"""The statistics of a whole tensor, from those of its shards: sketches are moved to where a shard begins, and added.

What cannot be told from the shards is NaN: the sketch along the last dimension where a shard of it begins at no
multiple of 16, the moment along rows of shards in the middle of the dimensions; and of summands, anything that does
not add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from op_tools.compare_runs.calls import INF, MAX, MEAN, MIN, NAN, NORM, NUMEL, SKETCH, Numbers
from op_tools.device import sketch as sketches

_PROFILE = 2 * sketches.NUMBERS  # where it begins in the sketch: along the last dimension, then along the others
_OTHERS = _PROFILE + 2 * sketches.PROFILES
_MOMENTS = _OTHERS + 2 * sketches.PROFILES


class Shard(NamedTuple):
    """What a rank has of a tensor, and where that begins."""

    numbers: Numbers
    shape: tuple[int, ...]
    start: tuple[int, ...]


def whole(shards: Sequence[Shard], shape: tuple[int, ...], pieces: Sequence[Shard] | None = None) -> Numbers:
    """Of a tensor of this shape that the shards cover, each element once.

    `pieces`: the same elements, where sketches were taken of parts of the shards; there may be zeros before them.
    """
    numel, nan, infinite = (sum(shard.numbers[place] for shard in shards) for place in (NUMEL, NAN, INF))
    finite = numel - nan - infinite
    total = sum(_sum(shard.numbers) for shard in shards)
    square = sum(shard.numbers[NORM] ** 2 for shard in shards if shard.numbers[NUMEL])
    smallest = min((shard.numbers[MIN] for shard in shards if shard.numbers[NUMEL]), default=math.nan)
    largest = max((shard.numbers[MAX] for shard in shards if shard.numbers[NUMEL]), default=math.nan)
    mean = total / finite if finite else math.nan
    deviation = math.sqrt(max(square / finite - mean * mean, 0.0)) if finite else math.nan
    sketched = shards if pieces is None else pieces
    return _joined((numel, nan, infinite), (smallest, largest, mean, deviation), math.sqrt(square), sketched, shape)


def summed(shards: Sequence[Numbers], shape: tuple[int, ...]) -> Numbers:
    """Of the sum of tensors of one shape. Its norm is not known, so the sketch is not relative to it."""
    numel = shards[0][NUMEL]
    unknown = math.nan
    mean = sum(_sum(numbers) for numbers in shards) / numel if numel else unknown
    counts = (numel, max(numbers[NAN] for numbers in shards), max(numbers[INF] for numbers in shards))
    at_zero = [Shard(numbers, shape, (0,) * len(shape)) for numbers in shards]
    return _joined(counts, (unknown, unknown, mean, unknown), unknown, at_zero, shape)


def _sum(numbers: Numbers) -> float:
    finite = numbers[NUMEL] - numbers[NAN] - numbers[INF]
    return float(numbers[MEAN] * finite) if finite else 0.0


def _joined(
    counts: tuple[int, ...], columns: tuple[float, ...], norm: float, shards: Sequence[Shard], shape: tuple[int, ...]
) -> Numbers:
    sketch = [0.0] * sketches.SKETCH
    for shard in shards:
        for place, number in enumerate(_moved(shard, shape)):
            sketch[place] += number
    scale = norm if 0 < norm < math.inf else 1.0
    no_checksum = -1  # no shard tells it
    return (*counts, no_checksum, *columns, norm, *(number / scale for number in sketch))


def _moved(shard: Shard, shape: tuple[int, ...]) -> list[float]:
    """A shard's sketch as it would be at its place in the whole."""
    norm = shard.numbers[NORM]
    scale = norm if 0 < norm < math.inf else 1.0
    sketch = [scale * number for number in shard.numbers[SKETCH]]
    last = len(shape) - 1
    angles = []
    for number in range(sketches.NUMBERS):
        of_others = sum(sketches.turn(number, last - at) * shard.start[at] for at in range(last))
        start = shard.start[last] if shape else 0
        of_last = sketches.turn(number, 0) * (start // sketches.PERIOD) if start % sketches.PERIOD == 0 else None
        angles.append((of_others, of_last))
    found: list[float] = []
    for number, (of_others, of_last) in enumerate(angles):
        found += _turned(sketch, 2 * number, None if of_last is None else of_others + of_last)
    for number in range(sketches.PROFILES):
        found += _turned(sketch, _PROFILE + 2 * number, angles[number][1])
    for number in range(sketches.PROFILES):
        found += _turned(sketch, _OTHERS + 2 * number, angles[number][0])
    return [*found, *_moments(shard, shape, sketch[_MOMENTS:])]


def _turned(sketch: list[float], place: int, angle: int | None) -> tuple[float, float]:
    if angle is None:
        return math.nan, math.nan
    turned = complex(*sketch[place : place + 2]) * _at_angle(angle % 2**32)
    return turned.real, turned.imag


def _at_angle(angle: int) -> complex:
    radians = angle * 2 * math.pi / 2**32
    return complex(math.cos(radians), math.sin(radians))


def _moments(shard: Shard, shape: tuple[int, ...], moments: list[float]) -> tuple[float, float]:
    total = _sum(shard.numbers)
    (rows, columns), (own_rows, own_columns) = sketches.matrix(shape), sketches.matrix(shard.shape)
    start = shard.start[-1] if shape else 0
    along_columns = _moment(moments[0], total, own_columns, start, columns)
    cut = next((at for at in range(len(shape) - 1) if shard.shape[at] != shape[at]), None)
    if cut is None:
        return along_columns, moments[1]
    if math.prod(shape[:cut]) > 1:
        return along_columns, math.nan
    row = shard.start[cut] * math.prod(shape[cut + 1 : -1])
    return along_columns, _moment(moments[1], total, own_rows, row, rows)


def _moment(moment: float, total: float, own: int, start: int, length: int) -> float:
    """Places count from the middle, and are relative to how many there are."""
    by_place = moment * own + (own - 1) / 2 * total + start * total
    return (by_place - (length - 1) / 2 * total) / max(length, 1)
