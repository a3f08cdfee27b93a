"""Running totals of whole numbers in one long row, which has no other dimension to take a slice of.

Each total is the one before and one more number, so that a stretch of them begins with the total before it.

Of fractions this tells little: their errors grow with the whole row.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.identities.projections import some
from op_tools.autocompare.identities.samples import STRETCH, WithoutGradients
from op_tools.autocompare.observed import ObservedCall
from op_tools.ops.names import normalized


def stretch_of_totals(call: ObservedCall) -> WithoutGradients | None:
    given, result = call.given.tensors[:1], call.result
    if call.changed or normalized(call.name).base != "cumsum" or not given or not isinstance(result, Tensor):
        return None
    (row,) = given
    is_whole = not any(one.is_floating_point() or one.is_complex() for one in (row, result))
    if not is_whole or row.dim() != 1 or not row.numel() or row.layout is not torch.strided:
        return None
    count = min(STRETCH, row.numel())
    start = some(count, row.numel())
    totals = result.detach()[start : start + count].clone()
    numbers = row.detach()[start : start + count].to(result.dtype, copy=True)  # the program may change them
    if start:
        numbers[0] += result.detach()[start - 1]
    return WithoutGradients(
        replace(call, given=Arguments((numbers, 0), {"dtype": result.dtype}), kept=None, result=totals)
    )
