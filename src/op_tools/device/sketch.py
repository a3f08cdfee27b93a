"""The definition of a tensor's sketch and checksum: a few sums over its elements that add up over shards.

A tensor is seen as one of four dimensions, i1 being the index in the last: all dimensions before the last three are
one, and a complex number is a last dimension of two. The element at i4, i3, i2, i1 counts with a weight of size 1,
whose phase is a whole number, 2**32 of which are a full turn:

    weight[k] = HASHES[k][i1 % 16] + TURNS[k // 2] · (i1 // 16, i2, i3, i4)        k = 0 … 3

The numbers, where `…` is a sum over the finite elements x, and a complex one is two numbers:

    main[k] = … x · weight[k]                                       k = 0 … 3
    last[k] = … x · weight[k] at i2 = i3 = i4 = 0                   k = 0 … 3    the sum over all other dimensions
    lead[m] = … x · (TURNS[m] alone, at i1 = 0)                     m = 0, 1     the sum over the last dimension
    moments = … x · i1,  … x · i2

Hashes see what is periodic, slow turns what is smooth. A shard that begins elsewhere in the whole tensor differs only
by a phase that is the same for all of its elements, if it begins at a multiple of 16 in the last dimension, and
anywhere in the others: storage/sketches.py puts shards together. The checksum is the sum, modulo 2**32, of the
elements' bits (mixed) times a power of an odd number for each dimension, and adds up likewise, from any place.

None of this must ever change: records of different devices and releases are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

PERIOD = 16
MAIN, LAST, LEAD, MOMENTS = range(8), range(8, 16), range(16, 20), range(20, 22)  # places among the numbers
SIZE = 22
_BITS_32 = 2**32 - 1
# of a full turn, for the last dimension (each 16 elements) and those before it
TURNS = tuple(
    tuple(round(turn * 2**32) for turn in turns)
    for turns in ((0.31, 0.381966, 0.2763932, 0.4472136), (0.02, 0.0077, 0.0123, 0.0191))
)
FACTORS = (0x9E3779B5, 0x85EBCA6D, 0xC2B2AE3D, 0x27D4EB2D)  # of the checksum, by dimension
HIGH_WORD = 0x9E3779B1  # factor of an element's upper 32 bits, where it has more than 32
MIX_SHIFT = 15  # bits of the checksum are mixed: word ^ word >> 15


def _hash(place: int) -> int:
    hashed = (place * 0x9E3779B1 + 0x85EBCA6B) & _BITS_32
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        hashed = ((hashed ^ (hashed >> shift)) * factor) & _BITS_32
    return hashed ^ (hashed >> 16)


HASHES = tuple(tuple(_hash(PERIOD * number + place) for place in range(PERIOD)) for number in range(4))


def four_dimensions(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """The sizes from the last dimension on: n1, n2, n3, n4."""
    n3, n2, n1 = (1, 1, 1, *shape)[-3:]
    return n1, n2, n3, math.prod(shape[:-3])


def lead_phase(turns: int, index: Sequence[int]) -> int:
    """Of an element by its dimensions before the last: i2, i3, i4."""
    return sum(turn * place for turn, place in zip(TURNS[turns][1:], index)) & _BITS_32


def unit(phase: int) -> complex:
    """The complex number of size 1."""
    angle = 2 * math.pi * phase / 2**32
    return complex(math.cos(angle), math.sin(angle))
