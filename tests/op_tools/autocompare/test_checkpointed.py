"""Calls under checkpointing: their gradients are those of the second pass, whatever it was given."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import op_tools
from ditorch.sim import faults


class Changing(nn.Module):
    """Reads a buffer that it changes, so that each pass over it is another function."""

    def __init__(self) -> None:
        super().__init__()
        self.bounded = parametrizations.spectral_norm(nn.Linear(8, 24))
        self.head = nn.Linear(24, 5)
        self.register_buffer("average", torch.ones(24))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.bounded(x)
        with torch.no_grad():
            self.average.lerp_(hidden.detach().abs().mean(0) + 1, 0.5)
        hidden = torch.tanh(hidden) * self.average
        return F.cross_entropy(self.head(F.gelu(hidden)), y)


def trained(model: nn.Module, device: str, **arguments: object) -> op_tools.OpAutoCompare:
    x, y = torch.randn(6, 8, device=device), torch.arange(6, device=device) % 5
    with op_tools.OpAutoCompare(verbose=0, **arguments) as tool:
        for _ in range(2):
            checkpoint(model, x, y, use_reentrant=False).backward()
    return tool


@pytest.mark.parametrize(
    "arguments",
    [{}, {"reference": "device"}, {"reference": "identities"}, {"once": True}, {"worker": 1}],
    ids=lambda arguments: next((f"{name}={value}" for name, value in arguments.items()), "cpu"),
)
def test_state_that_a_checkpointed_pass_changes_blames_nobody(device, arguments):
    torch.manual_seed(0)
    tool = trained(Changing().to(device), device, **arguments)
    assert not tool.results, tool.results
    assert tool.summary.calls > 20


@pytest.mark.parametrize("kernel", ["aten.tanh_backward", "aten._log_softmax_backward_data", "aten.mul"])
def test_a_wrong_gradient_of_the_second_pass_is_found(device, kernel):
    torch.manual_seed(0)
    model = Changing().to(device)
    with faults.inject(f"{kernel}: scale=1.01"):
        tool = trained(model, device)
    name = {"aten.tanh_backward": "tanh", "aten.mul": "mul"}.get(kernel, "cross_entropy")
    assert any(name in row["op"] for row in tool.results)


def test_nested_regions_and_a_second_backward_pass(device):
    """Each backward pass computes the region anew, the inner ones, too."""
    torch.manual_seed(0)
    model = Changing().to(device)

    def outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return checkpoint(model, torch.sin(x), y, use_reentrant=False) + model(torch.cos(x), y)

    x, y = torch.randn(6, 8, device=device, requires_grad=True), torch.arange(6, device=device) % 5
    with op_tools.OpAutoCompare(verbose=0) as tool:
        loss = checkpoint(outer, x, y, use_reentrant=False)
        loss.backward(retain_graph=True)
        loss.backward()
    assert not tool.results, tool.results
