"""Calls whose tensors the program's own hooks keep for backward: there they may be other ones."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn import functional as F  # noqa: N812

import op_tools
from ditorch.sim import faults

REASON = "its tensors were kept by the program's saved_tensors_hooks"


def rounded(x: torch.Tensor) -> torch.Tensor:
    """As training keeps its graph in few bits."""
    return (x * 8).round() / 8 if x.is_floating_point() else x


def kept(x: torch.Tensor) -> torch.Tensor:
    return x


def trained(device: str, hooks: object, **arguments: object) -> op_tools.OpAutoCompare:
    torch.manual_seed(0)
    x, weight = torch.randn(9, 12, device=device), torch.randn(7, 12, device=device, requires_grad=True)
    with op_tools.OpAutoCompare(verbose=0, **arguments) as tool:
        with hooks:
            hidden = F.celu(F.linear(x, weight))
        hidden.square().sum().backward()
    return tool


def not_compared(tool: op_tools.OpAutoCompare) -> dict[str, int]:
    return {row["what"]: row["calls"] for row in tool.results.not_looked_at if REASON in row["reason"]}


@pytest.mark.parametrize(
    "arguments",
    [{}, {"reference": "device"}, {"reference": "identities"}, {"worker": 1}],
    ids=lambda arguments: next((f"{name}={value}" for name, value in arguments.items()), "cpu"),
)
def test_a_graph_that_is_kept_in_few_bits_blames_nobody(device, arguments):
    tool = trained(device, saved_tensors_hooks(rounded, kept), **arguments)
    assert not tool.results, tool.results
    if arguments.get("reference") != "identities":  # which proves a piece of these results
        assert not_compared(tool).keys() >= {"torch.nn.functional.linear", "torch.nn.functional.celu"}


def test_results_under_such_hooks_are_compared(device):
    with faults.inject("aten.elu: scale=1.01"):
        tool = trained(device, saved_tensors_hooks(rounded, kept))
    assert {row["op"] for row in tool.results} == {"torch.nn.functional.celu"}


def test_gradients_under_hooks_that_change_nothing_are_right(device):
    tool = trained(device, saved_tensors_hooks(kept, kept))
    assert not tool.results
    assert not_compared(tool) == {}


def test_gradients_under_hooks_of_torch_are_judged(device):
    with faults.inject("aten.elu_backward: scale=1.01"):
        tool = trained(device, save_on_cpu())
    assert {row["op"] for row in tool.results} == {"torch.nn.functional.celu"}
