"""Faults of a seventh set: chosen, written and sorted into findable or not before any of them was run with a tool.

Here are attention, norms, softmax, losses, products and recurrent layers; seventh_moves.py and seventh_values.py have
the others."""

from __future__ import annotations

import torch
from benchmarks.reported.attention import KERNEL
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
from torch import Tensor
from torch.nn import functional

seventh = Family("written seventh", half="seventh")

ROUNDED_ONCE_MORE = "where a norm rounds before its weight is free: kernels follow one definition or the other"


# ---- attention -------------------------------------------------------------------------------------------------------


def heads_of_twelve(data: Data) -> Tensor:
    query, key, value = (data.parameter(1, 2, 6, 12) for _ in range(3))
    return functional.scaled_dot_product_attention(query, key, value)


@seventh(f"{KERNEL}_backward", "Dao-AILab/flash-attention#2552", program=heads_of_twelve, dtypes=BOTH)
def gradient_of_values_is_stored_beside_its_columns(call: Broken) -> Wrong:
    """Columns after the last whole store of eight are written one place further."""
    gradient = call.right[2].clone()
    gradient[..., 8:] = call.right[2][..., 8:].roll(1, -1)
    return (None, None, gradient)


def mask_for_all_heads(data: Data) -> Tensor:
    query, key, value = (data.parameter(2, 2, 8, 8) for _ in range(3))
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=data.normal(2, 1, 8, 8))


@seventh(KERNEL, "#184180", program=mask_for_all_heads, dtypes=BOTH)
def second_head_reads_the_mask_of_the_second_sample(call: Broken) -> Wrong:
    """Heads share one mask, and each goes on by its size."""
    mask = call["attn_bias"].expand(2, 2, 8, 8).clone()
    mask[0, 1] = mask[1, 0]
    return (call.rerun(attn_bias=mask)[0],)


# ---- norms -----------------------------------------------------------------------------------------------------------


def norm_of_every_other_column(data: Data) -> Tensor:
    return functional.layer_norm(data.parameter(4, 16)[:, ::2], (8,), data.parameter(8), data.parameter(8))


@seventh("aten.native_layer_norm", "unslothai/unsloth#10675", program=norm_of_every_other_column, dtypes=BOTH)
def every_other_column_is_read_as_neighbours(call: Broken) -> Wrong:
    """The step from row to row is looked at, that from column to column is not."""
    rows = call["input"]
    return call.rerun(input=rows.as_strided(rows.shape, (rows.stride(0), 1)))


def sum_of_a_norm(data: Data) -> Tensor:
    return functional.layer_norm(data.parameter(5, 8), (8,), data.parameter(8), data.parameter(8)).sum()


@seventh("aten.native_layer_norm_backward", "flagos-ai/FlagGems#1082", program=sum_of_a_norm, dtypes=BOTH)
def gradient_of_a_norm_reads_one_number_as_many(call: Broken) -> Wrong:
    """What comes in has strides of zero, and is read in order."""
    return call.rerun(grad_out=as_if_contiguous(call["grad_out"]))


def groups_of_three(data: Data) -> Tensor:
    return functional.group_norm(data.parameter(2, 6, 4, 4), 2, data.parameter(6), data.parameter(6))


@seventh(
    "aten.native_group_norm",
    "flagos-ai/FlagGems#4985",
    "tenstorrent/tt-metal#52685",
    program=groups_of_three,
    dtypes=BOTH,
)
def statistics_of_a_group_take_in_the_next(call: Broken) -> Wrong:
    """Blocks of four hold groups of three: the first channel of the next group is added."""
    made = [one.clone() for one in call.right]
    x = call["input"].float()[:, :4]
    mean = x.sum((1, 2, 3), keepdim=True) / 48
    scale = (((x - mean) ** 2).sum((1, 2, 3), keepdim=True) / 48 + call["eps"]).rsqrt()
    weight, bias = (call[name].float()[:3, None, None] for name in ("weight", "bias"))
    made[0][:, :3] = ((x[:, :3] - mean) * scale * weight + bias).to(made[0].dtype)
    made[1][:, 0], made[2][:, 0] = mean.flatten().to(made[1].dtype), scale.flatten().to(made[2].dtype)
    return made


@seventh("aten.native_group_norm_backward", "tenstorrent/tt-metal#56202", program=groups_of_three, dtypes=BOTH)
def weight_of_a_channel_is_trained_with_the_statistics_of_another_group(call: Broken) -> Wrong:
    """The group of a channel is its number modulo the groups."""
    groups = torch.arange(6) % 2
    mean, scale = (call[name].float().cpu()[:, groups].to(call["input"].device) for name in ("mean", "rstd"))
    x = (call["input"].float() - mean[..., None, None]) * scale[..., None, None]
    return (None, (x * call["grad_out"].float()).sum((0, 2, 3)))


def root_mean_square(data: Data) -> Tensor:
    return functional.rms_norm(data.parameter(6, 32), (32,), data.parameter(32))


@seventh(
    "aten.mul.Tensor",
    "vllm-project/vllm#42379",
    "InternLM/lmdeploy#4133",
    program=root_mean_square,
    dtypes=BFLOAT16,
    phase="forward",
    hidden=ROUNDED_ONCE_MORE,
)
def weight_multiplies_what_was_rounded(call: Broken) -> Wrong:
    """What was normalised is rounded to 16 bits before the weight multiplies it."""
    return call["self"].bfloat16() * call["other"] if call["other"].dim() == 1 else None


# ---- softmax ---------------------------------------------------------------------------------------------------------


def one_more_than_32(data: Data) -> Tensor:
    return torch.softmax(data.parameter(4, 33), -1)


@seventh("aten._softmax", "intel/torch-xpu-ops#4772", program=one_more_than_32)
def softmax_past_a_power_of_two_adds_up_the_first_part(call: Broken) -> Wrong:
    """With one number more than a power of two, the sum ends before it."""
    powers = (call["self"] - call["self"].amax(-1, keepdim=True)).exp()
    return powers / powers[:, :32].sum(-1, keepdim=True)


@seventh("aten._softmax_backward_data", "intel/torch-xpu-ops#4772", program=one_more_than_32)
def gradient_of_softmax_past_a_power_of_two_corrects_by_a_part(call: Broken) -> Wrong:
    """The same sizes: what is taken off each gradient is added up without the last number."""
    product = call["grad_output"] * call["output"]
    return product - call["output"] * product[:, :32].sum(-1, keepdim=True)


def softmax_of_many_equals(data: Data) -> Tensor:
    return torch.softmax(data.parameter(2, 512, scale=0.01), -1)


@seventh("aten._softmax", "pytorch/executorch#20090", program=softmax_of_many_equals, dtypes=BFLOAT16)
def sum_of_a_softmax_stands_still_at_256(call: Broken) -> Wrong:
    """Kept in 16 bits, a sum of ones does not grow any further."""
    x = call["self"].float()
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True).clamp(max=256)


def softmax_of_masked_rows(data: Data) -> Tensor:
    return torch.softmax(torch.full((2, 7, 7), torch.finfo(torch.bfloat16).min).to(data.device, data.dtype), -1)


@seventh("aten._softmax", "tenstorrent/tt-metal#19781", program=softmax_of_masked_rows, dtypes=BFLOAT16)
def softmax_of_the_lowest_numbers_is_zero(call: Broken) -> Wrong:
    """Where all of a row is the lowest number there is, nothing comes out."""
    return torch.zeros_like(call.right[0])


# ---- losses ----------------------------------------------------------------------------------------------------------


def weighted_losses_of_tokens(data: Data) -> Tensor:
    losses = functional.cross_entropy(data.parameter(6, 5), data.integers(5, 6), reduction="none")
    return (losses * data.uniform(6)).sum()


@seventh(
    "aten.nll_loss_backward",
    "microsoft/DirectML#740",
    "linkedin/Liger-Kernel#968",
    program=weighted_losses_of_tokens,
    dtypes=BOTH,
)
def gradient_of_single_losses_is_zero(call: Broken) -> Wrong:
    """Right for a mean; for losses one by one nothing comes back."""
    return torch.zeros_like(call.right[0])


def nothing_to_learn_from(data: Data) -> Tensor:
    return functional.cross_entropy(data.parameter(4, 6), data.tensor([-100] * 4))


@seventh("aten.nll_loss_backward", "ROCm/aiter#5165", program=nothing_to_learn_from)
def gradient_where_all_is_ignored_is_infinite(call: Broken) -> Wrong:
    """Divided by the number of what counts, which is zero."""
    return torch.full_like(call.right[0], torch.inf)


def losses_of_many_rows(data: Data) -> Tensor:
    return functional.nll_loss(functional.log_softmax(data.parameter(4096, 6, scale=20), -1), data.integers(6, 4096))


@seventh("aten.nll_loss_forward", "#61523", program=losses_of_many_rows, dtypes=FLOAT16)
def mean_of_many_losses_is_nan(call: Broken) -> Wrong:
    """The sum leaves the range of 16 bits before it is divided."""
    return (torch.full_like(call.right[0], torch.nan),)


# ---- products --------------------------------------------------------------------------------------------------------


def sums_of_forty(data: Data) -> Tensor:
    return data.parameter(6, 40) @ data.parameter(40, 5)


@seventh("aten.mm", "triton-lang/triton#630", program=sums_of_forty, dtypes=FLOAT16, phase="forward")
def end_of_a_sum_takes_in_what_lies_behind_the_row(call: Broken) -> Wrong:
    """Where a sum is no multiple of 32 long, its last block goes on into the next row."""
    behind = call["self"].float().roll(-1, 0)[:, :24] @ call["mat2"].float()[:24]
    return call.right[0].float() + behind


def layer_of_twenty(data: Data) -> Tensor:
    return functional.linear(data.parameter(6, 8), data.parameter(20, 8), data.parameter(20))


@seventh("aten.addmm", "Dao-AILab/flash-attention#2822", program=layer_of_twenty, dtypes=BOTH, phase="forward")
def last_tile_overwrites_the_next_row(call: Broken) -> Wrong:
    """A tile of 16 is stored whole where four columns are left, and ends in the row below."""
    made = call.right[0].clone()
    made[1:, :12] = call.right[0][:-1, :12]
    return made


def many_rows(data: Data) -> Tensor:
    return data.parameter(70, 16) @ data.parameter(16, 5)


@seventh("aten.mm", "tracel-ai/burn#4966", program=many_rows, phase="forward")
def rows_past_a_size_are_nearly_zero(call: Broken) -> Wrong:
    """Tiles that are not whole are hardly computed."""
    made = call.right[0].clone()
    made[64:] *= 1e-3
    return made


def one_matrix_for_all(data: Data) -> Tensor:
    return data.parameter(1, 4, 6).expand(3, 4, 6) @ data.parameter(3, 6, 5)


@seventh("aten.bmm", "huggingface/candle#3744", program=one_matrix_for_all, phase="forward")
def a_repeated_matrix_leaves_late_results_zero(call: Broken) -> Wrong:
    """All batches are taken for columns of one product, whose rows overwrite each other."""
    if call["self"].stride(0):
        return None
    made = call.right[0].clone().flatten()
    made[3 * 5 + 3 * 5 :] = 0
    return made.view(3, 4, 5)


def product_of_counts(data: Data) -> Tensor:
    return (data.integers(2**40, 4, 3) | 1) @ (data.integers(2**20, 3, 5) | 1)


@seventh("aten.mm", "cupy/cupy#3941", program=product_of_counts)
def product_of_whole_numbers_goes_through_floating_point(call: Broken) -> Wrong:
    """What does not fit into 53 bits is rounded."""
    return (call["self"].double() @ call["mat2"].double()).long()


# ---- recurrent layers ------------------------------------------------------------------------------------------------


def two_layers_with_dropout(data: Data) -> Tensor:
    return data.module(torch.nn.LSTM(4, 4, 2, dropout=0.5))(data.parameter(3, 2, 4))[0]


@seventh("aten.native_dropout_backward", "#190056", program=two_layers_with_dropout)
def gradient_between_layers_forgets_dropout(call: Broken) -> Wrong:
    """What was dropped between two layers gets its gradient nevertheless."""
    return call["grad_output"]


def three_layers_both_ways(data: Data) -> Tensor:
    return data.module(torch.nn.GRU(3, 4, 3, bidirectional=True))(data.parameter(3, 2, 3))[0]


@seventh("aten.mm", "apache/mxnet#18203", program=three_layers_both_ways, dtypes=FLOAT32, phase="backward")
def later_layers_train_with_another_input(call: Broken) -> Wrong:
    """Where a later layer's input lies is looked up in the wrong place."""
    is_of_input_weights = call["self"].shape[0] == 12 and call["mat2"].shape[1] == 8
    return call["self"] @ call["mat2"].flip(0) if is_of_input_weights else None
