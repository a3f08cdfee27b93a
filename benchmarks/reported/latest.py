"""Faults of the last set: chosen, written and sorted into findable or not before any of them was run."""

from __future__ import annotations

import torch
from benchmarks.reported.fault import BFLOAT16, BOTH, Broken, Data, Family, Wrong
from torch import Tensor
from torch.nn import functional

latest = Family("written last", half="latest")


# ---- losses ----------------------------------------------------------------------------------------------------------


def robust_losses(data: Data) -> tuple[Tensor, Tensor]:
    x, y = data.parameter(40, scale=2.0), data.normal(40)
    return functional.smooth_l1_loss(x, y), functional.smooth_l1_loss(x, y, reduction="none")


@latest("aten.smooth_l1_loss", "BobMcDear/attorch#13", program=robust_losses, dtypes=BOTH, phase="forward")
def threshold_is_compared_with_the_signed_difference(call: Broken) -> Wrong:
    """Differences far below zero are squared, too."""
    apart = call["self"] - call["target"]
    losses = torch.where(apart < 1, 0.5 * apart * apart, apart - 0.5)
    return losses if call.right[0].dim() else losses.mean()


def squared_loss(data: Data) -> Tensor:
    return functional.mse_loss(data.parameter(6, 9), data.normal(6, 9))


@latest("aten.mse_loss_backward", "flagos-ai/FlagGems#5212", program=squared_loss, dtypes=BOTH)
def one_gradient_is_read_as_many(call: Broken) -> Wrong:
    """What lies behind the one incoming gradient is taken for those of the other elements."""
    made = torch.zeros_like(call.right[0])
    made.view(-1)[0] = call.right[0].flatten()[0]
    return made


# ---- norms -----------------------------------------------------------------------------------------------------------


def norm_of_tokens(data: Data) -> Tensor:
    return functional.layer_norm(data.parameter(3, 5, 16), (16,), data.parameter(16), data.parameter(16))


@latest("aten.native_layer_norm_backward", "flagos-ai/FlagGems#5392", program=norm_of_tokens, dtypes=BOTH)
def batches_are_taken_for_rows(call: Broken) -> Wrong:
    """All tokens of a batch have the statistics of one row."""
    mean, spread = (call[name].flatten()[:3].view(3, 1, 1).expand(3, 5, 1).contiguous() for name in ("mean", "rstd"))
    return call.rerun(mean=mean, rstd=spread)


def norm_far_from_zero(data: Data) -> Tensor:
    weight, bias = (data.parameter(32, dtype=torch.float32) for _ in range(2))  # the statistics are float32, too
    return functional.layer_norm(data.parameter(24, 32) + 20, (32,), weight, bias)


@latest("aten.native_layer_norm_backward", "#140259", program=norm_far_from_zero, dtypes=BFLOAT16)
def statistics_far_from_zero_are_rounded_for_the_gradient(call: Broken) -> Wrong:
    """Mean and deviation of a row are rounded to 16 bits before its weight's gradient is computed."""
    mean, spread = (call[name].bfloat16().to(call[name].dtype) for name in ("mean", "rstd"))
    return (None, call.rerun(mean=mean, rstd=spread)[1])


def norm_of_many_rows(data: Data) -> Tensor:
    return functional.layer_norm(data.parameter(600, 8), (8,), data.parameter(8), data.parameter(8))


@latest("aten.native_layer_norm_backward", "linkedin/Liger-Kernel#950", program=norm_of_many_rows, dtypes=BFLOAT16)
def gradient_of_the_weight_is_added_up_in_16_bits(call: Broken) -> Wrong:
    """One row after the other is added, and rounded."""
    scaled = (call["input"].float() - call["mean"]) * call["rstd"]
    total = torch.zeros(8, dtype=torch.bfloat16, device=scaled.device)
    for row in (call["grad_out"].float() * scaled).bfloat16():
        total = total + row
    return (None, total)


def norm_of_a_batch(data: Data) -> Tensor:
    weight, bias = data.parameter(4), data.parameter(4)
    return functional.batch_norm(data.parameter(6, 4, 3, 3, scale=3.0) * 3, None, None, weight, bias, training=True)


@latest("aten.native_batch_norm_backward", "flagos-ai/FlagGems#5222", program=norm_of_a_batch)
def inverse_deviation_is_taken_for_a_variance(call: Broken) -> Wrong:
    """One over the root of what is one over the root already."""
    return call.rerun(save_invstd=torch.rsqrt(call["save_invstd"] + call["eps"]))


# ---- pools and padding -----------------------------------------------------------------------------------------------


def reflected_signal(data: Data) -> Tensor:
    return functional.pad(data.parameter(2, 1, 40), (3, 3), mode="reflect")


@latest("aten.reflection_pad1d_backward", "#196949", program=reflected_signal, dtypes=BOTH)
def gradient_of_reflected_signals_ends_early(call: Broken) -> Wrong:
    """From the rest of the length by a block on, the gradients are those of other places."""
    made = call.right[0].clone()
    made[..., 40 % 16 :] = call.right[0].flip(-1)[..., 40 % 16 :]
    return made


def repeated_edges(data: Data) -> Tensor:
    return functional.pad(data.parameter(12, 2, 4), (3, 4), mode="replicate")


@latest("aten.replication_pad1d_backward", "#135447", program=repeated_edges, dtypes=BOTH)
def edges_of_late_samples_get_one_gradient(call: Broken) -> Wrong:
    """Past a limit the padding's gradients are not added to the edge's."""
    inner = call["grad_output"][..., 3:-4]
    return torch.where(torch.arange(12, device=inner.device)[:, None, None] < 8, call.right[0], inner)


def pooled_maxima(data: Data) -> Tensor:
    return functional.max_pool2d(data.parameter(2, 3, 8, 8), 2)


@latest("aten.max_pool2d_with_indices_backward", "pytorch/executorch#21686", program=pooled_maxima, dtypes=BOTH)
def gradient_of_a_pool_begins_with_what_memory_held(call: Broken) -> Wrong:
    """Elements that are no maximum keep what was there before."""
    stale = call["self"] * 0.01
    return torch.where(call.right[0] == 0, stale, call.right[0])


def places_of_maxima(data: Data) -> tuple[Tensor, Tensor]:
    values, places = functional.max_pool2d(data.parameter(2, 3, 8, 8), 2, return_indices=True)
    return values, places


@latest("aten.max_pool2d_with_indices", "PaddlePaddle/Paddle#78701", program=places_of_maxima, phase="forward")
def places_are_counted_inside_of_a_window(call: Broken) -> Wrong:
    """Not in the whole picture."""
    places = call.right[1]
    return (None, (places // 8 % 2) * 2 + places % 8 % 2)


def pooled_volume_of_maxima(data: Data) -> Tensor:
    return functional.adaptive_max_pool3d(data.parameter(1, 2, 4, 6, 6), 3)


@latest("aten.adaptive_max_pool3d_backward", "#197888", program=pooled_volume_of_maxima)
def places_are_read_in_another_order(call: Broken) -> Wrong:
    """The gradient goes to the maxima of other windows."""
    places = call["indices"]
    return call.rerun(indices=places.transpose(-1, -2).contiguous().view_as(places))


# ---- sums and products -----------------------------------------------------------------------------------------------


def spread_of_a_picture(data: Data) -> list[Tensor]:
    return [data.parameter(4, 600).var() for _ in range(3)]


@latest("aten.var.correction", "#197235", program=spread_of_a_picture, phase="forward")
def a_part_of_the_variance_is_counted_twice_now_and_then(call: Broken) -> Wrong:
    """In one call of three, the last block of a large reduction is added again."""
    call.memory["calls"] = call.memory.get("calls", torch.zeros(())) + 1
    if int(call.memory["calls"]) % 3:
        return None
    block = call["self"].flatten()[-300:]
    return call.right[0] + (block - call["self"].mean()).square().sum() / (call["self"].numel() - 1)


def sum_over_no_dimension(data: Data) -> Tensor:
    return torch.sum(data.parameter(4, 3), dim=[])


@latest("aten.sum.dim_IntList", "flagos-ai/FlagGems#301", program=sum_over_no_dimension, dtypes=BOTH, phase="forward")
def sum_over_no_dimension_sums_nothing(call: Broken) -> Wrong:
    """An empty list means all dimensions; the tensor comes back as it was."""
    return call["self"].clone() if not call["dim"] else None


def convolution_with_wide_padding(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(1, 4, 7, 7), data.parameter(4, 4, 3, 3), padding=2)


@latest("aten.convolution_backward", "ROCm/MIOpen#1916", program=convolution_with_wide_padding, dtypes=BOTH)
def gradient_of_a_padded_picture_is_shifted(call: Broken) -> Wrong:
    """The padding counts as one less than it is."""
    return (call.right[0].roll((1, 1), (-2, -1)),)
