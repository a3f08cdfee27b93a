"""OpAutoCompare: what else must hold."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional

import op_tools
from ditorch.demo.gpt import GPT
from ditorch.sim import faults
from op_tools.autocompare.arguments import Arguments
from tests.op_tools.autocompare.net import compare_call

pytestmark = pytest.mark.usefixtures("who_looks")


def test_gpt_training_is_untouched(device):
    def train():
        torch.manual_seed(0)
        model = GPT(vocabulary=64, width=32, heads=2, layers=1, length=16).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(3):
            tokens = torch.randint(64, (2, 17)).to(device)
            loss = model.loss(tokens[:, :-1], tokens[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    plain = train()
    tool = op_tools.OpAutoCompare(verbose=0)
    with tool:
        assert train() == plain
    assert tool.summary.ranked() == []


def test_it_can_be_started_again(device):
    tool = op_tools.OpAutoCompare(verbose=0)
    x = torch.randn(4, 4, device=device)
    with faults.inject("aten.mm: scale=1.01"), tool:
        x @ x
    assert len(tool.summary.ranked()) == 1
    with tool:
        x @ x
    assert tool.summary.ranked() == []


def test_one_call_from_elsewhere_can_be_compared():
    x, weight = torch.randn(8, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    result = functional.linear(x, weight)
    gradient = torch.randn(8, 4)
    grads = torch.autograd.grad(result, (x, weight), gradient)
    given = Arguments((x, weight), {})
    forward, backward = compare_call("torch.nn.functional.linear", functional.linear, given, result, [gradient], grads)
    assert not forward.is_wrong
    assert not backward.is_wrong
    assert [row.name for row in backward.rows] == [f"torch.nn.functional.linear grad[{place}]" for place in (0, 1)]
    _, backward = compare_call(
        "torch.nn.functional.linear", functional.linear, given, result, [gradient], [grads[0], 1.01 * grads[1]]
    )
    assert [row.is_wrong for row in backward.rows] == [False, True]


@pytest.mark.parametrize("reference", ["cpu", "device"])
def test_random_numbers_that_require_gradients_cause_no_warning(device, reference):
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else torch warns once, perhaps in an earlier test
    try:
        with warnings.catch_warnings(record=True) as caught, op_tools.OpAutoCompare(reference=reference):
            warnings.simplefilter("always")
            torch.randn(40, device=device, requires_grad=True)
    finally:
        torch.set_warn_always(before)
    assert [str(warning.message) for warning in caught] == []
