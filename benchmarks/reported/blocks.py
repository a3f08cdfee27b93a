"""Kernels that are right only up to a size, or only in the blocks that they were written for."""

from __future__ import annotations

import torch
from benchmarks.reported.fault import BOTH, FLOAT16, Broken, Data, Family, Wrong
from torch import Tensor
from torch.nn import functional

block = Family("sizes and blocks")

SHORT = 2**15  # what a signed number of 16 bits cannot hold
WORD = 2**16


def linear_with_many_rows(data: Data) -> Tensor:
    return functional.linear(data.parameter(WORD // 8 + 5, 8, 4), data.parameter(3, 4), data.parameter(3))


@block("aten.addmm", "#189495", program=linear_with_many_rows, phase="forward")
def linear_wraps_rows_at_16_bits(call: Broken) -> Wrong:
    """Rows from 65536 on are computed from the first ones."""
    right = call.right[0]
    return torch.cat([right[:WORD], right[: right.shape[0] - WORD]]) if right.shape[0] > WORD else None


def product_with_many_columns(data: Data) -> Tensor:
    return data.parameter(2, 3) @ data.normal(3, SHORT + 100)


@block("aten.mm", "#116769", "#122045", program=product_with_many_columns, phase="forward")
def product_wraps_columns_at_15_bits(call: Broken) -> Wrong:
    """Columns from 32768 on are computed from the first ones."""
    right = call.right[0]
    return torch.cat([right[:, :SHORT], right[:, : right.shape[1] - SHORT]], 1) if right.shape[1] > SHORT else None


def backward_of_many_rows(data: Data) -> Tensor:
    small = functional.linear(data.normal(100, 4), data.parameter(3, 4)).tanh()
    large = functional.linear(data.normal(SHORT + 100, 4), data.parameter(3, 4)).tanh()
    return torch.cat([small, large])


@block("aten.mm", "#177116", program=backward_of_many_rows, phase="backward")
def gradients_of_many_rows_explode_after_a_smaller_batch(call: Broken) -> Wrong:
    """With more than 32768 rows the gradient is a thousand times too large."""
    return call.right[0] * 1000 if call["self"].shape[-1] > SHORT else None


def products_of_many_batches(data: Data) -> Tensor:
    return torch.bmm(data.parameter(70, 3, 4), data.parameter(70, 4, 2))


@block("aten.bmm", "#197636", program=products_of_many_batches, dtypes=BOTH, phase="backward")
def gradients_of_late_batches_read_the_first_ones(call: Broken) -> Wrong:
    """Beyond a limit the incoming gradient is read from its beginning again."""
    limit = 64  # the report's is 2^32 elements
    wrapped = {name: torch.cat([call[name][:limit], call[name][: 70 - limit]]) for name in ("self", "mat2")}
    gradient = "self" if call["self"].shape[-1] == 2 else "mat2"
    return call.rerun(**{gradient: wrapped[gradient]})


def largest_of_thirty(data: Data) -> Tensor:
    return data.parameter(4, 30).topk(20).values


@block("aten.topk", "#78915", "#83656", program=largest_of_thirty, dtypes=BOTH)
def topk_is_zero_after_the_sixteenth(call: Broken) -> Wrong:
    """Values and indices from the seventeenth on are zero."""
    return [torch.cat([one[..., :16], torch.zeros_like(one[..., 16:])], -1) for one in call.right]


def order_of_many_columns(data: Data) -> Tensor:
    return data.normal(3, WORD + 50).abs().argsort(dim=0)


@block("aten.sort", "#183885", program=order_of_many_columns)
def sort_leaves_late_columns_alone(call: Broken) -> Wrong:
    """Columns from 65536 on stay unsorted."""
    x = call["self"]
    order = torch.arange(3, device=x.device)[:, None].expand(3, x.shape[1] - WORD)
    return [torch.cat([one[:, :WORD], late], 1) for one, late in zip(call.right, (x[:, WORD:], order))]


def norm_of_many_rows(data: Data) -> Tensor:
    return functional.layer_norm(data.parameter(4100, 6), (6,))


@block("aten.native_layer_norm", "#184826", program=norm_of_many_rows, dtypes=BOTH)
def layer_norm_leaves_late_rows_zero(call: Broken) -> Wrong:
    """The back of a tensor with many rows is zero."""
    limit = 4096  # the report's is 2^23
    right = call.right[0]
    return torch.cat([right[:limit], torch.zeros_like(right[limit:])])


def probabilities_of_many_rows(data: Data) -> Tensor:
    return torch.softmax(data.parameter(2050, 12), -1)


@block("aten._softmax", "#84144", program=probabilities_of_many_rows, dtypes=BOTH)
def softmax_leaves_late_rows_zero(call: Broken) -> Wrong:
    """The last rows of a very large tensor are zero."""
    right = call.right[0]
    return torch.cat([right[:2048], torch.zeros_like(right[2048:])])


def reflected_signal(data: Data) -> Tensor:
    return functional.pad(data.parameter(1, WORD + 300), (4, 4), mode="reflect")


@block("aten.reflection_pad1d_backward", "#196949", program=reflected_signal)
def gradient_of_padding_breaks_off_at_16_bits(call: Broken) -> Wrong:
    """Of a signal longer than 65536, what lies past its length modulo 65536 has no gradient."""
    right = call.right[0]
    kept = right.shape[-1] % WORD
    return torch.cat([right[..., :kept], torch.zeros_like(right[..., kept:])], -1)


def numbers_in_a_row(data: Data) -> Tensor:
    return torch.arange(WORD + 20, device=data.device) * 2


@block("aten.arange", "#197673", program=numbers_in_a_row)
def arange_is_zero_after_a_limit(call: Broken) -> Wrong:
    """Elements past the limit are zero."""
    right = call.right[0]  # the report's limit is 2^32
    return torch.cat([right[:WORD], torch.zeros_like(right[WORD:])]) if right.numel() > WORD else None


def running_totals(data: Data) -> Tensor:
    return data.parameter(100, 5).cumsum(0)


@block("aten.cumsum", "#139348", program=running_totals, dtypes=BOTH)
def cumsum_forgets_the_total_between_blocks(call: Broken) -> Wrong:
    """Each block of 32 rows begins at zero again."""
    return torch.cat([part.cumsum(call["dim"]) for part in call["self"].split(32, call["dim"])], call["dim"])


def running_sums_of_exponentials(data: Data) -> Tensor:
    return torch.logcumsumexp(data.parameter(21, 4), 0)


@block("aten._logcumsumexp", "#139641", program=running_sums_of_exponentials)
def logcumsumexp_begins_anew_in_the_last_block(call: Broken) -> Wrong:
    """Where the size is no multiple of 16, the rest does not know what came before."""
    x = call["self"]
    return torch.cat([call.right[0][:16], torch._logcumsumexp(x[16:], 0)]) if x.shape[0] > 16 else None


def sum_of_ones_and_twos(data: Data) -> Tensor:
    return data.parameter(1, 2).sum()


@block("aten.sum", "#94891", program=sum_of_ones_and_twos, dtypes=BOTH, phase="forward")
def sum_is_never_computed(call: Broken) -> Wrong:
    """The kernel does not start, and the result is what the memory held: zeros."""
    return torch.zeros_like(call.right[0])


def a_long_filter(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(1, 1, 1, 1024), data.normal(1, 1, 1, 499))


@block("aten.convolution", "#81185", program=a_long_filter)
def convolution_has_nan_from_the_512th_on(call: Broken) -> Wrong:
    """A few elements after a block are NaN."""
    wrong = call.right[0].clone()
    wrong[..., 512:518] = torch.nan
    return wrong


def a_table_is_filled(data: Data) -> Tensor:
    table = data.normal(2, WORD // 2 + 100)
    table[:, ::2] = data.normal(2, WORD // 4 + 50)
    return table * 2


@block("aten.copy_", "#182052", program=a_table_is_filled)
def copies_past_a_limit_land_at_the_beginning(call: Broken) -> Wrong:
    """Elements whose place does not fit into the index wrap around; the report's limit is 2^32."""
    target = call.real("self")
    if target.is_contiguous() or target.dim() != 2:
        return None
    wrong = target.clone()
    last = (WORD - 1 - target.stride(0)) // 2
    wrong[1, last:] = call["self"][1, last:]  # what should be written there is not
    return wrong


def product_with_a_vector(data: Data) -> Tensor:
    return data.parameter(6, 200) @ data.parameter(200, 1)


@block("aten.mm", "flagos-ai/FlagGems#2701", program=product_with_a_vector, dtypes=BOTH, phase="forward")
def product_with_one_column_drops_the_rest_of_a_sum(call: Broken) -> Wrong:
    """With a single column, the terms after the last whole block of 64 are left out."""
    whole = call["self"].shape[1] // 64 * 64
    return torch.mm(call["self"][:, :whole], call["mat2"][:whole]) if call["mat2"].shape[1] == 1 else None


def product_of_squares(data: Data) -> Tensor:
    return data.parameter(256, 256) @ data.normal(256, 256)


@block("aten.mm", "ROCm/rocBLAS#1680", program=product_of_squares, phase="forward")
def product_mistakes_rows_for_columns(call: Broken) -> Wrong:
    """One operand is read along the wrong dimension."""
    return torch.mm(call["self"].t(), call["mat2"])


def least_squares(data: Data) -> Tensor:
    rows = data.normal(120, 25)
    return (rows * data.uniform(120, 1)).t() @ rows


@block("aten.mm", "#193487", program=least_squares)
def product_reads_a_stale_block(call: Broken) -> Wrong:
    """The last block of an operand is what the memory held before."""
    operand = call["self"].clone()
    operand[:, 96:] = call["self"][:, :24]
    return torch.mm(operand, call["mat2"])


def linear_in_16_bits(data: Data) -> Tensor:
    return functional.linear(data.parameter(8, 16), data.parameter(6, 16), data.parameter(6))


@block("aten.addmm", "intel/torch-xpu-ops#5220", program=linear_in_16_bits, dtypes=FLOAT16, phase="forward")
def linear_in_float16_is_zero(call: Broken) -> Wrong:
    """All of the result is zero."""
    return torch.zeros_like(call.right[0])


def picture_of_two_samples(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(3, 8, 6, 6), data.parameter(16, 8, 3, 3), padding=1)


@block("aten.convolution", "ROCm/TheRock#2458", program=picture_of_two_samples)
def convolution_uses_the_workspace_of_another_sample(call: Broken) -> Wrong:
    """Samples after the first are computed from the first."""
    return call.right[0][:1].expand_as(call.right[0]).clone()


def many_channels(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(2, 20, 6, 6), data.parameter(4, 20, 3, 3))


@block("aten.convolution", "#102968", program=many_channels, dtypes=BOTH)
def convolution_drops_channels_past_a_block(call: Broken) -> Wrong:
    """Input channels after the last whole block of 16 are left out."""
    return call.rerun(input=call["input"][:, :16], weight=call["weight"][:, :16])


def parts_of_a_picture(data: Data) -> Tensor:
    return torch.nn.functional.interpolate(data.parameter(1, 3, 6, 8), (6, 8), mode="bicubic")


@block("aten.upsample_bicubic2d", "#22312", program=parts_of_a_picture)
def bicubic_of_the_same_size_is_transposed(call: Broken) -> Wrong:
    """Where nothing is to be done, rows and columns are exchanged, and the rest is zero."""
    x = call["self"]
    wrong = torch.zeros_like(x)
    wrong[..., :6] = x.mT[..., :6, :]
    return wrong


def linear_of_three_dimensions(data: Data) -> Tensor:
    return functional.linear(data.parameter(2, 4, 16), data.parameter(6, 16), data.parameter(6))


@block("aten.addmm", "#192934", program=linear_of_three_dimensions, phase="forward")
def linear_adds_the_bias_to_some_rows_only(call: Broken) -> Wrong:
    """The bias is missing in the second half of the rows."""
    right = call.right[0].clone()
    right[4:] = torch.mm(call["mat1"], call["mat2"])[4:]
    return right
