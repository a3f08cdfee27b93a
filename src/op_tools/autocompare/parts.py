"""Which part of a call a value is: an argument, a result, a gradient, or several of them end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch
from torch import Tensor

from op_tools.autocompare.reference.rerun import Run

Gradients = Optional[list[Optional[Tensor]]]


@dataclass(frozen=True)
class Input:
    """An argument, as it is after the call."""

    index: int

    def of(self, run: Run, gradients: Gradients) -> Any:
        return run.arguments.leaves[self.index]


@dataclass(frozen=True)
class Output:
    """A result."""

    index: int

    def of(self, run: Run, gradients: Gradients) -> Any:
        return run.results[self.index] if self.index < len(run.results) else None


@dataclass(frozen=True)
class Gradient:
    """The gradient of an argument."""

    place: int

    def of(self, run: Run, gradients: Gradients) -> Any:
        return None if gradients is None else gradients[self.place]


@dataclass(frozen=True)
class Many:
    """Tensors of a list, end to end."""

    parts: tuple[Input | Output, ...]

    def of(self, run: Run, gradients: Gradients) -> Any:
        return end_to_end([part.of(run, gradients) for part in self.parts])


def end_to_end(tensors: Sequence[Any]) -> Any:
    """Several tensors as one; None where they are none."""
    if not all(isinstance(tensor, Tensor) for tensor in tensors):
        return None
    with torch.no_grad():
        return torch._utils._flatten_dense_tensors(tuple(tensors))


def dense(tensor: Tensor) -> Tensor:
    """Its plain numbers: neither sparse nor a conjugate to be."""
    plain = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    return plain.resolve_conj().resolve_neg()


Part = Union[Input, Output, Gradient, Many]
