"""Where tensors are gathered for their digests: copied one after the other into a buffer on their device.

The copy is the only thing that happens at the call. When the buffer is full, a few kernels go over all of it, and their
results are read when the device has long done them; the next tensors go into another buffer meanwhile. So nobody waits
for the device, and what has NaN or infinities in it is still there to be looked at more closely.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.device import digest
from op_tools.device.digest import Rows, Weights
from op_tools.device.queues import Batch
from op_tools.output import messages
from op_tools.output.writer import Writer

MIN_BUFFER_BYTES = 8 * 2**20  # which a processor's cache holds
_MAX_GROWTH = 16  # of a buffer on a device that works while the host goes on: it is best given much at once
_FAST = 50e9  # bytes a second: where the host sees that many digested, it did not wait for it
_BUFFERS = 2  # one is filled while the other one is read
_MAX_LABELS = 4096  # in a buffer
_MAX_ROWS_WAITING = 16_384  # to be put together
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

Kind = tuple[torch.device, torch.dtype, int]  # of a stage: its device, the dtype and the width of its rows


class StagedTensors:
    """Tensors that are copied together: all that is the same each time they come."""

    __slots__ = ("kind", "lengths", "numbers", "row_counts", "rows", "tails")

    def __init__(self, kind: Kind, numbers: list[int], lengths: list[int]) -> None:
        width = kind[2]
        self.kind = kind
        self.numbers = numbers  # which tensors of the call
        self.lengths = lengths
        self.row_counts = [-(-length // width) for length in lengths]
        self.rows = sum(self.row_counts)
        self.tails: list[tuple[int, int]] = []  # rows that are not full, and how many elements they have
        end = 0
        for length, count in zip(lengths, self.row_counts):
            end += count
            if length % width:
                self.tails.append((end - 1, length % width))


def grouped(tensors: list[Tensor], numbers: Iterable[int]) -> Iterator[StagedTensors]:
    """How these of the tensors are staged; those that cannot be are left out."""
    groups: dict[tuple[Kind, torch.dtype], list[tuple[int, int]]] = {}
    for number in numbers:
        tensor = tensors[number]
        dtype = staged_as(tensor)
        if dtype is not None:
            length = tensor.numel() * (2 if tensor.is_complex() else 1)
            kind = (tensor.device, dtype, digest.width(length))
            groups.setdefault((kind, tensor.dtype), []).append((number, length))
    for (kind, _), members in groups.items():
        # what is much less than a buffer leaves little of it unused
        room = most = MIN_BUFFER_BYTES // kind[1].itemsize // 4
        together: list[int] = []
        lengths: list[int] = []
        for number, length in members:
            if together and length > room:
                yield StagedTensors(kind, together, lengths)
                together, lengths, room = [], [], most
            together.append(number)
            lengths.append(length)
            room -= -(-length // kind[2]) * kind[2]
        yield StagedTensors(kind, together, lengths)


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


class _Tensors:
    """Which tensors the rows belong to; the last one may have more rows to come."""

    def __init__(self) -> None:
        self.rows = 0
        self.labels: list[tuple[Label, list[int]]] = []
        self.lengths: list[int] = []
        self.row_counts: list[int] = []

    def add(self, other: _Tensors) -> None:
        self.rows += other.rows
        self.labels += other.labels
        self.lengths += other.lengths
        self.row_counts += other.row_counts

    def lacking(self) -> int:
        """Rows that are not there; below 0, those whose tensor is not there yet."""
        return sum(self.row_counts) - self.rows


class _Buffer(Batch):
    """Rows that are digested together."""

    def __init__(self, memory: Tensor, width: int, of_rows: Callable[[Tensor], Rows]) -> None:
        super().__init__(memory.device)
        self.memory = memory
        self.width = width  # of a row
        self.tensors = _Tensors()
        self.tails: dict[int, int] = {}  # rows that are not full, and how many elements they have
        self._of_rows = of_rows

    def room(self) -> int:
        """In rows."""
        return len(self.memory) // self.width - self.tensors.rows

    def free(self, length: int) -> Tensor:
        """So many elements behind what there is."""
        start = self.tensors.rows * self.width
        return self.memory[start : start + length]

    def add(self, label: Label, staged: StagedTensors) -> None:
        self.tails.update((self.tensors.rows + row, length) for row, length in staged.tails)
        tensors = self.tensors
        tensors.rows += staged.rows
        tensors.labels.append((label, staged.numbers))
        tensors.lengths += staged.lengths
        tensors.row_counts += staged.row_counts

    def look(self) -> list[Tensor]:
        memory = self.rows()
        rows = self._of_rows(memory[: self.tensors.rows])
        tails = [torch.stack([memory[row] for row in self.tails])] if self.tails else []
        return [rows.numbers, rows.bits, *tails]

    def rows(self) -> Tensor:
        return self.memory.view(-1, self.width)


class Stage:
    """Gathers tensors of one kind from one stream."""

    def __init__(self, kind: Kind, writer: Writer, weights: Weights, receive: Receiver) -> None:
        self._device, self._dtype, self._width = kind
        self._writer = writer
        self._receive = receive
        self._weights = weights
        precision = torch.float64 if self._dtype is torch.int64 else self._dtype
        self._columns = weights.of_columns(self._device, precision, self._width)
        self._host_columns = self._columns.cpu()
        self._rows = -(-MIN_BUFFER_BYTES // self._dtype.itemsize // self._width)  # of the next buffer
        self._max_rows = self._rows * _MAX_GROWTH
        self._free: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
        for _ in range(_BUFFERS):
            self._free.put(self._new_memory())
        self._buffer: _Buffer | None = None
        self._padding: dict[tuple[torch.dtype, int], Tensor] = {}
        self._lacks_kernels = False
        # in the writer's thread: what waits for more
        self._waiting = _Tensors()
        self._waiting_rows: list[tuple[Rows, Tensor]] = []

    def add(self, tensors: list[Tensor], staged: StagedTensors, label: Label) -> None:
        """Takes the tensors as they are now."""
        buffer = self._buffer_for(staged.rows)
        if staged.rows > buffer.room():
            self._add_in_parts(tensors[staged.numbers[0]], staged, label)
            return
        if len(staged.numbers) == 1:
            tensor = _real(tensors[staged.numbers[0]])
            buffer.free(staged.lengths[0]).view(tensor.shape).copy_(tensor)
        else:
            self._copy([tensors[number] for number in staged.numbers], staged, buffer.free(staged.rows * self._width))
        buffer.add(label, staged)

    def _buffer_for(self, rows: int) -> _Buffer:
        """One with room for so many rows, if any has."""
        if self._buffer is not None:
            is_full = len(self._buffer.tensors.labels) >= _MAX_LABELS
            if not is_full and rows <= self._buffer.room():
                return self._buffer
            if is_full or not self._buffer.room() or rows * self._width <= len(self._buffer.memory):
                self.flush()
        if self._buffer is None:
            self._buffer = _Buffer(self._free_memory(), self._width, self._digested)
        return self._buffer

    def _copy(self, tensors: list[Tensor], staged: StagedTensors, memory: Tensor) -> None:
        dtype = tensors[0].dtype
        if dtype in _JOINED:
            flat: list[Tensor] = []
            for tensor, length in zip(tensors, staged.lengths):
                flat.append(tensor.reshape(-1))
                unused = -length % self._width
                if unused:
                    flat.append(self._pad(dtype, unused))
            torch.cat(flat, out=memory)
        else:
            start = 0
            for tensor, length, rows in zip(map(_real, tensors), staged.lengths, staged.row_counts):
                memory[start : start + length].view(tensor.shape).copy_(tensor)
                start += rows * self._width

    def _add_in_parts(self, tensor: Tensor, staged: StagedTensors, label: Label) -> None:
        """A tensor that is larger than a buffer fills one after the other."""
        flat = _real(tensor).reshape(-1)
        while len(flat):
            buffer = self._buffer_for(-(-len(flat) // self._width))
            part, flat = flat[: buffer.room() * self._width], flat[buffer.room() * self._width :]
            buffer.free(len(part)).copy_(part)
            buffer.tensors.rows += -(-len(part) // self._width)
        buffer.tensors.rows -= staged.rows
        buffer.add(label, staged)

    def _pad(self, dtype: torch.dtype, length: int) -> Tensor:
        padding = self._padding.get((dtype, length))
        if padding is None:
            padding = self._padding[dtype, length] = torch.zeros(length, dtype=dtype, device=self._device)
        return padding

    def flush(self, to_the_end: bool = False) -> None:
        """Has the digests made of all that was gathered; `to_the_end`, and handed over."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            began = time.perf_counter()
            buffer.launch()
            size = buffer.tensors.rows * self._width * self._dtype.itemsize
            if size > _FAST * (time.perf_counter() - began):
                self._rows = min(2 * self._rows, self._max_rows)
            self._writer.add(partial(self._read, buffer))
        if to_the_end:
            self._writer.add(self._hand_over)

    def _digested(self, rows: Tensor) -> Rows:
        if not self._lacks_kernels:
            try:
                return digest.of_rows(rows, self._columns)
            except (NotImplementedError, RuntimeError, TypeError):
                self._lacks_kernels = True
        return digest.of_rows(rows.cpu(), self._host_columns)

    def _free_memory(self) -> Tensor:
        while True:
            try:
                memory = self._free.get(timeout=_SECONDS_BETWEEN_LOOKS)
            except queue.Empty:
                if not self._writer.is_broken and self._writer.is_busy():
                    continue
                return self._new_memory()
            return memory if len(memory) == self._rows * self._width else self._new_memory()

    def _new_memory(self) -> Tensor:
        with torch.inference_mode(False):  # or it could be filled in that mode only
            return torch.empty(self._rows * self._width, dtype=self._dtype, device=self._device)

    # -- in the writer's thread ---------------------------------------------------------------------------------------

    def _read(self, buffer: _Buffer) -> None:
        try:
            found = received(buffer)
            if found:
                self._waiting_rows.append(self._corrected(buffer, Rows(*found[:2]), *found[2:]))
                self._waiting.add(buffer.tensors)
        finally:
            self._free.put(buffer.memory)
        if self._waiting.rows >= _MAX_ROWS_WAITING:
            self._hand_over()

    def _corrected(self, buffer: _Buffer, rows: Rows, tails: Tensor | None = None) -> tuple[Rows, Tensor]:
        """With what is right for rows that have ends, NaN or infinities in them; and how many of these each has."""
        if tails is not None:
            places = torch.tensor(list(buffer.tails), device="cpu")
            lengths = torch.tensor(list(buffer.tails.values()), device="cpu")
            ends = digest.of_ends(tails, lengths, self._host_columns)
            rows.numbers[:, places] = ends.numbers
            rows.bits[places] = ends.bits
        bad = torch.zeros(2, buffer.tensors.rows, dtype=torch.int64, device="cpu")
        difficult = digest.difficult(rows)
        if len(difficult):
            again, counts = self._looked_at_again(buffer, difficult)
            rows = Rows(rows.numbers.double(), rows.bits)
            rows.numbers[:, difficult] = again.numbers.cpu()
            rows.bits[difficult] = again.bits.cpu()
            bad[:, difficult] = counts.cpu()
        return rows, bad

    def _looked_at_again(self, buffer: _Buffer, places: Tensor) -> tuple[Rows, Tensor]:
        rows = buffer.rows()[places.to(self._device)]
        lengths = torch.tensor([buffer.tails.get(place, self._width) for place in places.tolist()], device="cpu")
        try:
            return digest.of_difficult_rows(rows, lengths, self._columns)
        except (NotImplementedError, RuntimeError, TypeError):  # a device without double precision
            return digest.of_difficult_rows(rows.cpu(), lengths, self._host_columns)

    def _hand_over(self) -> None:
        tensors, found = self._waiting, self._waiting_rows
        if not tensors.labels or tensors.lacking() < 0:
            return
        self._waiting, self._waiting_rows = _Tensors(), []
        if tensors.lacking() > 0:
            return  # a part was lost
        rows = Rows(torch.cat([one.numbers for one, _ in found], 1), torch.cat([one.bits for one, _ in found]))
        bad = torch.cat([counts for _, counts in found], 1)
        sums = digest.sums(rows, bad, tensors.lengths, tensors.row_counts, self._weights)
        self._receive(tensors.labels, digest.lines(sums))


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
