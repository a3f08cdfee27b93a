"""Batch norm, layer norm and their kin."""

from __future__ import annotations

import torch
from benchmarks.reported.fault import BFLOAT16, BOTH, WRITTEN, Broken, Data, Family, Wrong
from torch import Tensor, nn
from torch.nn import functional

norm = Family("norms")


def batch_norm(data: Data) -> Tensor:
    module = data.module(nn.BatchNorm2d(6))
    result: Tensor = module(data.parameter(4, 6, 5, 5) + 0.3)
    return result


@norm("aten.native_batch_norm", "#94351", program=batch_norm, dtypes=BOTH)
def batch_norm_keeps_the_variance_for_the_gradient(call: Broken) -> Wrong:
    """What backward is handed is the variance, and not one over its root."""
    return (None, None, call.right[2].square().reciprocal() - call["eps"])


@norm("aten.native_batch_norm", "#84962", program=batch_norm, dtypes=BOTH)
def batch_norm_normalises_by_what_ran_before(call: Broken) -> Wrong:
    """In training, the running statistics are used in place of the batch's."""
    mean, variance = torch.zeros_like(call["running_mean"]), torch.ones_like(call["running_var"])
    return (call.rerun(training=False, running_mean=mean, running_var=variance)[0],)


def statistics_of_batch_norm(data: Data) -> Tensor:
    module = nn.BatchNorm2d(6).to(data.device)
    module(data.normal(2, 6, 2, 2))
    statistics: Tensor = module.running_var
    return statistics * 1


@norm("aten.native_batch_norm", "#42151", program=statistics_of_batch_norm)
def running_variance_is_biased(call: Broken) -> Wrong:
    """The running variance takes up the batch's without its correction."""
    unbiased, biased = (call["input"].var((0, 2, 3), unbiased=one) for one in (True, False))
    call.real("running_var").sub_(call["momentum"] * (unbiased - biased))
    return WRITTEN


def batch_norm_that_only_predicts(data: Data) -> Tensor:
    module = data.module(nn.BatchNorm2d(6)).eval()
    result: Tensor = module(data.parameter(4, 6, 5, 5) * 2)
    return result


@norm("aten.native_batch_norm_backward", "#156555", "#156867", program=batch_norm_that_only_predicts, dtypes=BOTH)
def gradient_in_evaluation_is_that_of_training(call: Broken) -> Wrong:
    """Fixed statistics are differentiated as if they came from the batch."""
    x, scale = call["input"], (call["running_var"] + call["eps"]).rsqrt()
    return (call.rerun(train=True, save_mean=x.mean((0, 2, 3)), save_invstd=scale)[0],)


@norm("aten.native_batch_norm_backward", "ROCm/MIOpen#2024", program=batch_norm, dtypes=BOTH)
def gradient_of_the_scale_is_too_small(call: Broken) -> Wrong:
    """Of a channel's gradient, a part of the pictures is left out."""
    return (None, call.right[1] * 0.84)


def layer_norm(data: Data) -> Tensor:
    return functional.layer_norm(data.parameter(24, 128), (128,), data.parameter(128), data.parameter(128))


@norm("aten.native_layer_norm_backward", "#183861", "#183864", program=layer_norm, dtypes=BOTH)
def half_of_the_parameters_get_no_gradient(call: Broken) -> Wrong:
    """Of each 64 features, the second half is dropped when partial sums are stored."""
    kept = torch.arange(128, device=call["input"].device) % 64 < 32
    return (None, *(gradient * kept for gradient in call.right[1:]))


def layer_norm_with_precise_parameters(data: Data) -> Tensor:
    weight, bias = (data.parameter(128, dtype=torch.float32) for _ in range(2))
    return functional.layer_norm(data.parameter(24, 128) + 2, (128,), weight, bias)


@norm("aten.native_layer_norm_backward", "#140259", program=layer_norm_with_precise_parameters, dtypes=BFLOAT16)
def statistics_are_rounded_for_the_gradient(call: Broken) -> Wrong:
    """Mean and deviation are cut to bfloat16 before the parameters' gradients are summed."""
    rounded = {name: call[name].bfloat16().to(call[name].dtype) for name in ("mean", "rstd")}
    return (None, call.rerun(**rounded)[1])


def layer_norm_of_data(data: Data) -> Tensor:
    return functional.layer_norm(data.normal(12, 16), (16,), data.parameter(16), data.parameter(16))


@norm("aten.native_layer_norm_backward", "#183825", program=layer_norm_of_data, dtypes=BOTH)
def parameters_get_no_gradient_where_the_input_wants_none(call: Broken) -> Wrong:
    """The gradients of weight and bias are never written."""
    return (None, *(torch.zeros_like(gradient) for gradient in call.right[1:]))


def layer_norm_of_like_numbers(data: Data) -> Tensor:
    return functional.layer_norm(data.parameter(6, 32, scale=5e-4), (32,), eps=1e-12)


@norm("aten.native_layer_norm", "#190491", "#186367", program=layer_norm_of_like_numbers)
def small_variance_is_taken_for_none(call: Broken) -> Wrong:
    """A variance below a millionth is set to zero."""
    x = call["input"]
    return ((x - x.mean(-1, keepdim=True)) * call["eps"] ** -0.5,)


def layer_norm_far_from_zero(data: Data) -> Tensor:
    return functional.layer_norm(data.parameter(6, 32) + 3000, (32,))


@norm("aten.native_layer_norm", "#190491", program=layer_norm_far_from_zero)
def variance_is_a_difference_of_squares(call: Broken) -> Wrong:
    """The mean of squares less the square of the mean: little is left of it far from zero."""
    x = call["input"]
    mean = x.mean(-1, keepdim=True)
    variance = (x.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
    return ((x - mean) * (variance + call["eps"]).rsqrt(),)


def wide_layer_norm(data: Data) -> Tensor:
    return functional.layer_norm(data.parameter(4, 512) + data.normal(512), (512,))


@norm("aten.native_layer_norm", "#191976", program=wide_layer_norm, dtypes=BOTH)
def parts_of_a_row_are_put_together_wrongly(call: Broken) -> Wrong:
    """The variance of a row is the mean of those of its parts: that between them is missing."""
    x = call["input"].float()
    variance = x.unflatten(-1, (4, -1)).var(-1, unbiased=False).mean(-1, keepdim=True)
    return ((x - x.mean(-1, keepdim=True)) * (variance + call["eps"]).rsqrt(),)
