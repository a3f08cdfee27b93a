"""A program with Triton kernels, run by test_triton.py in a process of its own: prints what is wrong, or "right"."""

from __future__ import annotations

import sys

import torch

if "late" not in sys.argv:
    import ditorch
import triton
import triton.language as tl
from triton.language.extra import libdevice

if "late" in sys.argv:  # triton and its kernels were there before
    import ditorch  # noqa: F401


@triton.jit
def add(x, y, out, count, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax(x, out, stride, count, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * stride + at, mask=at < count, other=-float("inf"))
    power = tl.exp(row - tl.max(row, axis=0))
    tl.store(out + tl.program_id(0) * stride + at, power / tl.sum(power, axis=0), mask=at < count)


@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["count"])
@triton.jit
def product(a, b, out, count, BLOCK: tl.constexpr):  # noqa: N803
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(tl.cdiv(count, BLOCK)):
        inner = step.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # a loop's variable is a scalar
        left = tl.load(a + rows[:, None] * count + inner[None, :], mask=inner[None, :] < count, other=0.0)
        right = tl.load(b + inner[:, None] * count + columns[None, :], mask=inner[:, None] < count, other=0.0)
        total += tl.dot(left, right, input_precision="ieee")
    tl.store(out + rows[:, None] * count + columns[None, :], total.to(out.dtype.element_ty))


@triton.jit
def arithmetic(x, y, out, whole, truth, factor, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    result = tl.where(a > b, a * b + a, b - a) * factor.to(x.dtype.element_ty) + at.to(x.dtype.element_ty)
    tl.store(out + at, tl.maximum(result, b))
    tl.store(whole + at, result.to(tl.int32))
    tl.store(truth + at, (a > b) & (a < 0.5))


@triton.jit
def functions(x, out, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(out + at, libdevice.tanh(value) * libdevice.rsqrt(value * value + 1) + libdevice.erf(value))


@triton.jit
def through_addresses(addresses, out, BLOCK: tl.constexpr):  # noqa: N803
    where = tl.load(addresses + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * BLOCK + at, tl.load(where + at))


@triton.jit
def segments(bounds, x, out):
    row = tl.program_id(0)
    first, last = tl.load(bounds + row), tl.load(bounds + row + 1)
    total = 0.0
    for at in range(first, last):
        total += tl.load(x + at)
    for step in tl.range(tl.cdiv(last - first, 2)):
        total += 100 * step.to(tl.float32)
    tl.store(out + row, total)


def check(what: str, right: bool) -> None:
    if not right:
        print("wrong:", what)


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one.float(), other.float(), rtol=1e-5, atol=1e-5)


torch.manual_seed(0)
x, y = torch.randn(100, device="cuda"), torch.randn(100, device="cuda")
out = torch.zeros(300, device="cuda")
add[(4,)](x, y, out[100:200], 100, BLOCK=32)
check("a sum into a view", torch.equal(out[100:200], x + y) and out[:100].eq(0).all() and out[200:].eq(0).all())
add[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, x, x, 100, BLOCK=64)
check("a sum in place", not torch.equal(x, y) and torch.equal(x / 2 + y, out[100:200]))

matrix = torch.randn(5, 50, device="cuda:1")
powers = torch.empty_like(matrix)
softmax[(5,)](matrix, powers, 50, 50, BLOCK=64)
check("a softmax on the second device", close(powers, matrix.softmax(-1)))

for dtype in (torch.float32, torch.float16, torch.bfloat16):
    a, b = (torch.randn(32, 32, device="cuda").to(dtype) for _ in range(2))
    result = torch.empty(32, 32, device="cuda", dtype=dtype)
    product[lambda meta: (32 // meta["BLOCK"], 32 // meta["BLOCK"])](a, b, result, 32)
    right = a.float() @ b.float()
    check(f"a product in {dtype}", close(result, right.to(dtype)) or (result - right).abs().max() < 0.05)

    a, b = (torch.randn(64, device="cuda").to(dtype) for _ in range(2))
    result, whole = torch.empty_like(a), torch.empty(64, device="cuda", dtype=torch.int32)
    truth = torch.empty(64, device="cuda", dtype=torch.bool)
    arithmetic[(1,)](a, b, result, whole, truth, 1.5, BLOCK=64)
    right = torch.where(a > b, a * b + a, b - a) * 1.5 + torch.arange(64, device="cuda").to(dtype)
    check(f"arithmetic in {dtype}", torch.equal(result, torch.maximum(right, b)))
    check(f"whole numbers of {dtype}", torch.equal(whole, right.int()))
    check(f"comparisons in {dtype}", torch.equal(truth, (a > b) & (a < 0.5)))

if "late" not in sys.argv:  # the functions' names were taken before
    value, result = torch.randn(16, device="cuda"), torch.empty(16, device="cuda")
    functions[(1,)](value, result, BLOCK=16)
    check("libdevice", close(result, value.tanh() * (value * value + 1).rsqrt() + value.erf()))

parts = [torch.randn(8, device="cuda") for _ in range(3)]
gathered = torch.empty(24, device="cuda")
addresses = torch.tensor([part.data_ptr() for part in parts], device="cuda")
through_addresses[(3,)](addresses, gathered, BLOCK=8)
check("memory reached by addresses", torch.equal(gathered, torch.cat(parts)))

for dtype in (torch.int32, torch.int64):
    bounds, sums = torch.tensor([0, 3, 3, 8], device="cuda", dtype=dtype), torch.empty(3, device="cuda")
    segments[(3,)](bounds, torch.arange(8.0, device="cuda"), sums)
    check(f"loops whose bounds were loaded as {dtype}", sums.tolist() == [103, 0, 325])


def compiled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = torch.empty_like(x)
    add[(2,)](x, y, total, x.numel(), BLOCK=64)
    return total * 2


check("a launch from a compiled function", torch.equal(torch.compile(compiled)(x, y), (x + y) * 2))
check("has_triton", torch.utils._triton.has_triton())
check("the driver", triton.runtime.driver.active.get_current_device() == 0)
check("the target", triton.runtime.driver.active.get_current_target().backend == "cuda")
print("right")
