"""Digests of tensors that lie in the host's memory, also where they are those of another device: the simulated one.

The kernel is an operator of torch's with an implementation for the CPU (native/csrc/digests_host.h), called like any
other: what a device makes of that, and in which stream, is up to the device.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools import native
from op_tools.device import digest

_FEW_ELEMENTS = 2**17  # of a tensor, for which fewer lanes are quicker
_FEW_LANES = 256


class HostDigests:
    """The kernel in C++."""

    def __init__(self, device: torch.device) -> None:
        library = native.library()
        assert library is not None
        self._device = device
        self._digest = library.digest

    @staticmethod
    def works_on(device: torch.device) -> bool:
        return reaches(device)

    def memory(self, lines: int) -> Tensor:
        return torch.empty(lines, digest.LINE, dtype=torch.int64, device=self._device)

    def has_room(self, memory: Tensor, group: Any) -> bool:
        return True

    def write(
        self,
        tensors: list[Tensor],
        group: Any,
        addresses: bytes | None,
        memory: Tensor,
        first: int,
        known: list[int],
    ) -> None:
        if not group.is_whole:
            tensors = [tensors[number] for number in group.numbers]
        if group.kept is None:
            direct = all(tensor.dtype in digest.KINDS or tensor.dtype is torch.bool for tensor in tensors)
            group.kept = direct, [_walk(tensor) for tensor in tensors]
        is_direct, walks = group.kept
        if not is_direct:
            tensors = [digest.plain(tensor) for tensor in tensors]
        self._digest(tensors, [walk.data_ptr() for walk in walks], known, memory, first)

    def finish(self, memory: Tensor, used: int) -> list[Tensor]:
        return [memory[:used]]

    def lines(self, found: list[Tensor]) -> Tensor:
        return found[0]


def _walk(tensor: Tensor) -> Tensor:
    shape = (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)
    return digest.walk(shape, _FEW_LANES if tensor.numel() <= _FEW_ELEMENTS else digest.LANES).packed


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
