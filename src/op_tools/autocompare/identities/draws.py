"""Large calls that draw random numbers: a stretch of what came out, which the CPU judges by what no chance can draw."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from op_tools.autocompare import clones
from op_tools.autocompare.identities.projections import some
from op_tools.autocompare.identities.samples import STRETCH, WithoutGradients
from op_tools.autocompare.identities.slices import MAX_SLICE
from op_tools.autocompare.judging import random_ops
from op_tools.autocompare.observed import ObservedCall, hollow
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.ops.names import normalized


def stretch_of_draws(call: ObservedCall) -> WithoutGradients | None:
    result = call.result
    if not isinstance(result, Tensor) or not result.numel() or result.layout is not torch.strided:
        return None
    if not catalogue.has(call.name, Trait.RANDOM) or catalogue.has(call.name, Trait.DROPOUT):
        return None
    base = normalized(call.name).base
    if base == "multinomial":
        return _rows(call, result)
    if base == "randperm":
        return WithoutGradients(replace(call, result=clones.clone(result))) if result.numel() <= MAX_SLICE else None
    if random_ops.draws_of(call.name, call.given.args, call.given.kwargs) is None or not clones.is_dense(result):
        return None
    count = min(STRETCH, result.numel())
    start = result.storage_offset() + some(count, result.numel())
    stretch = result.detach().as_strided((count,), (1,), start).clone()  # in whatever order: they are random
    given = call.given.mapped(lambda tensor: hollow(stretch.shape, tensor.dtype, "cpu", False))
    return WithoutGradients(replace(call, given=given, kept=None, result=stretch, given_on_device=None))


def _rows(call: ObservedCall, drawn: Tensor) -> WithoutGradients | None:
    """Some rows of probabilities, with what was drawn by them."""
    weights = call.given.tensors[0].detach()
    of_all, width = (weights[None], drawn[None]) if weights.dim() == 1 else (weights, drawn), weights.shape[-1]
    count = min(of_all[0].shape[0], STRETCH // width or 1)
    if count * (width + drawn.shape[-1]) > MAX_SLICE:
        return None
    start = some(count, of_all[0].shape[0])
    shares, places = (one.narrow(0, start, count).clone() for one in of_all)
    given = call.given.mapped(lambda tensor: shares if tensor is call.given.tensors[0] else tensor)
    return WithoutGradients(replace(call, given=given, kept=None, result=places, given_on_device=None))
