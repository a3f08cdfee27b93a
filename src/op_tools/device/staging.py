"""Where tensors are gathered for their digests: copied one after the other into a buffer on their device.

The copy is the only thing that happens at the call. When the buffer is full, a few kernels go over all tensors of one
shape in it, and their results are read when the device has long done them; the next tensors go into another buffer
meanwhile. So the host does not wait for the device. A tensor that is larger than a buffer is digested at the call.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.device import digest
from op_tools.device.queues import OUT_OF_MEMORY, Batch
from op_tools.output import messages
from op_tools.output.writer import Writer

MIN_BUFFER_BYTES = 8 * 2**20  # which a processor's cache holds
_MAX_GROWTH = 16  # of a buffer on a device that works while the host goes on: it is best given much at once
_BYTES_PER_SECOND_WITHOUT_WAIT = 50e9  # bytes a second: where the host sees that many digested, it did not wait for it
_BUFFERS = 2  # one is filled while the other one is read
_MAX_LABELS = 4096  # in a buffer
_SECONDS_BETWEEN_LOOKS = 0.05  # for a free buffer

# Where the elements of a dtype go without loss.
_AS_FLOAT32 = ("float32", "bfloat16", "float16", "bool", "int8", "uint8", "int16", "uint16", "complex64", "complex32")
_AS_FLOAT64 = ("float64", "int32", "uint32", "uint64", "complex128")
_STAGED_AS: dict[torch.dtype, torch.dtype] = {torch.int64: torch.int64}
_STAGED_AS.update((getattr(torch, name), torch.float32) for name in _AS_FLOAT32 if hasattr(torch, name))
_STAGED_AS.update((getattr(torch, name), torch.float32) for name in dir(torch) if name.startswith("float8_e"))
_STAGED_AS.update((getattr(torch, name), torch.float64) for name in _AS_FLOAT64 if hasattr(torch, name))
# torch.cat is fast for these
_JOINED = (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.float16)


def staged_as(tensor: Tensor) -> torch.dtype | None:
    """The dtype of the stage that takes such a tensor; None where none does: a sparse or quantized one."""
    return _STAGED_AS.get(tensor.dtype) if tensor.layout is torch.strided else None


# ---- what is staged ------------------------------------------------------------------------------------------------

Kind = tuple[torch.device, torch.dtype]  # of a stage
Shape = tuple[int, ...]


class StagedTensors:
    """Tensors that are copied together: all that is the same each time they come."""

    __slots__ = ("kind", "length", "lengths", "numbers", "shapes")

    def __init__(self, kind: Kind, numbers: list[int], shapes: list[Shape]) -> None:
        self.kind = kind
        self.numbers = numbers  # which tensors of the call
        self.shapes = shapes
        self.lengths = [math.prod(shape) for shape in shapes]
        self.length = sum(self.lengths)


def grouped(tensors: list[Tensor], numbers: Iterable[int]) -> Iterator[StagedTensors]:
    """How these of the tensors are staged; those that cannot be are left out."""
    groups: dict[tuple[Kind, torch.dtype], list[int]] = {}
    for number in numbers:
        dtype = staged_as(tensors[number])
        if dtype is not None:
            groups.setdefault(((tensors[number].device, dtype), tensors[number].dtype), []).append(number)
    for (kind, _), members in groups.items():
        # what is much less than a buffer leaves little of it unused
        room = most = MIN_BUFFER_BYTES // kind[1].itemsize // 4
        together: list[int] = []
        for number in members:
            length = math.prod(real_shape(tensors[number]))
            if together and length > room:
                yield StagedTensors(kind, together, [real_shape(tensors[one]) for one in together])
                together, room = [], most
            together.append(number)
            room -= length
        yield StagedTensors(kind, together, [real_shape(tensors[one]) for one in together])


def real_shape(tensor: Tensor) -> Shape:
    """A complex number counts as two."""
    return (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)


# what is kept with tensors until their digests are there; and who takes them then, in the writer's thread: labels with
# the numbers of the call's tensors, and a line for each of these
Label = Any
Receiver = Callable[[list[tuple[Label, list[int]]], Tensor], None]


def received(batch: Batch) -> list[Tensor]:
    """What a batch has found, in the writer's thread; nothing where the device's memory did not suffice."""
    found = batch.numbers()
    if found is None:
        text = "OpCapture lost some statistics: the device is out of memory; training goes on"
        messages.complain_once("digests", text=text)
    return list(found or ())


class _Buffer(Batch):
    """Tensors that are digested together, those of each shape at once."""

    def __init__(self, memory: Tensor, digested: Callable[[Tensor, Shape], tuple[Tensor, Tensor]]) -> None:
        super().__init__(memory.device)
        self.memory = memory
        self.used = 0
        self.labels: list[tuple[Label, list[int]]] = []
        self._digested = digested
        self._count = 0
        self._starts: dict[Shape, list[int]] = {}
        self._places: dict[Shape, list[int]] = {}  # of their lines

    def room(self) -> int:
        return len(self.memory) - self.used

    def free(self, length: int) -> Tensor:
        """So many elements behind what there is."""
        return self.memory[self.used : self.used + length]

    def add(self, label: Label, staged: StagedTensors) -> None:
        for shape, length in zip(staged.shapes, staged.lengths):
            self._starts.setdefault(shape, []).append(self.used)
            self._places.setdefault(shape, []).append(self._count)
            self.used += length
            self._count += 1
        self.labels.append((label, staged.numbers))

    def look(self) -> list[Tensor]:
        found: list[Tensor] = []
        for shape, starts in self._starts.items():
            length = math.prod(shape)
            found += self._digested(torch.stack([self.memory[start : start + length] for start in starts]), shape)
        return found

    def lines(self, found: list[Tensor]) -> Tensor:
        """In the order in which the tensors came."""
        places = [place for of_shape in self._places.values() for place in of_shape]
        lines = torch.cat([digest.lines(*found[number : number + 2]) for number in range(0, len(found), 2)])
        return lines[torch.tensor(places, device="cpu").argsort()]


class Stage:
    """Gathers tensors of one kind from one stream."""

    def __init__(self, kind: Kind, writer: Writer, receive: Receiver) -> None:
        self._device, self._dtype = kind
        self._writer = writer
        self._receive = receive
        self._length = MIN_BUFFER_BYTES // self._dtype.itemsize  # of the next buffer
        self._max_length = self._length * _MAX_GROWTH
        self._free: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
        for _ in range(_BUFFERS):
            self._free.put(self._new_memory())
        self._buffer: _Buffer | None = None
        self._ways = [partial(digest.digested, dtype=dtype) for dtype in (torch.float64, torch.float32)]

    def add(self, tensors: list[Tensor], staged: StagedTensors, label: Label) -> None:
        """Takes the tensors as they are now."""
        buffer = self._buffer_for(staged.length)
        if staged.length > buffer.room():  # a single one
            own = _Buffer(_real(tensors[staged.numbers[0]]).to(self._dtype).reshape(-1), self._digested)
            own.add(label, staged)
            self._launch(own)
            own.memory = own.memory[:0]  # it may be the program's
            return
        if len(staged.numbers) == 1:
            tensor = _real(tensors[staged.numbers[0]])
            buffer.free(staged.length).view(tensor.shape).copy_(tensor)
        else:
            self._copy([tensors[number] for number in staged.numbers], staged, buffer.free(staged.length))
        buffer.add(label, staged)

    def _buffer_for(self, length: int) -> _Buffer:
        """One with room for so many elements, if any has."""
        buffer = self._buffer
        if buffer is not None:
            is_full = len(buffer.labels) >= _MAX_LABELS
            if is_full or buffer.room() < length <= len(buffer.memory):
                self.flush()
        if self._buffer is None:
            self._buffer = _Buffer(self._free_memory(), self._digested)
        return self._buffer

    def _copy(self, tensors: list[Tensor], staged: StagedTensors, memory: Tensor) -> None:
        if tensors[0].dtype in _JOINED:
            torch.cat([tensor.reshape(-1) for tensor in tensors], out=memory)
            return
        start = 0
        for tensor, length in zip(map(_real, tensors), staged.lengths):
            memory[start : start + length].view(tensor.shape).copy_(tensor)
            start += length

    def flush(self) -> None:
        """Has the digests made of all that was gathered, and handed over."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._launch(buffer)

    def _launch(self, buffer: _Buffer) -> None:
        began = time.perf_counter()
        buffer.launch()
        if buffer.used * self._dtype.itemsize > _BYTES_PER_SECOND_WITHOUT_WAIT * (time.perf_counter() - began):
            self._length = min(2 * self._length, self._max_length)
        self._writer.add(partial(self._read, buffer))

    def _digested(self, tensors: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
        """On the device in double precision; where it has none, in single; else on the host."""
        while self._ways:
            try:
                return self._ways[0](tensors, shape)
            except (NotImplementedError, RuntimeError, TypeError) as error:
                if isinstance(error, OUT_OF_MEMORY):
                    raise
                self._ways.pop(0)
        return digest.digested(tensors.cpu(), shape)

    def _free_memory(self) -> Tensor:
        while True:
            try:
                memory = self._free.get(timeout=_SECONDS_BETWEEN_LOOKS)
            except queue.Empty:
                if not self._writer.is_broken and self._writer.is_busy():
                    continue
                return self._new_memory()
            return memory if len(memory) == self._length else self._new_memory()

    def _new_memory(self) -> Tensor:
        with torch.inference_mode(False):  # or it could be filled in that mode only
            return torch.empty(self._length, dtype=self._dtype, device=self._device)

    def _read(self, buffer: _Buffer) -> None:
        """In the writer's thread."""
        try:
            found = received(buffer)
            if found:
                self._receive(buffer.labels, buffer.lines(found))
        finally:
            if len(buffer.memory):
                self._free.put(buffer.memory)


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
