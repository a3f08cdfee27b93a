"""Tensors of one call that lie in the same memory: a view and its base, neighbouring columns, one tensor by two names.

The reference is given a copy of each. Where the call changes one of them, others change with it; and what it writes
before all is read that lies there, PyTorch does not say (judging/free_order.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from op_tools.autocompare.arguments import Arguments
from op_tools.values.tensors import is_contiguous, size_of

_address_of: Callable[[Tensor], int] = Tensor.data_ptr
_strides_of: Callable[[Tensor], Sequence[int]] = Tensor.stride
_shape_of: Callable[[Tensor], Sequence[int]] = attrgetter("shape")


class Region(NamedTuple):
    """Where the elements of a tensor lie in memory."""

    start: int
    end: int  # behind the last one
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    itemsize: int
    kind: tuple[torch.dtype, bool, bool]  # how its bytes are read: the last two tell of conjugates and negatives

    def within(self, memory: Tensor, start: int) -> Tensor:
        """The bytes of each element, of memory that begins there."""
        return memory.as_strided((*self.shape, self.itemsize), (*self.strides, 1), self.start - start)


Regions = Mapping[int, Region]  # by the place among the leaves of a call's arguments
NONE: Regions = {}


def regions_of(given: Arguments) -> Regions:
    """Of tensors whose memory may overlap with that of others; of most calls there are none."""
    tensors = given.tensors
    if len(tensors) < 2:
        return NONE
    try:
        if not _may_overlap(tensors):
            return NONE
    except RuntimeError:  # some have no memory that they would tell of
        tensors = [tensor for tensor in tensors if _has_memory(tensor)]
    known: dict[int, tuple[Any, Region]] = {}  # by the id of a tensor: whose memory it is, and where
    for tensor in tensors:
        if id(tensor) not in known and tensor.numel():
            known[id(tensor)] = _memory_of(tensor), _region_of(tensor)
    overlapping = _overlapping(known)
    return {place: known[id(value)][1] for place, value in enumerate(given.leaves) if id(value) in overlapping}


def _has_memory(tensor: Tensor) -> bool:
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:
        return False


def _may_overlap(tensors: Sequence[Tensor]) -> bool:
    """Whether one begins before another one ends; a tensor that is there twice is one."""
    starts, sizes = list(map(_address_of, tensors)), list(map(size_of, tensors))
    if len(starts) == 2 and starts[0] == starts[1]:
        return tensors[0] is not tensors[1]
    if not all(map(is_contiguous, tensors)):
        lengths = map(_length, map(_shape_of, tensors), map(_strides_of, tensors))
        sizes = [length * tensor.element_size() for length, tensor in zip(lengths, tensors)]
    reached, last = 0, -1
    for start, size, name in sorted(zip(starts, sizes, map(id, tensors))):
        if start < reached and size and name != last:
            return True
        reached, last = max(reached, start + size), name
    return False


def _length(shape: Sequence[int], strides: Sequence[int]) -> int:
    """From the first element to the last one."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))


def _memory_of(tensor: Tensor) -> tuple[torch.device, int]:
    return tensor.device, tensor.untyped_storage().data_ptr()


def _region_of(tensor: Tensor) -> Region:
    itemsize, shape, strides = tensor.element_size(), tuple(tensor.shape), tensor.stride()
    start = tensor.untyped_storage().data_ptr() + int(tensor.storage_offset()) * itemsize
    in_bytes, kind = tuple(stride * itemsize for stride in strides), (tensor.dtype, tensor.is_conj(), tensor.is_neg())
    return Region(start, start + _length(shape, strides) * itemsize, shape, in_bytes, itemsize, kind)


def _overlapping(known: Mapping[int, tuple[Any, Region]]) -> set[int]:
    """Those that begin before another one in the same memory ends."""
    found: set[int] = set()
    reached: dict[Any, tuple[int, int]] = {}  # by memory: how far it is taken, and by whom
    for name, (memory, region) in sorted(known.items(), key=lambda item: item[1][1].start):
        end, other = reached.get(memory, (0, name))
        if region.start < end:
            found |= {name, other}
        if region.end > end:
            reached[memory] = region.end, name
    return found
