"""Small calls: the CPU computes them as a whole, which takes no longer than a proof of them would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from op_tools.autocompare import clones
from op_tools.autocompare.identities.proof import Proof, Sample
from op_tools.autocompare.observed import ObservedCall, copied
from op_tools.core.gradients import Gradients
from op_tools.values import trees

MAX_ELEMENTS = 2**14  # of all tensors of a call together
MAX_TENSORS = 16  # of a longer list one is sampled
MAX_TENSORS_WITHOUT_SAMPLE = 128  # where that cannot be: the weights of recurrent layers


class Whole:
    """One small call. One that works in place has copies of what it was given, and `kept` what that is now."""

    def __init__(self, call: ObservedCall) -> None:
        given = call.given if call.changed else call.given.mapped(clones.as_it_lies)
        if call.kept is None:
            kept, result = None, trees.map_tensors(clones.as_it_lies, call.result)
        else:  # a call that works in place returns one of its arguments
            kept, result = call.kept.copied_with(call.result, clones.all_as_they_lie)
        self._call = replace(call, given=given, kept=kept, result=result, given_on_device=None)

    @classmethod
    def of(cls, call: ObservedCall, most: int = MAX_TENSORS) -> Whole | None:
        """`most`: tensors that it may have, and may give."""
        is_known = not call.changed or call.kept is not None
        is_whole = is_known and not call.depends_on_layout() and is_small(call.given.tensors, most)
        return cls(call) if is_whole and is_small([*trees.tensors(call.result)], most) else None

    def forward(self) -> Iterator[Proof]:
        yield Sample(self._call)

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        yield Sample(self._call.for_backward(), copied(gradients, clones.all_as_they_lie))

    def tensors(self) -> list[Tensor]:
        return []  # it has copies


class OfView:
    """The gradient of a small view, which depends on no numbers of its input."""

    def __init__(self, call: ObservedCall) -> None:
        self._call = call

    @classmethod
    def of(cls, call: ObservedCall) -> OfView | None:
        return cls(call) if is_small([*call.given.tensors, *trees.tensors(call.result)]) else None

    def forward(self) -> Iterator[Proof]:
        return iter(())

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        yield Sample(self._call, copied(gradients, clones.all_as_they_lie))

    def tensors(self) -> list[Tensor]:
        return []


def is_small(tensors: Sequence[Tensor], most: int = MAX_TENSORS) -> bool:
    """Whether the CPU may compute a call with these tensors as a whole."""
    if len(tensors) > most:
        return False
    plain = all(tensor.layout is torch.strided and not tensor.is_quantized for tensor in tensors)
    return plain and sum(tensor.numel() for tensor in tensors) <= MAX_ELEMENTS
