"""Copies of tensors as they are now, on the host: later in-place changes do not reach them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from op_tools import trees


def host_copy(value: Any) -> Any:
    """The same nested structure with every tensor copied to the CPU; dtype, strides and requires_grad are kept."""
    return trees.map_tensors(_copy, value)


def _copy(tensor: Tensor) -> Tensor:
    source = tensor.detach()
    if source.layout != torch.strided:
        copy = source.to("cpu", copy=True)
    elif _is_dense(source):
        copy = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="cpu")
        copy.copy_(source)
    else:
        # overlapping elements (expand) and gaps (slices): the stretch of memory that it lies in
        extent = 1 + sum((size - 1) * stride for size, stride in zip(source.shape, source.stride()))
        stretch = source.as_strided((extent,), (1,), source.storage_offset()).to("cpu", copy=True)
        copy = stretch.as_strided(source.shape, source.stride())
    return copy.requires_grad_(tensor.requires_grad)


def _is_dense(tensor: Tensor) -> bool:
    """True where every element has memory of its own and there are no gaps."""
    if tensor.is_contiguous() or tensor.numel() == 0:
        return True
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride()) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True
