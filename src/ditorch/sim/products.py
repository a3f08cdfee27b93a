"""Matrix products of 16-bit numbers with a float32 result: `torch.mm(a, b, out_dtype=torch.float32)`.

CUDA has them, the CPU has none. Products and sums are float32, as in tensor cores.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor


def _widened(name: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """The kernels of one product: without and with `out`. The dtype stands behind the tensors."""
    product = getattr(torch, name)

    def kernel(*arguments: Any, out: Tensor | None = None, **factors: Any) -> Tensor:
        *tensors, dtype = arguments
        _check(name, tensors, dtype)
        if out is not None and out.dtype is not dtype:
            raise RuntimeError(f"{name}: out_dtype ({dtype}) must be the dtype of out ({out.dtype})")
        result: Tensor = product(*(tensor.to(dtype) for tensor in tensors), out=out, **factors)
        return result

    def kernel_out(*arguments: Any, out: Tensor, **factors: Any) -> Tensor:
        return kernel(*arguments, out=out, **factors)

    return kernel, kernel_out


def _check(name: str, tensors: list[Tensor], dtype: torch.dtype) -> None:
    *added, one, other = tensors
    if one.dtype is not other.dtype:
        raise RuntimeError(f"{name}: expected both factors in one dtype, got {one.dtype} and {other.dtype}")
    if dtype is not one.dtype and not (dtype is torch.float32 and one.dtype in (torch.float16, torch.bfloat16)):
        raise RuntimeError(
            f"{name}: out_dtype must be the inputs' own dtype, or float32 for float16 and bfloat16: "
            f"got {dtype} for {one.dtype}"
        )
    for tensor in added:
        if tensor.dtype not in (dtype, one.dtype):
            raise RuntimeError(f"{name}: expected what is added in {dtype} or {one.dtype}, got {tensor.dtype}")


KERNELS: dict[str, Callable[..., Any]] = {}
for _name in ("mm", "bmm", "addmm", "baddbmm"):
    KERNELS[f"{_name}.dtype"], KERNELS[f"{_name}.dtype_out"] = _widened(_name)
