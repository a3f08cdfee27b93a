"""Sums over the rows of matrices on CUDA, with weights and of squares, by a kernel that reads each element once."""

from __future__ import annotations

import ctypes
import struct
from functools import cache

import torch
from torch import Tensor

from op_tools.device.compiled import Kernel, expect, is_cuda, is_right, kernel
from op_tools.device.largest import KINDS
from op_tools.device.queues import stream_number

# as in row_sums.cu
_THREADS = 256
_ROWS = 4
_MAX_WEIGHTS = 4
_TABLE = struct.Struct("<24Q")
_BLOCKS_OF_LARGE_DEVICE = 528  # for a large device; columns go to several where there are fewer
_MIN_COLUMNS = 1024  # of a block; 128 where the threads share the columns of many rows

Sums = tuple[Tensor, Tensor]  # (…, rows, weights) and (…, rows), in float64


def row_sums(tensor: Tensor, weights: Tensor, of_squares: Tensor | None = None) -> Sums | None:
    """Of a tensor (…, rows, columns), with weights (…, columns, 1 or 4) and, of squares, (…, columns).

    None where there is no such kernel for it.
    """
    matrices = _matrices(tensor)
    if matrices is None or weights.shape[-1] not in (1, _MAX_WEIGHTS) or not can_sum(tensor.device):
        return None
    batches = ((), tensor.shape[:-2])
    if weights.shape[:-2] not in batches or (of_squares is not None and of_squares.shape[:-1] not in batches):
        return None
    return _launched(tensor, matrices, weights, of_squares)


_Matrices = tuple[tuple[int, int, int, int], tuple[int, int, int, int]]  # sizes and strides


def _matrices(tensor: Tensor) -> _Matrices | None:
    """Of at most two dimensions of batches. None where neither rows nor columns lie side by side."""
    if tensor.dim() > 4 or tensor.dtype not in KINDS or not tensor.numel() or not is_cuda(tensor.device):
        return None
    shape, strides = (1, 1, 1, 1, *tensor.shape)[-4:], (0, 0, 0, 0, *tensor.stride())[-4:]
    outer, inner, rows, columns = shape
    if (strides[3] == 1 or columns == 1 or strides[2] == 1) and not tensor.is_neg() and not tensor._is_zerotensor():
        return (outer, inner, rows, columns), (strides[0], strides[1], strides[2], strides[3])
    return None


def _launched(tensor: Tensor, matrices: _Matrices, weights: Tensor, of_squares: Tensor | None) -> Sums:
    (outer, inner, rows, columns), strides = matrices
    weights = weights.double()
    of_squares = None if of_squares is None else of_squares.double()
    count = weights.shape[-1]
    together = strides[3] != 1 and columns > 1
    row_blocks = -(-rows // (32 * _ROWS if together else _ROWS))
    blocks = outer * inner * row_blocks
    most = max(1, columns // (_MIN_COLUMNS // 8 if together else _MIN_COLUMNS))
    parts = min(most, -(-_BLOCKS_OF_LARGE_DEVICE // blocks))
    all_rows = outer * inner * rows
    found = torch.empty((parts, count + 1, all_rows), dtype=torch.float64, device=tensor.device)
    weight_strides = (0, 0, 0, 0, *weights.stride())[-4:]
    square_strides = (0, 0, 0) if of_squares is None else (0, 0, 0, *of_squares.stride())[-3:]
    addresses = tensor.data_ptr(), weights.data_ptr(), 0 if of_squares is None else of_squares.data_ptr()
    table = _TABLE.pack(
        *addresses, found.data_ptr(), KINDS[tensor.dtype], count, rows, columns, inner, outer * inner,
        row_blocks, parts, together, *strides, *weight_strides, *square_strides,
    )  # fmt: skip
    held = ctypes.create_string_buffer(table, len(table))
    argument = (ctypes.c_void_p * 1)(ctypes.addressof(held))
    _kernel(tensor.device.index).launch(blocks * parts, _THREADS, argument, stream_number(tensor.device))
    sums = found.sum(0) if parts > 1 else found[0]
    shape = tensor.shape[:-1]
    return sums[:count].T.reshape(*(shape or (1,)), count), sums[count].reshape(shape)


# ---- whether it can be used ----------------------------------------------------------------------------------------


def _kernel(device: int) -> Kernel:
    return kernel("row_sums.cu", "row_sums", device)


@cache
def can_sum(device: torch.device) -> bool:
    """Whether the kernel is there for this device, and right about a few matrices."""
    return is_cuda(device) and is_right(device, _try_out, "OpAutoCompare proves with torch's kernels, more slowly")


def _try_out(device: torch.device) -> None:
    for tensor, weights, of_squares in _samples(device):
        matrices = _matrices(tensor)
        assert matrices is not None
        found = _launched(tensor, matrices, weights, of_squares)
        for one, other in zip(found, _expected(tensor, weights, of_squares)):
            expect(torch.allclose(one, other, rtol=1e-12, atol=1e-9), str(tensor.dtype))


def _expected(tensor: Tensor, weights: Tensor, of_squares: Tensor | None) -> Sums:
    wide = tensor.double()
    squares = wide.square() if of_squares is None else wide.square() * of_squares.double().unsqueeze(-2)
    return (wide.unsqueeze(-1) * weights.double().unsqueeze(-3)).sum(-2), squares.sum(-1)


def _samples(device: torch.device) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Of each dtype, cut and turned in several ways. Made without random numbers."""
    waves = (torch.arange(40_000, dtype=torch.float64, device="cpu") * 0.37).sin().to(device)
    some: list[tuple[Tensor, Tensor, Tensor | None]] = []
    for dtype in KINDS:
        matrix = waves[:39_900].view(133, 300).to(dtype)
        batches = waves[:20_160].view(3, 7, 40, 24).to(dtype).transpose(1, 2)
        some += [
            (matrix, waves[:1200].view(300, 4), None),
            (matrix.T, waves[:532].view(4, 133).T.float(), waves[:133]),
            (matrix.flatten()[:30_000].view(1, -1), waves[:30_000].view(-1, 1), waves[:30_000].float()),
            (batches, waves[: 3 * 40 * 24 * 4].view(3, 40, 24, 4), waves[: 3 * 40 * 24].view(3, 40, 24)),
            (batches.mT, waves[:28].view(7, 4), None),
        ]
    return some
