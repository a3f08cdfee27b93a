"""What records of statistics tell about each other: how far two tensors are apart, and the whole that shards make up.

whole = joined([(left, (0, 0)), (right, (0, 512))])
distance(whole, other) / other.norm
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

from op_tools.device import sketch
from op_tools.device.sketch import FACTORS, PERIOD, TURNS
from op_tools.errors import CaptureError
from op_tools.storage.pack import TensorRecord


def joined(shards: Iterable[tuple[TensorRecord, Sequence[int]]]) -> TensorRecord:
    """The record of a whole tensor from those of its shards, each with the place where it begins in the whole.

    Shards begin at multiples of 16 in the last dimension and anywhere in the others. What comes before the last three
    dimensions counts as one: there, a shard has all but the first of them whole.
    """
    parts = list(shards)
    first = parts[0][0]
    shape = [max(start[d] + record.shape[d] for record, start in parts) for d in range(len(first.shape))]
    numbers, total, square, checksum = [0.0] * sketch.SIZE, 0.0, 0.0, 0
    for record, start in parts:
        place = _place(record, start, shape)
        sum_of_it = record.mean * (record.numel - record.nan - record.inf) if record.mean == record.mean else 0.0
        total += sum_of_it
        square += record.norm**2 if record.norm == record.norm else 0.0
        checksum += record.checksum * math.prod(pow(f, s, 2**32) for f, s in zip(FACTORS, place))
        numbers = [one + other for one, other in zip(numbers, _moved(record.sketch, sum_of_it, place))]
    counts = {name: sum(getattr(record, name) for record, _ in parts) for name in ("numel", "nan", "inf")}
    finite = counts["numel"] - counts["nan"] - counts["inf"]
    some = [record for record, _ in parts if record.min == record.min]
    mean = total / finite if finite else math.nan
    return dataclasses.replace(
        first,
        shape=tuple(shape),
        **counts,
        checksum=checksum % 2**32,
        min=min((record.min for record in some), default=math.nan),
        max=max((record.max for record in some), default=math.nan),
        mean=mean,
        std=math.sqrt(max(square / finite - mean * mean, 0.0)) if finite else math.nan,
        norm=math.sqrt(square) if finite else math.nan,
        sketch=tuple(numbers),
    )


def distance(one: TensorRecord, other: TensorRecord) -> float:
    """About the norm of the difference of two tensors of one shape; 0 where the records are equal.

    What is the same in all rows, or in all columns, is told by the sums over these; what is left, by the rest.
    """
    _check(one)
    _check(other)
    if one.shape != other.shape:
        raise ValueError(f"shapes {one.shape} and {other.shape} have no distance")
    if not one.numel:
        return 0.0
    n1, *lead_sizes = sketch.four_dimensions(_dimensions(one))
    rows = math.prod(lead_sizes)
    apart = [a - b for a, b in zip(one.sketch, other.sketch)]
    main, last, lead = ([complex(*apart[at : at + 2]) for at in part[::2]] for part in _PARTS)
    plain = [_difference(one, other, name) for name in ("min", "max")]
    finite = [record.numel - record.nan - record.inf for record in (one, other)]
    total = one.mean * finite[0] - other.mean * finite[1] if all(finite) else 0.0
    columns, turns = _sums(n1, *lead_sizes)
    squares = [total * total / (rows * n1)]
    squares.append(sum(abs(last[k] - total * columns[k] / n1) ** 2 for k in range(4)) / 4 / rows)
    squares.append(sum(abs(lead[m] - total * turns[m] / rows) ** 2 for m in range(2)) / 2 / n1)
    for k in range(4):
        turn, column = turns[k // 2], columns[k]
        rest = main[k] - last[k] * turn / rows - lead[k // 2] * column / n1 + total * turn * column / (rows * n1)
        squares.append(abs(rest) ** 2 / 4)
    for moment, size in zip(apart[sketch.MOMENTS.start :], (n1, lead_sizes[0])):
        spread = size * (size * size - 1) / 12 * (rows * n1 / size)  # of the places about their middle
        if spread:
            plain.append((moment - total * (size - 1) / 2) / math.sqrt(spread))
    root = math.sqrt(one.numel)
    plain += [_difference(one, other, "std") * root, _difference(one, other, "norm")]
    return max(math.sqrt(sum(squares)), *map(abs, plain))


_PARTS = (sketch.MAIN, sketch.LAST, sketch.LEAD)


def _check(record: TensorRecord) -> None:
    if len(record.sketch) != sketch.SIZE:
        raise CaptureError("statistics of an older release cannot be compared by their sketches: capture them again")


def _difference(one: TensorRecord, other: TensorRecord, name: str) -> float:
    difference: float = getattr(one, name) - getattr(other, name)
    return difference if difference == difference else 0.0


def _dimensions(record: TensorRecord) -> tuple[int, ...]:
    return (*record.shape, 2) if record.dtype.startswith("complex") else record.shape


def _place(record: TensorRecord, start: Sequence[int], shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Where it begins, from the last of four dimensions on."""
    _check(record)
    if record.dtype.startswith("complex"):
        start, shape = (*start, 0), (*shape, 2)
    flat = 0
    for place, size in zip(start[:-3], shape[:-3]):
        flat = flat * size + place
    third, second, last = (0, 0, 0, *start)[-3:]
    if last % PERIOD:
        raise ValueError(f"a shard cannot begin at {last} in the last dimension, which is no multiple of {PERIOD}")
    return last, second, third, flat


def _moved(numbers: Sequence[float], total: float, place: tuple[int, int, int, int]) -> list[float]:
    """The sketch of a shard with this sum of elements, as a part of the whole."""
    by_last = [sketch.unit(TURNS[m][0] * (place[0] // PERIOD) % 2**32) for m in range(2)]
    by_lead = [sketch.unit(sketch.lead_phase(m, place[1:])) for m in range(2)]
    turns = [by_last[k // 2] * by_lead[k // 2] for k in range(4)] + [by_last[k // 2] for k in range(4)] + by_lead
    moved: list[float] = []
    for at, turn in zip(range(0, sketch.MOMENTS.start, 2), turns):
        number = complex(*numbers[at : at + 2]) * turn
        moved += (number.real, number.imag)
    return moved + [moment + total * at for moment, at in zip(numbers[sketch.MOMENTS.start :], place)]


@lru_cache(maxsize=4096)
def _sums(n1: int, n2: int, n3: int, n4: int) -> tuple[list[complex], list[complex]]:
    """The sketch of ones: sums of the weights by the last dimension, and by those before it."""
    whole, rest = divmod(n1, PERIOD)
    columns = []
    for k in range(4):
        turn = TURNS[k // 2][0]
        units = [sketch.unit(hashed) for hashed in sketch.HASHES[k]]
        columns.append(sum(units) * _series(turn, whole) + sum(units[:rest]) * sketch.unit(turn * whole % 2**32))
    by_dimension = ([_series(turn, n) for turn, n in zip(turns[1:], (n2, n3, n4))] for turns in TURNS)
    return columns, [math.prod(series, start=1 + 0j) for series in by_dimension]


def _series(turn: int, count: int) -> complex:
    """The sum of the first powers of a turn."""
    return (sketch.unit(turn * count % 2**32) - 1) / (sketch.unit(turn % 2**32) - 1)
