"""The gradient of numbers that were moved adds up those of one place, often in its own dtype."""

from __future__ import annotations

import itertools

import pytest
import torch

from op_tools.autocompare.arguments import Arguments
from tests.op_tools.autocompare.net import compare_call

pytestmark = pytest.mark.usefixtures("who_looks")

TERMS = torch.tensor([0.7617, -0.6133, -0.1973, 0.0503]).bfloat16()  # nearly nothing is left of them


def is_blamed(order, off=0.0):
    """Of x[[1, 1, 1, 1]], whose four gradients were added up in bfloat16 in this order, as atomic sums do it."""
    x, places = torch.randn(3, 5).bfloat16().requires_grad_(), torch.tensor([1, 1, 1, 1])
    total = torch.zeros((), dtype=torch.bfloat16)
    for number in order:
        total = total + TERMS[number]
    flowed = torch.zeros(3, 5, dtype=torch.bfloat16)
    flowed[1] = total
    flowed[1, 2] += off
    given, arrived = Arguments((x, places), {}), TERMS.unsqueeze(-1).expand(4, 5).clone()
    function = torch.Tensor.__getitem__
    *_, found = compare_call("torch.Tensor.__getitem__", function, given, x[places], [arrived], [flowed, None])
    return found.is_wrong


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_any_order_of_the_terms_is_right(order):
    assert not is_blamed(order)


@pytest.mark.parametrize("off", [0.03, -0.0503, 0.6133])
def test_a_term_that_is_lost_is_found(off):
    assert is_blamed(range(4), off)
