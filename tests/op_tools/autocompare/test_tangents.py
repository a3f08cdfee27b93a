"""Gradients of calls whose tensors carry tangents (forward-mode AD): what flows back comes through those, too."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional as F  # noqa: N812

import op_tools
from ditorch.sim import faults

REASON = "tangents"


def trained(device: str, carries: bool = True, **arguments: object) -> op_tools.OpAutoCompare:
    """The loss has the derivative along a direction in it, as penalties on curvature have."""
    torch.manual_seed(0)
    x, way = torch.randn(9, 12, device=device), torch.randn(9, 12, device=device)
    weight = torch.randn(7, 12, device=device, requires_grad=True)
    with op_tools.OpAutoCompare(verbose=0, **arguments) as tool, forward_ad.dual_level():
        given = forward_ad.make_dual(x, way) if carries else x
        value, tangent = forward_ad.unpack_dual(F.celu(F.linear(given, weight)))
        loss = value.square().sum()
        if tangent is not None:
            loss = loss + tangent.square().sum()
        loss.backward()
    return tool


def not_compared(tool: op_tools.OpAutoCompare) -> set[str]:
    return {row["what"] for row in tool.results.not_looked_at if REASON in row["reason"]}


@pytest.mark.parametrize(
    "arguments",
    [{}, {"reference": "device"}, {"reference": "identities"}, {"worker": 1}],
    ids=lambda arguments: next((f"{name}={value}" for name, value in arguments.items()), "cpu"),
)
def test_gradients_through_tangents_blame_nobody(device, arguments):
    tool = trained(device, **arguments)
    assert not tool.results, tool.results
    assert "torch.nn.functional.linear" in not_compared(tool)


def test_results_that_carry_tangents_are_compared(device):
    with faults.inject("aten.elu: scale=1.01"):
        tool = trained(device)
    assert {row["op"] for row in tool.results} == {"torch.nn.functional.celu"}


def test_gradients_of_tensors_without_tangents_are_judged(device):
    with faults.inject("aten.elu_backward: scale=1.01"):
        tool = trained(device, carries=False)
    assert {row["op"] for row in tool.results} == {"torch.nn.functional.celu"}
    assert not_compared(tool) == set()
