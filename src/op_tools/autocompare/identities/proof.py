"""What a proof is: numbers on the device that are small where a value is right; or a part of a call to be run again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, Union

import torch
from torch import Tensor

from op_tools.autocompare.identities.projections import Residual, Rounding, numbers
from op_tools.autocompare.observed import ObservedCall, output_names
from op_tools.core.gradients import Gradients
from op_tools.ops.names import normalized


class Measured(NamedTuple):
    """One value of a call. `numbers` are those of projections.NUMBERS."""

    name: str
    dtype: torch.dtype
    numbers: Tensor

    @classmethod
    def by(cls, name: str, value: Tensor, residual: Residual) -> Measured:
        return cls(name, value.dtype, numbers(residual))


class Sample(NamedTuple):
    """A part of a call, which is a call itself, and the gradients of that part."""

    call: ObservedCall
    gradients: Gradients | None = None


Proof = Union[Measured, Sample]


class Provable(Protocol):
    """A call whose results can be proven. It holds no more of the call than its gradients need."""

    def forward(self) -> Iterator[Proof]:
        """Its results; nothing where this call is one that cannot be proven."""
        ...

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        """The gradients of its inputs."""
        ...

    def tensors(self) -> list[Tensor]:
        """What `backward` will look at: it must not have changed."""
        ...


class Facts:
    """What a proof must know of a call, without its tensors."""

    def __init__(self, call: ObservedCall) -> None:
        self.output_name = output_names(call.name, 1)[0]
        self.gradient_names = call.given.gradient_names(call.name)
        self.base = normalized(call.name).base
        self._chosen = call.dtype_of_autocast()
        self._is_tf32 = call.is_tf32

    def rounding(self, *values: Tensor) -> Rounding | None:
        """Of these values: they may have been computed in a lower dtype that autocast has chosen."""
        dtypes = [value.dtype for value in values] + ([] if self._chosen is None else [self._chosen])
        return Rounding.of(dtypes, self._is_tf32)

    def as_computed(self, tensor: Tensor) -> Tensor:
        """As autocast has given it to the op."""
        tensor = tensor.detach()
        return tensor if self._chosen is None or not tensor.is_floating_point() else tensor.to(self._chosen)


def place_of(call: ObservedCall, tensor: object) -> int:
    """Among the call's tensors; −1 for what is none, or is there twice: its gradients come as one sum."""
    found = [place for place, one in enumerate(call.given.tensors) if one is tensor]
    return found[0] if len(found) == 1 else -1
