"""Copies of tensors as they are now, on the host: later in-place changes do not reach them. And back to the device."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from op_tools.device import host_memory, progress
from op_tools.device.host_memory import ALIGNMENT
from op_tools.device.queues import DeviceQueue, queue_of
from op_tools.values import trees

# A view with gaps is copied with what lies between, so that its strides stay what they are, up to so many times its
# own size; a column of a huge matrix is not worth the matrix.
_MAX_SPAN_TO_USED = 4
_MIN_BYTES_FOR_GAPS = 2**20  # with fewer, gaps do not matter


def host_copy(value: Any) -> Any:
    """The same nested structure with every tensor copied to the CPU; dtype, strides and requires_grad are kept.

    Tensors that overlap in memory do so in the copy, too.
    """
    left = iter(copies_of([*trees.tensors(value)]))
    return trees.map_tensors(lambda _: next(left), value)


def copies_of(tensors: list[Tensor]) -> list[Tensor]:
    """Of each of these tensors, one copy on the host; see `host_copy`."""
    copies: dict[int, Tensor] = {}
    plain: list[Tensor] = []
    with torch.no_grad():
        for tensor in tensors:
            if is_plain(tensor):
                plain.append(tensor)
            else:
                copies[id(tensor)] = unusual_copy(tensor)
        asked = progress.last[0]
        pinned_parts: list[tuple[Tensor, list[Tensor]]] = []  # memory, and the copies that lie in it
        is_from_device = False
        waits: dict[torch.device, DeviceQueue | None] = {}  # for copies that are on their way
        for part in memory_ranges(plain):
            device = part.source.device
            is_from_device |= not part.source.is_cpu
            if device not in waits:
                waits[device] = queue_of(device) if host_memory.can_pin_for(device) else None
            pinned = waits[device] is not None
            memory = torch.empty(part.length, dtype=part.source.dtype, device="cpu", pin_memory=pinned)
            made = []
            memory.copy_(part.flat(), non_blocking=pinned)
            for index, offset, stride in part.views:
                tensor = plain[index]
                # not a view: one that was made without gradients could not be changed in place with them
                copy = torch.empty(0, dtype=memory.dtype, device="cpu")
                copy.set_(memory.untyped_storage(), offset, tensor.shape, stride)
                copies[id(tensor)] = copy.requires_grad_(tensor.requires_grad)
                made.append(copy)
            if pinned:
                pinned_parts.append((memory, made))
        for queue in waits.values():
            if queue is not None:
                queue.wait(queue.record())
        if pinned_parts:
            let_go()
            hold(pinned_parts)
        if is_from_device:
            progress.proven.append(asked)
    return [copies[id(tensor)] for tensor in tensors]


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor there, or it will be when the device has got so far."""
    if tensor.device == device:
        return tensor
    with torch.no_grad():
        if not host_memory.can_pin_for(device):
            return tensor.to(device)
        # pageable memory is copied by one thread of the driver, pinned memory by the device
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        free_later(pinned)
        return pinned.copy_(tensor).to(device, non_blocking=True)


def is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized


def unusual_copy(tensor: Tensor) -> Tensor:
    """Sparse, quantized …"""
    return tensor.detach().to("cpu", copy=True).requires_grad_(tensor.requires_grad)


# ---- which memory tensors lie in -----------------------------------------------------------------------------------


class MemoryRange:
    """Memory without gaps that holds one tensor or several: (index, offset in elements, strides) for each."""

    __slots__ = ("bytes", "length", "source", "views")

    def __init__(self, source: Tensor, length: int, views: list[tuple[int, int, tuple[int, ...]]]) -> None:
        self.source = source  # begins where the part does
        self.length = length
        self.views = views
        self.bytes = -(-length * source.element_size() // ALIGNMENT) * ALIGNMENT

    def flat(self) -> Tensor:
        source = self.source
        if self.length == source.numel() and source.is_contiguous():
            return source.view(-1)
        return source.as_strided((self.length,), (1,), source.storage_offset())


class _TensorRange:
    """Where one tensor lies."""

    __slots__ = ("end", "extent", "index", "start", "tensor")

    def __init__(self, tensor: Tensor, index: int) -> None:
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        extent = tensor.numel()
        if extent and not tensor.is_contiguous():
            extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        self.tensor = tensor
        self.index = index
        self.extent = extent
        self.start = tensor.data_ptr() if extent else 0
        self.end = self.start + extent * tensor.element_size()


def memory_ranges(tensors: list[Tensor]) -> Iterator[MemoryRange]:
    ranges = [_TensorRange(tensor, index) for index, tensor in enumerate(tensors)]
    if len(ranges) > 1:
        ranges.sort(key=lambda one: one.start)
    group: list[_TensorRange] = []
    end = 0
    for range in ranges:
        if group and (range.start >= end or not _shares_memory(group[0].tensor, range.tensor)):
            yield from _of_group(group, end)
            group = []
        end = max(end, range.end) if group else range.end
        group.append(range)
    if group:
        yield from _of_group(group, end)


def _shares_memory(one: Tensor, other: Tensor) -> bool:
    """Addresses of different devices may be equal, and tensors of different dtypes cannot share bytes in a file."""
    return (
        one.device == other.device
        and one.dtype == other.dtype
        and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    )


def _of_group(group: list[_TensorRange], end: int) -> Iterator[MemoryRange]:
    first = group[0].tensor
    size = first.element_size()
    length = (end - group[0].start) // size
    if length * size > _MIN_BYTES_FOR_GAPS and length > _MAX_SPAN_TO_USED * sum(
        range.tensor.numel() for range in group
    ):
        for range in group:
            dense = range.tensor.contiguous()
            yield MemoryRange(dense, dense.numel(), [(range.index, 0, dense.stride())])
    else:
        views = [(range.index, (range.start - group[0].start) // size, range.tensor.stride()) for range in group]
        yield MemoryRange(first, length, views)


# ---- pinned memory that torch has given us --------------------------------------------------------------------------
# It must not be freed while a device may have failed without our knowing (failure.py): a program's own exception may
# drop the last reference. So it is freed when the device has just been seen to be well.

_unused: deque[Tensor] = deque()


def hold(parts: list[tuple[Tensor, list[Tensor]]]) -> None:
    """Keeps pinned memory until `let_go` finds that the tensors which lie in it are gone."""
    for memory, copies in parts:
        for copy in copies:
            weakref.finalize(copy, _unused.append, memory).atexit = False


def free_later(memory: Tensor) -> None:
    """The same for memory that only a copy on its way still uses."""
    _unused.append(memory)


def let_go() -> None:
    """The device is well: what is unused is freed."""
    _unused.clear()
