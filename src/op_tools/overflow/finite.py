"""Which tensors can hold NaN or Inf, and the ways to find them: the largest absolute value of each of many tensors.

It is NaN where one element is NaN, and infinite where one is. That takes one kernel of our own for a whole batch on
CUDA (device/largest.py), few where the device has some for lists of tensors, else one for each tensor.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Sequence
from typing import Callable

import torch
from torch import Tensor

from op_tools.device import largest as kernel
from op_tools.values.tensors import (
    device_of,
    dtype_of,
    is_contiguous,
    is_dense,
    is_nested,
    layout_of,
    size_of,
)

PLAIN = frozenset((torch.float32, torch.float16, torch.bfloat16, torch.float64))
_FLOAT8 = frozenset(getattr(torch, name) for name in dir(torch) if name.startswith("float8_e"))
_COMPLEX = frozenset((torch.complex64, torch.complex128, torch.complex32))
CHECKED = PLAIN | _FLOAT8 | _COMPLEX  # dtypes that have NaN or infinities
_STRIDED = {torch.strided}
_NOTHING = contextlib.nullcontext()


def all_can_be_checked(tensors: Sequence[Tensor]) -> bool:
    """Whether many tensors can be checked, and on one device; where not, they are asked one by one."""
    devices = set(map(device_of, tensors))
    return (
        len(devices) == 1
        and devices.pop().type != "cpu"
        and CHECKED.issuperset(map(dtype_of, tensors))
        and set(map(layout_of, tensors)) == _STRIDED
        and all(map(size_of, tensors))
        and not any(map(is_nested, tensors))
    )


def can_be_checked(tensor: Tensor) -> bool:
    """False for whole numbers, empty, sparse and nested tensors, and those on the CPU."""
    if tensor.dtype not in CHECKED or tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    return tensor.nbytes > 0


def is_intact(tensor: Tensor, version: int | None) -> bool:
    """False where it has been changed since, or its memory was freed, as sharded training does."""
    if version is not None and tensor._version != version:
        return False
    return tensor.layout is not torch.strided or tensor.untyped_storage().nbytes() > 0 or tensor.numel() == 0


def as_plain(tensor: Tensor) -> Tensor:
    """In a dtype that reductions know."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.float()


def largest(values: list[float]) -> float:
    """Of the lowest and the highest value, or of one; `max` alone may lose a NaN."""
    return math.nan if any(map(math.isnan, values)) else max(map(abs, values))


# -- ways to find the largest absolute value: one or two numbers for each tensor ---------------------------------------

Finder = Callable[[list[Tensor]], Tensor]
_finders: dict[torch.device, Finder] = {}


def by_lists(tensors: list[Tensor]) -> Tensor:
    """Two kernels for some hundred tensors. One with gaps or overlaps would make it one kernel for each."""
    if all(map(is_contiguous, tensors)):
        return torch.stack(torch._foreach_norm(tensors, math.inf))
    dense = [is_dense(tensor) for tensor in tensors]
    together = list(itertools.compress(tensors, dense))
    norms = iter(torch._foreach_norm(together, math.inf) if together else ())
    return torch.stack(
        [
            next(norms) if lies_together else torch.linalg.vector_norm(tensor, math.inf)
            for tensor, lies_together in zip(tensors, dense)
        ]
    )


def by_range(tensors: list[Tensor]) -> Tensor:
    """A kernel for each tensor that finds the lowest and the highest value."""
    return torch.stack([value for tensor in tensors for value in torch.aminmax(tensor)])


def by_question(tensors: list[Tensor]) -> Tensor:
    """Slow, and for devices whose minimum and maximum overlook NaN."""
    return torch.stack(
        [
            torch.where(tensor.isnan().any(), math.nan, torch.where(tensor.isinf().any(), math.inf, 0.0)).float()
            for tensor in tensors
        ]
    )


def find_largest(tensors: list[Tensor]) -> Tensor:
    """In the way that is best for their device, without a wait."""
    device = tensors[0].device
    find = _finders.get(device)
    if find is None:
        find = _finders[device] = _choose(device)
    return find(tensors)


def _choose(device: torch.device) -> Finder:
    """The first way that the device has, and that sees a NaN between numbers."""
    if kernel.can_find(device):
        return kernel.values
    ways = (by_lists, by_range) if _has_kernel_for_lists(device) else (by_range,)
    samples = [torch.tensor([0.0, bad, 1.0], device=device) for bad in (math.nan, math.inf, -math.inf)]
    for find in ways:
        try:
            values = find(samples).tolist()
        except (RuntimeError, NotImplementedError, AttributeError):
            continue
        width = len(values) // 3
        seen = [largest(values[start : start + width]) for start in range(0, len(values), width)]
        if math.isnan(seen[0]) and seen[1:] == [math.inf, math.inf]:
            return find
    return by_question


def _has_kernel_for_lists(device: torch.device) -> bool:
    try:
        key = torch._C._dispatch_key_for_device(device.type)
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key("aten::_foreach_norm.Scalar", key))
    except (AttributeError, RuntimeError):  # a torch that does not tell
        return device.type == "cuda"
