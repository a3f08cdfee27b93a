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
from op_tools.device.digest import Rows, Sums, Weights
from op_tools.device.events import OnTheWay, stream_of
from op_tools.output.writer import Writer

CAPACITY = 8 * 2**20  # bytes of a buffer, which a processor's cache holds
_MOST_GROWTH = 16  # of a buffer on a device that works while the host goes on: it is best given much at once
_FAST = 50e9  # bytes a second: where the host sees that many digested, it did not wait for it
_BUFFERS = 2  # one is filled while the other one is read
_MOST_PARTS = 4096  # in a buffer
_MOST_ROWS = 16_384  # that wait to be put together
_WAIT = 0.05  # seconds between looks for a free buffer

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


class Chunk:
    """Tensors that are copied together: all that is the same each time they come."""

    __slots__ = ("kind", "lengths", "numbers", "row_counts", "size", "tails")

    def __init__(self, kind: Kind, numbers: list[int], lengths: list[int]) -> None:
        width = kind[2]
        self.kind = kind
        self.numbers = numbers  # which tensors of the call
        self.lengths = lengths
        self.row_counts = [-(-length // width) for length in lengths]
        self.size = sum(self.row_counts) * width  # elements that it takes in a buffer
        self.tails: list[tuple[int, int]] = []  # rows that are not full, and how many elements they have
        end = 0
        for length, count in zip(lengths, self.row_counts):
            end += count
            if length % width:
                self.tails.append((end - 1, length % width))


def chunks(tensors: list[Tensor], numbers: Iterable[int]) -> Iterator[Chunk]:
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
        room = most = CAPACITY // kind[1].itemsize // 4  # what is much less than a buffer leaves little of it unused
        together: list[int] = []
        lengths: list[int] = []
        for number, length in members:
            if together and length > room:
                yield Chunk(kind, together, lengths)
                together, lengths, room = [], [], most
            together.append(number)
            lengths.append(length)
            room -= -(-length // kind[2]) * kind[2]
        yield Chunk(kind, together, lengths)


# what is kept with a chunk until its digests are there, and who takes both then, in the writer's thread
Label = Any
Receiver = Callable[[list[tuple[Label, list[int]]], Tensor], None]


class _Batch:
    """What lies in a buffer: chunks, and at its ends perhaps parts of large tensors."""

    __slots__ = ("ends_whole", "labels", "lengths", "row_counts", "rows", "starts_whole", "tails")

    def __init__(self) -> None:
        self.rows = 0
        self.labels: list[tuple[Label, list[int]]] = []  # and which tensors of the call
        self.lengths: list[int] = []
        self.row_counts: list[int] = []
        self.tails: list[tuple[int, int]] = []
        self.starts_whole = True
        self.ends_whole = True

    def add(self, label: Label, chunk: Chunk, width: int) -> None:
        if chunk.tails:
            self.tails.extend((self.rows + row, length) for row, length in chunk.tails)
        self.rows += chunk.size // width
        self.labels.append((label, chunk.numbers))
        self.lengths.extend(chunk.lengths)
        self.row_counts.extend(chunk.row_counts)

    def add_part(self, label: Label, chunk: Chunk, width: int, start: int, length: int) -> None:
        rows = -(-length // width)
        self.rows += rows
        if start:
            self.starts_whole = False
        else:
            self.labels.append((label, chunk.numbers))
        self.lengths.append(length)
        self.row_counts.append(rows)
        self.ends_whole = start + length == chunk.lengths[0]
        if length % width:
            self.tails.append((self.rows - 1, length % width))


class Stage:
    """Gathers tensors of one kind from one stream."""

    def __init__(self, kind: Kind, writer: Writer, weights: Weights, receive: Receiver) -> None:
        device, dtype, self._width = kind
        self._in_its_stream = stream_of(device)
        self._writer = writer
        self._receive = receive
        self._weights = weights
        self._columns = weights.of_columns(device, torch.float64 if dtype is torch.int64 else dtype, self._width)
        self._host_columns = self._columns.cpu()
        self._length = -(-CAPACITY // dtype.itemsize // self._width) * self._width  # of the next buffer
        self._longest = self._length * _MOST_GROWTH
        self._free: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
        self._dtype, self._device = dtype, device
        for _ in range(_BUFFERS):
            self._free.put(self._new_buffer())
        self._buffer = self._free.get()
        self._room = self._length  # of this buffer
        self._batch = _Batch()
        self._padding: dict[tuple[torch.dtype, int], Tensor] = {}
        self._lacks_kernels = False
        self._waiting = _Waiting()  # in the writer's thread

    def add(self, tensors: list[Tensor], chunk: Chunk, label: Label) -> None:
        """Takes the chunk's tensors as they are now."""
        start = self._batch.rows * self._width
        if start + chunk.size > self._room or len(self._batch.labels) >= _MOST_PARTS:
            if chunk.size > self._room:
                self._add_in_parts(tensors[chunk.numbers[0]], chunk, label)
                return
            self.flush()
            start = 0
        if len(chunk.numbers) == 1:
            tensor = _real(tensors[chunk.numbers[0]])
            self._buffer[start : start + chunk.lengths[0]].view(tensor.shape).copy_(tensor)
        else:
            self._copy([tensors[number] for number in chunk.numbers], chunk, start)
        self._batch.add(label, chunk, self._width)

    def _copy(self, tensors: list[Tensor], chunk: Chunk, start: int) -> None:
        dtype = tensors[0].dtype
        if dtype in _JOINED:
            flat: list[Tensor] = []
            for tensor, length in zip(tensors, chunk.lengths):
                flat.append(tensor.reshape(-1))
                unused = -length % self._width
                if unused:
                    flat.append(self._pad(dtype, unused))
            torch.cat(flat, out=self._buffer[start : start + chunk.size])
        else:
            for tensor, length, rows in zip(map(_real, tensors), chunk.lengths, chunk.row_counts):
                self._buffer[start : start + length].view(tensor.shape).copy_(tensor)
                start += rows * self._width

    def _add_in_parts(self, tensor: Tensor, chunk: Chunk, label: Label) -> None:
        """A tensor that is larger than a buffer fills one after the other."""
        flat = _real(tensor).reshape(-1)
        start = 0
        while start < len(flat):
            used = self._batch.rows * self._width
            if used == self._room:
                self.flush()
                used = 0
            part = flat[start : start + self._room - used]
            self._buffer[used : used + len(part)].copy_(part)
            self._batch.add_part(label, chunk, self._width, start, len(part))
            start += len(part)

    def _pad(self, dtype: torch.dtype, length: int) -> Tensor:
        padding = self._padding.get((dtype, length))
        if padding is None:
            padding = torch.zeros(length, dtype=dtype, device=self._buffer.device)
            self._padding[dtype, length] = padding
        return padding

    def flush(self, to_the_end: bool = False) -> None:
        """Has the digests made of all that was gathered; `to_the_end`, and handed over."""
        batch, self._batch = self._batch, _Batch()
        if batch.labels or not batch.starts_whole:
            began = time.perf_counter()
            buffer, on_the_way = self._buffer.view(-1, self._width), OnTheWay()
            with self._in_its_stream(), torch.inference_mode(False), torch.no_grad(), torch._C._DisableAutocast():
                rows = self._digested(buffer[: batch.rows])
                rows = Rows(on_the_way.add(rows.numbers), on_the_way.add(rows.bits))
                tails = on_the_way.add(torch.stack([buffer[row] for row, _ in batch.tails])) if batch.tails else None
                on_the_way.mark(buffer.device)
            if batch.rows * self._width * buffer.element_size() > _FAST * (time.perf_counter() - began):
                self._length = min(2 * self._length, self._longest)
            self._writer.add(partial(self._read, batch, self._buffer, on_the_way, rows, tails))
            self._buffer = self._free_buffer()
            self._room = len(self._buffer)
        if to_the_end:
            self._writer.add(self._hand_over)

    def _digested(self, rows: Tensor) -> Rows:
        if not self._lacks_kernels:
            try:
                return digest.of_rows(rows, self._columns)
            except (NotImplementedError, RuntimeError, TypeError):
                self._lacks_kernels = True
        return digest.of_rows(rows.cpu(), self._host_columns)

    def _free_buffer(self) -> Tensor:
        while True:
            try:
                buffer = self._free.get(timeout=_WAIT)
            except queue.Empty:
                if not self._writer.is_broken and self._writer.is_busy():
                    continue
                return self._new_buffer()
            return buffer if len(buffer) == self._length else self._new_buffer()

    def _new_buffer(self) -> Tensor:
        with torch.inference_mode(False):  # or it could be filled in that mode only
            return torch.empty(self._length, dtype=self._dtype, device=self._device)

    # -- in the writer's thread ---------------------------------------------------------------------------------------

    def _read(self, batch: _Batch, buffer: Tensor, on_the_way: OnTheWay, rows: Rows, tails: Tensor | None) -> None:
        try:
            on_the_way.wait()
            rows, bad = self._corrected(batch, buffer.view(-1, self._width), rows, tails)
        finally:
            self._free.put(buffer)
        self._waiting.add(batch, rows, bad)
        if self._waiting.count >= _MOST_ROWS:
            self._hand_over()

    def _corrected(self, batch: _Batch, buffer: Tensor, rows: Rows, tails: Tensor | None) -> tuple[Rows, Tensor | None]:
        """With what is right for rows that have ends, NaN or infinities in them; and how many of these."""
        lengths = dict(batch.tails)
        if tails is not None:
            places = torch.tensor(list(lengths), device="cpu")
            ends = digest.of_ends(tails, torch.tensor(list(lengths.values()), device="cpu"), self._host_columns)
            rows.numbers[:, places] = ends.numbers
            rows.bits[places] = ends.bits
        difficult = digest.difficult(rows)
        if not len(difficult):
            return rows, None
        again, bad = self._looked_at_again(buffer, difficult, lengths)
        rows = Rows(rows.numbers.double(), rows.bits)
        rows.numbers[:, difficult] = again.numbers.cpu()
        rows.bits[difficult] = again.bits.cpu()
        counts = torch.zeros(2, batch.rows, dtype=torch.int64, device="cpu")
        counts[:, difficult] = bad.cpu()
        return rows, counts

    def _looked_at_again(self, buffer: Tensor, places: Tensor, ends: dict[int, int]) -> tuple[Rows, Tensor]:
        rows = buffer[places.to(buffer.device)]
        lengths = torch.tensor([ends.get(place, self._width) for place in places.tolist()], device="cpu")
        try:
            return digest.of_difficult_rows(rows, lengths, self._columns)
        except (NotImplementedError, RuntimeError, TypeError):  # a device without double precision
            return digest.of_difficult_rows(rows.cpu(), lengths, self._host_columns)

    def _hand_over(self) -> None:
        waiting = self._waiting
        if waiting.labels and waiting.ends_whole:
            self._waiting = _Waiting()
            self._receive(waiting.labels, digest.lines(waiting.sums(self._weights)))


class _Waiting:
    """Rows of several buffers, until there are enough of them, and the last tensor is whole."""

    def __init__(self) -> None:
        self.count = 0
        self.labels: list[tuple[Label, list[int]]] = []
        self.ends_whole = True
        self._lengths: list[int] = []
        self._row_counts: list[int] = []
        self._rows: list[Rows] = []
        self._bad: list[Tensor | None] = []

    def add(self, batch: _Batch, rows: Rows, bad: Tensor | None) -> None:
        lengths, row_counts = batch.lengths, batch.row_counts
        if not batch.starts_whole:
            self._lengths[-1] += lengths[0]
            self._row_counts[-1] += row_counts[0]
            lengths, row_counts = lengths[1:], row_counts[1:]
        self.count += batch.rows
        self.labels += batch.labels
        self.ends_whole = batch.ends_whole
        self._lengths += lengths
        self._row_counts += row_counts
        self._rows.append(rows)
        self._bad.append(bad)

    def sums(self, weights: Weights) -> Sums:
        rows = Rows(torch.cat([one.numbers for one in self._rows], 1), torch.cat([one.bits for one in self._rows]))
        bad = None
        if any(one is not None for one in self._bad):
            none = [torch.zeros(2, len(one.bits), dtype=torch.int64, device="cpu") for one in self._rows]
            bad = torch.cat([zeros if one is None else one for one, zeros in zip(self._bad, none)], 1)
        return digest.sums(rows, bad, self._lengths, self._row_counts, weights)


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
