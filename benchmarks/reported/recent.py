"""Faults of a fifth set: chosen, written and sorted into findable or not before any of them was run with a tool."""

from __future__ import annotations

import torch
from benchmarks.reported.fault import BOTH, Broken, Data, Family, Wrong, as_if_contiguous
from torch import Tensor
from torch.nn import functional

recent = Family("written fifth", half="recent")


# ---- attention and norms ---------------------------------------------------------------------------------------------


def attention_without_a_mask(data: Data) -> Tensor:
    query, key, value = (data.parameter(1, 2, 12, 8) for _ in range(3))
    return functional.scaled_dot_product_attention(query, key, value)


@recent(
    "aten._scaled_dot_product_fused_attention_overrideable_backward",
    "triton-lang/triton#5660",
    program=attention_without_a_mask,
    dtypes=BOTH,
)
def gradient_of_plain_attention_is_that_of_causal_attention(call: Broken) -> Wrong:
    """The backward kernel masks what comes later, though the forward one did not."""
    return call.rerun(is_causal=True)[:3]  # type: ignore[no-any-return]


def root_mean_square_norm(data: Data) -> Tensor:
    return functional.rms_norm(data.parameter(16, 16), (16,), data.parameter(16))


@recent("aten.div.Scalar", "BobMcDear/attorch#17", program=root_mean_square_norm, dtypes=BOTH, phase="backward")
def correction_of_a_row_is_applied_to_a_column(call: Broken) -> Wrong:
    """In the gradient, what belongs to each row is spread along the other dimension."""
    return call.right[0].mT.clone() if call.right[0].dim() == 2 else None


def instance_norm(data: Data) -> Tensor:
    return functional.instance_norm(data.parameter(2, 3, 5, 5) + 1.0, weight=data.parameter(3), bias=data.parameter(3))


@recent("aten.native_batch_norm", "flagos-ai/FlagGems#5751", program=instance_norm, dtypes=BOTH, phase="forward")
def variance_of_an_instance_is_its_mean_square(call: Broken) -> Wrong:
    """The mean is not subtracted before the squares are taken."""
    x = call["input"].float()
    mean, scale = x.mean((0, 2, 3), keepdim=True), (x.square().mean((0, 2, 3), keepdim=True) + call["eps"]).rsqrt()
    weight, bias = (call[name].float().view(1, -1, 1, 1) for name in ("weight", "bias"))
    return ((x - mean) * scale * weight + bias,)


def polynomials(data: Data) -> Tensor:
    return torch.special.chebyshev_polynomial_v(data.uniform(5, 7).t() * 2 - 1, 4)


@recent("aten.special_chebyshev_polynomial_v", "flagos-ai/Torch-FL#173", program=polynomials)
def polynomials_of_a_transposed_tensor_are_of_other_places(call: Broken) -> Wrong:
    """The memory is read in order, whatever the strides say."""
    return call.rerun(x=as_if_contiguous(call["x"]))


# ---- activations -----------------------------------------------------------------------------------------------------


def learned_slopes(data: Data) -> Tensor:
    return functional.prelu(data.parameter(2, 5, 4, 5), data.parameter(5))


@recent("aten._prelu_kernel_backward", "flagos-ai/FlagGems#4992", program=learned_slopes, dtypes=BOTH)
def slopes_are_laid_along_the_last_dimension(call: Broken) -> Wrong:
    """A channel's slope is taken for that of a column."""
    return (call.rerun(weight=call["weight"].view(1, 1, 1, 5))[0],)


def gated(data: Data) -> Tensor:
    return functional.glu(data.parameter(6, 10))


@recent("aten.glu_backward", "unslothai/unsloth#3314", program=gated, dtypes=BOTH)
def gradients_of_gate_and_value_change_places(call: Broken) -> Wrong:
    """Each is stored where the other belongs."""
    value, gate = call.right[0].chunk(2, -1)
    return torch.cat([gate, value], -1)


def far_below_zero(data: Data) -> Tensor:
    return functional.silu(data.uniform(64) * 2.5 - 90.0)


@recent("aten.silu", "tenstorrent/tt-metal#55711", program=far_below_zero, phase="forward")
def silu_far_below_zero_is_zero(call: Broken) -> Wrong:
    """The reciprocal of a number that is nearly infinite is flushed to zero."""
    return torch.where(call["self"] <= -87.34, 0.0, call.right[0])


def soft_steps(data: Data) -> Tensor:
    return functional.softplus(data.parameter(64) * 5 - 11)


@recent("aten.softplus", "tenstorrent/tt-metal#9910", "tenstorrent/tt-metal#56382", program=soft_steps, phase="forward")
def softplus_adds_one_before_the_logarithm(call: Broken) -> Wrong:
    """The logarithm of a sum that was rounded near one."""
    return (1 + call["self"].exp()).log()


def tangents(data: Data) -> Tensor:
    return torch.tan(data.parameter(80, scale=20.0))


@recent("aten.tan", "tenstorrent/tt-metal#6735", "tenstorrent/tt-metal#14414", program=tangents, phase="forward")
def tangent_is_wrong_beyond_its_first_period(call: Broken) -> Wrong:
    """The argument is not reduced: a polynomial goes on where it does not hold."""
    x = call["self"]
    return torch.where(x.abs() < 1.5, call.right[0], x + x**3 / 3 + 2 * x**5 / 15)


def remainders_of_large_numbers(data: Data) -> Tensor:
    return torch.fmod(data.tensor([1e8, 7e6, 1e10, 12.0, -1e10, 5.5, 1e15, -3.25]), 3.0)


@recent("aten.fmod.Scalar", "tenstorrent/tt-metal#51661", program=remainders_of_large_numbers)
def remainder_of_a_large_number_is_a_difference(call: Broken) -> Wrong:
    """The quotient is rounded, multiplied and subtracted."""
    return call["self"] - torch.trunc(call["self"] * (1 / 3.0)) * 3.0


def logarithms_of_gamma(data: Data) -> Tensor:
    return torch.lgamma(data.parameter(5, 7).abs().t() + 0.5)


@recent("aten.lgamma", "#175187", program=logarithms_of_gamma, phase="forward")
def logarithm_of_gamma_reads_a_transposed_tensor_in_order(call: Broken) -> Wrong:
    """Right for other elements."""
    return call.rerun(self=as_if_contiguous(call["self"]))


def shifted_away(data: Data) -> Tensor:
    return torch.bitwise_right_shift(data.integers(2000, 12), data.tensor([1, 3, 64] * 4))


@recent("aten.bitwise_right_shift.Tensor", "#143555", program=shifted_away)
def shift_by_all_bits_begins_again(call: Broken) -> Wrong:
    """A number that was shifted by 64 bits comes back as it was."""
    return torch.where(call["other"] >= 64, call["self"], call.right[0])


# ---- products --------------------------------------------------------------------------------------------------------


def products_added_to_nothing(data: Data) -> Tensor:
    unused = data.tensor([[[float("nan")]]])
    return torch.baddbmm(unused, data.parameter(2, 4, 8), data.parameter(2, 8, 6), beta=0, alpha=0.5)


@recent(
    "aten.baddbmm", "#187521", "#194442", "MooreThreads/torch_musa#52", program=products_added_to_nothing, dtypes=BOTH
)  # fmt: skip
def what_is_multiplied_by_zero_is_added(call: Broken) -> Wrong:
    """NaN in what a product is added to comes through, though its factor is zero."""
    return call.right[0] + call["self"] * call["beta"]


def matrix_times_vector(data: Data) -> Tensor:
    return torch.mv(data.parameter(4, 4), data.parameter(4))


@recent("aten.mv", "triton-lang/triton#11153", program=matrix_times_vector, dtypes=BOTH, phase="forward")
def first_row_is_added_up_by_half(call: Broken) -> Wrong:
    """Half of the first row's products are lost."""
    short = call["self"].clone()
    short[0, 2:] = 0
    return call.rerun(self=short)


def enlarging_convolution(data: Data) -> Tensor:
    x, weight = data.parameter(1, 3, 4, 4), data.parameter(3, 2, 3, 3)
    return functional.conv_transpose2d(x, weight, data.parameter(2), stride=2, padding=1, output_padding=1)


@recent("aten.convolution", "mila-iqia/myia#338", program=enlarging_convolution, dtypes=BOTH, phase="forward")
def what_output_padding_adds_is_zero(call: Broken) -> Wrong:
    """The last row and column are not computed."""
    made = call.right[0].clone()
    made[..., -1, :] = 0
    made[..., -1] = 0
    return made
