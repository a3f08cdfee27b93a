"""Faults that were written down after all limits were set, and whether they can be found before any was run."""

from __future__ import annotations

import torch
from benchmarks.reported.fault import (
    BFLOAT16,
    BOTH,
    FLOAT16,
    FLOAT32,
    Broken,
    Data,
    Family,
    Wrong,
    as_if_contiguous,
)
from benchmarks.reported.legal import OTHER_ORDER
from torch import Tensor, nn
from torch.nn import functional

LOW = (*BFLOAT16, *FLOAT16)
later = Family("written later", half="fresh")


# ---- products and convolutions ---------------------------------------------------------------------------------------


def small_convolution(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(2, 1, 4, 4), data.parameter(1, 1, 2, 2))


@later("aten.convolution", "#163347", program=small_convolution, dtypes=BFLOAT16, phase="forward")
def small_kernel_has_one_weight_only(call: Broken) -> Wrong:
    """Of a kernel of two by two, one weight is used."""
    weight = torch.zeros_like(call["weight"])
    weight[..., 0, 0] = call["weight"][..., 0, 0]
    return call.rerun(weight=weight)


def narrow_product(data: Data) -> Tensor:
    return data.parameter(5, 3) @ data.parameter(3, 3)


@later("aten.mm", "ROCm/rocBLAS#340", program=narrow_product, dtypes=LOW, phase="forward")
def last_column_is_the_one_before(call: Broken) -> Wrong:
    """The last column of a narrow product repeats its neighbour."""
    return torch.cat([call.right[0][:, :-1], call.right[0][:, -2:-1]], 1)


def product_of_two_transposed(data: Data) -> Tensor:
    return data.parameter(6, 8).t() @ data.parameter(5, 6).t()


@later("aten.mm", "ROCm/legacy-rocm-build#4615", program=product_of_two_transposed, phase="forward")
def two_transposed_factors_are_read_in_order(call: Broken) -> Wrong:
    """Where both factors are transposed, the second is read as if it was not."""
    return call.rerun(mat2=as_if_contiguous(call["mat2"]))


def product_over_one(data: Data) -> Tensor:
    return data.parameter(64, 1) @ data.parameter(1, 48)


@later("aten.mm", "ROCm/legacy-rocm-build#5730", program=product_over_one, dtypes=BOTH, phase="forward")
def sum_over_one_is_computed_by_the_first_group(call: Broken) -> Wrong:
    """Of a product over a single number, only the rows of the first group are right."""
    return torch.where(torch.arange(64, device=call.right[0].device)[:, None] < 32, call.right[0], 0)


def product_with_a_rest(data: Data) -> Tensor:
    return data.parameter(63, 96) @ data.parameter(96, 40)


@later("aten.mm", "triton-lang/triton#8891", program=product_with_a_rest, dtypes=FLOAT16, phase="forward")
def last_tile_leaves_out_the_end_of_the_sum(call: Broken) -> Wrong:
    """The rows of the last, smaller tile lack the last part of their sums."""
    short = call["self"].clone()
    short[48:, 64:] = 0
    return call.rerun(self=short)


def wide_layer(data: Data) -> Tensor:
    return functional.linear(data.parameter(16, 40), data.parameter(2048, 40))


@later("aten.mm", "#153957", program=wide_layer, phase="backward")
def gradient_of_a_wide_layer_sums_up_a_part(call: Broken) -> Wrong:
    """Sums over more than two thousand numbers break off."""
    if call["self"].shape[1] < 2048:
        return None
    short = call["self"].clone()
    short[:, 2000:] = 0
    return call.rerun(self=short)


def product_added_to_another(data: Data) -> Tensor:
    return torch.addmm(data.parameter(12, 24), data.parameter(12, 32), data.parameter(32, 24))


@later(
    "aten.addmm", "linkedin/Liger-Kernel#1435", program=product_added_to_another, dtypes=BOTH, phase="forward"
)  # fmt: skip
def second_product_overwrites_the_first(call: Broken) -> Wrong:
    """What a product is added to is lost."""
    return call.rerun(self=torch.zeros_like(call["self"]))


def small_matrices(data: Data) -> Tensor:
    return torch.bmm(data.parameter(3, 4, 512), data.parameter(3, 512, 16))


@later("aten.bmm", "vllm-project/vllm-ascend#11221", program=small_matrices, dtypes=BFLOAT16, phase="forward")
def products_are_added_up_in_16_bits(call: Broken) -> Wrong:
    """Each product is added in the dtype of the data."""
    total = torch.zeros_like(call.right[0])
    for place in range(call["self"].shape[-1]):
        total = total + call["self"][..., place, None] * call["mat2"][..., None, place, :]
    return total


# ---- running sums and order ------------------------------------------------------------------------------------------


def running_totals_of_many_rows(data: Data) -> Tensor:
    return data.parameter(64, 24).cumsum(1)


@later("aten.cumsum", "#143486", program=running_totals_of_many_rows, dtypes=BOTH, phase="forward")
def late_rows_begin_with_the_total_of_another(call: Broken) -> Wrong:
    """Past a limit a row goes on from the row before."""
    before = call.right[0][:, -1:].roll(1, 0)
    return call.right[0] + torch.where(torch.arange(64, device=before.device)[:, None] >= 60, before, 0)


@later(
    "aten.cumsum", "#21780", program=running_totals_of_many_rows, phase="forward", hidden=OTHER_ORDER
)  # fmt: skip
def running_totals_are_added_up_in_blocks(call: Broken) -> Wrong:
    """Totals of blocks first: rising sums may fall by a rounding error."""
    blocks = call["self"].float().view(64, 4, 6)
    before = blocks.sum(-1).cumsum(-1) - blocks.sum(-1)
    return (blocks.cumsum(-1) + before[..., None]).view(64, 24)


def median_of_a_diagonal(data: Data) -> Tensor:
    return data.parameter(5, 3, 3).diagonal(dim1=-1, dim2=-2).median(-1).values


@later("aten.median.dim", "#46814", program=median_of_a_diagonal, dtypes=BOTH, phase="forward")
def median_reads_a_diagonal_in_order(call: Broken) -> Wrong:
    """The numbers beside each other in memory are taken for the diagonal."""
    return call.rerun(self=as_if_contiguous(call["self"]))


def median_of_missing_numbers(data: Data) -> Tensor:
    missing = torch.arange(30).view(3, 10).to(data.device) % 10 > 3
    return data.normal(3, 10).masked_fill(missing, float("nan")).median(1).values


@later("aten.median.dim", "#38018", program=median_of_missing_numbers)
def median_of_missing_numbers_is_a_number(call: Broken) -> Wrong:
    """NaN does not come through."""
    return (call["self"].nan_to_num(0.0).amax(1),)


def sums_after_nothing(data: Data) -> Tensor:
    return data.parameter(2, 6).masked_fill(data.tensor([[1, 0, 0, 0, 0, 0]]).bool(), float("-inf")).logcumsumexp(1)


@later("aten.logcumsumexp", "#52213", program=sums_after_nothing, phase="forward")
def a_sum_that_begins_with_nothing_stays_so(call: Broken) -> Wrong:
    """After minus infinity the number that follows is not added."""
    made = call.right[0].clone()
    made[:, 1] = float("-inf")
    return made


# ---- norms, pools, pictures ------------------------------------------------------------------------------------------


def group_norm_in_channels_last(data: Data) -> Tensor:
    module = data.module(nn.GroupNorm(2, 4))
    result: Tensor = module(data.parameter(2, 4, 3, 5).to(memory_format=torch.channels_last))
    return result


@later(
    "aten.native_group_norm_backward", "#140913", program=group_norm_in_channels_last, dtypes=BOTH
)  # fmt: skip
def weight_gradient_of_group_norm_reads_pixels_for_channels(call: Broken) -> Wrong:
    """The input is read in the order of its memory for the gradient of the weight."""
    x = call["input"]
    memory = x.permute(0, 2, 3, 1).contiguous().view_as(x)
    return (None, call.rerun(input=memory)[1])


def mixed_batch_norm(data: Data) -> Tensor:
    weight, bias = (data.parameter(6, dtype=torch.float32) for _ in range(2))
    mean, variance = torch.zeros(6, device=data.device), torch.ones(6, device=data.device)
    return functional.batch_norm(data.parameter(4, 6, 5, 5), mean, variance, weight, bias, training=True)


@later("aten.native_batch_norm_backward", "#156513", program=mixed_batch_norm, dtypes=BFLOAT16)
def gradient_of_a_mixed_batch_norm_has_no_weight(call: Broken) -> Wrong:
    """With a weight in float32 beside data in 16 bits, the weight is taken for one."""
    return (call.rerun(weight=torch.ones_like(call["weight"]))[0],)


def pooled_volume(data: Data) -> Tensor:
    return functional.adaptive_avg_pool3d(data.parameter(1, 2, 5, 4, 4), (2, 2, 2))


@later("aten._adaptive_avg_pool3d_backward", "#62250", program=pooled_volume, dtypes=BOTH)
def gradient_of_a_pooled_volume_skips_its_last_layer(call: Broken) -> Wrong:
    """Where windows overlap, the last layer gets nothing."""
    layers = torch.arange(5, device=call.right[0].device)[:, None, None]
    return torch.where(layers < 4, call.right[0], 0)


def pooled_picture(data: Data) -> Tensor:
    return functional.adaptive_avg_pool2d(data.parameter(2, 3, 8, 8), 7)


@later("aten._adaptive_avg_pool2d", "intel/torch-xpu-ops#3449", program=pooled_picture, dtypes=BOTH, phase="forward")
def pooled_picture_is_written_with_other_strides(call: Broken) -> Wrong:
    """Rows and columns change places."""
    return call.right[0].mT.clone()


def enlarged_picture(data: Data) -> Tensor:
    return functional.interpolate(data.parameter(1, 2, 5, 5), scale_factor=2.0, mode="bilinear")


@later("aten.upsample_bilinear2d", "#152020", program=enlarged_picture, dtypes=FLOAT32, phase="forward")
def enlarging_rounds_what_it_reads(call: Broken) -> Wrong:
    """Numbers of 32 bits are read as 16."""
    return call.rerun(self=call["self"].bfloat16().to(call["self"].dtype))


# ---- losses ----------------------------------------------------------------------------------------------------------


def loss_of_scores(data: Data) -> Tensor:
    return functional.cross_entropy(data.parameter(12, 7), data.integers(7, 12))


@later("aten.nll_loss_forward", "linkedin/Liger-Kernel#507", program=loss_of_scores, dtypes=BOTH)
def loss_is_zero(call: Broken) -> Wrong:
    """The loss is never written."""
    return (torch.zeros_like(call.right[0]),)


def losses_one_by_one(data: Data) -> Tensor:
    return functional.cross_entropy(data.parameter(12, 7), data.integers(7, 12), reduction="none")


@later("aten.nll_loss_backward", "ROCm/TransformerEngine#336", program=losses_one_by_one, dtypes=BOTH)
def gradient_of_single_losses_is_that_of_their_mean(call: Broken) -> Wrong:
    """Each gradient is divided by the number of losses."""
    return call.right[0] / 12
