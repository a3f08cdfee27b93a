"""A first look at many results at once, on the device, without a wait: its numbers are read together later.

The numbers are those of statistics.Found, the same that a full verdict begins with: what is cleared here, it would
clear. Where there is Triton, two kernels do it for all pairs (fused.py); else torch's own, pair by pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare.judging import verdict
from op_tools.autocompare.judging.error_statistics import Found
from op_tools.autocompare.judging.measures import differing
from op_tools.autocompare.prefilter import fused
from op_tools.autocompare.prefilter.first_look import Look
from op_tools.device.queues import OUT_OF_MEMORY as OUT_OF_MEMORY

_COUNT, _NONFINITE = len(Found._fields), Found._fields.index("nonfinite")


def is_quick(tensors: Sequence[Tensor]) -> bool:
    """Whether the device of these tensors has looked at results before the CPU could."""
    return any(fused.is_there(tensor.device) for tensor in tensors)


def numbers_of(looks: list[Look]) -> Tensor:
    """A row of Found's numbers for each look, on the device."""
    is_there = fused.is_there(looks[0].got.device)
    together: dict[Any, list[int]] = {}
    for index, look in enumerate(looks):
        is_fused = is_there and look.elements and fused.fits(look.got, look.expected)
        key = (look.got.dtype, look.expected.dtype) if is_fused else None
        together.setdefault(key, []).append(index)
    parts = [
        torch.stack([_alone(looks[index]) for index in indices])
        if key is None
        else fused.look([looks[index] for index in indices])
        for key, indices in together.items()
    ]
    if len(parts) == 1:
        return parts[0]
    order = [index for indices in together.values() for index in indices]
    places = sorted(range(len(order)), key=order.__getitem__)
    return torch.cat(parts)[torch.tensor(places).to(parts[0].device, non_blocking=True)]


def _alone(look: Look) -> Tensor:
    got: Tensor = look.got
    if look.precision is not None and look.elements:
        return verdict.first_look(got, look.expected, look.precision, look.tolerance, look.allowance)
    numbers = torch.zeros(_COUNT, dtype=torch.float64, device=got.device)
    if look.elements:
        numbers[_NONFINITE] = differing(got, look.expected).sum()
    return numbers
