"""Digests, a few numbers that tell what a tensor holds: their definition, and how torch computes many at once.

Counts of elements, NaN and infinities, a checksum of the bits; the smallest and the largest, mean, deviation and norm
of the finite elements; and a sketch: sums of the elements times weights that belong to their places. The sketch sees
a permutation, or noise: two tensors whose sketches differ by d are about d apart (in the norm), wherever they differ.

A weight is a complex number of size one, a product of one factor for each dimension. Along the last dimension the
factors are hashed, repeat after 16 places and turn by a constant angle with each 16; along the others they turn with
each place. So the sketch of a part of a tensor that begins elsewhere is the one that it would have at 0 times a known
factor, and the sketches of shards add up to that of the whole (sketch.py). Four such numbers; then two profiles, each
for two of the four: the sum over the last dimension with the weights of the others, and the reverse, which see what
is the same in all rows or columns; and the moments along columns and rows. Angles are whole numbers of 2**-32 turns:
the same everywhere.

digest.cu and native/csrc/digest.h compute the same in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from op_tools.device.sketch import NUMBERS, PERIOD, PROFILES, SKETCH, matrix, turn

COLUMNS = ("min", "max", "mean", "std", "norm", *(f"sketch{number}" for number in range(SKETCH)))
LINE = 4 + len(COLUMNS)  # numbers of a digest: elements, NaN, infinities, checksum; then COLUMNS
_MAX_ELEMENTS_AT_ONCE = 2**22  # elements, where rows are short: what is computed for each row takes memory, too

# ---- weights -------------------------------------------------------------------------------------------------------

_32_BITS = 2**32 - 1


def _hash(places: Tensor, seed: int) -> Tensor:
    """32 bits for each place; products that do not fit are cut off the same way everywhere."""
    hashed = (places * 0x9E3779B1 + seed * 0x85EBCA6B) & _32_BITS
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        hashed = ((hashed ^ (hashed >> shift)) * factor) & _32_BITS
    return hashed ^ (hashed >> 16)


def phases(places: Tensor, dimension: int, number: int) -> Tensor:
    """The angles of these places of a dimension, counted from the last one; in 2**-32 turns."""
    if dimension:
        return (places * turn(number, dimension)) & _32_BITS
    block = torch.div(places, PERIOD, rounding_mode="floor")
    return (_hash(places - PERIOD * block, 100 + number) + (block * turn(number, 0) & _32_BITS)) & _32_BITS


def weights(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary parts."""
    radians = angles.double() * (2 * math.pi / 2**32)
    return radians.cos(), radians.sin()


def ramp(length: int) -> Tensor:
    """For moments: from about -1/2 to 1/2."""
    places = torch.arange(length, dtype=torch.float64, device="cpu")
    return (places - (length - 1) / 2) / max(length, 1)


@lru_cache(256)
def _of_columns(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """For each column: real and imaginary parts of its four weights, its place in the ramp, and 1."""
    places = torch.arange(length, dtype=torch.int64, device="cpu")
    table = [part for number in range(NUMBERS) for part in weights(phases(places, 0, number))]
    return torch.stack([*table, ramp(length), torch.ones_like(table[0])], 1).to(dtype).to(device)


@lru_cache(64)
def _of_rows(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """For each row of so many in each dimension but the last, likewise; without the 1."""
    count = math.prod(shape)
    table: list[Tensor] = []
    for number in range(NUMBERS):
        angles = torch.zeros(count, dtype=torch.int64, device="cpu")
        rows = torch.arange(count, dtype=torch.int64, device="cpu")
        inner = 1
        for dimension, size in enumerate(reversed(shape), start=1):
            angles += phases(torch.div(rows, inner, rounding_mode="floor") % max(size, 1), dimension, number)
            inner *= size
        table += weights(angles & _32_BITS)
    return torch.stack([*table, ramp(count)], 1).to(dtype).to(device)


# ---- digests -------------------------------------------------------------------------------------------------------


def digested(tensors: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Of tensors of this shape, one in each row, of float32, float64 or int64: what `lines` makes lines of on the host.

    `dtype`: in which it is computed; float32 where the device has no double precision.
    """
    shape, count = tuple(shape), len(tensors)
    rows, columns = matrix(shape)
    values = tensors.to(dtype)
    finite, is_nan = values.isfinite(), values.isnan()
    nan = is_nan.sum(1)
    counts = torch.stack([torch.full_like(nan, rows * columns), nan, (~finite).sum(1) - nan, _checksums(tensors)], 1)
    if not rows * columns:
        return counts, values.new_zeros(count, 4 + SKETCH)
    ends = [values.where(finite, math.inf).amin(1), values.where(finite, -math.inf).amax(1)]
    values = values.where(finite, 0.0)
    largest = values.abs().amax(1, keepdim=True).clamp(min=torch.finfo(dtype).tiny)
    norms = (values / largest).square().sum(1).sqrt() * largest[:, 0]
    sums, sketch = _sketched(values.view(count, rows, columns), shape)
    return counts, torch.cat([torch.stack([*ends, sums, norms], 1), sketch], 1)


CHECKSUM_FACTORS = (0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9)


def _checksums(tensors: Tensor) -> Tensor:
    """The sum of all bits, and the sum of them times their places: by this, an exchange of two is seen."""
    if tensors.itemsize == 8:  # sums are cut off at 64 bits, which must not hide a sign
        words = tensors.view(torch.int64)
        words = words ^ (words >> 31 & 2**33 - 1)
    else:
        words = tensors.view(torch.int32).long() & _32_BITS
    places = torch.arange(tensors.shape[1], device=tensors.device)
    return words.sum(1) * CHECKSUM_FACTORS[0] + (words * places).sum(1) * CHECKSUM_FACTORS[1]


def _sketched(values: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The sums of all elements, and the sketches."""
    count, rows, columns = values.shape
    of_columns = _of_columns(columns, values.dtype, values.device)
    of_rows = _of_rows(shape[:-1], values.dtype, values.device)
    total, sketch = values.new_zeros(count), values.new_zeros(count, SKETCH)
    step = max(1, _MAX_ELEMENTS_AT_ONCE // max(count * columns, 1))
    for start in range(0, rows, step):
        part, row_weights = values[:, start : start + step], of_rows[start : start + step]
        projected = part @ of_columns  # of each row
        sums = projected[..., -1]
        for number in range(NUMBERS):
            real, imaginary = projected[..., 2 * number], projected[..., 2 * number + 1]
            row_real, row_imaginary = row_weights[:, 2 * number], row_weights[:, 2 * number + 1]
            sketch[:, 2 * number] += real @ row_real - imaginary @ row_imaginary
            sketch[:, 2 * number + 1] += real @ row_imaginary + imaginary @ row_real
            if number < PROFILES:
                place = 2 * NUMBERS + 2 * number
                sketch[:, place] += real.sum(1)
                sketch[:, place + 1] += imaginary.sum(1)
                sketch[:, place + 2 * PROFILES] += sums @ row_real
                sketch[:, place + 2 * PROFILES + 1] += sums @ row_imaginary
        sketch[:, -2] += projected[..., -2].sum(1)
        sketch[:, -1] += sums @ row_weights[:, -1]
        total += sums.sum(1)
    return total, sketch


def lines(counts: Tensor, numbers: Tensor) -> Tensor:
    """For each tensor its counts, and the bits of its COLUMNS; NaN where there is nothing finite in it."""
    count, nan, infinite, _ = counts.unbind(1)
    numbers = numbers.double()
    smallest, largest, total, norm = numbers[:, :4].unbind(1)
    finite = (count - nan - infinite).double()
    finite = finite.masked_fill(finite == 0, math.nan)
    mean = total / finite
    # a difference of squares: what is below 1e-8 of the mean (float32: 0.0003) is lost in it
    deviation = (norm * norm / finite - mean * mean).clamp(min=0).sqrt().masked_fill(smallest == largest, 0)
    columns = torch.stack([smallest, largest, mean, deviation, norm], 1).masked_fill(finite.isnan()[:, None], math.nan)
    return torch.cat([counts, torch.cat([columns, numbers[:, 4:]], 1).view(torch.int64)], 1)
