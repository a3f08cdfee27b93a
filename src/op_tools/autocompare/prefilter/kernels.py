"""The kernels of fused.py. Importing this file needs Triton."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
# (Triton reads the source of these functions; to Python's type checker they are something else.)
import torch
import triton
import triton.language as tl

_TYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}


@triton.jit
def _measure_sizes(table, sizes, expected_type: tl.constexpr, slots: tl.constexpr, block: tl.constexpr):
    pair = tl.program_id(0).to(tl.int64)
    slot = tl.program_id(1)
    expected = tl.load(table + pair * 4 + 1).to(tl.pointer_type(expected_type))
    count = tl.load(table + pair * 4 + 2)
    total = tl.zeros((block,), tl.float64)
    most = tl.zeros((block,), tl.float64)
    for start in range(slot * block, count, slots * block):
        at = start + tl.arange(0, block)
        size = tl.abs(tl.load(expected + at, mask=at < count, other=0.0).to(tl.float64))
        size = tl.where(size < float("inf"), size, 0.0)
        total += size
        most = tl.maximum(most, size)
    out = sizes + pair * 2 * slots + slot
    tl.store(out, tl.sum(total, 0))
    tl.store(out + slots, tl.max(most, 0))


@triton.jit
def _look(
    table,
    given,
    sizes,
    found,
    got_type: tl.constexpr,
    expected_type: tl.constexpr,
    slots: tl.constexpr,
    block: tl.constexpr,
):
    pair = tl.program_id(0).to(tl.int64)
    slot = tl.program_id(1)
    got = tl.load(table + pair * 4).to(tl.pointer_type(got_type))
    expected = tl.load(table + pair * 4 + 1).to(tl.pointer_type(expected_type))
    count = tl.load(table + pair * 4 + 2)
    address = tl.load(table + pair * 4 + 3)  # of what each element may be off by at least; 0 where there is none
    allowance = address.to(tl.pointer_type(tl.float64))
    half_eps = tl.load(given + pair * 6)
    share = tl.load(given + pair * 6 + 1)
    smallest = tl.load(given + pair * 6 + 2)
    largest = tl.load(given + pair * 6 + 3)
    rtol = tl.load(given + pair * 6 + 4)
    share_of_largest = tl.load(given + pair * 6 + 5)
    total = tl.sum(tl.load(sizes + pair * 2 * slots + tl.arange(0, slots)), 0)
    most = tl.max(tl.load(sizes + pair * 2 * slots + slots + tl.arange(0, slots)), 0)
    floor = tl.maximum(total / count.to(tl.float64) * share, most * share_of_largest)

    squares = tl.zeros((block,), tl.float64)
    slope = tl.zeros((block,), tl.float64)
    weight = tl.zeros((block,), tl.float64)
    got_squares = tl.zeros((block,), tl.float64)
    product = tl.zeros((block,), tl.float64)
    expected_squares = tl.zeros((block,), tl.float64)
    errors = tl.zeros((block,), tl.float64)
    ulps = tl.zeros((block,), tl.float64)
    nonzero = tl.zeros((block,), tl.float64)
    nonfinite = tl.zeros((block,), tl.float64)
    peak = tl.zeros((block,), tl.float64)
    max_abs = tl.zeros((block,), tl.float64)
    max_relative = tl.zeros((block,), tl.float64)
    max_ulp = tl.zeros((block,), tl.float64)
    excess = tl.zeros((block,), tl.float64)
    for start in range(slot * block, count, slots * block):
        at = start + tl.arange(0, block)
        mine = tl.load(got + at, mask=at < count, other=0.0).to(tl.float64)
        right = tl.load(expected + at, mask=at < count, other=0.0).to(tl.float64)
        is_finite = (tl.abs(mine) < float("inf")) & (tl.abs(right) <= largest)
        is_alike = (mine == right) | ((mine != mine) & (right != right))
        nonfinite += tl.where(is_finite | is_alike, 0.0, 1.0)
        mine = tl.where(is_finite, mine, 0.0)
        right = tl.where(is_finite, right, 0.0)
        error = mine - right
        distance = tl.abs(error)
        size = tl.abs(right)
        power_of_two = (size.to(tl.int64, bitcast=True) & 0x7FF0000000000000).to(tl.float64, bitcast=True)
        half_ulp = tl.maximum(power_of_two * half_eps, smallest)
        allowed = tl.load(allowance + at, mask=(at < count) & (address != 0), other=0.0)
        scale = tl.maximum(tl.maximum(half_ulp, floor), allowed)
        scaled = error / scale
        value = right / scale
        units = distance / half_ulp
        squares += scaled * scaled
        slope += scaled * value
        weight += value * value
        got_squares += mine * mine
        product += mine * right
        expected_squares += right * right
        errors += error * error
        ulps += units * 0.5
        nonzero += tl.where(right != 0.0, 1.0, 0.0)
        peak = tl.maximum(peak, tl.abs(scaled))
        max_abs = tl.maximum(max_abs, distance)
        max_relative = tl.maximum(max_relative, distance / tl.maximum(size, 1e-300))
        max_ulp = tl.maximum(max_ulp, units * 0.5)
        excess = tl.maximum(excess, distance - rtol * size)
    out = found + (pair * slots + slot) * 16
    tl.store(out, tl.sum(squares, 0))
    tl.store(out + 1, tl.sum(slope, 0))
    tl.store(out + 2, tl.sum(weight, 0))
    tl.store(out + 3, tl.sum(got_squares, 0))
    tl.store(out + 4, tl.sum(product, 0))
    tl.store(out + 5, tl.sum(expected_squares, 0))
    tl.store(out + 6, tl.sum(errors, 0))
    tl.store(out + 7, tl.sum(ulps, 0))
    tl.store(out + 8, tl.sum(nonzero, 0))
    tl.store(out + 9, tl.sum(nonfinite, 0))
    tl.store(out + 10, tl.max(peak, 0))
    tl.store(out + 11, tl.max(max_abs, 0))
    tl.store(out + 12, tl.max(max_relative, 0))
    tl.store(out + 13, tl.max(max_ulp, 0))
    tl.store(out + 14, tl.max(excess, 0))


def run(table, given, sizes, found, pairs, got, expected):
    """Fills `found`: the sums and maxima of fused.py for each pair and slot."""
    slots = found.shape[1]
    grid = (pairs, slots)
    block = 512 if slots <= 128 else 256  # more of them are at work at once
    with torch.cuda.device(table.device):
        _measure_sizes[grid](table, sizes, _TYPES[expected], slots, block)
        _look[grid](table, given, sizes, found, _TYPES[got], _TYPES[expected], slots, block)
