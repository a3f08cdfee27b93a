"""Training the demo's model: the same weights and the same data on whatever device, so that only the device differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ditorch.demo import gpt


@dataclass
class Run:
    """One training run: what it is called, its loss at every step, and what ended it early, if anything did."""

    title: str
    losses: list[float] = field(default_factory=list)
    failure: str = ""


def batches(size: int = 8, length: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
    """Random pieces of the model's own source code, and the same pieces one character later."""
    text = torch.tensor([min(ord(character), 127) for character in Path(gpt.__file__).read_text()])
    generator = torch.Generator().manual_seed(0)
    while True:
        starts = torch.randint(len(text) - length - 1, (size,), generator=generator).tolist()
        yield (
            torch.stack([text[start : start + length] for start in starts]),
            torch.stack([text[start + 1 : start + 1 + length] for start in starts]),
        )


def train(device: str, steps: int) -> Iterator[float]:
    """The loss of each step."""
    torch.manual_seed(0)
    model = gpt.GPT().to(device)  # the weights are drawn on the CPU, so they are the same everywhere
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _, (tokens, targets) in zip(range(steps), batches()):
        loss = model.loss(tokens.to(device), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
