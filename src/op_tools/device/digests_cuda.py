"""Launches digest.cu, which digests tensors on a CUDA device."""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Optional

import torch
from torch import Tensor

from op_tools.device import digest
from op_tools.device.compiled import Kernel, kernel
from op_tools.device.queues import queue_of, stream_number
from op_tools.device.sketch import NUMBERS, SKETCH
from op_tools.device.staging import Shape
from op_tools.device.tensor_groups import KINDS, MAX_TENSORS, TensorGroup, plain

# as in digest.cu and its parts
_THREADS = 256
_WARPS = 8
_STRIP = 512  # elements
_MAX_STRIPS = 256  # of a block
_STRIPS_AT_ONCE = 16
_BLOCKS = 264  # that a large device works on at once; fewer strips in each where that gives it as many
_FEW_ROWS = 8
_TILES = 4
_PARTS = 3
_DIGEST_SIZE = 8 * (8 + SKETCH)
_HEAD = 5  # numbers before the pointers
_ITEM = struct.Struct("<QLL")
_ITEMS_AT = 8 * (_HEAD + MAX_TENSORS)
_TABLE_SIZE = _ITEMS_AT + _ITEM.size * MAX_TENSORS

_QUICK = (torch.bfloat16, torch.float16)
_MIN_COLUMNS = 64  # for strips of one row each
_MAX_LAYOUTS = 8  # of one group; where it comes in ever new ones, copies are made
_Strides = Optional[tuple[int, ...]]  # None: it lies in order


def _has_rows(shape: Shape) -> bool:
    """Whether its rows are long enough for strips of one row each: they need not lie one behind the other then."""
    return bool(shape) and shape[-1] >= _MIN_COLUMNS


def _is_quick(shape: Shape, dtype: torch.dtype, strides: _Strides = None) -> bool:
    """Whether digest_quick.cuh can go over it: by vectors of 8 elements."""
    between_rows = () if strides is None else strides[:-1]
    return dtype in _QUICK and _has_rows(shape) and not any(number % 8 for number in (shape[-1], *between_rows))


def _strips(shape: Shape, dtype: torch.dtype, strides: _Strides = None) -> list[int]:
    """The Layout of digest.cu: how such a tensor is cut into strips, and how many blocks go over them."""
    length, columns, has_rows = math.prod(shape), shape[-1] if shape else 1, _has_rows(shape)
    left, width = len(shape), 1
    while left and width * shape[left - 1] <= _STRIP and not (has_rows and left < len(shape)):
        left -= 1
        width *= shape[left]
    stride, cut, cuts, places, dimension = width, 0, 1, 1, 0
    if left and 2 * width <= _STRIP and not (has_rows and left < len(shape)):
        left -= 1
        places, dimension = _STRIP // width, len(shape) - 1 - left
        stride = cut = shape[left] * width
        width *= places
        cuts = -(-cut // width)
    rows = length // stride if length else 0
    strips = -(-rows * cuts // (_BLOCKS * _STRIPS_AT_ONCE)) * _STRIPS_AT_ONCE
    strips = min(max(strips, _STRIPS_AT_ONCE), _MAX_STRIPS)
    if cut and not dimension:  # the last one: strips of one row, or of one place in several rows
        blocks = rows * -(-cuts // strips) if rows < _FEW_ROWS else cuts * -(-rows // strips)
    else:
        blocks = -(-rows * cuts // strips)
    of_tensor = [length, columns, length // columns if columns else 0]
    of_strips = [width, cut, cuts, places, dimension, stride, rows, left, int(_is_quick(shape, dtype, strides)), strips]
    in_order = [math.prod(shape[at + 1 :]) for at in range(len(shape))]
    return [*of_tensor, *of_strips, max(blocks, 1), len(shape), *shape, *(in_order if strides is None else strides)]


@lru_cache(16)
def _weights(device: torch.device) -> Tensor:
    """Of the places of a strip, for digest_quick.cuh: in parts of 16 bits, each where a lane looks for it."""
    places = torch.arange(_STRIP, dtype=torch.int64, device="cpu")
    table = [part for number in range(NUMBERS) for part in digest.weights(digest.phases(places, 0, number))]
    exact = torch.stack(table, 1)  # places, columns
    warp, tile, lane, word, half = (torch.arange(count, device="cpu") for count in (_WARPS, _TILES, 32, 2, 2))
    rows = warp[:, None, None] * 64 + tile[:, None] // 2 * 32 + tile[:, None] % 2 * 4 + lane % 4 * 8
    places = rows[..., None, None] + 2 * word[:, None] + half
    columns = (lane // 4)[:, None, None].expand_as(places)
    found = []
    for dtype in _QUICK:
        parts, rest = [], exact
        for _ in range(_PARTS):
            part = rest.to(dtype)
            rest = rest - part.double()
            parts.append(part[places, columns])
        found.append(torch.stack(parts, 2).view(torch.int16).flatten())
    with torch.inference_mode(False):
        made = torch.cat(found).to(device)
    _wait(device)
    return made


def _wait(device: torch.device) -> None:
    queue = queue_of(device)
    if queue is not None:  # other streams use it, too
        queue.wait(queue.record())


class _Layouts:
    """A group in the table, with its tensors lying in memory as these strides say."""

    __slots__ = ("_held", "blocks", "items", "pointers")

    def __init__(self, group: TensorGroup, strides: Sequence[_Strides]) -> None:
        self.pointers = struct.Struct(f"<{_HEAD + len(group.numbers)}Q")
        keys = list(zip(group.shapes, group.dtypes, strides))
        made = {key: _strips(*key) for key in keys}
        with torch.inference_mode(False):
            numbers = [number for one in made.values() for number in one]
            self._held = torch.tensor(numbers, dtype=torch.int64, device="cpu").to(group.device)
        _wait(group.device)
        ends = itertools.accumulate(len(one) for one in made.values())
        places = {key: self._held.data_ptr() + 8 * (end - len(made[key])) for key, end in zip(made, ends)}
        self.blocks = 0
        items = []
        for key in keys:
            items.append(_ITEM.pack(places[key], self.blocks, KINDS[key[1]]))
            self.blocks += made[key][-2 - 2 * len(key[0])]
        self.items = b"".join(items)


class CudaDigests:
    """The kernel, for one stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kernel = _kernel(device.index)
        self._stream = stream_number(device)
        table = ctypes.create_string_buffer(_TABLE_SIZE)
        self._table = memoryview(table).cast("B")
        self._argument = (ctypes.c_void_p * 1)(ctypes.addressof(table))
        self._items_of: _Layouts | None = None  # whose items are in the table
        self._finished = torch.zeros(MAX_TENSORS, dtype=torch.int32, device=device)
        self._weights = _weights(device)
        self._room(1024)

    def _room(self, blocks: int) -> None:
        self._blocks = blocks
        self._pieces = torch.empty(blocks * _DIGEST_SIZE, dtype=torch.uint8, device=self._device)
        self._places = [self._pieces.data_ptr(), self._finished.data_ptr(), self._weights.data_ptr()]

    def write(
        self, tensors: list[Tensor], group: TensorGroup, addresses: bytes | None, lines: Tensor, first: int
    ) -> None:
        copies: list[Tensor] = []  # that must be there until the launch
        pointers = _known_pointers(group, addresses)
        strides: tuple[_Strides, ...] = ()  # all lie in order
        if pointers is None:
            pointers, strides = _pointers(tensors, group, copies)
        if strides not in group.layouts:
            group.layouts[strides] = _Layouts(group, strides or (None,) * len(pointers))
        layouts: _Layouts = group.layouts[strides]
        if layouts.blocks > self._blocks:
            self._room(2 * layouts.blocks)
        line = lines.data_ptr() + first * digest.LINE * 8
        layouts.pointers.pack_into(self._table, 0, line, *self._places, len(pointers), *pointers)
        if self._items_of is not layouts:
            self._table[_ITEMS_AT : _ITEMS_AT + len(layouts.items)] = layouts.items
            self._items_of = layouts
        self._kernel.launch(layouts.blocks, _THREADS, self._argument, self._stream)


def _known_pointers(group: TensorGroup, known: bytes | None) -> list[int] | None:
    """Where the elements lie, if all are in order. `known`: see notes.py."""
    if known is None or not group.is_direct:
        return None
    every = memoryview(known).cast("Q").tolist()
    chosen = every if len(every) == len(group.numbers) else [every[number] for number in group.numbers]
    return None if 0 in chosen else chosen


def _pointers(
    tensors: list[Tensor], group: TensorGroup, copies: list[Tensor]
) -> tuple[list[int], tuple[_Strides, ...]]:
    """Where the elements lie, and how. `copies` are made of tensors that the kernel cannot read."""
    found: list[int] = []
    strides: list[_Strides] = []
    for number, dtype, shape in zip(group.numbers, group.dtypes, group.shapes):
        tensor, stride = tensors[number], None
        is_plain = tensor.dtype is dtype and not tensor.is_neg() and not tensor._is_zerotensor()
        if not is_plain or not tensor.is_contiguous():
            if is_plain and _has_rows(shape) and tensor.stride(-1) == 1 and len(group.layouts) < _MAX_LAYOUTS:
                stride = tensor.stride()
            else:
                tensor = plain(tensor, dtype)
                copies.append(tensor)
        found.append(tensor.data_ptr())
        strides.append(stride)
    return found, tuple(strides) if any(strides) else ()


def _kernel(device: int) -> Kernel:
    return kernel("digest.cu", "digest_tensors", device)
