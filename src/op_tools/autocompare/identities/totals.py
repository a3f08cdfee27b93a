"""Running totals of whole numbers in one long row, which has no other dimension to take a slice of.

Each total is the one before and one more number, so that a stretch of them begins with the total before it.

Of fractions this tells little: their errors grow with the whole row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.identities.projections import some
from op_tools.autocompare.identities.proof import Proof, Sample
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients
from op_tools.ops.names import normalized

_STRETCH = 2**14


class Totals:
    """One call of `cumsum`. Whole numbers have no gradients."""

    def __init__(self, call: ObservedCall) -> None:
        self._call = call

    @classmethod
    def of(cls, call: ObservedCall) -> Totals | None:
        given, result = call.given.tensors[:1], call.result
        if call.changed or normalized(call.name).base != "cumsum" or not given or not isinstance(result, Tensor):
            return None
        (row,) = given
        is_whole = not any(one.is_floating_point() or one.is_complex() for one in (row, result))
        if not is_whole or row.dim() != 1 or not row.numel() or row.layout is not torch.strided:
            return None
        count = min(_STRETCH, row.numel())
        start = some(count, row.numel())
        totals = result.detach()[start : start + count].clone()
        numbers = row.detach()[start : start + count].to(result.dtype, copy=True)  # the program may change them
        if start:
            numbers[0] += result.detach()[start - 1]
        return cls(replace(call, given=Arguments((numbers, 0), {"dtype": result.dtype}), kept=None, result=totals))

    def forward(self) -> Iterator[Proof]:
        yield Sample(self._call)

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        return iter(())

    def tensors(self) -> list[Tensor]:
        return []
