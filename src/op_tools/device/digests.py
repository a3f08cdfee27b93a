"""Digests of tensors as they are at the call, gathered on the device and fetched now and then.

A kernel runs at the call, on the stream of the call: so it sees the tensors as they are then, and nothing of them is
kept. There are three: in Triton (digests_triton.py), in C++ for devices that keep their tensors in the host's memory
(digests_host.py), and torch's own, which work everywhere.

A tensor that is seen again in the same version was most likely not changed, but a kernel of a third party, or what is
done to `.data`, leaves the version as it is. So our kernels look at a few of its elements, the probe, and take the
digest that they have only where these are what they were.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Callable, Protocol

import torch
from torch import Tensor

from op_tools.device import digest, digests_host, digests_triton
from op_tools.device.queues import Batch
from op_tools.device.unchanged import ORIGIN, unchanged_tensors
from op_tools.output import messages
from op_tools.output.writer import Writer

_MAX_LINES = 4096  # that gather on the device
_MAX_SECONDS = 0.25  # until they are fetched, so that little is lost when the program dies
_MAX_TENSORS = 1024  # of a group

# what is kept with tensors until their digests are there; and who takes them then, in the writer's thread: labels with
# the numbers of the call's tensors, and a line for each of these
Label = Any
Receiver = Callable[[list[tuple[Label, list[int]]], Tensor], None]


class TensorGroup:
    """Tensors of one call that are digested together: all that is the same each time they come."""

    __slots__ = ("device", "is_whole", "kept", "numbers")

    def __init__(self, device: torch.device, numbers: list[int], is_whole: bool) -> None:
        self.device = device
        self.numbers = numbers  # which tensors of the call
        self.is_whole = is_whole  # all of them
        self.kept: Any = None  # what a kernel keeps with the group


def grouped(tensors: list[Tensor]) -> Iterator[TensorGroup]:
    """How the tensors are digested; those that cannot be are left out."""
    groups: dict[torch.device, list[int]] = {}
    for number, tensor in enumerate(tensors):
        if digest.has_digest(tensor):
            groups.setdefault(tensor.device, []).append(number)
    for device, numbers in groups.items():
        for start in range(0, len(numbers), _MAX_TENSORS):
            some = numbers[start : start + _MAX_TENSORS]
            yield TensorGroup(device, some, len(some) == len(tensors))


class Lines(Batch):
    """Digests that gather on the device."""

    def __init__(self, device: torch.device, kernel: _Kernel) -> None:
        super().__init__(device)
        self._kernel = kernel
        with torch.inference_mode(False):
            self.memory = kernel.memory(_MAX_LINES)
        self.used = 0
        self.labels: list[tuple[Label, list[int]]] = []
        self.due = time.monotonic() + _MAX_SECONDS

    def look(self) -> list[Tensor]:
        return self._kernel.finish(self.memory, self.used)


class _Kernel(Protocol):
    def memory(self, lines: int) -> Any:
        """For so many digests."""

    def has_room(self, memory: Any, group: TensorGroup) -> bool:
        """Whether there is, besides for lines."""

    def write(
        self,
        tensors: list[Tensor],
        group: TensorGroup,
        addresses: bytes | None,
        memory: Any,
        first: int,
        known: list[int],
    ) -> None:
        """Digests the group's tensors, from the first line on. `known`: which lines may tell of them; -1 is none."""

    def finish(self, memory: Any, used: int) -> list[Tensor]:
        """What is to be fetched from the device."""

    def lines(self, found: list[Tensor]) -> Tensor:
        """From what was fetched."""


class PlainDigests:
    """torch's kernels."""

    def memory(self, lines: int) -> list[Tensor]:
        return []

    def has_room(self, memory: list[Tensor], group: TensorGroup) -> bool:
        return True

    def write(
        self,
        tensors: list[Tensor],
        group: TensorGroup,
        addresses: bytes | None,
        memory: list[Tensor],
        first: int,
        known: list[int],
    ) -> None:
        for number in group.numbers:
            try:
                memory.append(digest.line_of(tensors[number]))
            except (NotImplementedError, RuntimeError, TypeError):  # a device without float64
                memory.append(digest.line_of(tensors[number].detach().cpu()))

    def finish(self, memory: list[Tensor], used: int) -> list[Tensor]:
        on_host = [line.is_cpu for line in memory]
        return [torch.stack(memory)] if all(on_host) or not any(on_host) else [torch.stack([m.cpu() for m in memory])]

    def lines(self, found: list[Tensor]) -> Tensor:
        return found[0]


def kernel_for(device: torch.device) -> _Kernel:
    """The fastest that there is."""
    for kind in (digests_triton.TritonDigests, digests_host.HostDigests):
        if kind.works_on(device):
            return kind(device)
    return PlainDigests()


class Stage:
    """Digests tensors of one device as they come in one stream."""

    def __init__(self, device: torch.device, writer: Writer, receive: Receiver) -> None:
        self._writer = writer
        self._receive = receive
        self._device = device
        self._kernel = kernel_for(device)
        self._unchanged = unchanged_tensors()
        self._batch: Lines | None = None

    def add(self, tensors: list[Tensor], group: TensorGroup, label: Label, addresses: bytes | None = None) -> None:
        """Digests the group's tensors as they are now. `addresses`: of all tensors, where that is known."""
        count, batch = len(group.numbers), self._batch
        if batch is not None and (
            batch.used + count > _MAX_LINES
            or time.monotonic() > batch.due
            or not self._kernel.has_room(batch.memory, group)
        ):
            self.flush()
            batch = None
        if batch is None:
            batch = self._batch = Lines(self._device, self._kernel)
        known = [-1] * count
        if group.is_whole:
            found = self._unchanged.find(tensors)
            for number, line, _, place in ORIGIN.iter_unpack(b"" if found is None else found[1]):
                known[number] = line + place
        first = batch.used
        self._kernel.write(tensors, group, addresses, batch.memory, first, known)
        batch.used += count
        batch.labels.append((label, group.numbers))
        if group.is_whole:
            self._unchanged.remember(tensors, None, first, 0, 0)

    def flush(self) -> None:
        """Has all digests fetched and handed over."""
        batch, self._batch = self._batch, None
        self._unchanged.forget()  # lines know of others of their batch
        if batch is not None:
            batch.launch()
            self._writer.add(partial(self._read, batch))

    def _read(self, batch: Lines) -> None:
        """In the writer's thread."""
        found = batch.numbers()
        if found is None:
            text = "OpCapture lost some statistics: the device is out of memory; training goes on"
            messages.complain_once("digests", text=text)
        else:
            self._receive(batch.labels, self._kernel.lines(list(found)))
