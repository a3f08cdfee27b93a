"""A step of a compiled program that is the same each time, for faults that are tried one at a time."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import torch
from benchmarks.compiled.program import Chosen, CompiledProgram
from torch import Tensor, nn

WARM_UP_STEPS = 3


class Work:
    """A step of a program, always the same one: from the same weights and random numbers."""

    def __init__(self, program: CompiledProgram, chosen: Chosen) -> None:
        torch._dynamo.reset()
        torch.manual_seed(0)
        self._step = program.make(chosen)
        for _ in range(WARM_UP_STEPS):
            self._step()
        self._device = chosen.device
        self.remember()

    def remember(self) -> None:
        """It begins here from now on. Dynamo makes tensors of an optimizer's new ones when it compiles for a tool."""
        self._state = [(one, one.detach().clone()) for one in _tensors(self._device)]

    def __call__(self) -> list[Tensor]:
        with torch.no_grad():
            for tensor, first in self._state:
                tensor.copy_(first)
        torch.manual_seed(1)
        return [one.detach() for one in self._step()]

    def exact(self) -> list[Tensor]:
        """As fault_finding asks: what a fault does to a step tells it by itself."""
        return []

    def repeats(self) -> bool:
        pairs = zip(self(), self())
        return all(one.shape == other.shape and torch.equal(one.cpu(), other.cpu()) for one, other in pairs)


def _tensors(device: str) -> Iterator[Tensor]:
    """All that a program keeps: weights, buffers, an optimizer's state, data."""
    is_transformed = torch._C._functorch.is_functorch_wrapped_tensor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in gc.get_objects():
            if type(one) not in (Tensor, nn.Parameter) or is_transformed(one):
                continue
            is_kept = one.is_leaf and not one.is_inference() and one.device.type in (device, "cpu")
            if is_kept and one.layout is torch.strided and one.numel() and 0 not in one.stride():
                yield one
