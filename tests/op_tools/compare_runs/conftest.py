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
        self.adds_a_call = False

    def forward(self, x):
        y = self.norm(torch.nn.functional.gelu(self.up(x)))
        if self.adds_a_call:
            y = y.clone()
        return self.down(y).tanh()


@pytest.fixture
def record(device):
    """Trains for two steps; the folder of its statistics."""
    if device != "sim":
        pytest.skip("breaks kernels of the simulated device")

    def run(name, fault="", seed=0, data_seed=0, dtype=None, **options):
        STEPS.forget()
        torch.manual_seed(seed)
        net = Net().to(device)
        net.adds_a_call = options.pop("adds_a_call", False)
        optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
        injection = faults.inject(fault, device) if fault else None
        generator = torch.Generator().manual_seed(data_seed)
        other_step = options.pop("other_step", None)
        options = {"mode": "statistics", **options}
        with op_tools.OpCapture(out=name, verbose=0, **options):
            for step in range(2):
                x = torch.randn(16, 24, generator=generator).to(device)
                x = x.flip(0) if step == other_step else x
                with torch.autocast(device, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                    loss = net(x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        if injection is not None:
            injection.remove()
        return Path(name)

    return run
