"""Small models of several kinds, for benchmarks and tests. The GPT is ditorch.demo.gpt's."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from ditorch.demo.gpt import GPT


class ConvolutionalNet(nn.Module):
    """In the manner of ResNet: convolutions, batch norm, a shortcut, pooling."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
        self.block = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
        )
        self.head = nn.Linear(channels, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = functional.relu(x + self.block(x), inplace=True)
        logits: Tensor = self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self(x), y)


class Recurrent(nn.Module):
    """An LSTM of two layers that predicts the next token."""

    def __init__(self, vocabulary: int = 16, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.lstm(self.embedding(x))[0]).flatten(0, 1), y.flatten())


class Llama(nn.Module):
    """Hugging Face's, with random weights."""

    def __init__(self, vocabulary: int = 32, width: int = 32) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
        )
        self.model = LlamaForCausalLM(config)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = self.model(input_ids=x, labels=y).loss
        return loss


def tokens(vocabulary: int, batch: int, length: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(vocabulary, (batch, length), generator=generator) for _ in range(2)]


def pictures(batch: int, size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(batch, 3, size, size, generator=generator), torch.randint(4, (batch,), generator=generator)]


# name: (how to make it, how to make its data), in a size that one core trains in milliseconds
TINY: dict[str, tuple[Callable[[], Any], Callable[[], list[Tensor]]]] = {
    "GPT": (lambda: GPT(vocabulary=32, width=16, heads=2, layers=2, length=16), lambda: tokens(32, 2, 12)),
    "Llama": (Llama, lambda: tokens(32, 2, 12)),
    "CNN": (ConvolutionalNet, lambda: pictures(4, 8)),
    "LSTM": (Recurrent, lambda: tokens(16, 2, 12)),
}
# … and large enough for errors to be typical
SMALL: dict[str, tuple[Callable[[], Any], Callable[[], list[Tensor]]]] = {
    "GPT": (lambda: GPT(vocabulary=96, width=64, heads=4, layers=2, length=64), lambda: tokens(96, 4, 48)),
    "Llama": (lambda: Llama(96, 64), lambda: tokens(96, 4, 48)),
    "CNN": (lambda: ConvolutionalNet(16), lambda: pictures(8, 16)),
    "LSTM": (lambda: Recurrent(64, 32), lambda: tokens(64, 8, 24)),
}
