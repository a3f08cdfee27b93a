"""Products with packed 4-bit weights, as quantized models for CUDA call them; the CPU's have other names and layouts.

A weight q of 0 to 15 stands for (q - 8) * scale + zero, with a scale and a zero for each group of columns of a row. The
packed tensor has CUDA's shape and size; how its bytes lie is our own affair, as CUDA's is the GPU's.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

_TILE_ROWS, _TILE_COLUMNS, _LANES = 8, 16, 32


def _convert_weight_to_int4pack(weights: Tensor, inner_tiles: int) -> Tensor:
    """Of bytes with two weights each, the first in the high half; releases before 2.5 give an int32 for each weight."""
    if weights.dtype is torch.int32:
        weights = (weights[:, ::2] << 4 | weights[:, 1::2]).to(torch.uint8)
    if weights.dtype is not torch.uint8 or weights.dim() != 2:
        raise RuntimeError(f"expected a matrix of bytes, got {weights.dim()} dimensions of {weights.dtype}")
    rows, columns = weights.shape[0], 2 * weights.shape[1]
    if inner_tiles not in (2, 4, 8) or rows % _TILE_ROWS or columns % (inner_tiles * _TILE_COLUMNS):
        raise RuntimeError(
            f"expected innerKTiles of 2, 4 or 8, rows in multiples of {_TILE_ROWS} and columns in multiples of "
            f"innerKTiles * {_TILE_COLUMNS}, got {inner_tiles}, {rows} and {columns}"
        )
    tiles = (rows // _TILE_ROWS, columns // (inner_tiles * _TILE_COLUMNS), _LANES, inner_tiles // 2)
    return weights.contiguous().view(torch.int32).reshape(tiles)


def _weight_int4pack_mm(factor: Tensor, packed: Tensor, group: int, scales_and_zeros: Tensor) -> Tensor:
    if factor.dtype is not torch.bfloat16 or scales_and_zeros.dtype is not torch.bfloat16:
        raise RuntimeError(f"expected factors and scales in bfloat16, got {factor.dtype} and {scales_and_zeros.dtype}")
    rows = packed.shape[0] * _TILE_ROWS
    pairs = packed.contiguous().view(-1).view(torch.uint8).view(rows, -1)
    numbers = torch.stack([pairs >> 4, pairs & 15], -1).view(rows, -1, group).float() - 8
    scales, zeros = (one.t().float().unsqueeze(-1) for one in scales_and_zeros.unbind(-1))
    weights = (numbers * scales + zeros).to(factor.dtype)  # rounded once, as by a fused multiply-add
    return factor @ weights.view(rows, -1).t()


KERNELS: dict[str, Callable[..., Any]] = {
    "_convert_weight_to_int4pack": _convert_weight_to_int4pack,
    "_weight_int4pack_mm": _weight_int4pack_mm,
}
