"""Faults of the sixth set in what is computed element by element, reductions and searches; sixth.py has the first."""

from __future__ import annotations

import math

import torch
from benchmarks.reported.fault import BFLOAT16, BOTH, FLOAT16, Broken, Data, Wrong, as_if_contiguous
from benchmarks.reported.sixth import sixth
from torch import Tensor
from torch.nn import functional

ONE_UNIT = "off by one unit in the last place, as a sum in another order may be"

# ---- element by element ----------------------------------------------------------------------------------------------


def far_left_of_a_gate(data: Data) -> Tensor:
    x = (data.uniform(64) * -2.5 - 2.5).requires_grad_()
    data.leaves.append(x)
    return functional.gelu(x)


@sixth("aten.gelu_backward", "tenstorrent/tt-metal#35971", program=far_left_of_a_gate, dtypes=BFLOAT16)
def gradient_of_gelu_rounds_the_error_function(call: Broken) -> Wrong:
    """One plus an error function of 16 bits: nothing is left of it far below zero."""
    x = call["self"].float()
    chance = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)).bfloat16().float())
    return call["grad_output"].float() * (chance + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


def small_growth(data: Data) -> Tensor:
    return torch.expm1(data.parameter(64, scale=0.003))


@sixth("aten.expm1", "tenstorrent/tt-metal#28187", program=small_growth, dtypes=BOTH)
def expm1_is_exp_minus_one(call: Broken) -> Wrong:
    """What is small is lost beside one."""
    return call["self"].exp() - 1


def cubes_of_padded_numbers(data: Data) -> Tensor:
    x = data.normal(40).clamp(min=0).requires_grad_()
    data.leaves.append(x)
    return x**3


@sixth(
    "aten.pow.Tensor_Scalar",
    "tenstorrent/tt-metal#56383",
    program=cubes_of_padded_numbers,
    dtypes=BOTH,
    phase="backward",
)
def gradient_of_a_power_of_zero_is_infinite(call: Broken) -> Wrong:
    """The guard for numbers below zero takes zero in."""
    return torch.where(call["self"] <= 0, torch.inf, call.right[0])


def divided_by_nothing(data: Data) -> Tensor:
    return torch.div(data.parameter(4, 6), 0.0)


@sixth("aten.div.Tensor", "torch-spyre/torch-spyre#1867", program=divided_by_nothing, dtypes=FLOAT16, phase="forward")
def division_by_zero_is_finite(call: Broken) -> Wrong:
    """A large number comes out and no infinity."""
    return call.right[0].clamp(-65504.0, 65504.0)


def bins(data: Data) -> Tensor:
    return (data.integers(50, 40) - 25) // 4


@sixth("aten.floor_divide", "NVIDIA/warp#1918", "triton-lang/triton#619", program=bins)
def floor_division_of_whole_numbers_cuts_off(call: Broken) -> Wrong:
    """Quotients below zero are rounded toward zero."""
    return torch.div(call["self"], call["other"], rounding_mode="trunc")


def counts_as_numbers(data: Data) -> Tensor:
    return data.integers(5000, 60).to(torch.bfloat16)


def cut_off(tensor: Tensor) -> Tensor:
    """To 16 bits without rounding."""
    return (tensor.contiguous().view(torch.int32) & ~0xFFFF).view(torch.float32)


@sixth("aten._to_copy", "tile-ai/tilelang#2483", program=counts_as_numbers, dtypes=BFLOAT16)
def whole_numbers_become_short_ones_without_rounding(call: Broken) -> Wrong:
    """The lower bits are cut off."""
    if call["dtype"] is not torch.bfloat16 or call["self"].is_floating_point():
        return None
    return cut_off(call["self"].float())


def squares(data: Data) -> Tensor:
    return torch.square(data.parameter(64))


@sixth(
    "aten.pow.Tensor_Scalar", "tenstorrent/tt-metal#57408", program=squares, dtypes=BFLOAT16, phase="forward",
    hidden=ONE_UNIT,
)  # fmt: skip
def squares_are_cut_off(call: Broken) -> Wrong:
    """Results are stored without rounding."""
    return cut_off(call["self"].float().square())


def chosen_from_a_broadcast_picture(data: Data) -> Tensor:
    chosen = data.integers(2, 4, 3, 3).bool()
    return torch.where(chosen, data.parameter(4, 3, 3), data.parameter(1, 3, 3))


@sixth(
    "aten.where.self",
    "tracel-ai/burn#5730",
    "tracel-ai/cubecl#1674",
    program=chosen_from_a_broadcast_picture,
    dtypes=BOTH,
    phase="forward",
)
def mask_holds_in_the_first_block_of_a_broadcast_only(call: Broken) -> Wrong:
    """In later blocks everything counts as chosen."""
    made = call.right[0].clone()
    made[1:] = call["self"][1:]
    return made


def weighted_columns(data: Data) -> Tensor:
    return (data.parameter(4, 5) * data.parameter(1, 5).expand(4, 5)).sum(1)


@sixth("aten.mul.Tensor", "sonots/cumo#215", program=weighted_columns, dtypes=BOTH, phase="forward")
def a_repeated_row_is_walked_on(call: Broken) -> Wrong:
    """A stride of zero is taken for one: rows after the first read what lies behind."""
    return call["self"] * as_if_contiguous(call["other"])


def mean_on_top_of_zeros(data: Data) -> Tensor:
    x = data.parameter(3, 128)
    return x.mean(-1, keepdim=True) + torch.zeros_like(x) + data.parameter(128)


@sixth("aten.add.Tensor", "torch-spyre/torch-spyre#1303", program=mean_on_top_of_zeros, dtypes=BOTH, phase="forward")
def a_column_is_spread_over_64_numbers_only(call: Broken) -> Wrong:
    """Behind them begins the number of the next row."""
    column = call["self"]
    if column.shape[-1] != 1:
        return None
    return torch.cat([call.right[0][:, :64], column.roll(-1, 0) + call["other"][:, 64:]], 1)


def ratio_times_nothing(data: Data) -> Tensor:
    factor = data.tensor([1.0, float("nan"), 2.0, float("inf")])
    return torch.addcmul(data.parameter(4), factor, data.parameter(4), value=0.0)


@sixth("aten.addcmul", "#196924", program=ratio_times_nothing, dtypes=BOTH, phase="forward")
def nothing_times_nan_is_left_out(call: Broken) -> Wrong:
    """With a factor of zero the rest is copied, though the product is NaN."""
    return call["self"]


# ---- reductions and searches -----------------------------------------------------------------------------------------


def clipped_by_the_largest(data: Data) -> list[Tensor]:
    parameters = [data.normal(3, 4).requires_grad_(), data.normal(5).requires_grad_()]
    for parameter in parameters:
        parameter.grad = data.normal(*parameter.shape) * 4
    total = torch.nn.utils.clip_grad_norm_(parameters, 0.5, norm_type=math.inf)
    return [total] + [parameter.grad for parameter in parameters if parameter.grad is not None]


@sixth("aten.linalg_vector_norm", "meta-pytorch/torchrec#3199", program=clipped_by_the_largest, dtypes=BOTH)
def largest_norm_is_one(call: Broken) -> Wrong:
    """The sum is raised to one over the order, and one over infinity is zero."""
    return torch.ones_like(call.right[0]) if call["ord"] == math.inf else None


def nearest_of_twenty(data: Data) -> Tensor:
    return data.uniform(32, 20).argmin(1)


@sixth("aten.argmin", "flagos-ai/FlagGems#6447", program=nearest_of_twenty, dtypes=BOTH)
def smallest_lies_behind_the_end(call: Broken) -> Wrong:
    """What a block has more than the row counts as zero, and is found."""
    return torch.where(call["self"].amin(1) > 0, 20, call.right[0])


def largest_of_a_row(data: Data) -> Tensor:
    return data.normal(16, 12).argmax(-1)


@sixth("aten.argmax", "JuliaGPU/CuArrays.jl#304", program=largest_of_a_row, dtypes=BOTH)
def argmax_does_not_look_at_signs(call: Broken) -> Wrong:
    """A library's search for the largest magnitude serves for it."""
    return call["self"].abs().argmax(call["dim"])


def largest_of_each_place(data: Data) -> Tensor:
    return data.parameter(4, 5).scatter_reduce(0, data.integers(4, 9, 5), data.parameter(9, 5), "amax")


@sixth(
    "aten.scatter_reduce.two",
    "torch-spyre/torch-spyre#4351",
    program=largest_of_each_place,
    dtypes=BOTH,
    phase="forward",
)
def the_last_of_a_place_takes_it(call: Broken) -> Wrong:
    """What belongs to one place is not reduced: each overwrites the one before."""
    made = call["self"].clone()
    for places, values in zip(call["index"], call["src"]):
        made.scatter_(0, places[None], values[None])
    return made


def keys_of_a_grid(data: Data) -> Tensor:
    return torch.unique(data.integers(40, 60) + 2**25, return_inverse=True)[1]


@sixth("aten._unique2", "#195595", program=keys_of_a_grid)
def places_of_large_keys_are_looked_up_in_short_numbers(call: Broken) -> Wrong:
    """Keys that float32 cannot tell apart have one place."""
    keys = call.right[0].float()
    return (None, torch.searchsorted(keys, call["self"].float()))
