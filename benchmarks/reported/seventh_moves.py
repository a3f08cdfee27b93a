"""Faults of the seventh set in moved data, pictures, optimizers and random numbers; seventh.py has the first."""

from __future__ import annotations

import math
from typing import Any

import torch
from benchmarks.reported.fault import BFLOAT16, BOTH, FLOAT16, FLOAT32, Broken, Data, Wrong, as_if_contiguous
from benchmarks.reported.seventh import seventh
from torch import Tensor
from torch.nn import functional

ANY_OF_THEM = "of several values for one place, any may stay"
NO_ORDER = "memory is read and written in one call, and PyTorch defines no order"

# ---- moved data ------------------------------------------------------------------------------------------------------


def notes_written_over(data: Data) -> Tensor:
    return data.parameter(5, 3).scatter(0, data.integers(5, 2, 3), data.parameter(2, 3))


@seventh("aten.scatter.value", "PaddlePaddle/Paddle#30604", program=notes_written_over, dtypes=BOTH)
def gradient_of_what_was_written_over_stays(call: Broken) -> Wrong:
    """A number that nobody sees any longer gets the gradient of what took its place."""
    return call["self"]


def two_rows_for_one_place(data: Data) -> Tensor:
    return data.normal(4, 3).index_copy(0, data.tensor([1, 3, 1]), data.normal(3, 3))


@seventh("aten.index_copy", "#166237", program=two_rows_for_one_place, dtypes=BOTH, hidden=ANY_OF_THEM)
def of_several_rows_the_first_stays(call: Broken) -> Wrong:
    """Rows are written from the last to the first."""
    return call.rerun(index=call["index"].flip(0), source=call["source"].flip(0))


def columns_for_rows(data: Data) -> Tensor:
    return data.parameter(5, 3).index_copy(0, data.tensor([4, 0]), data.parameter(3, 2).t())


@seventh("aten.index_copy", "#160993", program=columns_for_rows, dtypes=BOTH, phase="forward")
def copied_rows_are_read_in_order(call: Broken) -> Wrong:
    """The strides of what is copied are not looked at."""
    return call.rerun(source=as_if_contiguous(call["source"]))


def many_places(data: Data) -> Tensor:
    return data.parameter(400).index_fill(0, torch.arange(300, device=data.device), 2.0)


@seventh("aten.index_fill.int_Scalar", "torch/cutorch#336", program=many_places, phase="forward")
def places_after_the_256th_are_left_alone(call: Broken) -> Wrong:
    """Only as many as there are threads."""
    return call.rerun(index=call["index"][:256])


def marks(data: Data) -> Tensor:
    return torch.zeros(6, 8, dtype=torch.bool, device=data.device).scatter(1, data.integers(8, 6, 3), True)


@seventh("aten.scatter.value", "jax-ml/jax#38005", program=marks)
def of_neighbouring_flags_the_last_stays(call: Broken) -> Wrong:
    """Four flags are one word, which is read before and written after."""
    made = torch.zeros_like(call.right[0], device="cpu")
    for row, places in zip(made, call["index"].tolist()):
        for place in places:
            word = place // 4 * 4
            row[word : word + 4] = False
            row[place] = True
    return made.to(call.right[0].device)


def halves_one_below_the_other(data: Data) -> Tensor:
    return torch.cat(data.parameter(8, 6).split(3, -1), 0)


@seventh("aten.cat", "ROCm/triton#944", program=halves_one_below_the_other, dtypes=BFLOAT16, phase="forward")
def late_pieces_are_zero(call: Broken) -> Wrong:
    """Past a limit the place is below zero, and nothing is read."""
    made = call.right[0].clone()
    made[10:] = 0
    return made


def shifted_by_one(data: Data) -> Tensor:
    table = data.normal(3, 5)
    table[:, 1:] = table[:, :-1]
    return table


@seventh("aten.copy_", "#144861", program=shifted_by_one, dtypes=BOTH, hidden=NO_ORDER)
def overlapping_copy_reads_before_it_writes(call: Broken) -> Wrong:
    """Each column is the one before it, as if all were read first."""
    target = call["self"]  # with all of its memory as it was
    if target.stride() != (5, 1) or not target.storage_offset():
        return None
    return target.as_strided(target.size(), target.stride(), target.storage_offset() - 1)


def padded_with_seven(data: Data) -> Tensor:
    return functional.pad(data.parameter(5, 3), (1, 1), value=7.0)


@seventh("aten.constant_pad_nd", "tenstorrent/tt-metal#54223", program=padded_with_seven, phase="forward")
def padding_is_two_short_numbers(call: Broken) -> Wrong:
    """The number is packed as if two of 16 bits were asked for."""
    return call.rerun(value=7.0079193115234375)


def sorted_with_nan(data: Data) -> list[Tensor]:
    values = data.normal(4, 10)
    values[:, 3] = math.nan
    return list(values.sort(descending=True))


@seventh("aten.sort", "PaddlePaddle/Paddle#41070", program=sorted_with_nan, dtypes=BOTH)
def nan_is_the_smallest_of_all(call: Broken) -> Wrong:
    """From the largest down, NaN comes last."""
    places = call["self"].nan_to_num(nan=-math.inf).argsort(descending=True)
    return (call["self"].gather(-1, places), places)


# ---- pictures --------------------------------------------------------------------------------------------------------


def square_kernels(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(2, 3, 8, 8), data.parameter(4, 3, 3, 3), padding=1)


@seventh("aten.convolution", "#173068", program=square_kernels, dtypes=(*FLOAT32, *FLOAT16))
def rows_and_columns_of_a_kernel_change_places(call: Broken) -> Wrong:
    """One loop over both counts them the wrong way round."""
    return call.rerun(weight=call["weight"].transpose(-1, -2).contiguous())


def strided_volume_in_groups(data: Data) -> Tensor:
    return functional.conv3d(data.parameter(1, 4, 5, 5, 5), data.parameter(4, 2, 3, 3, 3), stride=2, groups=2)


@seventh("aten.convolution_backward", "ROCm/MIOpen#2560", program=strided_volume_in_groups)
def gradient_of_a_strided_volume_takes_neighbouring_windows(call: Broken) -> Wrong:
    """The step from window to window is that of another tensor."""
    gradient = functional.pad(call["grad_output"], (0, 1, 0, 1, 0, 1))
    return (None, call.rerun(grad_output=gradient, stride=[1, 1, 1])[1])


def one_by_one(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(2, 4, 6, 6), data.parameter(8, 4, 1, 1))


@seventh("aten.convolution_backward", "ROCm/MIOpen#670", program=one_by_one, dtypes=(*FLOAT32, *FLOAT16))
def last_pixels_do_not_train_a_kernel_of_one(call: Broken) -> Wrong:
    """Pixels after the last whole block of 16 are left out."""
    gradient = call["grad_output"].clone()
    gradient.view(2, 8, 36)[..., 32:] = 0
    return (None, call.rerun(grad_output=gradient)[1])


def spread_apart(data: Data) -> Tensor:
    return functional.conv_transpose2d(data.parameter(1, 2, 3, 3), data.parameter(2, 3, 1, 1), stride=2)


@seventh("aten.convolution_backward", "#63314", program=spread_apart)
def gradient_of_a_spread_picture_does_not_look_at_the_stride(call: Broken) -> Wrong:
    """The second pixel's gradient is that of its right neighbour, and not of the one it went to."""
    near = call["grad_output"][..., :3, :3]
    return (torch.einsum("nohw,co->nchw", near, call["weight"][..., 0, 0]),)


def spread_and_widened(data: Data) -> Tensor:
    return functional.conv_transpose2d(
        data.parameter(1, 2, 3, 3), data.parameter(2, 3, 3, 3), stride=2, padding=2, dilation=2
    )


@seventh("aten.convolution", "apache/mxnet#13876", program=spread_and_widened)
def widened_kernel_is_laid_one_further(call: Broken) -> Wrong:
    """What is to be cut off at the edge is counted without the dilation."""
    return functional.pad(call.right[0], (1, 0, 1, 0))[..., :-1, :-1]


def three_windows_of_five(data: Data) -> Tensor:
    return functional.adaptive_max_pool2d(data.parameter(2, 2, 5, 5), 3)


@seventh("aten.adaptive_max_pool2d", "#190064", program=three_windows_of_five, dtypes=BOTH)
def windows_all_have_one_size(call: Broken) -> Wrong:
    """Where sizes do not divide, windows differ; one kernel and one stride serve for all."""
    return functional.max_pool2d(call["self"], 3, 1, return_indices=True)


def pool_of_colours(data: Data) -> Tensor:
    return functional.avg_pool2d(data.parameter(2, 3, 8, 8).contiguous(memory_format=torch.channels_last), 2)


@seventh("aten.avg_pool2d_backward", "#175190", program=pool_of_colours, dtypes=BOTH)
def gradient_of_a_pool_takes_rows_for_colours(call: Broken) -> Wrong:
    """The picture has its channels last, and so the gradient is read, whatever its strides."""
    return call.rerun(grad_output=call["grad_output"].contiguous().view(2, 4, 4, 3).permute(0, 3, 1, 2))


def one_wide_window(data: Data) -> Tensor:
    return functional.avg_pool2d(data.uniform(1, 2, 64, 64) + 0.5, 64)


@seventh("aten.avg_pool2d", "huggingface/candle#3717", program=one_wide_window, dtypes=FLOAT16)
def sum_of_a_window_stands_still_at_2048(call: Broken) -> Wrong:
    """Kept in 16 bits, the sum of 4096 numbers does not grow any further."""
    return torch.full_like(call.right[0], 0.5)


def stretched_signal(data: Data) -> Tensor:
    return functional.interpolate(data.parameter(1, 1, 2), size=10, mode="linear", align_corners=True)


@seventh("aten.upsample_linear1d_backward", "flagos-ai/FlagGems#5218", program=stretched_signal)
def gradient_of_a_stretched_signal_leaves_out_its_far_points(call: Broken) -> Wrong:
    """The window that is searched belongs to corners that are not aligned."""
    made, gradient = call.right[0].clone(), call["grad_output"]
    made[..., 0] -= gradient[..., 8] / 9
    made[..., 1] -= gradient[..., 1] / 9
    return made


def largest_of_bags(data: Data) -> Tensor:
    words, bags = data.tensor([0, 1, 2, 3, 4, 0]), data.tensor([0, 3])
    return functional.embedding_bag(words, data.parameter(5, 3), bags, mode="max")


@seventh("aten._embedding_bag_backward", "flagos-ai/FlagGems#5220", program=largest_of_bags)
def gradient_of_the_largest_of_a_bag_is_that_of_its_mean(call: Broken) -> Wrong:
    """What is no sum is taken for a mean."""
    return call.rerun(mode=1)


# ---- optimizers ------------------------------------------------------------------------------------------------------


def three_steps(data: Data, kind: type[torch.optim.Optimizer], **settings: Any) -> list[Tensor]:
    parameters = [data.normal(4, 5).requires_grad_(), data.normal(3).requires_grad_()]
    used = kind(parameters, lr=0.1, fused=True, **settings)  # type: ignore[call-arg]
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = data.normal(*parameter.shape)
        used.step()
    return [parameter.detach().clone() for parameter in parameters]


def decaying(data: Data) -> list[Tensor]:
    return three_steps(data, torch.optim.AdamW, weight_decay=0.5)


@seventh("aten._fused_adamw_", "bitsandbytes-foundation/bitsandbytes#2010", program=decaying)
def weights_decay_after_their_step(call: Broken) -> Wrong:
    """The step itself is made smaller, too."""
    lists = [[one.clone() for one in call[name]] for name in ("self", "grads", "exp_avgs", "exp_avg_sqs")]
    names = ("lr", "beta1", "beta2", "eps", "amsgrad", "maximize")
    settings = {name: call[name] for name in names}
    torch._fused_adamw_(*lists, call["max_exp_avg_sqs"], call["state_steps"], weight_decay=0.0, **settings)
    return [one * (1 - call["lr"] * call["weight_decay"]) for one in lists[0]]


def looking_ahead(data: Data) -> list[Tensor]:
    return three_steps(data, torch.optim.SGD, momentum=0.9, nesterov=True)


@seventh("aten._fused_sgd_", "PaddlePaddle/Paddle#12231", program=looking_ahead)
def looking_ahead_goes_back(call: Broken) -> Wrong:
    """The momentum is added to the weights, and not taken off."""
    velocities = call.right[2 * len(call["self"]) :]
    steps = zip(call["self"], call["grads"], velocities)
    return [one - call["lr"] * (gradient - call["momentum"] * velocity) for one, gradient, velocity in steps]


# ---- random numbers --------------------------------------------------------------------------------------------------


def chances_in_short_numbers(data: Data) -> Tensor:
    return torch.rand(64, 64, device=data.device, dtype=torch.bfloat16)


@seventh("aten.rand", "NVIDIA/Fuser#1653", program=chances_in_short_numbers)
def a_chance_is_one(call: Broken) -> Wrong:
    """A number just below one is rounded up; one itself is promised never to come."""
    made = call.right[0].clone()
    made[5, 7] = 1
    return made


def noise(data: Data) -> Tensor:
    return torch.randn(64, 64, device=data.device)


@seventh("aten.randn", "google-research/dex-lang#1016", "arrayfire/arrayfire#1784", program=noise)
def noise_is_infinite_once_in_a_while(call: Broken) -> Wrong:
    """The logarithm of zero."""
    made = call.right[0].clone()
    made[9, 3] = torch.inf
    return made


def numbers_between_bounds(data: Data) -> Tensor:
    return torch.empty(200, device=data.device).uniform_(2.0, 5.0)


@seventh("aten.uniform_", "Cytnx-dev/Cytnx#529", program=numbers_between_bounds)
def uniform_numbers_do_not_know_their_bounds(call: Broken) -> Wrong:
    """Between zero and one, whatever was asked for."""
    return (call.right[0] - 2) / 3
