"""Whole models: ten training steps give the same losses to the last bit, whatever watches them."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
from benchmarks import models
from benchmarks.fault_finding import ModelWork
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import op_tools
from ditorch.demo.gpt import GPT

from .test_identity import OBSERVING

STEPS = 10


class CheckpointedGPT(GPT):
    def forward(self, tokens):
        x = self.token(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


MODELS = {
    **models.TINY,
    "checkpointed GPT": (
        lambda: CheckpointedGPT(vocabulary=32, width=16, heads=2, layers=2, length=16),
        models.TINY["GPT"][1],
    ),
}


def train(make, data, device, amp=None, loader_workers=0, steps=STEPS):
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    scaler = torch.amp.GradScaler(device, enabled=amp == torch.float16)
    inputs, targets = data()
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=len(inputs), num_workers=loader_workers)
    losses = []
    for _ in range(steps):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast(device, dtype=amp or torch.bfloat16, enabled=amp is not None):
                loss = model.loss(x.to(device), y.to(device))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    return losses, [parameter.detach().cpu() for parameter in model.parameters()]


def same(one, other):
    return one[0] == other[0] and all(torch.equal(a, b) for a, b in zip(one[1], other[1]))


@pytest.mark.parametrize("tool", OBSERVING)
@pytest.mark.parametrize("model", MODELS)
def test_ten_steps_are_the_same_under_each_tool(device, model, tool):
    make, data = MODELS[model]
    plain = train(make, data, device)
    with contextlib.redirect_stdout(io.StringIO()), OBSERVING[tool]():
        watched = train(make, data, device)
    assert same(plain, watched)
    assert plain[0][-1] < plain[0][0], "and it learns"


@pytest.mark.parametrize("amp", [torch.bfloat16, torch.float16], ids=str)
def test_all_tools_at_once_with_amp_and_loader_workers(device, amp):
    make, data = MODELS["GPT"]
    plain = train(make, data, device, amp, loader_workers=1, steps=3)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.ExitStack() as tools:
        for tool in OBSERVING.values():
            tools.enter_context(tool())
        watched = train(make, data, device, amp, loader_workers=1, steps=3)
    assert same(plain, watched)


@pytest.mark.slow
@pytest.mark.parametrize("reference", ["cpu", "device"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["GPT", "Llama", "CNN", "LSTM"])
def test_a_model_that_is_certain_is_not_blamed(device, name, dtype, reference):
    """Trained on the same data again and again, until its loss and gradients are small differences of large numbers."""
    work = ModelWork(name, dtype, device)
    for number in (4, 9, 14):
        work.vary(number)
        with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
            work()
        assert tool.summary.calls > 10
        assert tool.summary.ranked() == []
