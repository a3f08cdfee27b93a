"""The small fixed programs whose output is compared with the files beside. Their source lines are printed, too."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 4.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


class Model(nn.Module):
    """A parameter, a list among the arguments, several results, arguments by name, an in-place op, a plain number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale()

    def forward(self, x: Tensor) -> Tensor:
        values, indices = self.scale(x).sort(descending=True)
        sums = values.sum([-1], keepdim=True)
        return sums.add_(indices[:, :1]) / 2


def model_and_input(device: str) -> tuple[Model, Tensor]:
    """Every result is a whole number or a half: the same on any device."""
    return Model().to(device), torch.tensor([[1.0, 2.0, 3.0], [6.0, 5.0, 4.0]]).to(device)


def train(model: Model, x: Tensor) -> None:
    model(x).sum().backward()


def overflow(x: Tensor) -> None:
    y = x - 1
    torch.div(x, y)
    torch.sqrt(y).sum().backward()


def is_matrix(a: Tensor, b: Tensor) -> bool:
    print(f"the condition is asked, {a.dim()} dimensions")
    return a.dim() == 2


def halved(a: Tensor, b: Tensor) -> Tensor:
    """A function of a third party that is wrong on the accelerator."""
    return (a + b) / (2 if a.is_cpu else 4)


def third_party(x: Tensor) -> None:
    halved(x, x)


def conditional(matrix: Tensor, vector: Tensor) -> None:
    torch.add(matrix, matrix)
    torch.add(vector, vector)
