"""Scans (cumsum and its like) add up in the tensor's own dtype on many chips: that costs what it costs, and no more."""

from __future__ import annotations

import itertools

import pytest
import torch

from ditorch.sim import faults

from ....conftest import DEVICE
from ..kernels import kernel, wrong

pytestmark = pytest.mark.skipif(DEVICE != "sim", reason="kernels are replaced on the simulated accelerator")

BLOCK = 64
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
COMBINE = {"cumsum": torch.add, "cumprod": torch.mul, "_logcumsumexp": torch.logaddexp}


def in_steps(lines, combine):
    """A tree: each number with the one that stands 1, 2, 4 … before it. Each step is rounded."""
    step = 1
    while step < lines.shape[-1]:
        lines = torch.cat([lines[..., :step], combine(lines[..., :-step], lines[..., step:])], -1)
        step *= 2
    return lines


def in_blocks(lines, combine, carried=lambda block, total: total):
    """As CUDA does along the last dimension: trees of blocks, and the total of all blocks before."""
    made, total = [], None
    for number, block in enumerate(lines.split(BLOCK, -1)):
        block = in_steps(block, combine)
        block = block if total is None else combine(carried(number, total), block)
        made.append(block)
        total = block[..., -1:]
    return torch.cat(made, -1)


def one_by_one(lines, combine):
    """As CUDA does along every other dimension."""
    return torch.stack(list(itertools.accumulate(lines.unbind(-1), combine)), -1)


def scan(name, way):
    """A kernel that adds up, or multiplies, in the dtype of what it is given."""

    def run(x, dim, *, dtype=None):
        here = x.cpu() if dtype is None else x.cpu().to(dtype)
        if here.is_floating_point() and here.dim() and here.numel():
            made = way(here.movedim(dim, -1).contiguous(), COMBINE[name]).movedim(-1, dim).contiguous()
        else:
            made = getattr(torch, name)(here, dim)
        return made.to(x.device)

    return kernel(name, run)


def trained(device, name, dtype, length, dim=-1, positive=True):
    def run():
        generator = torch.Generator().manual_seed(length)
        x = torch.rand(length, 24, generator=generator) if positive else torch.randn(length, 24, generator=generator)
        if name == "cumprod":
            x = 0.6 + 0.4 * x  # shares of light that stay
        x = (x if dim == 0 else x.t().contiguous()).to(device, dtype).requires_grad_()
        made = getattr(torch, name.lstrip("_"))(x, dim)
        made.backward(torch.rand(made.shape, generator=generator).to(device, dtype))

    return run


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", COMBINE)
def test_scans_in_the_dtype_of_their_tensor_are_healthy(device, name, dtype):
    for length in (40, 300, 2000):
        positive = name != "cumsum" or length != 300
        with scan(name, in_blocks):
            assert wrong(trained(device, name, dtype, length, positive=positive)) == set()
        with scan(name, one_by_one):
            assert wrong(trained(device, name, dtype, length, 0, positive)) == set()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sum_of_ones_in_16_bits_goes_on_along_the_last_dimension(device, dtype):
    """In blocks, or with a wider sum. Along the others it may stand still, as it does on CUDA."""
    ones = torch.ones(2, 5000).to(device, dtype)
    with scan("cumsum", one_by_one):
        assert wrong(lambda: torch.cumsum(ones, -1)) == (set() if dtype is torch.float32 else {"cumsum"})
        assert wrong(lambda: torch.cumsum(ones.t().contiguous(), 0)) == set()
    with scan("cumsum", in_blocks):
        assert wrong(lambda: torch.cumsum(ones, -1)) == set()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", ["cumulative_trapezoid", "cumsum_autocast"])
def test_ops_that_are_made_of_scans_are_healthy(device, function, dtype):
    x = torch.rand(8, 700, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    with scan("cumsum", in_blocks):
        if function == "cumulative_trapezoid":
            assert wrong(lambda: torch.cumulative_trapezoid(x, dx=0.25)) == set()
        else:
            assert wrong(lambda: torch.cumsum(x.requires_grad_(), -1, dtype=torch.float32).sum().backward()) == set()


def forgotten(block, total):
    return torch.zeros_like(total) if block == 3 else total


def earlier(block, total):
    return total / 1.25


BROKEN = {
    "the total is forgotten in a block": lambda lines, combine: in_blocks(lines, combine, forgotten),
    "the total is too small": lambda lines, combine: in_blocks(lines, combine, earlier),
    "one number too late": lambda lines, combine: in_blocks(lines, combine).roll(1, -1),
    "the first of each block is left out": lambda lines, combine: in_blocks(
        torch.where(torch.arange(lines.shape[-1]) % BLOCK == 1, 0, lines), combine
    ),
    "the tail is stale": lambda lines, combine: torch.cat(
        [in_blocks(lines, combine)[..., :-5], lines.new_ones(*lines.shape[:-1], 5)], -1
    ),
    "the last number is left out": lambda lines, combine: in_blocks(
        torch.cat([lines[..., :-1], 0 * lines[..., :1]], -1), combine
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fault", BROKEN)
def test_scans_in_the_dtype_of_their_tensor_that_are_wrong(device, fault, dtype):
    """The last number alone must not be smaller than what roundings cost."""
    length = 20 if "last" in fault else 400
    with scan("cumsum", BROKEN[fault]):
        assert wrong(trained(device, "cumsum", dtype, length)) == {"cumsum"}
        assert wrong(trained(device, "cumsum", dtype, length, 0)) == {"cumsum"}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scans_of_another_make(device, dtype):
    """The kind that stands for another maker's chip scans in steps, too."""
    with faults.inject("aten.*: remake"):
        for name, dim in itertools.product(COMBINE, (0, -1)):
            assert wrong(trained(device, name, dtype, 500, dim)) == set()
