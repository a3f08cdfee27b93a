"""Copies of tensors as they are now, on the host: later in-place changes do not reach them. And back to the device."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import Tensor

from op_tools.device import host_memory
from op_tools.device.events import Marker, marker_of
from op_tools.device.host_memory import ALIGNMENT, HostMemory, Lease
from op_tools.storage import encoding
from op_tools.storage.checksum import crc32
from op_tools.values import trees

# A view with gaps is copied with what lies between, so that its strides stay what they are, up to so many times its
# own size; a column of a huge matrix is not worth the matrix.
_LARGEST_GAPS = 4
_SMALL = 2**20  # bytes for which gaps do not matter


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
            if _is_plain(tensor):
                plain.append(tensor)
            else:
                copies[id(tensor)] = _unusual_copy(tensor)
        waits: dict[torch.device, Marker | None] = {}  # for copies that are on their way
        for stretch in _stretches(plain):
            device = stretch.source.device
            if device not in waits:
                waits[device] = marker_of(device) if host_memory.can_pin_for(device) else None
            pinned = waits[device] is not None
            memory = torch.empty(stretch.length, dtype=stretch.source.dtype, device="cpu", pin_memory=pinned)
            memory.copy_(stretch.flat(), non_blocking=pinned)
            for index, offset, stride in stretch.views:
                tensor = plain[index]
                # not a view: one that was made without gradients could not be changed in place with them
                copy = torch.empty(0, dtype=memory.dtype, device="cpu")
                copy.set_(memory.untyped_storage(), offset, tensor.shape, stride)
                copies[id(tensor)] = copy.requires_grad_(tensor.requires_grad)
        for marker in waits.values():
            if marker is not None:
                marker.wait(marker.set())
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
        return pinned.copy_(tensor).to(device, non_blocking=True)


# ---- copies for the writer -----------------------------------------------------------------------------------------


class Arrival:
    """Copies that the device makes when it gets there."""

    __slots__ = ("_lock", "_marks")

    def __init__(self, marks: list[tuple[Marker, Any]]) -> None:
        self._marks = marks
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Returns when the device has made all of them. Any thread may ask, any number of times."""
        with self._lock:
            while self._marks:
                marker, mark = self._marks.pop()
                marker.wait(mark)


class HostStorage:
    """Bytes of one or several tensors. They are there after `arrival.wait()`."""

    __slots__ = ("__weakref__", "_checksum", "_lease", "_lock", "arrival", "data", "dtype", "length")

    def __init__(self, dtype: torch.dtype, length: int, data: memoryview, lease: Lease, arrival: Arrival) -> None:
        self.dtype = dtype
        self.length = length  # in elements
        self.data = data
        self.arrival = arrival
        self._lease = lease  # in which they lie
        self._checksum: int | None = None
        self._lock = threading.Lock()

    def checksum(self) -> int:
        """CRC-32. It is computed once, also where several files are being written that hold these bytes."""
        with self._lock:
            if self._checksum is None:
                self._checksum = crc32(self.data)
            return self._checksum


class HostTensor:
    """What a tensor was like, and where its bytes are now."""

    __slots__ = ("device", "dtype", "offset", "requires_grad", "shape", "storage", "stored_stride", "stride")

    def __init__(self, tensor: Tensor) -> None:
        self.dtype = tensor.dtype
        self.device = tensor.device
        self.shape = tuple(tensor.shape)
        self.stride = self.stored_stride = tensor.stride()
        self.requires_grad = tensor.requires_grad
        self.offset = 0
        self.storage: HostStorage | None = None

    def copy(self) -> HostTensor:
        """Another one, of the same bytes."""
        other = HostTensor.__new__(HostTensor)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    def without_gradient(self) -> HostTensor:
        """The same, not requiring one."""
        other = self.copy()
        other.requires_grad = False
        return other

    def __str__(self) -> str:
        return f"<tensor {self.shape}>"


class Taken:
    """Arguments, encoded, with HostTensors in place of the tensors. Their bytes are there after `wait`."""

    __slots__ = ("_arrivals", "value")

    def __init__(self, value: Any, arrivals: Collection[Arrival]) -> None:
        self.value = value
        self._arrivals = arrivals

    def wait(self) -> None:
        """Returns when the device has copied everything."""
        for arrival in self._arrivals:
            arrival.wait()


class Copies(Protocol):
    """Copies that were made earlier, of tensors that are surely what they were."""

    def find(self, tensors: list[Tensor]) -> Mapping[int, HostTensor]:
        """By the tensors' numbers."""
        ...

    def remember(self, tensors: list[Tensor], hosts: list[HostTensor]) -> None:
        """These copies may be of use again."""
        ...


def take(value: Any, memory: HostMemory, copies: Copies | None = None) -> Taken:
    """A copy of nested arguments as they are now.

    The device copies in the order of its queue, before anything that the program asks of it next: so the tensors are
    those of this moment, and their memory may be used again right away. Nobody waits for the copy but the writer.
    """
    tensors: list[Tensor] = []
    hosts: list[HostTensor] = []

    def note(tensor: Tensor) -> Any:
        if not _is_plain(tensor):
            return _unusual_copy(tensor)
        host = HostTensor(tensor)
        tensors.append(tensor)
        hosts.append(host)
        return host

    with torch.no_grad():
        encoded = encoding.encode(value, note)
        if not tensors:
            return Taken(encoded, ())
        stretches = list(_stretches(tensors))
        if copies is not None:
            known = copies.find(tensors)
            if known:
                stretches = [stretch for stretch in stretches if not _is_known(stretch, known, hosts)]
        if stretches:
            length = sum(stretch.bytes for stretch in stretches)
            lease = memory.lease(length, any(not tensor.is_cpu for tensor in tensors))
            _copy(stretches, lease, hosts)
        if copies is not None:
            copies.remember(tensors, hosts)
        return Taken(encoded, {host.storage.arrival for host in hosts if host.storage is not None})


def _is_known(stretch: _Stretch, known: Mapping[int, HostTensor], hosts: list[HostTensor]) -> bool:
    """Whether there is a copy already, which is then used. Tensors that overlap are copied together, all of them."""
    index = stretch.views[0][0]
    if len(stretch.views) > 1 or index not in known:
        return False
    host, earlier = hosts[index], known[index]
    if (host.dtype, host.shape, host.stride) != (earlier.dtype, earlier.shape, earlier.stride):
        return False
    host.storage, host.offset, host.stored_stride = earlier.storage, earlier.offset, earlier.stored_stride
    return True


def _copy(stretches: list[_Stretch], lease: Lease, hosts: list[HostTensor]) -> None:
    marks: list[tuple[Marker, Any]] = []
    arrival = Arrival(marks)
    start = 0
    for stretch in stretches:
        source = stretch.source
        data = lease.data[start : start + stretch.length * source.element_size()]
        storage = HostStorage(source.dtype, stretch.length, data, lease, arrival)
        for index, offset, stride in stretch.views:
            host = hosts[index]
            host.storage, host.offset, host.stored_stride = storage, offset, stride
        start += stretch.bytes
    start = 0
    for (device, dtype), group in groupby(stretches, lambda stretch: (stretch.source.device, stretch.source.dtype)):
        together = list(group)
        end = start + sum(stretch.bytes for stretch in together)
        marker = marker_of(device) if lease.is_pinned else None
        _copy_bytes(together, lease.bytes[start:end].view(dtype), marker is not None)
        if marker is not None:
            marks.append((marker, marker.set()))
        start = end


def _copy_bytes(stretches: list[_Stretch], memory: Tensor, non_blocking: bool) -> None:
    """One after the other into `memory`, in as few calls as there can be."""
    sizes: list[int] = []
    for stretch in stretches:
        sizes += (stretch.length, stretch.bytes // memory.element_size() - stretch.length)
    targets = memory.split_with_sizes(sizes)[::2]
    sources = [stretch.flat() for stretch in stretches]
    if len(stretches) > 1 and hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(targets, sources, non_blocking)
    else:
        for target, source in zip(targets, sources):
            target.copy_(source, non_blocking)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized


def _unusual_copy(tensor: Tensor) -> Tensor:
    """Sparse, quantized …"""
    return tensor.detach().to("cpu", copy=True).requires_grad_(tensor.requires_grad)


# ---- which memory tensors lie in -----------------------------------------------------------------------------------


class _Stretch:
    """Memory without gaps that holds one tensor or several: (index, offset in elements, strides) for each."""

    __slots__ = ("bytes", "length", "source", "views")

    def __init__(self, source: Tensor, length: int, views: list[tuple[int, int, tuple[int, ...]]]) -> None:
        self.source = source  # begins where the stretch does
        self.length = length
        self.views = views
        self.bytes = -(-length * source.element_size() // ALIGNMENT) * ALIGNMENT

    def flat(self) -> Tensor:
        source = self.source
        if self.length == source.numel() and source.is_contiguous():
            return source.view(-1)
        return source.as_strided((self.length,), (1,), source.storage_offset())


class _Range:
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


def _stretches(tensors: list[Tensor]) -> Iterator[_Stretch]:
    ranges = [_Range(tensor, index) for index, tensor in enumerate(tensors)]
    if len(ranges) > 1:
        ranges.sort(key=lambda one: one.start)
    group: list[_Range] = []
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


def _of_group(group: list[_Range], end: int) -> Iterator[_Stretch]:
    first = group[0].tensor
    size = first.element_size()
    length = (end - group[0].start) // size
    if length * size > _SMALL and length > _LARGEST_GAPS * sum(range.tensor.numel() for range in group):
        for range in group:
            dense = range.tensor.contiguous()
            yield _Stretch(dense, dense.numel(), [(range.index, 0, dense.stride())])
    else:
        views = [(range.index, (range.start - group[0].start) // size, range.tensor.stride()) for range in group]
        yield _Stretch(first, length, views)
