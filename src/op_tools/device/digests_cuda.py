"""Launches digest.cu, which digests tensors on a CUDA device."""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from op_tools.device import digest
from op_tools.device.compiled import Kernel, kernel
from op_tools.device.queues import queue_of, stream_number
from op_tools.device.sketch import SKETCH
from op_tools.device.staging import Shape
from op_tools.device.tensor_groups import KINDS, MAX_TENSORS, TensorGroup, plain

# as in digest.cu
_THREADS = 256
_STRIP = 512  # elements
_STRIPS = (128, 64, 32, 16)  # of a block
_ENOUGH_BLOCKS = 264  # for a large device; fewer strips in each where there are not as many
_FEW_ROWS = 8
_DIGEST_SIZE = 8 * (8 + SKETCH)
_HEAD = 4  # numbers before the pointers
_ITEM = struct.Struct("<QLL")
_ITEMS_AT = 8 * (_HEAD + MAX_TENSORS)
_TABLE_SIZE = _ITEMS_AT + _ITEM.size * MAX_TENSORS


def _strips(shape: Shape) -> list[int]:
    """The Layout of digest.cu: how a tensor of this shape is cut into strips, and how many blocks go over them."""
    length, columns = math.prod(shape), shape[-1] if shape else 1
    left, width = len(shape), 1
    while left and width * shape[left - 1] <= _STRIP:
        left -= 1
        width *= shape[left]
    stride, cut, cuts, places, dimension = width, 0, 1, 1, 0
    if left and 2 * width <= _STRIP:
        left -= 1
        places, dimension = _STRIP // width, len(shape) - 1 - left
        stride = cut = shape[left] * width
        width *= places
        cuts = -(-cut // width)
    rows = length // stride if length else 0
    strips = next((count for count in _STRIPS if rows * cuts >= _ENOUGH_BLOCKS * count), _STRIPS[-1])
    if cut and not dimension:  # the last one: strips of one row, or of one place in several rows
        blocks = rows * -(-cuts // strips) if rows < _FEW_ROWS else cuts * -(-rows // strips)
    else:
        blocks = -(-rows * cuts // strips)
    of_tensor = [length, columns, length // columns if columns else 0]
    of_strips = [width, cut, cuts, places, dimension, stride, rows, left]
    return [*of_tensor, *of_strips, strips, max(blocks, 1), len(shape), *shape]


class _Group:
    """A group in the table."""

    __slots__ = ("blocks", "items", "layouts", "pointers")

    def __init__(self, group: TensorGroup, layouts: dict[Shape, Tensor]) -> None:
        self.pointers = struct.Struct(f"<{_HEAD + len(group.numbers)}Q")
        self.blocks = 0
        items = []
        for shape, dtype in zip(group.shapes, group.dtypes):
            items.append(_ITEM.pack(layouts[shape].data_ptr(), self.blocks, KINDS[dtype]))
            self.blocks += _strips(shape)[-2 - len(shape)]
        self.items = b"".join(items)
        self.layouts = [layouts[shape] for shape in group.shapes]  # they must be there as long as this is


class CudaDigests:
    """The kernel, for one stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kernel = _kernel(device.index)
        self._stream = stream_number(device)
        table = ctypes.create_string_buffer(_TABLE_SIZE)
        self._table = memoryview(table).cast("B")
        self._argument = (ctypes.c_void_p * 1)(ctypes.addressof(table))
        self._items_of: TensorGroup | None = None  # whose items are in the table
        self._finished = torch.zeros(MAX_TENSORS, dtype=torch.int32, device=device)
        self._room(1024)

    def _room(self, blocks: int) -> None:
        self._blocks = blocks
        self._pieces = torch.empty(blocks * _DIGEST_SIZE, dtype=torch.uint8, device=self._device)
        self._places = [self._pieces.data_ptr(), self._finished.data_ptr()]

    def write(
        self, tensors: list[Tensor], group: TensorGroup, addresses: bytes | None, lines: Tensor, first: int
    ) -> None:
        layout = group.layout
        if layout is None:
            layout = group.layout = _Group(group, _layouts(self._device, group.shapes))
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


def _layouts(device: torch.device, shapes: list[Shape]) -> dict[Shape, Tensor]:
    """On the device; those of one group together."""
    made = {shape: _strips(shape) for shape in shapes}
    with torch.inference_mode(False):
        together = torch.tensor(
            [number for one in made.values() for number in one], dtype=torch.int64, device="cpu"
        ).to(device)
    queue = queue_of(device)
    if queue is not None:  # other streams use them, too
        queue.wait(queue.record())
    ends = list(itertools.accumulate(len(one) for one in made.values()))
    return {shape: together[end - len(one) : end] for (shape, one), end in zip(made.items(), ends)}


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


def _kernel(device: int) -> Kernel:
    return kernel(Path(__file__).with_name("digest.cu"), "digest_tensors", device)
