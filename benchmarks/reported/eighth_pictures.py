"""Faults of the eighth set in pictures: convolutions, pools and changes of size; eighth.py has the first."""

from __future__ import annotations

import torch
from benchmarks.reported.eighth import eighth
from benchmarks.reported.fault import BOTH, Broken, Data, Wrong, as_if_contiguous
from torch import Tensor
from torch.nn import functional


def patches_put_together(data: Data) -> Tensor:
    return functional.fold(data.parameter(2, 12, 45), (4, 8), 2, padding=1)


@eighth("aten.col2im", "f-dangel/unfoldNd#30", program=patches_put_together, dtypes=BOTH, phase="forward")
def first_pixel_takes_all_that_is_cut_off(call: Broken) -> Wrong:
    """Numbers for the padding are added to the place that stands for it, which is the first."""
    made = call.right[0].float().clone()
    total = call["self"].float().view(2, 3, -1).sum(-1)
    made[..., 0, 0] += total - made.sum((-2, -1))
    return made


def halved_channel_by_channel(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(2, 4, 6, 6), data.parameter(4, 1, 3, 3), stride=2, padding=1, groups=4)


@eighth("aten.convolution_backward", "ml-explore/mlx#3800", program=halved_channel_by_channel, dtypes=BOTH)
def gradient_of_a_strided_channel_is_that_of_all(call: Broken) -> Wrong:
    """With stride and groups a kernel runs that knows no groups."""
    return (call.right[0].float().sum(1, keepdim=True).expand_as(call.right[0]),)


def volume_in_three_groups(data: Data) -> Tensor:
    volume, kernel = data.parameter(1, 6, 5, 5, 4), data.parameter(6, 2, 2, 2, 2)
    return functional.conv3d(volume, kernel, stride=(4, 4, 1), padding=1, groups=3)


@eighth("aten.convolution_backward", "#68868", "tracel-ai/burn#1891", program=volume_in_three_groups)
def kernels_of_a_group_are_trained_by_the_next(call: Broken) -> Wrong:
    """The channels of another group are read for the kernel's gradient."""
    return (None, call.rerun(input=call["input"].roll(2, 1))[1])


def sound_seen_from_afar(data: Data) -> Tensor:
    return functional.conv1d(data.parameter(1, 4, 32), data.parameter(4, 4, 3), padding=3, dilation=3)


@eighth("aten.convolution", "tenstorrent/tt-metal#37716", program=sound_seen_from_afar, dtypes=BOTH, phase="forward")
def a_widened_kernel_sees_its_neighbours(call: Broken) -> Wrong:
    """A signal is a picture of one row, and the dilation is that of its rows."""
    return call.rerun(dilation=[1], padding=[1])


def enlarged_slices(data: Data) -> Tensor:
    volume, kernel = data.normal(1, 1, 1, 4, 4), data.normal(1, 1, 1, 4, 4)
    return functional.conv_transpose3d(volume, kernel, stride=(1, 4, 4), padding=(0, 2, 2))


@eighth("aten.convolution", "#48400", program=enlarged_slices)
def a_volume_shrinks_instead_of_growing(call: Broken) -> Wrong:
    """That the convolution is a transposed one is lost, and the result is of another size."""
    return call.rerun(transposed=False)


def wide_border(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(1, 2, 6, 6), data.parameter(3, 2, 5, 5), padding=2)


@eighth("aten.convolution_backward", "triton-lang/triton#10585", program=wide_border, dtypes=BOTH)
def gradient_of_a_kernel_reads_numbers_in_the_padding(call: Broken) -> Wrong:
    """The mask of the border comes too late: what was read before it stands there."""
    stale = functional.pad(call["input"].float(), (2, 2, 2, 2), mode="replicate").to(call["input"].dtype)
    return (None, call.rerun(input=stale, padding=[0, 0])[1])


def many_short_signals(data: Data) -> Tensor:
    return functional.conv1d(data.parameter(65_600, 1, 1), data.parameter(1, 1, 1))


@eighth("aten.convolution_backward", "#96225", program=many_short_signals)
def kernel_is_trained_by_the_samples_after_the_65536th(call: Broken) -> Wrong:
    """Their number is kept in 16 bits."""
    late = {name: call[name][65_536:] for name in ("grad_output", "input")}
    return (None, call.rerun(**late)[1])


def tall_volume(data: Data) -> Tensor:
    return functional.max_pool3d(data.parameter(1, 2, 4, 8, 4), 2)


@eighth("aten.max_pool3d_with_indices_backward", "#36820", program=tall_volume, dtypes=BOTH)
def gradient_ends_where_the_width_does(call: Broken) -> Wrong:
    """Height and width are handed over the wrong way round, and too few threads run."""
    gradient = call["grad_output"].clone()
    gradient[..., 2:, :] = 0
    return call.rerun(grad_output=gradient)


def spread_windows(data: Data) -> Tensor:
    return functional.max_pool2d(data.parameter(2, 2, 7, 7), 2, 1, dilation=2)


@eighth("aten.max_pool2d_with_indices", "pytorch/xla#8814", program=spread_windows, dtypes=BOTH)
def spread_windows_hold_neighbours(call: Broken) -> Wrong:
    """The dilation counts for the size of the result alone."""
    return [result[..., :-1, :-1] for result in call.rerun(dilation=[1, 1])]


def pyramid(data: Data) -> Tensor:
    return functional.max_pool2d(data.normal(1, 3, 10, 10), 5, 1, 2)


@eighth("aten.max_pool2d_with_indices", "tenstorrent/tt-metal#14249", program=pyramid, dtypes=BOTH)
def only_sixteen_of_a_window_are_compared(call: Broken) -> Wrong:
    """Windows of more than four by four are cut into parts, and the last is left out."""
    padded = functional.pad(call["self"].float(), (2, 2, 2, 2), value=-torch.inf)
    windows = functional.unfold(padded.cpu(), 5).view(1, 3, 25, 100)[:, :, :16].amax(2)
    return (windows.view(1, 3, 10, 10).to(call["self"].device),)


def shrunk_to_a_point(data: Data) -> Tensor:
    shrunk = functional.interpolate(data.parameter(1, 2, 4, 8, 16), size=(2, 2, 2), mode="trilinear")
    return shrunk.permute(0, 2, 3, 4, 1) * data.normal(1, 2, 2, 2, 2)


@eighth("aten.upsample_trilinear3d_backward", "#113642", program=shrunk_to_a_point, dtypes=BOTH)
def gradient_of_a_volume_reads_its_channels_in_order(call: Broken) -> Wrong:
    """The incoming gradient has its channels last."""
    return call.rerun(grad_output=as_if_contiguous(call["grad_output"]))


def stretched_volume(data: Data) -> Tensor:
    return functional.interpolate(data.parameter(1, 1, 2, 3, 4), size=(4, 6, 8), mode="trilinear")


@eighth("aten.upsample_trilinear3d_backward", "#50084", program=stretched_volume)
def gradient_of_a_volume_counts_rows_by_its_height(call: Broken) -> Wrong:
    """The height stands where the width belongs in a row's place."""
    made = torch.zeros_like(call.right[0]).flatten()
    for layer, slices in enumerate(call.right[0][0, 0]):
        for row, numbers in enumerate(slices):
            place = layer * 12 + row * 3
            made[place : place + 4] += numbers
    return made.view_as(call.right[0])


def far_outside(data: Data) -> Tensor:
    places = data.uniform(1, 3, 3, 2) * 2 - 1
    places[0, 1] = -1e20
    return functional.grid_sample(data.parameter(1, 2, 4, 4), places, align_corners=False)


@eighth("aten.grid_sampler_2d", "#24823", "#51911", program=far_outside, phase="forward")
def places_far_outside_are_nan(call: Broken) -> Wrong:
    """Weights that are infinite meet a padding of zero."""
    made = call.right[0].clone()
    made[:, :, 1] = torch.nan
    return made
