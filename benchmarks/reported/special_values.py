"""NaN, infinity, zero and the ends of a range."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.reported.fault import BOTH, FLOAT32, Broken, Data, Family, Wrong
from torch import Tensor
from torch.nn import functional

special = Family("special values")


def with_nan(data: Data) -> Tensor:
    x = data.normal(24)
    x[3] = torch.nan
    return x


@special("aten.clamp", "#120899", "#122710", program=lambda data: with_nan(data).clamp(-1, 1), dtypes=BOTH)
def clamp_turns_nan_into_the_minimum(call: Broken) -> Wrong:
    """NaN becomes the lower bound."""
    return torch.where(call["self"].isnan(), call["min"], call.right[0])


def larger_with_nan(data: Data) -> Tensor:
    return torch.maximum(with_nan(data), data.normal(24))


@special("aten.maximum", "#143976", "#144086", program=larger_with_nan, dtypes=BOTH)
def maximum_loses_nan(call: Broken) -> Wrong:
    """The other number comes out."""
    return torch.fmax(call["self"], call["other"])


def clamp_of_whole_numbers(data: Data) -> Tensor:
    return data.tensor([0, 3, 5]).clamp(min=0.25)


@special("aten.clamp", "#130201", program=clamp_of_whole_numbers)
def clamp_of_whole_numbers_cuts_off_the_bound(call: Broken) -> Wrong:
    """A bound of 0.25 for whole numbers is taken for 0."""
    return call["self"].clamp(min=int(call["min"]))


def two_clamps(data: Data) -> Tensor:
    zeros = data.normal(3) * 0
    return zeros.clamp(min=0.0) + zeros.clamp(min=0.5)


@special("aten.clamp", "#167767", program=two_clamps, dtypes=BOTH)
def clamp_uses_the_bound_of_an_earlier_call(call: Broken) -> Wrong:
    """The first bound is kept, and used for all later calls of the same shape."""
    first = call.memory.setdefault("min", torch.tensor(call["min"]))
    return call["self"].clamp(min=float(first))


def logarithms_of_probabilities(data: Data) -> Tensor:
    return functional.log_softmax(data.parameter(3, 10, scale=60.0), -1)


@special("aten._log_softmax", "#94043", "#95091", program=logarithms_of_probabilities)
def log_softmax_takes_the_logarithm_of_zero(call: Broken) -> Wrong:
    """Computed as the logarithm of the softmax, which underflows."""
    return torch.softmax(call["self"], call["dim"]).log()


def masked_scores(data: Data) -> Tensor:
    return torch.softmax(torch.full((4, 16), 0.06).to(data.device, data.dtype) * data.parameter(4, 16), -1)


@special("aten._softmax", "#96602", program=masked_scores, dtypes=BOTH)
def softmax_of_a_large_tensor_is_nan(call: Broken) -> Wrong:
    """Some rows are NaN."""
    wrong = call.right[0].clone()
    wrong[-1] = torch.nan
    return wrong


def row_without_any(data: Data) -> Tensor:
    scores = data.normal(3, 6)
    scores[1] = -torch.inf
    return functional.log_softmax(scores, -1)


@special("aten._log_softmax", "#111416", program=row_without_any, dtypes=BOTH)
def log_softmax_of_a_masked_row_is_zero(call: Broken) -> Wrong:
    """A row of minus infinities gives 0 and not NaN."""
    return call.right[0].nan_to_num(0.0, neginf=-torch.inf)


def triangle_of_infinities(data: Data) -> Tensor:
    return torch.tril(torch.full((4, 4), torch.inf).to(data.device, data.dtype), -1)


def times_a_mask(call: Broken) -> Tensor:
    """Zero times infinity is NaN."""
    product: Tensor = call["self"] * call.right[0].isinf()
    return product


@special("aten.tril", "#149813", program=triangle_of_infinities, dtypes=BOTH)
def tril_multiplies_by_a_mask(call: Broken) -> Wrong:
    """What is to be zero is NaN where the tensor holds infinities."""
    return times_a_mask(call)


def causal_mask(data: Data) -> Tensor:
    return torch.triu(torch.full((1, 1, 6, 6), -torch.inf).to(data.device, data.dtype), 1)


@special("aten.triu", "#100005", "#144532", "#128575", program=causal_mask, dtypes=BOTH)
def triu_multiplies_by_a_mask(call: Broken) -> Wrong:
    """A causal mask of minus infinities has NaN below its diagonal."""
    return times_a_mask(call)


def floors_of_infinite_quotients(data: Data) -> Tensor:
    divided = data.tensor([torch.inf, -torch.inf, 1.0, -1.0, 7.0, -7.0])
    return torch.div(divided, data.tensor([1.0, 1.0, -torch.inf, torch.inf, 2.0, 2.0]), rounding_mode="floor")


@special("aten.div.Tensor_mode", "#189243", program=floors_of_infinite_quotients)
def floor_division_of_infinity_is_infinite(call: Broken) -> Wrong:
    """Computed as the floor of the quotient."""
    return (call["self"] / call["other"]).floor()


def remainders(data: Data) -> Tensor:
    return torch.remainder(data.tensor([-10, -9, 7, 8]), data.tensor([3, -4, -5, 3]))


@special("aten.remainder.Tensor", "kulinseth/pytorch#314", program=remainders)
def remainder_has_the_sign_of_the_dividend(call: Broken) -> Wrong:
    """The quotient is cut off and not rounded down."""
    return torch.fmod(call["self"], call["other"])


def remainders_of_large_numbers(data: Data) -> Tensor:
    return data.tensor([42309891, 16798993, 99]) % 31


@special("aten.remainder.Scalar", "#154171", program=remainders_of_large_numbers)
def remainder_of_whole_numbers_is_computed_in_float32(call: Broken) -> Wrong:
    """Beyond 2^24 it is wrong."""
    return torch.remainder(call["self"].float(), call["other"])


def signs_of_minus_zero(data: Data) -> Tensor:
    return torch.copysign(data.parameter(6), -0.0)


@special("aten.copysign", "#174172", program=signs_of_minus_zero, dtypes=BOTH)
def copysign_does_not_know_minus_zero(call: Broken) -> Wrong:
    """Minus zero is taken for zero."""
    return call["self"].abs()


def squares_of_complex_numbers(data: Data) -> Tensor:
    numbers: Any = [0j, 1 + 2j, -1j]
    return torch.tensor(numbers).to(data.device) ** 2


@special("aten.pow.Tensor_Scalar", "#146338", program=squares_of_complex_numbers)
def complex_power_of_zero_is_nan(call: Broken) -> Wrong:
    """By way of the logarithm."""
    return torch.where(call["self"] == 0, torch.nan, call.right[0])


def sizes_of_complex_numbers(data: Data) -> Tensor:
    numbers: Any = [1 + 0j, 0 + 10j, 100 + 0j, 1000 + 0j]
    return torch.tensor(numbers).to(data.device).abs()


@special("aten.abs", "#125135", "#126643", program=sizes_of_complex_numbers)
def complex_abs_leaves_every_other_element_zero(call: Broken) -> Wrong:
    """Results lie as far apart as complex numbers do."""
    wrong = torch.zeros_like(call.right[0])
    wrong[::2] = call.right[0][:2]
    return wrong


def sizes_of_large_complex_numbers(data: Data) -> Tensor:
    numbers: Any = [1e32 + 1e32j, 1e-30 + 1e-30j, 3 + 4j]
    return torch.tensor(numbers).to(data.device).abs()


@special("aten.abs", "#174246", program=sizes_of_large_complex_numbers)
def complex_abs_overflows(call: Broken) -> Wrong:
    """Squares of large numbers are infinite, those of small ones zero."""
    x = call["self"]
    return (x.real.square() + x.imag.square()).sqrt() if x.is_complex() else None


def enlarged_point(data: Data) -> Tensor:
    return functional.interpolate(data.parameter(3, 1, 1), 3, mode="linear", align_corners=True)


@special("aten.upsample_linear1d", "#144245", program=enlarged_point, dtypes=BOTH)
def enlarging_one_point_is_nan(call: Broken) -> Wrong:
    """With corners aligned, the size minus one is divided by."""
    return torch.full_like(call.right[0], torch.nan)


def norm_of_tiny_numbers(data: Data) -> Tensor:
    return functional.layer_norm(data.parameter(4, 16, scale=1e-10), (16,), eps=1e-12)


@special("aten.native_layer_norm", "#141642", program=norm_of_tiny_numbers, dtypes=FLOAT32)
def layer_norm_of_tiny_numbers_is_nan(call: Broken) -> Wrong:
    """The variance comes out below zero, and its root is NaN."""
    return (torch.full_like(call.right[0], torch.nan),)


def gate_of_a_large_number(data: Data) -> Tensor:
    cell = data.module(torch.nn.GRU(4, 5))
    result: Tensor = cell(data.normal(3, 2, 4, scale=200.0))[0]
    return result


@special("aten._thnn_fused_gru_cell", "#94691", program=gate_of_a_large_number)
def gru_overflows_in_its_hyperbolic_tangent(call: Broken) -> Wrong:
    """The tangent is a quotient of exponentials, both infinite."""
    return (torch.where(call.right[0].abs() > 0.5, torch.nan, call.right[0]),)
