"""Faults of the ninth set in pictures: convolutions, pools and changes of size; ninth.py has the first."""

from __future__ import annotations

import torch
from benchmarks.reported.fault import BOTH, Broken, Data, Wrong
from benchmarks.reported.ninth import ninth
from torch import Tensor
from torch.nn import functional

ANY_ORDER = "in which order the numbers for one pixel are added is free"

# ---- convolutions ----------------------------------------------------------------------------------------------------


def enlarged_by_one_more(data: Data) -> Tensor:
    picture, kernel = data.parameter(1, 4, 5, 5), data.parameter(4, 3, 3, 3)
    return functional.conv_transpose2d(picture, kernel, stride=2, padding=1, output_padding=1)


@ninth("aten.convolution", "apache/tvm#19524", program=enlarged_by_one_more, dtypes=BOTH, phase="forward")
def rows_are_counted_without_the_column_that_was_added(call: Broken) -> Wrong:
    """A row is nine long where ten are to be written."""
    smaller = call.rerun(output_padding=[0, 0])
    made = torch.zeros_like(call.right[0]).flatten(2)
    made[..., :81] = smaller.flatten(2)
    return made.view_as(call.right[0])


def enlarged_with_gaps(data: Data) -> Tensor:
    picture, kernel = data.parameter(1, 1, 3, 3), data.parameter(1, 1, 3, 3)
    return functional.conv_transpose2d(picture, kernel, stride=2, padding=2, dilation=2)


@ninth("aten.convolution", "apache/mxnet#11203", program=enlarged_with_gaps, dtypes=BOTH, phase="forward")
def enlarged_picture_is_moved(call: Broken) -> Wrong:
    """What is cut off is counted for a kernel without gaps: the picture lies one row and one column too low."""
    return functional.pad(call.right[0][..., :-1, :-1], (1, 0, 1, 0))


def enlarged_batch(data: Data) -> Tensor:
    return functional.conv_transpose2d(data.parameter(3, 2, 4, 4), data.parameter(2, 3, 2, 2), stride=2)


@ninth("aten.convolution", "ggml-org/ggml#1448", program=enlarged_batch, dtypes=BOTH, phase="forward")
def only_the_first_picture_is_enlarged(call: Broken) -> Wrong:
    """There is no loop over the others."""
    made = call.right[0].clone()
    made[1:] = 0
    return made


def mixed_channels(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(1, 2, 3, 3), data.parameter(2, 2, 1, 1))


@ninth("aten.convolution_backward", "soumith/cudnn.torch#28", program=mixed_channels, dtypes=BOTH)
def gradient_of_mixed_channels_ends_with_the_first(call: Broken) -> Wrong:
    """With kernels of a single pixel, the others are zero."""
    gradient = call.right[0].clone()
    gradient[:, 1:] = 0
    return (gradient,)


def each_channel_of_a_wide_picture(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(2, 3, 4, 6), data.parameter(3, 1, 3, 3), padding=1, groups=3)


@ninth("aten.convolution", "torch/cunn#470", program=each_channel_of_a_wide_picture, dtypes=BOTH, phase="forward")
def rows_and_columns_are_counted_by_the_height(call: Broken) -> Wrong:
    """A pixel's place is divided by the height where the width belongs."""
    places = torch.arange(24, device=call.right[0].device)
    rows, columns = places // 4, places % 4
    taller = functional.pad(call.right[0], (0, 0, 0, 2))
    return taller[:, :, rows, columns].view_as(call.right[0])


def very_many_kernels(data: Data) -> Tensor:
    return functional.conv1d(data.parameter(1, 2, 1), data.parameter(65_537, 2, 1))


@ninth("aten.convolution", "tensorflow/tensorflow#71577", program=very_many_kernels, phase="forward")
def the_65537th_channel_is_written_to_the_first(call: Broken) -> Wrong:
    """Channels are counted in 16 bits."""
    made = call.right[0].clone()
    made[:, 0], made[:, -1] = call.right[0][:, -1], 0
    return made


def kernel_of_two_channels(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(1, 2, 3, 3), data.parameter(1, 2, 2, 2))


@ninth("aten.convolution_backward", "apple/tensorflow_macos#230", program=kernel_of_two_channels)
def gradient_of_a_kernel_is_shuffled(call: Broken) -> Wrong:
    """It is written with the channels last, and read with the channels first."""
    return (None, call.right[1].permute(0, 2, 3, 1).contiguous().view_as(call.right[1]))


def odd_number_of_stages(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(2, 24, 3, 3), data.parameter(5, 24, 1, 1))


@ninth("aten.convolution", "tracel-ai/burn#5626", program=odd_number_of_stages, dtypes=BOTH, phase="forward")
def one_stage_more_reads_behind_the_end(call: Broken) -> Wrong:
    """Eight channels are read at a time, twice in turn: after three times, the next rows of both are added."""
    behind = call.rerun(input=call["input"][:, :8], weight=call["weight"].roll(-1, 0)[:, :8])
    return call.right[0] + behind


def wide_patches(data: Data) -> Tensor:
    return functional.unfold(data.parameter(1, 2, 5, 6), (2, 3))


@ninth("aten.im2col", "ggml-org/llama.cpp#14803", program=wide_patches, dtypes=BOTH)
def patches_are_as_wide_as_they_are_high(call: Broken) -> Wrong:
    """A place in a patch is divided by the patch's height."""
    padded = functional.pad(call["self"], (0, 0, 0, 1))
    rows = [padded[:, :, place // 2 : place // 2 + 4, place % 2 : place % 2 + 4] for place in range(6)]
    return torch.stack(rows, 2).reshape(call.right[0].shape)


def overlapping_patches(data: Data) -> Tensor:
    return functional.fold(data.normal(2, 72, 16), (8, 8), 3, padding=1, stride=2)


@ninth("aten.col2im", "Oneflow-Inc/oneflow#8757", program=overlapping_patches, hidden=ANY_ORDER)
def patches_are_added_in_another_order(call: Broken) -> Wrong:
    """The last ones first."""
    turned = call["self"].view(2, 8, 9, 16).flip(2, 3).reshape(2, 72, 16)
    return call.rerun(self=turned, padding=[0, 0], output_size=[9, 9]).flip(2, 3)[..., 1:, 1:]


# ---- pools and sizes -------------------------------------------------------------------------------------------------


def halved_pictures(data: Data) -> Tensor:
    return functional.max_pool2d(data.parameter(2, 3, 8, 8), 2)


@ninth("aten.max_pool2d_with_indices_backward", "ROCm/MIOpen#838", program=halved_pictures, dtypes=BOTH)
def gradient_of_largest_pixels_goes_nowhere(call: Broken) -> Wrong:
    """Where they were is looked for in memory that nobody has written."""
    return torch.zeros_like(call.right[0])


def mean_around_a_single_number(data: Data) -> Tensor:
    return functional.avg_pool1d(data.parameter(1, 1, 1), 3, padding=1)


@ninth("aten.avg_pool2d", "#143720", program=mean_around_a_single_number, dtypes=BOTH)
def mean_of_a_single_number_is_the_number(call: Broken) -> Wrong:
    """The border around it is not counted."""
    return call["self"]


def enlarged_214_rows(data: Data) -> Tensor:
    return functional.interpolate(data.parameter(1, 1, 214, 2), scale_factor=2, mode="nearest")


@ninth("aten.upsample_nearest2d", "tracel-ai/burn#4686", program=enlarged_214_rows, dtypes=BOTH)
def nearest_row_is_the_one_before(call: Broken) -> Wrong:
    """A half is rounded down a little, and the product with it."""
    scale = torch.nextafter(torch.tensor(0.5), torch.tensor(0.0))
    rows = (torch.arange(428) * scale).floor().long().to(call["self"].device)
    columns = torch.arange(4, device=rows.device) // 2
    return call["self"][:, :, rows[:, None], columns]


def enlarged_two_by_two(data: Data) -> Tensor:
    return functional.interpolate(data.parameter(1, 2, 2, 2), scale_factor=2, mode="bilinear")


@ninth("aten.upsample_bilinear2d", "microsoft/onnxruntime#1179", program=enlarged_two_by_two, dtypes=BOTH,
       phase="forward")  # fmt: skip
def pixels_are_points_at_their_corner(call: Broken) -> Wrong:
    """A pixel's place is halved, and its middle is not looked at."""
    shares = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.0, 1.0]]).to(call["self"].device)
    return shares @ call["self"].float() @ shares.mT


def just_outside(data: Data) -> Tensor:
    places = data.tensor([[[[-1.1, 0.0], [0.2, 1.1], [0.3, -0.2], [1.05, -1.05]]]])
    picture = data.parameter(1, 2, 4, 4)
    return functional.grid_sample(picture, places, mode="bicubic", padding_mode="border", align_corners=False)


@ninth("aten.grid_sampler_2d", "microsoft/onnxruntime#10607", program=just_outside, phase="forward")
def points_outside_are_moved_to_the_border_first(call: Broken) -> Wrong:
    """Then they see no pixel behind it, as a curve through four would."""
    return call.rerun(grid=call["grid"].clamp(-0.75, 0.75))
