"""Arguments of a call as they are now, for the writer: encoded, with the tensors' bytes in memory of the host."""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Collection, Mapping
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from op_tools.device import progress
from op_tools.device.host_copies import MemoryRange, is_plain, memory_ranges, unusual_copy
from op_tools.device.host_memory import HostMemory, Lease
from op_tools.device.queues import DeviceQueue, queue_of
from op_tools.storage import encoding


class Arrival:
    """Copies that the device makes when it gets there."""

    __slots__ = ("_asked", "_events", "_lock")

    def __init__(self, events: list[tuple[DeviceQueue, Any]]) -> None:
        self._events = events
        self._asked = progress.last[0]
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Returns when the device has made all of them. Any thread may ask, any number of times."""
        with self._lock:
            while self._events:
                queue, event = self._events.pop()
                queue.wait(event)
        progress.proven.append(self._asked)


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
                self._checksum = zlib.crc32(self.data)
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

    def find(self, call: Any, tensors: list[Tensor]) -> Mapping[int, HostTensor]:
        """Of tensors of this call, by their numbers."""
        ...

    def remember(self, call: Any, tensors: list[Tensor], hosts: list[HostTensor]) -> None:
        """These copies may be of use again."""
        ...


def take(value: Any, memory: HostMemory, copies: Copies | None = None, call: Any = None) -> Taken:
    """A copy of nested arguments as they are now.

    The device copies in the order of its queue, before anything that the program asks of it next: so the tensors are
    those of this moment, and their memory may be used again right away. Only the writer waits for the copy.
    """
    tensors: list[Tensor] = []
    hosts: list[HostTensor] = []

    def note(tensor: Tensor) -> Any:
        if not is_plain(tensor):
            return unusual_copy(tensor)
        host = HostTensor(tensor)
        tensors.append(tensor)
        hosts.append(host)
        return host

    with torch.no_grad(), _without_tangents():
        encoded = encoding.encode(value, note)
        if not tensors:
            return Taken(encoded, ())
        ranges = list(memory_ranges(tensors))
        if copies is not None:
            known = copies.find(call, tensors)
            ranges = [part for part in ranges if not _is_known(part, known, hosts)] if known else ranges
        if ranges:
            length = sum(part.bytes for part in ranges)
            lease = memory.lease(length, any(not tensor.is_cpu for tensor in tensors))
            _copy(ranges, lease, hosts)
        if copies is not None:
            copies.remember(call, tensors, hosts)
        return Taken(encoded, {host.storage.arrival for host in hosts if host.storage is not None})


def _is_known(part: MemoryRange, known: Mapping[int, HostTensor], hosts: list[HostTensor]) -> bool:
    """Whether there is a copy already, which is then used. Tensors that overlap are copied together, all of them."""
    index = part.views[0][0]
    if len(part.views) > 1 or index not in known:
        return False
    host, earlier = hosts[index], known[index]
    if (host.dtype, host.shape, host.stride) != (earlier.dtype, earlier.shape, earlier.stride):
        return False
    host.storage, host.offset, host.stored_stride = earlier.storage, earlier.offset, earlier.stored_stride
    return True


def _copy(ranges: list[MemoryRange], lease: Lease, hosts: list[HostTensor]) -> None:
    events: list[tuple[DeviceQueue, Any]] = []
    arrival = Arrival(events)
    start = 0
    for part in ranges:
        source = part.source
        data = lease.data[start : start + part.length * source.element_size()]
        storage = HostStorage(source.dtype, part.length, data, lease, arrival)
        for index, offset, stride in part.views:
            host = hosts[index]
            host.storage, host.offset, host.stored_stride = storage, offset, stride
        start += part.bytes
    start = 0
    for (device, dtype), group in groupby(ranges, lambda part: (part.source.device, part.source.dtype)):
        together = list(group)
        end = start + sum(part.bytes for part in together)
        queue = queue_of(device) if lease.is_pinned else None
        _copy_bytes(together, lease.bytes[start:end].view(dtype), queue is not None)
        if queue is not None:
            events.append((queue, queue.record()))
        start = end


def _without_tangents() -> contextlib.AbstractContextManager[Any]:
    """A copy of a tensor in forward-mode AD is one of its numbers, and not every way of copying takes its tangent."""
    off = getattr(forward_ad, "_set_fwd_grad_enabled", None)
    is_on = off is not None and getattr(forward_ad, "_current_level", -1) >= 0
    return off(False) if is_on else contextlib.nullcontext()  # type: ignore[misc]


def _copy_bytes(ranges: list[MemoryRange], memory: Tensor, non_blocking: bool) -> None:
    """One after the other into `memory`, in as few calls as there can be."""
    sizes: list[int] = []
    for part in ranges:
        sizes += (part.length, part.bytes // memory.element_size() - part.length)
    targets = memory.split_with_sizes(sizes)[::2]
    sources = [part.flat() for part in ranges]
    if len(ranges) > 1 and hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(targets, sources, non_blocking)
    else:
        for target, source in zip(targets, sources):
            target.copy_(source, non_blocking)
