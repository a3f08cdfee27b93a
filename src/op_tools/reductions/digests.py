"""Digests of tensors on a CUDA device, by a kernel of our own that reads each tensor once, where it lies.

It is launched at the call, on the stream of the call: so it sees the tensors as they are then, and nothing of them is
kept. The digests gather on the device and are fetched now and then, finished.
"""

from __future__ import annotations

import ctypes
import math
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.recording import digest
from op_tools.recording.marks import OnTheWay, marker_of, stream_of
from op_tools.recording.staging import staged_as
from op_tools.recording.writer import Writer
from op_tools.reductions.compiled import CompileError, Kernel, can_be_used, kernel
from op_tools.tensors import with_memory

# as in digest.cu
_THREADS = 256
_PIECE = 16_384  # elements of a block
_MOST = 160  # tensors of one launch
_DIGEST_SIZE = 88
_WIDE = 256
_KINDS = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.float64: 3,
    torch.int64: 4,
    torch.int32: 5,
    torch.int16: 6,
    torch.int8: 7,
    torch.uint8: 8,
    torch.bool: 8,
}
_HEAD = 6  # numbers before the pointers
_ITEM = struct.Struct("<QLL")
_ITEMS_AT = 8 * (_HEAD + _MOST)
_TABLE_SIZE = _ITEMS_AT + _ITEM.size * _MOST

LINE = 4 + len(digest.COLUMNS)  # numbers of a digest: elements, NaN, infinities, bits; then COLUMNS
_LINES = 4096  # that gather on the device
_LONGEST = 0.25  # seconds until they are fetched, so that little is lost when the program dies

Label = Any
# what was kept with the tensors, and which of the call's they are; a line for each: in the writer's thread
Receiver = Callable[[list[tuple[Label, list[int]]], Tensor], None]


class Chunk:
    """Tensors that are digested together: all that is the same each time they come."""

    __slots__ = ("_is_direct", "blocks", "device", "items", "numbers", "pointers", "staged")

    def __init__(self, device: torch.device, members: list[tuple[int, int, torch.dtype | None, torch.dtype]]) -> None:
        self.device = device
        self.numbers = [number for number, *_ in members]  # which tensors of the call
        self.staged = [staged for _, _, staged, _ in members]  # the dtype that a tensor is brought to first, if any
        self.pointers = struct.Struct(f"<{_HEAD + len(members)}Q")
        self.blocks = 0
        items = []
        for _, length, staged, dtype in members:
            kind = _KINDS[staged or dtype] | (_WIDE if digest.width(length) == digest.WIDE else 0)
            items.append(_ITEM.pack(length, self.blocks, kind))
            self.blocks += max(1, -(-length // _PIECE))
        self.items = b"".join(items)
        self._is_direct = not any(self.staged)

    def addresses(self, tensors: list[Tensor], known: bytes | None, copies: list[Tensor]) -> Sequence[int]:
        """Where the elements lie in order. Of tensors that are not so `copies` are made. `known`: see notes.py."""
        if known is not None and self._is_direct:
            every = memoryview(known).cast("Q").tolist()
            chosen = every if len(every) == len(self.numbers) else [every[number] for number in self.numbers]
            if 0 not in chosen:
                return chosen
        found = []
        for number, staged in zip(self.numbers, self.staged):
            tensor = tensors[number]
            if staged is not None or not tensor.is_contiguous() or tensor.is_neg() or tensor._is_zerotensor():
                tensor = _plain(tensor, staged)
                copies.append(tensor)
            found.append(tensor.data_ptr())
        return found


def chunks(tensors: list[Tensor], numbers: Iterable[int]) -> Iterator[Chunk]:
    """How these of the tensors are digested; each must be on a device that can, and of a kind that is staged."""
    groups: dict[torch.device, list[tuple[int, int, torch.dtype | None, torch.dtype]]] = {}
    for number in numbers:
        tensor = tensors[number]
        length = tensor.numel() * (2 if tensor.is_complex() else 1)
        staged = None if tensor.dtype in _KINDS else staged_as(tensor)
        groups.setdefault(tensor.device, []).append((number, length, staged, tensor.dtype))
    for device, members in groups.items():
        for start in range(0, len(members), _MOST):
            yield Chunk(device, members[start : start + _MOST])


class Stage:
    """Digests tensors of one device as they come in one stream."""

    def __init__(self, device: torch.device, writer: Writer, weights: digest.Weights, receive: Receiver) -> None:
        self._writer = writer
        self._receive = receive
        self._device = device
        self._kernel = _kernel(device.index)
        marker = marker_of(device)
        self._stream = 0 if marker is None else marker.stream()
        self._in_its_stream = stream_of(device)
        table = ctypes.create_string_buffer(_TABLE_SIZE)
        self._table = memoryview(table).cast("B")
        self._argument = (ctypes.c_void_p * 1)(ctypes.addressof(table))
        self._items_of: Chunk | None = None  # whose items are in the table
        self._finished = torch.zeros(_MOST, dtype=torch.int32, device=device)
        self._weights = [_columns(weights, device, dtype) for dtype in (torch.float32, torch.float64)]
        self._room(1024)
        self._begin()

    def _begin(self) -> None:
        self._lines = torch.empty(_LINES, LINE, dtype=torch.int64, device=self._device)
        self._first_line = self._lines.data_ptr()
        self._used = 0
        self._labels: list[tuple[Label, list[int]]] = []
        self._due = time.monotonic() + _LONGEST

    def _room(self, blocks: int) -> None:
        self._blocks = blocks
        self._pieces = torch.empty(blocks * _DIGEST_SIZE, dtype=torch.uint8, device=self._device)
        places = (self._pieces, self._finished, *self._weights)
        self._places = [tensor.data_ptr() for tensor in places]

    def add(self, tensors: list[Tensor], chunk: Chunk, label: Label, addresses: bytes | None = None) -> None:
        """Digests the chunk's tensors as they are now. `addresses`: of all tensors, where that is known."""
        count = len(chunk.numbers)
        if self._used + count > _LINES or time.monotonic() > self._due:
            self.flush()
        if chunk.blocks > self._blocks:
            self._room(2 * chunk.blocks)
        copies: list[Tensor] = []  # that must be there until the launch
        pointers = chunk.addresses(tensors, addresses, copies)
        line = self._first_line + self._used * LINE * 8
        chunk.pointers.pack_into(self._table, 0, line, *self._places, count, *pointers)
        if self._items_of is not chunk:
            self._table[_ITEMS_AT : _ITEMS_AT + len(chunk.items)] = chunk.items
            self._items_of = chunk
        self._kernel.launch(chunk.blocks, _THREADS, self._argument, self._stream)
        self._used += count
        self._labels.append((label, chunk.numbers))

    def flush(self, to_the_end: bool = True) -> None:
        """Has all digests fetched and handed over."""
        if self._used:
            on_the_way = OnTheWay()
            with self._in_its_stream():
                lines = on_the_way.add(self._lines[: self._used])
                on_the_way.mark(self._device)
                labels = self._labels
                self._begin()
            self._writer.add(partial(self._read, labels, lines, on_the_way))

    def _read(self, labels: list[tuple[Label, list[int]]], lines: Tensor, on_the_way: OnTheWay) -> None:
        """In the writer's thread."""
        on_the_way.wait()
        self._receive(labels, lines)


def _plain(tensor: Tensor, staged: torch.dtype | None) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    tensor = with_memory(tensor)
    return (tensor if staged is None else tensor.to(staged)).resolve_neg().contiguous()


def _columns(weights: digest.Weights, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.cat([weights.of_columns(device, dtype, width) for width in (digest.NARROW, digest.WIDE)])


# ---- whether it can be used ----------------------------------------------------------------------------------------


def _kernel(device: int) -> Kernel:
    return kernel(Path(__file__).with_name("digest.cu"), "digest_tensors", device)


@cache
def can_digest(device: torch.device) -> bool:
    """Whether the kernel is there for this device, and agrees with torch on a few tensors."""
    return can_be_used(device, _try_out, "OpCapture takes torch's kernels for statistics, more slowly")


def _try_out(device: torch.device) -> None:
    weights = digest.Weights()
    samples = _samples()
    placed = [sample.to(device) for sample in samples]
    found: list[Tensor] = []
    writer = Writer("OpCapture")
    stage = Stage(device, writer, weights, lambda labels, lines: found.append(lines))
    with torch.no_grad():
        for chunk in chunks(placed, range(len(placed))):
            stage.add(placed, chunk, None)
    stage.flush()
    writer.close()
    for sample, line in zip(samples, torch.cat(found)):
        right = _expected(sample, weights)
        numbers = (line[4:].view(torch.float64), right[4:].view(torch.float64))
        if not torch.equal(line[:4], right[:4]) or not torch.allclose(*numbers, rtol=1e-5, atol=1e-5, equal_nan=True):
            raise CompileError(f"ours gives other numbers for {sample.dtype}")


def _samples() -> list[Tensor]:
    """One of each dtype, with ends, NaN and infinities in them; made without random numbers."""
    places = torch.arange(40_000, dtype=torch.float64, device="cpu")
    waves = places.sin() * 100
    bad = waves.float()
    bad[[3, 700, 39_999]] = torch.tensor([math.nan, math.inf, -math.inf], device="cpu")
    dtypes = [dtype for dtype in _KINDS if dtype not in (torch.uint8, torch.bool)]
    some = [waves[:1300].to(dtype) for dtype in dtypes]
    some += [waves[:1300].abs().to(torch.uint8), waves[:1300] > 0, waves[:0], waves[:600].to(torch.complex64)]
    return [*some, bad, bad.half(), bad.bfloat16(), waves[:33_000], waves.float().repeat(2), waves[:500].float()[::2]]


def _expected(tensor: Tensor, weights: digest.Weights) -> Tensor:
    """A line, as torch has it on the CPU."""
    dtype = staged_as(tensor)
    flat = _plain(tensor, dtype).reshape(-1)
    width = digest.width(len(flat))
    count = -(-len(flat) // width)
    rows = flat.new_zeros(count * width)
    rows[: len(flat)] = flat
    lengths = torch.full((count,), width, device="cpu")
    lengths[count - 1 :] = len(flat) - (count - 1) * width
    columns = weights.of_columns(flat.device, torch.float64 if dtype is torch.int64 else flat.dtype, width)
    found, bad = digest.of_difficult_rows(rows.view(count, width), lengths, columns)
    sums = digest.sums(found, bad, [len(flat)], [count], weights)
    return digest.lines(sums)[0]
