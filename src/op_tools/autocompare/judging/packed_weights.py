"""Weights of recurrent layers in one buffer: cuDNN alone knows in which order, and no other device has the kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from op_tools.autocompare.judging.limits import Tolerances
from op_tools.autocompare.judging.measures import EQUAL, same_bits
from op_tools.autocompare.judging.verdict import Row, Verdict
from op_tools.autocompare.observed import ObservedCall
from op_tools.ops.names import normalized


def packs(name: str) -> bool:
    return normalized(name).base == "_cudnn_rnn_flatten_weight"


def rows_of(call: ObservedCall, tolerances: Tolerances) -> list[Row]:
    """The buffer must hold the numbers of the weights, in any order, and nothing else but zeros."""
    held = _ordered(call.result)
    given = _ordered(torch.cat([weight.detach().flatten() for weight in call.given.tensors]).to(held.dtype))
    reason = ""
    if not same_bits(held, given):
        reason = f"the {held.numel():,} numbers that it holds are not those of the weights ({given.numel():,})"
    judged = Verdict(not reason, reason, EQUAL, math.inf if reason else 0.0)
    return [Row(f"{call.name} output", judged, *tolerances.of(call.name, call.result))]


def _ordered(numbers: Tensor) -> Tensor:
    flat = numbers.detach().flatten()
    return flat[flat != 0].sort().values
