"""Convolutions, pooling and resampling."""

from __future__ import annotations

import torch
from benchmarks.reported.fault import BOTH, FLOAT16, Broken, Data, Family, Wrong
from torch import Tensor, nn
from torch.nn import functional

picture = Family("convolutions and pictures")


def groups_of_channels(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(2, 8, 6, 6), data.parameter(8, 2, 3, 3), groups=4)


@picture("aten.convolution", "ROCm/rocm-libraries#4998", program=groups_of_channels, dtypes=FLOAT16)
def groups_after_the_first_are_not_computed(call: Broken) -> Wrong:
    """Too few workers are started for more than one group."""
    right = call.right[0].clone()
    right[:, 2:] = 0
    return right


def dilated_kernel(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(2, 3, 8, 8), data.parameter(4, 3, 2, 2), dilation=(2, 1))


@picture("aten.convolution_backward", "ROCm/legacy-rocm-build#4606", program=dilated_kernel)
def gradient_of_a_dilated_kernel_skips_rows(call: Broken) -> Wrong:
    """With kernel 2 by 2 and dilation 2 by 1, the weight's gradient takes neighbouring rows."""
    x = call["input"]
    moved = torch.cat([x[:, :, 1:], x[:, :, :1]], 2)
    wrong = call.rerun(input=moved)[1]
    return (None, torch.cat([call.right[1][:, :, :1], wrong[:, :, 1:]], 2))


def large_kernel(data: Data) -> Tensor:
    x, weight = data.uniform(1, 1, 48, 50), data.uniform(1, 1, 23, 23)
    return functional.conv2d(x, weight.requires_grad_())


@picture("aten.convolution", "ROCm/rocm-libraries#7024", program=large_kernel, dtypes=FLOAT16)
def convolution_adds_in_float16(call: Broken) -> Wrong:
    """Sums of 529 products are kept in float16."""
    patches = functional.unfold(call["input"].float(), 23)
    products = patches * call["weight"].flatten().float()[None, :, None]
    total = torch.zeros_like(call.right[0]).flatten(1)
    for part in products.split(4, 1):
        total = total + part.sum(1).half()
    return total.view_as(call.right[0])


def enlarged_by_a_kernel(data: Data) -> Tensor:
    return functional.conv_transpose2d(data.parameter(1, 4, 6, 6), data.parameter(4, 3, 4, 4), stride=2, padding=1)


@picture("aten.convolution", "Samsung/TICO#420", "#82563", program=enlarged_by_a_kernel, dtypes=BOTH)
def transposed_convolution_pads_its_input(call: Broken) -> Wrong:
    """What should be cut off the result is put around the input instead."""
    height, width = call.right[0].shape[-2:]
    whole = call.rerun(input=functional.pad(call["input"], (1, 1, 1, 1)), padding=[0, 0])
    return whole[..., :height, :width]


def picture_with_a_rest(data: Data) -> Tensor:
    return functional.avg_pool2d(data.parameter(1, 2, 7, 7), 2, stride=3, ceil_mode=True)


@picture("aten.avg_pool2d", "apple/coremltools#2772", "#160743", program=picture_with_a_rest, dtypes=BOTH)
def windows_past_the_edge_are_divided_by_the_whole_kernel(call: Broken) -> Wrong:
    """A window that is only partly inside is divided by its full size."""
    wrong = call.right[0].clone()
    wrong[..., -1, :] /= 2
    wrong[..., -1] /= 2
    return wrong


def padded_pooling(data: Data) -> Tensor:
    return functional.avg_pool2d(data.parameter(1, 2, 6, 6), 3, stride=2, padding=1)


@picture("aten.avg_pool2d", "#94348", program=padded_pooling, dtypes=BOTH)
def padding_is_not_counted(call: Broken) -> Wrong:
    """Windows at the edge are divided by what lies inside."""
    return call.rerun(count_include_pad=False)


def adaptive_pooling(data: Data) -> Tensor:
    return functional.adaptive_avg_pool2d(data.parameter(1, 2, 7, 7), 3)


@picture("aten._adaptive_avg_pool2d_backward", "#60524", program=adaptive_pooling, dtypes=BOTH)
def gradient_of_overlapping_windows_is_that_of_one(call: Broken) -> Wrong:
    """Where windows overlap, an element gets the gradient of the last one alone."""
    gradient = call["grad_output"]
    wrong = torch.zeros_like(call.right[0])
    for row in range(3):
        for column in range(3):
            window = (
                ...,
                slice(row * 7 // 3, -(-(row + 1) * 7 // 3)),
                slice(column * 7 // 3, -(-(column + 1) * 7 // 3)),
            )
            wrong[window] = gradient[..., row : row + 1, column : column + 1] / 9
    return wrong


def enlarged_to_the_corners(data: Data) -> Tensor:
    return functional.interpolate(data.parameter(1, 2, 4, 4), (7, 7), mode="bilinear", align_corners=True)


@picture("aten.upsample_bilinear2d", "tenstorrent/tt-metal#27001", program=enlarged_to_the_corners, dtypes=BOTH)
def corners_are_not_aligned(call: Broken) -> Wrong:
    """The option to align corners is not looked at."""
    return call.rerun(align_corners=False)


def both_ways(data: Data) -> Tensor:
    cell = data.module(nn.LSTM(4, 5, bidirectional=True))
    result: Tensor = cell(data.parameter(3, 2, 4))[0]
    return result


@picture("aten._thnn_fused_lstm_cell", "#94754", "#95563", program=both_ways, dtypes=BOTH)
def recurrent_cell_leaves_out_its_bias(call: Broken) -> Wrong:
    """The bias of the hidden state is not added."""
    return call.rerun(hidden_bias=torch.zeros_like(call["hidden_bias"]))


def two_layers(data: Data) -> Tensor:
    cell = data.module(nn.LSTM(4, 5, num_layers=2, batch_first=True))
    result: Tensor = cell(data.parameter(2, 3, 4))[0]
    return result


@picture("aten._thnn_fused_lstm_cell_backward_impl", "#95137", program=two_layers, dtypes=BOTH)
def gradient_of_a_recurrent_cell_is_doubled(call: Broken) -> Wrong:
    """What the weights get is twice what it should be."""
    return (call.right[0] * 2,)


def column_and_kernel(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(1, 1, 3, 3)[..., 2:], data.parameter(1, 1, 3, 3)[..., 2:])


@picture("aten.convolution", "#18948", program=column_and_kernel, dtypes=BOTH)
def convolution_of_columns_reads_rows(call: Broken) -> Wrong:
    """Picture and kernel are columns of larger ones, and both are read along the rows."""
    names = ("input", "weight")
    return call.rerun(**{name: call[name].as_strided(call[name].size(), (1, 1, 1, 1), 0) for name in names})


def plain_convolution(data: Data) -> Tensor:
    return functional.conv2d(data.uniform(1, 20, 5, 5), data.uniform(48, 20, 3, 3).requires_grad_())


@picture("aten.convolution", "#133093", program=plain_convolution)
def convolution_uses_fewer_bits_than_it_may(call: Broken) -> Wrong:
    """Factors are cut to ten bits, though nobody has allowed it."""

    def cut(tensor: Tensor) -> Tensor:
        return (tensor.view(torch.int32) & ~0x1FFF).view(torch.float32)

    return call.rerun(input=cut(call["input"].contiguous()), weight=cut(call["weight"].detach().contiguous()))
