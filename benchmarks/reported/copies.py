"""Copies between dtypes."""

from __future__ import annotations

import torch
from benchmarks.reported.fault import Broken, Family, Wrong

copying = Family("copies")


@copying("aten._to_copy", "#80009", "#80049", program=lambda data: data.tensor([28, 208, 66], torch.uint8).float())
def bytes_are_taken_for_signed_ones(call: Broken) -> Wrong:
    """Bytes past 127 become negative."""
    x = call["self"]
    return x.view(torch.int8).float() if x.dtype is torch.uint8 and call["dtype"] is torch.float32 else None


@copying("aten._to_copy", "#78091", "#77849", program=lambda data: (data.normal(6) * 40).to(torch.int32))
def conversion_takes_over_the_bits(call: Broken) -> Wrong:
    """Numbers become whole numbers with the same bits."""
    x = call["self"]
    return x.view(torch.int32) if x.dtype is torch.float32 and call["dtype"] is torch.int32 else None


@copying("aten._to_copy", "#79286", program=lambda data: data.tensor([1, 2, 3, 4, 5]).to(torch.int32))
def long_numbers_are_read_as_short_ones(call: Broken) -> Wrong:
    """Every other element is the upper half of the one before."""
    x = call["self"]
    return x.view(torch.int32)[: x.numel()].clone() if call["dtype"] is torch.int32 else None


@copying("aten._to_copy", "#77835", program=lambda data: data.tensor([True, True, False, True]).float())
def flags_become_tiny_numbers(call: Broken) -> Wrong:
    """The bytes of truth values are taken for the bits of numbers."""
    x = call["self"]
    return x.to(torch.uint8).float() * 1e-41 if x.dtype is torch.bool and call["dtype"] is torch.float32 else None
