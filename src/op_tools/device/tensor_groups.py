"""Tensors of one call that our kernels digest together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from op_tools.device.staging import Shape, real_shape, staged_as
from op_tools.values.tensors import with_memory

MAX_TENSORS = 160  # tensors, as in digest.cu
# dtypes that the kernels read, and their numbers in digest.cu
KINDS = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.float64: 3,
    torch.int64: 4,
    torch.int32: 5,
    torch.int16: 6,
    torch.int8: 7,
    torch.uint8: 8,
    torch.bool: 8,
}

_Member = tuple[int, Shape, torch.dtype]  # number of the tensor, its shape and dtype as the kernel reads it


class TensorGroup:
    """All that is the same each time these tensors come."""

    __slots__ = ("device", "dtypes", "is_direct", "layouts", "numbers", "shapes")

    def __init__(self, device: torch.device, members: list[_Member], is_direct: bool) -> None:
        self.device = device
        self.numbers = [number for number, _, _ in members]  # which tensors of the call
        self.shapes = [shape for _, shape, _ in members]
        self.dtypes = [dtype for _, _, dtype in members]
        self.is_direct = is_direct  # none is brought to another dtype first
        self.layouts: dict[Any, Any] = {}  # what a kernel keeps with the group


def grouped(tensors: list[Tensor], numbers: Iterable[int]) -> Iterator[TensorGroup]:
    """How these of the tensors are digested; each must be on a device that can, and of a kind that is staged."""
    groups: dict[torch.device, list[_Member]] = {}
    for number in numbers:
        tensor = tensors[number]
        dtype = tensor.dtype if tensor.dtype in KINDS else staged_as(tensor)
        assert dtype is not None
        groups.setdefault(tensor.device, []).append((number, real_shape(tensor), dtype))
    for device, members in groups.items():
        for start in range(0, len(members), MAX_TENSORS):
            some = members[start : start + MAX_TENSORS]
            yield TensorGroup(device, some, all(tensors[number].dtype is dtype for number, _, dtype in some))


def plain(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """As the kernels read it: real numbers of this dtype that lie in order."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return with_memory(tensor).to(dtype).resolve_neg().contiguous()
