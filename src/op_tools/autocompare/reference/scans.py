"""Scans (cumsum and its like) as many accelerators run them: each partial result is rounded to the tensor's own dtype.

The CPU keeps them in a wider one. What the others cost, a run in this way shows: it grows with the number of roundings.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_SMALLEST_BLOCK = 32
_SINGLE = 4  # bytes of float32
_MAX_STEPS = 2**16  # of a scan that goes one by one; longer ones would take seconds

Combine = Callable[[Tensor, Tensor], Tensor]
Scan = Callable[[Tensor, Combine], Tensor]


class Scans(TorchDispatchMode):
    """In this block scans round each partial result, wherever they are inside of a call."""

    def __init__(self, scan: Scan) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._scan = scan

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        combine = _COMBINES.get(func._schema.name.rstrip("_"))
        if combine is None or "out" in kwargs:
            return func(*args, **kwargs)
        x: Tensor = args[0]
        dtype = kwargs.get("dtype") or x.dtype
        if not dtype.is_floating_point or not x.dim():
            return func(*args, **kwargs)
        if self._scan is one_by_one and dtype.itemsize < _SINGLE and args[1] % x.dim() == x.dim() - 1:
            raise NotImplementedError("no accelerator is known that goes so along the last dimension in 16 bits")
        made = self._scan(x.to(dtype).movedim(args[1], -1), combine).movedim(-1, args[1])
        return x.copy_(made) if func._schema.name.endswith("_") else made.contiguous()


def in_blocks(lines: Tensor, combine: Combine) -> Tensor:
    """About as many blocks as there are numbers in one."""
    return in_small_blocks(lines, combine, 2 ** math.ceil(math.log2(max(1, lines.shape[-1])) / 2))


def in_small_blocks(lines: Tensor, combine: Combine, size: int = 0) -> Tensor:
    """A tree in each block, and what came before it."""
    size = max(_SMALLEST_BLOCK, size)
    made: list[Tensor] = []
    for block in lines.split(size, -1):
        step = 1
        while step < block.shape[-1]:
            block = torch.cat([block[..., :step], combine(block[..., :-step], block[..., step:])], -1)
            step *= 2
        made.append(combine(made[-1][..., -1:], block) if made else block)
    return torch.cat(made, -1)


def one_by_one(lines: Tensor, combine: Combine) -> Tensor:
    """The way of CUDA's kernel along all dimensions but the last: in 16 bits, a sum of ones ends at 256, or at 2048."""
    if lines.shape[-1] > _MAX_STEPS:
        raise NotImplementedError("too many steps")
    return torch.stack(list(itertools.accumulate(lines.unbind(-1), combine)), -1)


_COMBINES: dict[str, Combine] = {
    "aten::cumsum": torch.add,
    "aten::cumprod": torch.mul,
    "aten::_logcumsumexp": torch.logaddexp,
    "aten::logcumsumexp": torch.logaddexp,
}
