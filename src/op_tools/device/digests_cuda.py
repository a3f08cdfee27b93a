"""Launches digest.cu, which digests tensors on a CUDA device."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from op_tools.device import digest
from op_tools.device.compiled import Kernel, kernel
from op_tools.device.queues import stream_number
from op_tools.device.tensor_groups import KINDS, MAX_TENSORS, TensorGroup, plain

# as in digest.cu
_THREADS = 256
_PIECE = 16_384  # elements of a block
_DIGEST_SIZE = 88
_WIDE = 256
_HEAD = 6  # numbers before the pointers
_ITEM = struct.Struct("<QLL")
_ITEMS_AT = 8 * (_HEAD + MAX_TENSORS)
_TABLE_SIZE = _ITEMS_AT + _ITEM.size * MAX_TENSORS


class _Layout:
    """Of a group in the table."""

    __slots__ = ("blocks", "items", "pointers")

    def __init__(self, group: TensorGroup) -> None:
        self.pointers = struct.Struct(f"<{_HEAD + len(group.numbers)}Q")
        self.blocks = 0
        items = []
        for length, dtype in zip(group.lengths, group.dtypes):
            kind = KINDS[dtype] | (_WIDE if digest.width(length) == digest.WIDE else 0)
            items.append(_ITEM.pack(length, self.blocks, kind))
            self.blocks += max(1, -(-length // _PIECE))
        self.items = b"".join(items)


class CudaDigests:
    """The kernel, for one stream."""

    def __init__(self, device: torch.device, weights: digest.Weights) -> None:
        self._device = device
        self._kernel = _kernel(device.index)
        self._stream = stream_number(device)
        table = ctypes.create_string_buffer(_TABLE_SIZE)
        self._table = memoryview(table).cast("B")
        self._argument = (ctypes.c_void_p * 1)(ctypes.addressof(table))
        self._items_of: TensorGroup | None = None  # whose items are in the table
        self._finished = torch.zeros(MAX_TENSORS, dtype=torch.int32, device=device)
        self._weights = [_columns(weights, device, dtype) for dtype in (torch.float32, torch.float64)]
        self._room(1024)

    def _room(self, blocks: int) -> None:
        self._blocks = blocks
        self._pieces = torch.empty(blocks * _DIGEST_SIZE, dtype=torch.uint8, device=self._device)
        places = (self._pieces, self._finished, *self._weights)
        self._places = [tensor.data_ptr() for tensor in places]

    def write(
        self, tensors: list[Tensor], group: TensorGroup, addresses: bytes | None, lines: Tensor, first: int
    ) -> None:
        layout = group.layout
        if layout is None:
            layout = group.layout = _Layout(group)
        if layout.blocks > self._blocks:
            self._room(2 * layout.blocks)
        copies: list[Tensor] = []  # that must be there until the launch
        pointers = _pointers(tensors, group, addresses, copies)
        line = lines.data_ptr() + first * digest.LINE * 8
        layout.pointers.pack_into(self._table, 0, line, *self._places, len(pointers), *pointers)
        if self._items_of is not group:
            self._table[_ITEMS_AT : _ITEMS_AT + len(layout.items)] = layout.items
            self._items_of = group
        self._kernel.launch(layout.blocks, _THREADS, self._argument, self._stream)


def _pointers(tensors: list[Tensor], group: TensorGroup, known: bytes | None, copies: list[Tensor]) -> Sequence[int]:
    """Where the elements lie in order. Of tensors that are not so `copies` are made. `known`: see notes.py."""
    if known is not None and group.is_direct:
        every = memoryview(known).cast("Q").tolist()
        chosen = every if len(every) == len(group.numbers) else [every[number] for number in group.numbers]
        if 0 not in chosen:
            return chosen
    found = []
    for number, dtype in zip(group.numbers, group.dtypes):
        tensor = tensors[number]
        if tensor.dtype is not dtype or not tensor.is_contiguous() or tensor.is_neg() or tensor._is_zerotensor():
            tensor = plain(tensor, dtype)
            copies.append(tensor)
        found.append(tensor.data_ptr())
    return found


def _columns(weights: digest.Weights, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.cat([weights.of_columns(device, dtype, width) for width in (digest.NARROW, digest.WIDE)])


def _kernel(device: int) -> Kernel:
    return kernel(Path(__file__).with_name("digest.cu"), "digest_tensors", device)
