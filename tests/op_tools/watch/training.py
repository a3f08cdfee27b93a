"""A small model that is trained, and what TrainingWatch wrote about it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn


def model(device):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16)), nn.Linear(16, 4)
    ).to(device)


def batch(device, step=0):
    torch.manual_seed(100 + step)
    return torch.randn(12, 8).to(device), torch.randint(4, (12,)).to(device)


def train(device, steps, net=None, optimizer=None, spoil=lambda step, net: None, lr=0.01):
    """The losses. `spoil` is called before each step."""
    net = model(device) if net is None else net
    optimizer = optimizer or torch.optim.AdamW(net.parameters(), lr=lr)
    losses = []
    for step in range(steps):
        spoil(step, net)
        x, y = batch(device, step)
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def written(folder, name="steps.jsonl"):
    """The lines of the only process."""
    (path,) = Path(folder).glob(f"watch_result/*/{name}")
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps_in(folder):
    return [line for line in written(folder) if "step" in line]


def named(folder):
    """The modules of each kind, as the file names them."""
    return {line["kind"]: line["modules"] for line in written(folder) if "modules" in line}
