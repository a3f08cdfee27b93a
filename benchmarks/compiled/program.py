"""What a compiled program is: a function that makes a step, which gives what is compared to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor, nn

Step = Callable[[], Sequence[Tensor]]


class Chosen(NamedTuple):
    """Where a program runs, and with which compiler: `chosen.compile` is torch.compile with it."""

    device: str
    backend: str

    def compile(self, function: Any = None, **options: Any) -> Any:
        return torch.compile(function, backend=self.backend, **options)

    def to(self, value: Any) -> Any:
        return value.to(self.device)


class CompiledProgram(NamedTuple):
    """`make` gives a step. `has_modules`: its ops are inside of modules."""

    name: str
    make: Callable[[Chosen], Step]
    has_modules: bool = True
    cannot: Sequence[str] = ()  # backends and devices that it is not written for


class Programs:
    """The programs of one file."""

    def __init__(self) -> None:
        self.all: list[CompiledProgram] = []

    def __call__(self, name: str, has_modules: bool = True, cannot: Sequence[str] = ()) -> Callable[..., Any]:
        def added(make: Callable[[Chosen], Step]) -> Callable[[Chosen], Step]:
            self.all.append(CompiledProgram(name, make, has_modules, cannot))
            return make

        return added


def state_of(loss: Tensor, module: nn.Module | Sequence[Tensor]) -> list[Tensor]:
    """A loss, and the gradients that it has left."""
    parameters = module.parameters() if isinstance(module, nn.Module) else module
    return [loss.detach().clone(), *(one.grad.detach().clone() for one in parameters if one.grad is not None)]


def training_step(model: nn.Module, loss_of: Callable[[], Tensor]) -> Step:
    """The usual one: gradients of a loss."""

    def step() -> list[Tensor]:
        model.zero_grad()
        loss = loss_of()
        loss.backward()
        return state_of(loss, model)

    return step
