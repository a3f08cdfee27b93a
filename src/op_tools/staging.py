"""Where tensors are gathered for their digests: copied one after the other into a buffer on their device.

The copy is the only thing that happens at the call. When the buffer is full, a few kernels go over all of it, and their
results are read when the device has long done them; the next tensors go into another buffer meanwhile. So nobody waits
for the device, and what has NaN or infinities in it is still there to be looked at more closely.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools import digest
from op_tools.digest import WIDTH, Rows, Sums, Weights
from op_tools.marks import marker_of
from op_tools.writer import Writer

_BUFFERS = 2  # one is filled while the other one is read
_MOST_CHUNKS = 4096  # in a buffer
_WAIT = 0.05  # seconds between looks for a free buffer
_FAST = 50e9  # bytes a second, digested in the eyes of the host: it does not wait for the device
_MOST_GROWTH = 8  # of a buffer

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


class Chunk:
    """Tensors that come together, or a part of one that is large: all that is the same each time they come."""

    __slots__ = ("dtype", "first_row", "is_end", "lengths", "numbers", "row_counts", "rows", "start", "tails")

    def __init__(self, dtype: torch.dtype, numbers: list[int], lengths: list[int], start: int, is_end: bool) -> None:
        rows = [-(-length // WIDTH) for length in lengths]
        self.dtype = dtype  # of the stage
        self.numbers = numbers  # which tensors of the call
        self.start = start  # the element with which it begins, for a part of a tensor
        self.is_end = is_end  # false for a part that others follow
        self.rows = sum(rows)
        self.lengths = torch.tensor(lengths, dtype=torch.int64, device="cpu")
        self.row_counts = torch.tensor(rows, dtype=torch.int64, device="cpu")
        self.first_row = start // WIDTH
        self.tails: list[tuple[int, int]] = []  # rows that are not full, and how many elements they have
        end = 0
        for length, count in zip(lengths, rows):
            end += count
            if length % WIDTH:
                self.tails.append((end - 1, length % WIDTH))


def chunks(tensors: list[Tensor], capacity: int) -> Iterator[tuple[torch.device, Chunk]]:
    """How such tensors are staged, in a buffer of so many bytes; those that cannot be are left out."""
    groups: dict[tuple[torch.device, torch.dtype, torch.dtype], list[int]] = {}
    for number, tensor in enumerate(tensors):
        dtype = staged_as(tensor)
        if dtype is not None:
            groups.setdefault((tensor.device, dtype, tensor.dtype), []).append(number)
    for (device, dtype, _), numbers in groups.items():
        most = capacity // (WIDTH * dtype.itemsize) * WIDTH
        for chunk in _in_portions(tensors, numbers, dtype, most):
            yield device, chunk


def _in_portions(tensors: list[Tensor], numbers: list[int], dtype: torch.dtype, most: int) -> Iterator[Chunk]:
    together: list[int] = []
    lengths: list[int] = []
    room = most // 2  # what is much less than a buffer leaves little of it unused
    for number in numbers:
        length = tensors[number].numel() * (2 if tensors[number].is_complex() else 1)
        if together and (length > room or length > most):
            yield Chunk(dtype, together, lengths, 0, True)
            together, lengths, room = [], [], most // 2
        if length > most:
            for start in range(0, length, most):
                yield Chunk(dtype, [number], [min(most, length - start)], start, start + most >= length)
        else:
            together.append(number)
            lengths.append(length)
            room -= -(-length // WIDTH) * WIDTH
    if together:
        yield Chunk(dtype, together, lengths, 0, True)


# what is kept with a chunk until its digests are there, and who takes both then, in the writer's thread
Label = Any
Receiver = Callable[[list[tuple[Chunk, Label]], Sums], None]


class Stage:
    """Gathers tensors of one device, one stream and one kind of elements."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        capacity: int,
        writer: Writer,
        weights: Weights,
        receive: Receiver,
    ) -> None:
        self._writer = writer
        self._receive = receive
        self._weights = weights
        self._columns = weights.of_columns(device, torch.float64 if dtype is torch.int64 else dtype)
        self._length = capacity // (WIDTH * dtype.itemsize) * WIDTH  # of the next buffer
        self._longest = self._length * _MOST_GROWTH
        self._free: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
        for _ in range(_BUFFERS):
            self._free.put(torch.empty(self._length, dtype=dtype, device=device))
        self._buffer = self._free.get()
        self._batch = _Batch()
        self._padding: dict[tuple[torch.dtype, int], Tensor] = {}
        self._carried: Sums | None = None  # of the first parts of a tensor, in the writer's thread
        self._lacks_kernels = False

    def add(self, tensors: list[Tensor], chunk: Chunk, label: Label) -> None:
        """Takes the chunk's tensors as they are now."""
        batch = self._batch
        # a later part of a tensor is put to the earlier one when it is the first in its buffer
        start = batch.rows * WIDTH
        if start + chunk.rows * WIDTH > len(self._buffer) or chunk.start or len(batch.chunks) >= _MOST_CHUNKS:
            self.flush()
            batch, start = self._batch, 0
        if len(chunk.numbers) == 1:
            self._copy_one(tensors[chunk.numbers[0]], chunk, start)
        else:
            self._copy_all([tensors[number] for number in chunk.numbers], chunk, start)
        batch.add(chunk, label)

    def _copy_one(self, tensor: Tensor, chunk: Chunk, start: int) -> None:
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        length = tensor.numel()
        if chunk.start or not chunk.is_end:
            length = int(chunk.lengths[0])
            tensor = tensor.reshape(-1)[chunk.start : chunk.start + length]
        self._buffer[start : start + length].view(tensor.shape).copy_(tensor)

    def _copy_all(self, tensors: list[Tensor], chunk: Chunk, start: int) -> None:
        dtype = tensors[0].dtype
        if dtype in _JOINED:
            flat: list[Tensor] = []
            for tensor in tensors:
                flat.append(tensor.reshape(-1))
                unused = -tensor.numel() % WIDTH
                if unused:
                    flat.append(self._pad(dtype, unused))
            torch.cat(flat, out=self._buffer[start : start + chunk.rows * WIDTH])
        else:
            for tensor, rows in zip(tensors, chunk.row_counts.tolist()):
                self._copy_one(tensor, chunk, start)
                start += rows * WIDTH

    def _pad(self, dtype: torch.dtype, length: int) -> Tensor:
        padding = self._padding.get((dtype, length))
        if padding is None:
            padding = torch.zeros(length, dtype=dtype, device=self._buffer.device)
            self._padding[dtype, length] = padding
        return padding

    def flush(self) -> None:
        """Has the digests made of all that was gathered."""
        batch, self._batch = self._batch, _Batch()
        if not batch.chunks:
            return
        began = time.perf_counter()
        buffer, on_the_way = self._buffer.view(-1, WIDTH), _OnTheWay()
        with torch.no_grad(), torch._C._DisableAutocast():
            rows = self._digested(buffer[: batch.rows])
            rows = Rows(on_the_way.add(rows.numbers), on_the_way.add(rows.bits))
            tails = on_the_way.add(torch.stack([buffer[row] for row, _ in batch.tails])) if batch.tails else None
        on_the_way.mark(buffer.device)
        # a device that works while the host goes on is best given much at once; others, what their caches hold
        if batch.rows * WIDTH * buffer.element_size() > _FAST * (time.perf_counter() - began):
            self._length = min(2 * self._length, self._longest)
        self._writer.add(partial(self._read, batch, self._buffer, on_the_way, rows, tails))
        self._buffer = self._free_buffer()

    def _digested(self, rows: Tensor) -> Rows:
        if not self._lacks_kernels:
            try:
                return digest.of_rows(rows, self._columns)
            except (NotImplementedError, RuntimeError, TypeError):
                self._lacks_kernels = True
        return digest.of_rows(rows.cpu(), self._columns.cpu())

    def _free_buffer(self) -> Tensor:
        while True:
            try:
                buffer = self._free.get(timeout=_WAIT)
            except queue.Empty:
                if not self._writer.is_broken and self._writer.is_busy():
                    continue
                return self._buffer.new_empty(self._length)
            return buffer if len(buffer) == self._length else self._buffer.new_empty(self._length)

    # -- in the writer's thread ---------------------------------------------------------------------------------------

    def _read(self, batch: _Batch, buffer: Tensor, on_the_way: _OnTheWay, rows: Rows, tails: Tensor | None) -> None:
        try:
            on_the_way.wait()
            sums = self._sums(batch, buffer.view(-1, WIDTH), rows, tails)
        finally:
            self._free.put(buffer)
        chunks = batch.chunks
        if self._carried is not None:
            sums.take_in(0, self._carried)
            self._carried = None
        if not chunks[-1][0].is_end:
            chunks, self._carried, sums = chunks[:-1], sums[-1:], sums[:-1]
        if chunks:
            self._receive(chunks, sums)

    def _sums(self, batch: _Batch, buffer: Tensor, rows: Rows, tails: Tensor | None) -> Sums:
        bad = None
        difficult = set(digest.difficult(rows).tolist())
        if tails is not None or difficult:
            rows = Rows(rows.numbers.double(), rows.bits)
            bad = torch.zeros(2, batch.rows, dtype=torch.int64, device="cpu")
        if tails is not None:
            places, lengths = zip(*batch.tails)
            difficult.difference_update(places)
            found = digest.of_difficult_rows(tails, torch.tensor(lengths, device="cpu"), self._columns.cpu())
            _put_in(rows, bad, list(places), found)
        if difficult:
            again = sorted(difficult)
            _put_in(rows, bad, again, self._looked_at_again(buffer, again))
        lengths_of_all = torch.cat([chunk.lengths for chunk, _ in batch.chunks])
        row_counts = torch.cat([chunk.row_counts for chunk, _ in batch.chunks])
        # only a part of a large tensor begins elsewhere than with row 0, and it is the first in its buffer
        first_rows = torch.zeros_like(row_counts)
        first_rows[0] = batch.chunks[0][0].first_row
        return digest.sums(rows, bad, lengths_of_all, row_counts, first_rows, self._weights)

    def _looked_at_again(self, buffer: Tensor, places: list[int]) -> tuple[Rows, Tensor]:
        rows = buffer[torch.tensor(places, device=buffer.device)]
        lengths = torch.full((len(places),), WIDTH, device="cpu")
        try:
            return digest.of_difficult_rows(rows, lengths, self._columns)
        except (NotImplementedError, RuntimeError, TypeError):  # a device without double precision
            return digest.of_difficult_rows(rows.cpu(), lengths, self._columns.cpu())


def _put_in(rows: Rows, bad: Tensor | None, places: list[int], found: tuple[Rows, Tensor]) -> None:
    right, bad_of_these = found
    index = torch.tensor(places, device="cpu")
    rows.numbers[:, index] = right.numbers.cpu()
    rows.bits[index] = right.bits.cpu()
    if bad is not None:
        bad[:, index] = bad_of_these.cpu()


class _Batch:
    """What lies in a buffer."""

    __slots__ = ("chunks", "rows", "tails")

    def __init__(self) -> None:
        self.rows = 0
        self.chunks: list[tuple[Chunk, Label]] = []
        self.tails: list[tuple[int, int]] = []

    def add(self, chunk: Chunk, label: Label) -> None:
        if chunk.tails:
            self.tails.extend((self.rows + row, length) for row, length in chunk.tails)
        self.rows += chunk.rows
        self.chunks.append((chunk, label))


class _OnTheWay:
    """Results that the device copies to the host when it gets there."""

    __slots__ = ("_mark", "_marker")

    def __init__(self) -> None:
        self._marker: Any = None
        self._mark: Any = None

    def add(self, tensor: Tensor) -> Tensor:
        if tensor.is_cpu or marker_of(tensor.device) is None:
            return tensor.cpu()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def mark(self, device: torch.device) -> None:
        self._marker = marker_of(device)
        self._mark = None if self._marker is None else self._marker.set()

    def wait(self) -> None:
        if self._marker is not None:
            self._marker.wait(self._mark)
