"""Whole models: ten training steps give the same losses to the last bit, whatever watches them."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from ditorch.demo.gpt import GPT

from .test_identity import OBSERVING

STEPS = 10


class ConvolutionalNet(nn.Module):
    """In the manner of ResNet: convolutions, batch norm, a shortcut, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8),
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.stem(x)
        x = functional.relu(x + self.block(x), inplace=True)
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))

    def loss(self, x, y):
        return functional.cross_entropy(self(x), y)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.lstm = nn.LSTM(8, 8, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(8, 16)

    def loss(self, x, y):
        return functional.cross_entropy(self.head(self.lstm(self.embedding(x))[0]).flatten(0, 1), y.flatten())


class Llama(nn.Module):
    """Hugging Face's, with random weights."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=32,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32,
        )
        self.model = LlamaForCausalLM(config)

    def loss(self, x, y):
        return self.model(input_ids=x, labels=y).loss


class CheckpointedGPT(GPT):
    def forward(self, tokens):
        x = self.token(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


def tokens(vocabulary):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(vocabulary, (2, 12), generator=generator) for _ in range(2)]


def pictures():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 3, 8, 8, generator=generator), torch.randint(4, (4,), generator=generator)]


MODELS = {
    "GPT": (lambda: GPT(vocabulary=32, width=16, heads=2, layers=2, length=16), lambda: tokens(32)),
    "checkpointed GPT": (
        lambda: CheckpointedGPT(vocabulary=32, width=16, heads=2, layers=2, length=16),
        lambda: tokens(32),
    ),
    "CNN": (ConvolutionalNet, pictures),
    "LSTM": (Recurrent, lambda: tokens(16)),
    "Llama": (Llama, lambda: tokens(32)),
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
