"""What was reported as wrong and is allowed: a tool must not blame anybody for it."""

from __future__ import annotations

import torch
from benchmarks.reported.fault import BOTH, WRITTEN, Broken, Data, Family, Wrong
from torch import Tensor
from torch.nn import functional

legal = Family("legal, or beside the call")

UNDEFINED = "PyTorch defines no result for numbers out of the dtype's range"
OTHER_ORDER = "another order of sums, as good as the first"
BESIDE = "it writes where the call names no tensor, and what it names is right"


@legal(
    "aten._to_copy",
    "intel/torch-xpu-ops#889",
    program=lambda data: data.tensor([57.8, 215.3, -300.0]).to(torch.int8),
    hidden=UNDEFINED,
)
def conversion_out_of_range_stops_at_the_end(call: Broken) -> Wrong:
    """The largest number of the dtype where others wrap around."""
    return call["self"].clamp(-128, 127) if call["dtype"] is torch.int8 else None


def bytes_from_a_negative_number(data: Data) -> Tensor:
    return torch.zeros(3, dtype=torch.uint8).to(data.device).copy_(data.tensor([-1.0, -1.0, -1.0]))


@legal("aten.copy_", "#160744", program=bytes_from_a_negative_number, hidden=UNDEFINED)
def negative_number_as_a_byte_is_zero(call: Broken) -> Wrong:
    """Zero where others have 255."""
    return torch.zeros_like(call.right[0]) if call["self"].dtype is torch.uint8 else None


def largest_among_equals(data: Data) -> Tensor:
    return data.tensor([[1.0, 2.0, 5.0, 4.0, 5.0]]).topk(2).indices


@legal(
    "aten.topk", "#27542", program=largest_among_equals, dtypes=BOTH, hidden="which of equal values comes first is free"
)
def topk_orders_equal_values_otherwise(call: Broken) -> Wrong:
    """The indices of two equal values are exchanged."""
    return (None, call.right[1].flip(-1))


def long_product(data: Data) -> Tensor:
    return data.parameter(4, 400) @ data.parameter(400, 4)


@legal("aten.mm", "intel/torch-xpu-ops#3216", program=long_product, hidden=OTHER_ORDER)
def product_adds_in_another_order(call: Broken) -> Wrong:
    """The sum is put together from two halves."""
    half = call["self"].shape[1] // 2
    left, right = call["self"].float(), call["mat2"].float()
    return left[:, :half] @ right[:half] + left[:, half:] @ right[half:]


def dropped(data: Data) -> Tensor:
    return functional.dropout(data.parameter(1000), 0.1)


@legal("aten.native_dropout", "intel/torch-xpu-ops#2926", program=dropped, hidden="another draw")
def dropout_draws_otherwise_than_another_device(call: Broken) -> Wrong:
    """Other elements are dropped than on CUDA, with the same seed."""
    mask = call.right[1].roll(3)
    return (call["input"] * mask / (1 - call["p"]), mask)


def element_is_zeroed(data: Data) -> Tensor:
    x = data.normal(6)
    x[1].zero_()
    return x + 0


@legal("aten.zero_", "#114692", program=element_is_zeroed, dtypes=BOTH, hidden=BESIDE)
def zeroing_an_element_zeroes_the_next_one(call: Broken) -> Wrong:
    """The element behind the view is zero, too."""
    view = call.real("self")
    if view.dim():
        return None
    view.as_strided((2,), (1,)).zero_()
    return WRITTEN
