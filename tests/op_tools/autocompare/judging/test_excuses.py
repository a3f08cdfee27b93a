"""What roundings do not explain: that a softmax does not add up to one, or that a part overflows with the other one."""

from __future__ import annotations

import pytest
import torch

from ....conftest import DEVICE
from ..kernels import kernel, wrong

pytestmark = pytest.mark.skipif(DEVICE != "sim", reason="kernels are those of the simulated accelerator")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
REFERENCES = ["cpu", "device", "identities"]


def soft(change):
    """A kernel that is right but for `change`, which is done to its result."""

    def run(x, dim, half_to_float):
        return change(torch.softmax(x.cpu().double(), dim)).to(x.dtype).to(x.device)

    return kernel("_softmax", run)


def masked_rows(device, dtype):
    """Some rows have no other number than the lowest, some have two that are nearly as low."""
    rows = torch.full((6, 7), torch.finfo(dtype).min)
    rows[1, 2:4] = 0.99 * torch.finfo(dtype).min
    rows[2, :3] = 1.0
    return rows.to(device, dtype)


# what is wrong with a row, and still as near to the right one as roundings of such large numbers bring it
OFF = {
    "zeros": lambda shares: torch.where(shares.amax(-1, keepdim=True) < 0.2, 0.0, shares),
    "twice": lambda shares: torch.where(shares.amax(-1, keepdim=True) < 0.2, 2 * shares, shares),
    "sums of one part": lambda shares: shares * torch.where(shares.amax(-1, keepdim=True) < 0.2, 7 / 4, 1.0),
}


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("off", OFF)
def test_rows_of_a_softmax_add_up_to_one_even_where_any_number_may_be_anything(device, dtype, off, reference):
    x = masked_rows(device, dtype)
    with soft(OFF[off]):
        assert wrong(lambda: torch.softmax(x, -1), reference=reference) == {"softmax"}
        assert wrong(lambda: x.t().softmax(dim=0), reference=reference) == {"softmax"}


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_which_of_nearly_equal_large_numbers_wins_is_still_free(device, dtype, reference):
    """A kernel that multiplies before it subtracts tells them apart otherwise."""
    x = masked_rows(device, dtype)

    def first_wins(shares):
        shares = shares.clone()
        if shares.shape[-1] == 7:
            shares[1] = 0
            shares[1, 2] = 1
        return shares

    with soft(first_wins):
        assert wrong(lambda: torch.softmax(x, -1), reference=reference) == set()


@pytest.mark.parametrize("reference", REFERENCES)
def test_an_imaginary_part_that_is_zero_does_not_overflow_with_the_real_one(device, reference):
    x = torch.tensor([100 + 0j, 1 + 2j, 100 + 1.5j, 0.5 - 1j]).to(device)

    def naive(x):
        x = x.cpu()
        growth = x.real.exp()
        return torch.complex(growth * x.imag.cos(), growth * x.imag.sin()).to("sim")

    with kernel("exp", naive):
        assert wrong(lambda: x[1:].exp(), reference=reference) == set()
        assert wrong(lambda: x.exp(), reference=reference) == {"exp"}
