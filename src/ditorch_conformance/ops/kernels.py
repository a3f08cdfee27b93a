"""Kernels in several sizes: how long each takes, and how its sums are kept. What a chip's profile is made of.

The lists of torch have small inputs, whose time is that of a launch. A program's step is made of large ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ditorch_conformance.ops.attempts import synchronize
from op_tools.values import trees

Make = Callable[[int, torch.dtype], "tuple[Tensor, ...]"]

PREFIX = "kernel."
_SIDES = (64, 256, 1024, 4096)  # of square matrices
_LENGTHS = (2**10, 2**16, 2**20, 2**24)  # elements of what goes element by element
_ROW = 1024  # of what goes row by row
_MAX_SECONDS = 0.25  # of one call: larger sizes are left out
_RUNS = 10
_DISTINCT = 2**20 + 1
_TERMS = 4096  # of the sums whose keeping is looked at
# Root of the mean square of the errors, in halves of eps: 0.5 where a sum is rounded once, 2 if kept in 16 bits
_MAX_ROUNDED_ONCE = 1.0
_MIN_TF32 = 2.0**-17  # relative: float32 is below 2^-20 for these sums, factors of ten bits are above 2^-14


class Kernel(NamedTuple):
    """One kernel: what calls it, with what, in which sizes. `sums`: inputs for a long sum, if it is one."""

    run: Callable[..., Any]
    make: Make
    sizes: tuple[int, ...]
    flops: Callable[[int], float] | None = None  # of one size; None: its time depends on the bytes that it moves
    sums: Make | None = None


def _numbers(*shape: int) -> Callable[[torch.dtype], Tensor]:
    """Large tensors hold the same numbers again and again: they are made to be timed."""
    count = math.prod(shape)
    generator = torch.Generator().manual_seed(count)

    def make(dtype: torch.dtype) -> Tensor:
        few = torch.rand(min(count, _DISTINCT), generator=generator).add_(0.5).to(dtype)
        return few.repeat(-(-count // len(few)))[:count].view(shape)

    return make


def _tensors(*shapes: tuple[Any, ...]) -> Make:
    """Of these shapes; "n" stands for the size."""

    def make(size: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        return tuple(_numbers(*(size if one == "n" else one for one in shape))(dtype) for shape in shapes)

    return make


def _rows(count: int) -> Make:
    return lambda size, dtype: tuple(_numbers(max(1, size // _ROW), _ROW)(dtype) for _ in range(count))


_NORMALIZED = (_ROW,)
_square = ("n", "n")
_K = _TERMS
_ELEMENTWISE: dict[str, tuple[Callable[..., Any], int]] = {
    "add": (torch.add, 2), "mul": (torch.mul, 2), "div": (torch.div, 2), "exp": (torch.exp, 1),
    "rsqrt": (torch.rsqrt, 1), "gelu": (functional.gelu, 1), "silu": (functional.silu, 1), "pow": (lambda x: x**2, 1),
    "clone": (torch.clone, 1), "cat": (lambda x, y: torch.cat([x, y]), 2), "cumsum": (lambda x: x.cumsum(-1), 1),
    "_softmax": (lambda x: x.softmax(-1), 1), "_log_softmax": (lambda x: x.log_softmax(-1), 1),
    "native_layer_norm": (lambda x: functional.layer_norm(x, _NORMALIZED), 1), "sort": (lambda x: x.sort(-1), 1),
    "topk": (lambda x: x.topk(8), 1), "where": (lambda x: torch.where(x > 1, x, -x), 1),
}  # fmt: skip
KERNELS: dict[str, Kernel] = {
    **{name: Kernel(run, _rows(count), _LENGTHS) for name, (run, count) in _ELEMENTWISE.items()},
    "sum": Kernel(lambda x: x.sum(-1), _rows(1), _LENGTHS, sums=_tensors((64, _K))),
    "mean": Kernel(lambda x: x.mean(-1), _rows(1), _LENGTHS, sums=_tensors((64, _K))),
    "mm": Kernel(torch.mm, _tensors(_square, _square), _SIDES, lambda n: 2 * n**3, _tensors((64, _K), (_K, 64))),
    "addmm": Kernel(
        torch.addmm, _tensors(_square, _square, _square), _SIDES, lambda n: 2 * n**3,
        _tensors((64, 64), (64, _K), (_K, 64)),
    ),
    "bmm": Kernel(
        torch.bmm, _tensors((4, "n", "n"), (4, "n", "n")), _SIDES[:3], lambda n: 8 * n**3,
        _tensors((2, 64, _K), (2, _K, 64)),
    ),
    "baddbmm": Kernel(
        torch.baddbmm, _tensors(*[(4, "n", "n")] * 3), _SIDES[:3], lambda n: 8 * n**3,
        _tensors((2, 64, 64), (2, 64, _K), (2, _K, 64)),
    ),
    "convolution": Kernel(
        torch.conv2d, _tensors((8, 64, "n", "n"), (64, 64, 3, 3)), (16, 32, 64, 128),
        lambda n: 2 * 8 * 64 * 64 * 9 * (n - 2) ** 2, _tensors((2, 512, 8, 8), (16, 512, 3, 3)),
    ),
    "scaled_dot_product_attention": Kernel(
        functional.scaled_dot_product_attention, _tensors(*[(4, 8, "n", 64)] * 3), (128, 512, 2048),
        lambda n: 4 * 4 * 8 * 64 * n**2,
    ),
    "embedding": Kernel(
        lambda table: functional.embedding(torch.arange(table.shape[0], device=table.device).flip(0), table), _rows(1),
        _LENGTHS,
    ),
}  # fmt: skip


DTYPES = ("float32", "bfloat16", "float16")


def facts(name: str, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """What is measured of one kernel in one dtype: `times`, pairs of work and seconds; `accumulation`."""
    kernel = KERNELS[name]
    found: dict[str, Any] = {"work": "flops" if kernel.flops else "bytes", "times": [*_times(kernel, dtype, device)]}
    if kernel.sums is not None:
        found["accumulation"] = _accumulation(kernel, kernel.sums(0, dtype), device)
    return found


def _times(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[float, float]]:
    for size in kernel.sizes:
        given = [one.to(device) for one in kernel.make(size, dtype)]
        with torch.no_grad():
            first, result = _timed(kernel, given, device, 1)
            runs = max(1, min(_RUNS, int(_MAX_SECONDS / first)))
            seconds = min(_timed(kernel, given, device, runs)[0] for _ in range(3 if runs > 1 else 1))
        moved = sum(one.numel() * one.element_size() for one in (*given, *trees.tensors(result)))
        yield float(kernel.flops(size)) if kernel.flops else float(moved), float(f"{seconds:.4g}")
        if seconds > _MAX_SECONDS / 8:
            return


def _timed(kernel: Kernel, given: list[Tensor], device: torch.device, runs: int) -> tuple[float, Any]:
    synchronize(device)
    began, result = time.perf_counter(), None
    for _ in range(runs):
        result = kernel.run(*given)
    synchronize(device)
    return (time.perf_counter() - began) / runs, result


def _accumulation(kernel: Kernel, given: tuple[Tensor, ...], device: torch.device) -> str:
    """The dtype that long sums are kept in, told from their errors; tf32 where float32 factors are cut off."""
    dtype = given[0].dtype
    with torch.no_grad():
        got = kernel.run(*(one.to(device) for one in given)).cpu().double()
        right = kernel.run(*(one.double() for one in given))
    error = float(((got - right) / right).square().mean().sqrt())
    if dtype is torch.float64:
        return "float64"
    if dtype is torch.float32:
        return "tf32" if error > _MIN_TF32 else "float32"
    name = str(dtype).partition(".")[2]
    return name if error > _MAX_ROUNDED_ONCE * torch.finfo(dtype).eps / 2 else "float32"
