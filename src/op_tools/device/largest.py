"""The largest absolute values of many tensors on CUDA, by a kernel of our own that reads them where they lie."""

from __future__ import annotations

import ctypes
import math
import struct
from functools import cache

import torch
from torch import Tensor

from op_tools.device.compiled import Kernel, expect, is_cuda, is_right, kernel
from op_tools.device.queues import stream_number
from op_tools.values.tensors import is_dense, with_memory

# as in tensor_table.cuh
_THREADS = 256
_PIECE = 16_384
MAX_TENSORS = 200
KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
_HEAD = 2  # numbers before the items
_BLOCKS_AT = 8 * (_HEAD + 2 * MAX_TENSORS)
_TABLE_SIZE = _BLOCKS_AT + 4 * MAX_TENSORS


def values(tensors: list[Tensor]) -> Tensor:
    """For each tensor, a float that is still on the device. All are on one device, of dtypes above."""
    device = tensors[0].device
    stream = stream_number(device)
    found = torch.zeros(len(tensors), dtype=torch.float32, device=device)
    kernel, address = _kernel(device.index), found.data_ptr()
    for start in range(0, len(tensors), MAX_TENSORS):
        some = tensors[start : start + MAX_TENSORS]
        launch(kernel, some, address + 4 * start, stream)
    return found


def launch(kernel: Kernel, tensors: list[Tensor], found: int, stream: int) -> None:
    """Has a kernel with the table of tensor_table.cuh look at the tensors."""
    copies: list[Tensor] = []  # that must be there until the launch
    items: list[int] = []
    first_blocks: list[int] = []
    blocks = 0
    for tensor in tensors:
        address, length = tensor.data_ptr(), tensor.numel()
        if not address or not is_dense(tensor):
            tensor = with_memory(tensor.detach()).contiguous()
            copies.append(tensor)
            address = tensor.data_ptr()
        items += (address, length * 4 + KINDS[tensor.dtype])
        first_blocks.append(blocks)
        blocks += -(-length // _PIECE) or 1
    table = ctypes.create_string_buffer(_TABLE_SIZE)
    struct.pack_into(f"<{_HEAD + len(items)}Q", table, 0, found, len(tensors), *items)
    struct.pack_into(f"<{len(first_blocks)}L", table, _BLOCKS_AT, *first_blocks)
    kernel.launch(blocks, _THREADS, (ctypes.c_void_p * 1)(ctypes.addressof(table)), stream)


# ---- whether it can be used ----------------------------------------------------------------------------------------


def _kernel(device: int) -> Kernel:
    return kernel("largest.cu", "largest_of_tensors", device)


@cache
def can_find(device: torch.device) -> bool:
    """Whether the kernel is there for this device, and right about a few tensors."""
    return is_cuda(device) and is_right(device, _try_out, "OpOverflowCheck takes torch's kernels, a bit slower")


def _try_out(device: torch.device) -> None:
    samples = _samples()
    expect(_are_right(samples, values([sample.to(device) for sample in samples]).tolist()))


def _samples() -> list[Tensor]:
    """Of each dtype: finite numbers, an infinity, a NaN; small, and of several pieces."""
    places = torch.arange(40_000, dtype=torch.float64, device="cpu")
    some = []
    for dtype in KINDS:
        for size in (1, 3, 1000, 40_000):
            finite = ((places[:size] * 0.37).sin() * 90 - 7).to(dtype)
            some.append(finite)
            for bad in (math.inf, -math.inf, math.nan):
                spoiled = finite.clone()
                spoiled[size // 2] = bad
                some.append(spoiled)
    huge = torch.tensor([1e300, -2.0], dtype=torch.float64, device="cpu")
    return [*some, huge, huge.new_zeros(5), places[:64].float().view(8, 8).t(), places[:64].float()[::2]]


def _are_right(samples: list[Tensor], found: list[float]) -> bool:
    most = torch.finfo(torch.float32).max
    for sample, value in zip(samples, found):
        right = sample.abs().max().item()  # NaN where there is one
        right = min(right, most) if math.isfinite(right) else right
        if not math.isclose(value, right, rel_tol=1e-6) and not (math.isnan(value) and math.isnan(right)):
            return False
    return True
