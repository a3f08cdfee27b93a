"""Digests of tensors that lie in the host's memory, also where they are those of another device: the simulated one.

The kernel is an operator of torch's with an implementation for the CPU (native/csrc/digests_host.h), called like any
other: what a device makes of that, and in which stream, is up to the device.
"""

from __future__ import annotations

from functools import cache
from typing import Callable

import torch
from torch import Tensor

from op_tools import native
from op_tools.device.tensor_groups import TensorGroup, plain


class HostDigests:
    """The kernel."""

    def __init__(self) -> None:
        library = native.library()
        assert library is not None
        self._digest = library.digest

    def write(
        self, tensors: list[Tensor], group: TensorGroup, addresses: bytes | None, lines: Tensor, first: int
    ) -> None:
        if not group.is_direct:
            tensors = [_read_as(tensors[number], dtype) for number, dtype in zip(group.numbers, group.dtypes)]
        elif len(tensors) != len(group.numbers):
            tensors = [tensors[number] for number in group.numbers]
        self._digest(tensors, lines, first)


def _read_as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype is dtype else plain(tensor, dtype)


def reaches(device: torch.device) -> bool:
    """Whether the kernel gets this device's own memory: a copy for the CPU would cost more than torch's kernels do."""
    address: Callable[[Tensor], int] | None = getattr(native.library(), "address", None)
    return address is not None and _is_reached(device, address)


@cache
def _is_reached(device: torch.device, address: Callable[[Tensor], int]) -> bool:
    try:
        tensor = torch.ones(1, device=device)
        return address(tensor) == tensor.data_ptr()
    except RuntimeError:  # there is no such kernel for it
        return False
