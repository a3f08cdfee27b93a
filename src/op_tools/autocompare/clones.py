"""Copies of a call's tensors on their own device: the program may change them before they are looked at."""

from __future__ import annotations

from typing import Callable

from torch import Tensor

from op_tools.device import host_copies


def clone(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def clones_of(tensors: list[Tensor], copy: Callable[[Tensor], Tensor] = clone) -> list[Tensor]:
    """A tensor that comes twice has one copy."""
    made: dict[int, Tensor] = {}
    for tensor in tensors:
        if id(tensor) not in made:
            made[id(tensor)] = copy(tensor)
    return [made[id(tensor)] for tensor in tensors]


def all_as_they_lie(tensors: list[Tensor]) -> list[Tensor]:
    return clones_of(tensors, as_it_lies)


def as_it_lies(tensor: Tensor) -> Tensor:
    """Its memory from the first element to the last, copied in order: a kernel that reads with strides may be the one
    that is broken, and would give the tool what it has given the program."""
    if tensor.is_contiguous() or is_dense(tensor):
        return clone(tensor)
    (part,) = host_copies.memory_ranges([tensor.detach()])
    ((_, offset, strides),) = part.views
    copied = part.flat().clone().as_strided(tensor.shape, strides, offset)
    return copied.requires_grad_(tensor.requires_grad)


def is_dense(tensor: Tensor) -> bool:
    """Without gaps: then a plain copy has the same strides, and reads and writes in order."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return extent == tensor.numel()
