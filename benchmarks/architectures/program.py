"""What a program is: a model with a loss, and its data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

Data = list[Tensor]


class Program(NamedTuple):
    """`make` gives a module with a `loss` of the data."""

    name: str
    half: str  # "tuned" or "held-out"
    make: Callable[[], Any]
    data: Callable[[], Data]
    cannot: Sequence[str] = ()  # variants that it is not written for


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def whole(most: int, *shape: int, seed: int = 2) -> Tensor:
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(seed))
