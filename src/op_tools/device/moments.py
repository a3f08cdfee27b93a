"""A few numbers of each of many tensors, still on the device: sum, squares, largest, zeros, NaN and Inf, a checksum.

By a kernel of our own that reads each tensor once, on CUDA (moments.cu) and on devices that keep their tensors in the
host's memory (native/csrc/moments.h); elsewhere by torch's, with small tensors of one length side by side, so that one
kernel serves them all.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from op_tools import native
from op_tools.device import digests_host
from op_tools.device.compiled import Kernel, expect, is_cuda, is_right, kernel
from op_tools.device.largest import KINDS, MAX_TENSORS, launch
from op_tools.device.queues import stream_number
from op_tools.values.tensors import with_memory

COLUMNS = ("sum", "square", "largest", "nonzero", "nonfinite")
_BYTES = 8 * (len(COLUMNS) + 1)  # Moments in moments.cu
_MAX_STACKED_ELEMENTS = 65_536  # elements; a copy of as many costs less than launching kernels for them alone
_FLOATS = {torch.int16: (torch.float16, torch.bfloat16), torch.int32: (torch.float32,), torch.int64: (torch.float64,)}
_WHOLE = {float_dtype: whole for whole, floats in _FLOATS.items() for float_dtype in floats}  # of the same size


def can_be_looked_at(tensor: Tensor) -> bool:
    """Dense, with elements, and of a dtype that is known."""
    return tensor.dtype in KINDS and tensor.layout is torch.strided and tensor.numel() > 0 and not tensor.is_nested


def look(tensors: list[Tensor]) -> tuple[Tensor, list[int]]:
    """A row for each tensor, on the device, without a wait; and of which one each row is. All are on one device."""
    device = tensors[0].device
    if _can_launch(device):
        return _by_kernel(tensors), list(range(len(tensors)))
    if digests_host.reaches(device):
        return _on_host(tensors), list(range(len(tensors)))
    return _by_torch(tensors)


def read(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that have come to the host: the columns in float64, and the sums of bits."""
    if rows.dtype is torch.int64:
        numbers = torch.empty(len(rows), len(COLUMNS), dtype=torch.float64, device="cpu")
        numbers[:, :2] = rows[:, :2].contiguous().view(torch.float64)
        numbers[:, 2] = rows[:, 2].to(torch.int32).view(torch.float32)
        numbers[:, 3:] = rows[:, 3:5]
        return numbers, rows[:, 5]
    bits = rows[:, len(COLUMNS) :].clone(memory_format=torch.contiguous_format)  # from the start of a memory
    return rows[:, : len(COLUMNS)].double(), bits.view(torch.int64)[:, 0]


def _plain(tensor: Tensor) -> Tensor:
    """As it lies in memory."""
    return tensor.resolve_neg() if tensor.is_neg() else with_memory(tensor)


# ---- by torch's kernels ----------------------------------------------------------------------------------------------


def _by_torch(tensors: list[Tensor]) -> tuple[Tensor, list[int]]:
    groups: dict[tuple[int, torch.dtype], list[int]] = {}
    order: list[int] = []
    found = []
    for number, tensor in enumerate(tensors):
        if tensor.numel() <= _MAX_STACKED_ELEMENTS:
            groups.setdefault((tensor.numel(), tensor.dtype), []).append(number)
        else:
            found.append(_rows(tensor.reshape(1, -1)))
            order.append(number)
    for numbers in groups.values():
        if len(numbers) == 1:
            found.append(_rows(tensors[numbers[0]].reshape(1, -1)))
        else:
            found.append(_rows(torch.stack([tensors[number].reshape(-1) for number in numbers])))
        order += numbers
    return torch.cat(found), order


def _rows(matrix: Tensor) -> Tensor:
    """Five numbers of each row in float32, and the bits of the sixth in two more."""
    matrix = _plain(matrix)
    dtype = torch.promote_types(matrix.dtype, torch.float32)
    norms = [torch.linalg.vector_norm(matrix, order, 1, dtype=dtype) for order in (2, math.inf, 0)]
    # what times zero is not zero is NaN or infinite
    nonfinite = torch.linalg.vector_norm(matrix.mul(0), 0, 1, dtype=dtype)
    numbers = torch.stack([matrix.sum(1, dtype=dtype), norms[0].square(), norms[1], norms[2], nonfinite], 1).float()
    bits = matrix.contiguous().view(_WHOLE[matrix.dtype]).sum(1, keepdim=True, dtype=torch.int64)
    return torch.cat([numbers, bits.view(torch.float32)], 1)


# ---- by our own ------------------------------------------------------------------------------------------------------


def _by_kernel(tensors: list[Tensor]) -> Tensor:
    device = tensors[0].device
    stream = stream_number(device)
    found = torch.zeros(len(tensors), _BYTES // 8, dtype=torch.int64, device=device)
    own, address = _kernel(device.index), found.data_ptr()
    for start in range(0, len(tensors), MAX_TENSORS):
        launch(own, tensors[start : start + MAX_TENSORS], address + _BYTES * start, stream)
    return found


def _on_host(tensors: list[Tensor]) -> Tensor:
    library = native.library()
    assert library is not None
    found = torch.zeros(len(tensors), _BYTES // 8, dtype=torch.int64, device=tensors[0].device)
    library.moments([_plain(tensor) for tensor in tensors], found)
    return found


def _kernel(device: int) -> Kernel:
    return kernel("moments.cu", "moments_of_tensors", device)


@cache
def _can_launch(device: torch.device) -> bool:
    """Whether the kernel is there for this device, and right about a few tensors."""
    return is_cuda(device) and is_right(device, _try_out, "TrainingWatch takes torch's kernels, a bit slower")


def _try_out(device: torch.device) -> None:
    samples = _samples()
    expect(_are_right(samples, _by_kernel([sample.to(device) for sample in samples]).cpu()))


def _samples() -> list[Tensor]:
    """Of each dtype: numbers, zeros, an infinity, a NaN; small, and of several pieces. Made without random numbers."""
    places = torch.arange(40_000, dtype=torch.float64, device="cpu")
    some = []
    for dtype in KINDS:
        for size in (1, 3, 1000, 40_000):
            finite = (((places[:size] * 0.37).sin() * 90 - 7) * (places[:size] % 5 != 0)).to(dtype)
            spoiled = finite.clone()
            spoiled[size // 2] = math.inf
            spoiled[size // 3] = math.nan
            some += [finite, spoiled]
    return [*some, places[:64].float().view(8, 8).t(), places[:64].float()[::2], places[:5] * 0]


def _are_right(samples: list[Tensor], rows: Tensor) -> bool:
    right, order = _by_torch(samples)
    (numbers, bits), (expected, expected_bits) = read(rows), read(right)
    numbers, bits = numbers[order], bits[order]
    size = expected[:, 1:2].sqrt().nan_to_num() * 200  # sums of numbers of either sign
    close = (numbers - expected).abs() <= 1e-4 * expected.abs() + 1e-6 * size
    same = (numbers == expected) | (numbers.isnan() & expected.isnan())
    return bool((close | same).all()) and torch.equal(bits, expected_bits)
