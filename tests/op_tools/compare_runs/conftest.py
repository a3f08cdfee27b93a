"""Runs of a small network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import op_tools
from ditorch.sim import faults
from op_tools.core.steps import STEPS


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(24, 48), nn.LayerNorm(48), nn.Linear(48, 24)
        self.adds_a_call, self.drops = False, 0.0

    def forward(self, x):
        y = self.norm(torch.nn.functional.gelu(self.up(x)))
        if self.adds_a_call:
            y = y.clone()
        if self.drops:
            y = torch.nn.functional.dropout(y, self.drops)
        return self.down(y).tanh()


def evaluate(net, device):
    with torch.no_grad():
        net(torch.ones(16, 24, device=device)).square().mean()


@pytest.fixture
def record(device):
    """Trains, for two steps unless told otherwise; the folder of its statistics."""
    if device != "sim":
        pytest.skip("breaks kernels of the simulated device")

    def run(name, fault="", seed=0, data_seed=0, dtype=None, **options):
        STEPS.forget()
        torch.manual_seed(seed)
        net = Net().to(device)
        net.adds_a_call, net.drops = options.pop("adds_a_call", False), options.pop("drops", 0.0)
        optimizer = torch.optim.AdamW(net.parameters(), foreach=options.pop("foreach", True))
        injection = faults.inject(fault, device) if fault else None
        generator = torch.Generator().manual_seed(data_seed)
        other_step = options.pop("other_step", None)
        steps, evaluates = options.pop("train_steps", 2), options.pop("evaluates", ())
        options = {"mode": "statistics", **options}
        random_seed = options.pop("random_seed", 0)
        with op_tools.OpCapture(out=name, verbose=0, **options):
            torch.manual_seed(random_seed)
            if "before" in evaluates:
                evaluate(net, device)
                op_tools.step()
            for step in range(steps):
                x = torch.randn(16, 24, generator=generator).to(device)
                x = x.flip(0) if step == other_step else x
                with torch.autocast(device, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                    loss = net(x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if "between" in evaluates:
                    evaluate(net, device)
                if "before" in evaluates:
                    op_tools.step()
            if "after" in evaluates:
                evaluate(net, device)
        if injection is not None:
            injection.remove()
        return Path(name)

    return run
