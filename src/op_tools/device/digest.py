"""A few numbers that tell what a tensor holds, computed for many tensors at once in rows of equal length.

The device goes over each row once for each of its sum, norm, smallest and largest element, bits, and a projection: the
sum of the elements times weights that belong to their places. The host puts the rows of a tensor together, in double
precision. Only rows with NaN or infinities, and the ends of tensors that do not fill a row, are looked at twice.

The projection is what sees a permutation, or noise: its weights have mean 0 and variance 1, so two tensors whose
projections differ by d are about d apart (in the norm), wherever the difference sits. The weights are a hash of the
place: the same in every process, on every device and release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from op_tools.device.queues import queue_of

NARROW, WIDE = 512, 4096  # elements in a row
_LARGE = 65_536  # elements of a tensor from which its rows are wide: there are fewer of them for the host
SKETCH = 4  # numbers of the projection
SKETCH_VERSION = 1  # in the head of every file: only sketches of one version can be compared


def width(length: int) -> int:
    """Of the rows of a tensor with so many elements. It must never change: the projection depends on it."""
    return WIDE if length >= _LARGE else NARROW


# ---- weights -------------------------------------------------------------------------------------------------------

_32_BITS = 2**32 - 1


def _hash(places: Tensor, seed: int) -> Tensor:
    """32 bits for each place; products that do not fit are cut off the same way everywhere."""
    hashed = (places * 0x9E3779B1 + seed * 0x85EBCA6B) & _32_BITS
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        hashed = ((hashed ^ (hashed >> shift)) * factor) & _32_BITS
    return hashed ^ (hashed >> 16)


def _weights(places: Tensor, seed: int) -> Tensor:
    """Between -√3 and √3."""
    return ((_hash(places, seed).double() + 0.5) / 2**31 - 1) * math.sqrt(3)


class Weights:
    """For places in a row, by dtype and device; and for rows, by their number in the tensor."""

    def __init__(self) -> None:
        self._columns: dict[tuple[torch.device, torch.dtype, int], Tensor] = {}
        self._rows = torch.empty(0, SKETCH, dtype=torch.float64, device="cpu")
        self._factors = torch.empty(0, dtype=torch.int64, device="cpu")

    def of_columns(self, device: torch.device, dtype: torch.dtype, width: int) -> Tensor:
        key = (device, dtype, width)
        if key not in self._columns:
            places = torch.arange(width, dtype=torch.int64, device="cpu")
            self._columns[key] = _weights(places, 0).to(dtype).to(device)
            queue = queue_of(device)
            if queue is not None:  # other streams use them, too
                queue.wait(queue.record())
        return self._columns[key]

    def of_rows(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of these rows, and odd factors for their bits."""
        needed = int(numbers.max()) + 1 if len(numbers) else 0
        if needed > len(self._rows):
            places = torch.arange(max(needed, 2 * len(self._rows), 1024), dtype=torch.int64, device="cpu")
            self._rows = torch.stack([_weights(places, 1 + number) for number in range(SKETCH)], 1)
            self._factors = 2 * _hash(places, 1 + SKETCH) + 1
        return self._rows[numbers], self._factors[numbers]


# ---- rows, on the device -------------------------------------------------------------------------------------------


@dataclass
class Rows:
    """Of each row: sum, norm, smallest, largest, projection in `numbers` (five lines), and the sum of its bits."""

    numbers: Tensor
    bits: Tensor


def of_rows(rows: Tensor, weights: Tensor) -> Rows:
    """Right for rows in which all elements are finite, and so large at most that their squares are, too."""
    values = rows if rows.is_floating_point() else rows.to(weights.dtype)
    numbers = torch.stack(
        [
            values.sum(1),
            torch.linalg.vector_norm(values, dim=1),
            values.amin(1),
            values.amax(1),
            torch.mv(values, weights),
        ]
    )
    return Rows(numbers, rows.view(torch.int64).sum(1))


def of_ends(rows: Tensor, lengths: Tensor, weights: Tensor) -> Rows:
    """The same of the first `lengths` elements of each row."""
    inside = torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]
    found = of_rows(rows.where(inside, torch.zeros((), dtype=rows.dtype, device=rows.device)), weights)
    largest = torch.finfo(rows.dtype) if rows.is_floating_point() else torch.iinfo(rows.dtype)
    outside = (rows.new_tensor(largest.max), rows.new_tensor(largest.min))
    found.numbers[2] = rows.where(inside, outside[0]).amin(1)
    found.numbers[3] = rows.where(inside, outside[1]).amax(1)
    return found


def of_difficult_rows(rows: Tensor, lengths: Tensor, weights: Tensor) -> tuple[Rows, Tensor]:
    """The same of the finite elements among the first `lengths`; and how many others are NaN and infinite."""
    inside = torch.arange(rows.shape[1], device=rows.device) < lengths.to(rows.device)[:, None]
    values = rows.double()
    finite = torch.isfinite(values)
    used = finite & inside
    infinity = math.inf
    numbers = values.where(used, 0.0)
    lines = [
        numbers.sum(1),
        torch.linalg.vector_norm(numbers, dim=1),
        values.where(used, infinity).amin(1),
        values.where(used, -infinity).amax(1),
        torch.mv(numbers, weights.double()),
    ]
    nan = (values.isnan() & inside).sum(1)
    infinite = (~finite & inside).sum(1) - nan
    kept = rows.where(inside, torch.zeros((), dtype=rows.dtype, device=rows.device))
    return Rows(torch.stack(lines), kept.view(torch.int64).sum(1)), torch.stack([nan, infinite])


# ---- tensors, on the host ------------------------------------------------------------------------------------------

# norms between which float32 loses nothing: squares of smaller numbers vanish, sums of larger ones overflow
_SMALLEST, _LARGEST = 1e-17, 1e37
_NONE = torch.empty(0, dtype=torch.int64, device="cpu")


def difficult(rows: Rows) -> Tensor:
    """The numbers of rows, on the host, that must be looked at again. A norm tells of every NaN and infinity."""
    norm = rows.numbers[1]
    if len(norm):
        lowest, highest = norm.aminmax()
        if float(lowest) > _SMALLEST and float(highest) < _LARGEST:
            return _NONE
    smallest, largest = rows.numbers[2:4]
    is_fine: Tensor = (norm < _LARGEST) & ((norm > _SMALLEST) | ~torch.logical_or(smallest, largest))
    return (~is_fine).nonzero().flatten()


@dataclass
class Sums:
    """Of tensors, one line each."""

    counts: Tensor  # elements, NaN, infinities, bits; int64
    totals: Tensor  # sum and square of the finite elements, projections; double
    ends: Tensor  # the smallest, and the largest with its sign turned


def sums(rows: Rows, bad: Tensor | None, lengths: list[int], row_counts: list[int], weights: Weights) -> Sums:
    """Puts rows together to tensors: how many elements each has, and how many rows.

    `bad` are the numbers of NaN and infinities of each row, where there are any.
    """
    count = len(lengths)
    per_tensor = torch.tensor(row_counts, dtype=torch.int64, device="cpu")
    owner = torch.repeat_interleave(torch.arange(count, device="cpu"), per_tensor)
    before = per_tensor.cumsum(0) - per_tensor
    row_weights, factors = weights.of_rows(torch.arange(len(owner), device="cpu") - before[owner])
    total, norm, smallest, largest, projection = rows.numbers.double()
    counts = torch.zeros(4, count, dtype=torch.int64, device="cpu")
    counts[0] = torch.tensor(lengths, dtype=torch.int64, device="cpu")
    counts[3].index_add_(0, owner, rows.bits * factors)
    if bad is not None:
        counts[1:3].index_add_(1, owner, bad)
    totals = torch.zeros(count, 2 + SKETCH, dtype=torch.float64, device="cpu")
    additive = torch.cat([torch.stack([total, norm * norm], 1), projection[:, None] * row_weights], 1)
    totals.index_add_(0, owner, additive)
    ends = torch.full((2, count), math.inf, dtype=torch.float64, device="cpu")
    ends[0].scatter_reduce_(0, owner, smallest, "amin")
    ends[1].scatter_reduce_(0, owner, -largest, "amin")
    return Sums(counts.T, totals, ends.T)


COLUMNS = ("min", "max", "mean", "std", "norm", *(f"sketch{number}" for number in range(SKETCH)))
LINE = 4 + len(COLUMNS)  # numbers of a digest: elements, NaN, infinities, bits; then COLUMNS


def finished(sums: Sums) -> Tensor:
    """COLUMNS of whole tensors; NaN where there is nothing finite in one."""
    count, nan, infinite, _ = sums.counts.unbind(1)
    finite = (count - nan - infinite).double()
    finite = finite.masked_fill(finite == 0, math.nan)
    mean = sums.totals[:, 0] / finite
    square = sums.totals[:, 1]
    smallest, largest = sums.ends[:, 0], -sums.ends[:, 1]
    # a difference of squares that are known to seven digits: what is below 0.0003 of the mean is lost in it
    deviation = (square / finite - mean * mean).clamp(min=0).sqrt().masked_fill(smallest == largest, 0)
    columns = [smallest, largest, mean, deviation, square.sqrt()]
    numbers = torch.stack(columns, 1).masked_fill(finite.isnan()[:, None], math.nan)
    return torch.cat([numbers, sums.totals[:, 2:]], 1)


def lines(sums: Sums) -> Tensor:
    """For each tensor its counts, and the bits of its COLUMNS."""
    return torch.cat([sums.counts, finished(sums).view(torch.int64)], 1)
