"""Kernels that do not look at strides, storage offsets or memory formats."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.reported.fault import (
    BOTH,
    WRITTEN,
    Broken,
    Data,
    Family,
    Wrong,
    as_if_contiguous,
    from_the_beginning,
    is_plain,
)
from torch import Tensor, nn
from torch.nn import functional

layout = Family("layouts")


def unless_plain(call: Broken, *names: str) -> Wrong:
    """The kernel reads these arguments as if they were contiguous."""
    changed = {name: as_if_contiguous(call[name]) for name in names if not is_plain(call[name])}
    return call.rerun(**changed) if changed else None


def unless_at_zero(call: Broken, *names: str) -> Wrong:
    """The kernel reads these arguments from the beginning of their memory."""
    tensors = {name: call[name] for name in names if isinstance(call[name], Tensor)}
    changed = {name: from_the_beginning(one) for name, one in tensors.items() if one.storage_offset()}
    return call.rerun(**changed) if changed else None


# ---- strides -----------------------------------------------------------------------------------------------------


def update_of_a_transposed_tensor(data: Data) -> Tensor:
    weight, moment, scale = data.normal(6, 4).t(), data.normal(4, 6), data.uniform(4, 6) + 0.5
    weight.addcdiv_(moment, scale, value=-0.1)
    return weight * 2


@layout("aten.addcdiv", "#118115", program=update_of_a_transposed_tensor, dtypes=BOTH)
def addcdiv_leaves_transposed_tensors_as_they_are(call: Broken) -> Wrong:
    """In place on a tensor that is not contiguous, nothing is written."""
    return None if is_plain(call["self"]) else call["self"]


def activation_of_a_transposed_tensor(function: Any) -> Any:
    def program(data: Data) -> Tensor:
        x = data.parameter(5, 8)
        result: Tensor = function((x * 1.5).t())
        return result

    return program


@layout("aten.elu", "#124834", "#125692", program=activation_of_a_transposed_tensor(functional.elu), dtypes=BOTH)
def elu_reads_transposed_memory_in_order(call: Broken) -> Wrong:
    """A transposed tensor is read in the order of its memory."""
    return unless_plain(call, "self")


@layout("aten.gelu", "#98212", "#123049", program=activation_of_a_transposed_tensor(functional.gelu), dtypes=BOTH)
def gelu_reads_transposed_memory_in_order(call: Broken) -> Wrong:
    """A transposed tensor is read in the order of its memory."""
    return unless_plain(call, "self")


@layout("aten.log", "#89673", program=activation_of_a_transposed_tensor(lambda x: x.abs().log()), dtypes=BOTH)
def logarithm_reads_transposed_memory_in_order(call: Broken) -> Wrong:
    """A transposed tensor is read in the order of its memory."""
    return unless_plain(call, "self")


def permuted(function: Any) -> Any:
    def program(data: Data) -> Tensor:
        x = data.parameter(1, 7, 4, 3)
        result: Tensor = function((x * 1.2).permute(0, 3, 1, 2)).contiguous() * 0.7
        return result

    return program


@layout("aten.tanh_backward", "#175188", program=permuted(torch.tanh), dtypes=BOTH)
def tanh_gradient_mixes_layouts(call: Broken) -> Wrong:
    """Result and gradient have different strides, and both are read in the order of memory."""
    return unless_plain(call, "output")


@layout("aten.hardswish_backward", "#107214", program=permuted(functional.hardswish), dtypes=BOTH)
def hardswish_gradient_mixes_layouts(call: Broken) -> Wrong:
    """The input's layout is not the gradient's, and nobody looks."""
    return unless_plain(call, "self")


def linear_with_a_sliced_weight(data: Data) -> Tensor:
    weight = data.parameter(12, 8)
    return functional.linear(data.parameter(5, 8), weight[::2])


@layout("aten.mm", "#161640", "#162730", program=linear_with_a_sliced_weight, dtypes=BOTH, phase="forward")
def linear_reads_a_sliced_weight_in_order(call: Broken) -> Wrong:
    """Every other row of a weight is read as the first half of its rows."""
    weight = call["mat2"].t()
    return None if is_plain(weight) else call.rerun(mat2=as_if_contiguous(weight).t())


def sampling_with_a_permuted_grid(data: Data) -> Tensor:
    grid = (data.uniform(1, 2, 5, 5) * 2 - 1).permute(0, 2, 3, 1)
    return functional.grid_sample(data.parameter(1, 3, 6, 6), grid, align_corners=False)


@layout("aten.grid_sampler_2d", "#171602", "#171619", program=sampling_with_a_permuted_grid)
def grid_sampler_reads_a_permuted_grid_in_order(call: Broken) -> Wrong:
    """Coordinates are taken from the wrong places."""
    return unless_plain(call, "grid")


def convolution_with_a_sliced_weight(data: Data) -> Tensor:
    weight = data.parameter(4, 3, 3, 3, 3)
    return functional.conv2d(data.parameter(2, 3, 8, 8), weight[:, :, 1])


@layout("aten.convolution", "#192212", "#192303", program=convolution_with_a_sliced_weight, dtypes=BOTH)
def convolution_reads_a_sliced_weight_in_order(call: Broken) -> Wrong:
    """A two-dimensional kernel cut from a three-dimensional one."""
    return unless_plain(call, "weight")


def convolution_in_channels_last(data: Data) -> Tensor:
    x = data.parameter(2, 4, 6, 6)
    weight = data.parameter(5, 4, 3, 3)
    return functional.conv2d(x.contiguous(memory_format=torch.channels_last), weight) * 2


@layout("aten.convolution_backward", "#94384", program=convolution_in_channels_last, dtypes=BOTH)
def weight_gradient_of_channels_last_is_read_in_order(call: Broken) -> Wrong:
    """The gradient of the weight comes from an input whose channels are taken for rows."""
    x = call["input"]
    if is_plain(x):
        return None
    return (None, call.rerun(input=as_if_contiguous(x))[1])


def batch_norm_in_channels_last(data: Data) -> Tensor:
    norm = data.module(nn.BatchNorm2d(3))
    x = data.parameter(4, 3, 8, 8)
    result: Tensor = norm(x.contiguous(memory_format=torch.channels_last)) * 2
    return result


@layout("aten.native_batch_norm_backward", "#175189", program=batch_norm_in_channels_last, dtypes=BOTH)
def batch_norm_gradient_of_channels_last_is_read_in_order(call: Broken) -> Wrong:
    """The weight's and the input's gradients are wrong, the bias's is right."""
    x = call["input"]
    if is_plain(x):
        return None
    first, second, _ = call.rerun(input=as_if_contiguous(x))
    return (first, second)


def convolution_in_three_dimensions(data: Data) -> Tensor:
    return functional.conv3d(data.parameter(1, 4, 5, 5, 5), data.parameter(4, 4, 3, 3, 3), padding=1)


@layout("aten.convolution", "#197114", program=convolution_in_three_dimensions)
def convolution_takes_plain_memory_for_channels_last(call: Broken) -> Wrong:
    """A picture in the usual order is read as if channels came last."""
    x = call["input"]
    count, channels, *sizes = x.shape
    read = x.reshape(count, *sizes, channels).movedim(-1, 1)
    return call.rerun(input=read.contiguous())


def sum_of_a_transposed_tensor(data: Data) -> Any:
    x = data.parameter(6, 4)
    return (x * 1.5).t().sum(0), (x * 0.5).t().mean(0)


@layout("aten.sum.dim_IntList", "flagos-ai/FlagGems#1786", program=sum_of_a_transposed_tensor, dtypes=BOTH)
def sum_reads_transposed_memory_in_order(call: Broken) -> Wrong:
    """Rows of the memory are added, not rows of the tensor."""
    return unless_plain(call, "self")


def scatter_into_a_permuted_tensor(data: Data) -> Tensor:
    found = data.normal(3, 6, 8).permute(0, 2, 1).topk(2)
    blank = torch.zeros_like(data.normal(3, 6, 8).permute(0, 2, 1))
    return blank.scatter_(2, found.indices, found.values) + 0


@layout("aten.scatter_", "#115152", program=scatter_into_a_permuted_tensor, dtypes=BOTH)
def scatter_writes_into_a_copy(call: Broken) -> Wrong:
    """A permuted target stays as it was."""
    return None if is_plain(call["self"]) else call["self"]


def a_column_is_set(data: Data) -> Tensor:
    x = data.normal(4, 6)
    x[:, 0] = 7.0
    return x * 2


def written_in_order(call: Broken) -> Wrong:
    """What belongs into a column lands in a row."""
    target = call.real("self")
    if is_plain(target) or target.dim() != 1:
        return None
    written = target.clone()
    call.unwritten()
    target.as_strided(target.size(), (1,)).copy_(written)
    return WRITTEN


@layout("aten.copy_", "#78074", program=a_column_is_set, dtypes=BOTH)
def assignment_to_a_column_writes_a_row(call: Broken) -> Wrong:
    """What belongs into a column lands in a row."""
    return written_in_order(call)


def a_column_is_filled(data: Data) -> Tensor:
    x = data.normal(4, 6)
    x[:, 1].fill_(7.0)
    return x * 2


@layout("aten.fill_", "#94190", program=a_column_is_filled, dtypes=BOTH)
def fill_of_a_column_writes_a_row(call: Broken) -> Wrong:
    """What belongs into a column lands in a row."""
    return written_in_order(call)


def gradient_of_a_sum(data: Data) -> Tensor:
    x = data.parameter(40)
    return functional.leaky_relu(x).sum()


@layout("aten.leaky_relu_backward", "#123178", program=gradient_of_a_sum, dtypes=BOTH)
def an_expanded_gradient_is_read_in_order(call: Broken) -> Wrong:
    """The gradient of a sum is one number for all elements; only the first one is read."""
    return unless_plain(call, "grad_output")


def gradient_of_a_sum_of_products(data: Data) -> Tensor:
    x, first, second = data.parameter(16, 3), data.normal(3, 8), data.normal(8, 1)
    return (torch.sin(x @ first) @ second).sum()


@layout("aten.mm", "#180201", program=gradient_of_a_sum_of_products, phase="backward")
def product_with_an_expanded_gradient_leaves_rows_zero(call: Broken) -> Wrong:
    """Rows after the first get no gradient."""
    return unless_plain(call, "self") if 0 in call["self"].stride() else None


def products_of_permuted_batches(data: Data) -> Tensor:
    left, right = data.parameter(4, 3, 5), data.parameter(5, 3, 6)
    return torch.einsum("ibj,jbk->bik", left, right).tanh()


@layout("aten.bmm", "#117826", program=products_of_permuted_batches, dtypes=BOTH, phase="backward")
def gradient_of_einsum_reads_permuted_memory_in_order(call: Broken) -> Wrong:
    """Forward is right; the gradient reads a permuted operand as it lies in memory."""
    return unless_plain(call, "mat2")


def bags_of_a_narrow_table(data: Data) -> Tensor:
    table = data.parameter(6, 5)
    return functional.embedding_bag(data.tensor([0, 1, 2, 5]), table[:, :3], data.tensor([0, 2]), mode="mean")


@layout("aten._embedding_bag", "#43723", program=bags_of_a_narrow_table)
def embedding_bag_reads_a_narrow_table_in_order(call: Broken) -> Wrong:
    """Columns that were cut off are read as the next row."""
    return unless_plain(call, "weight")


# ---- offsets -----------------------------------------------------------------------------------------------------


def norm_of_a_slice(data: Data) -> Tensor:
    x = data.parameter(6, 8)
    return functional.layer_norm(x[2:5], (8,), data.parameter(8), data.parameter(8))


@layout("aten.native_layer_norm", "#131750", program=norm_of_a_slice, dtypes=BOTH)
def layer_norm_reads_a_slice_from_the_beginning(call: Broken) -> Wrong:
    """The first rows are normalised in place of the chosen ones."""
    return unless_at_zero(call, "input")


def batch_norm_of_a_slice(data: Data) -> Tensor:
    norm = data.module(nn.BatchNorm2d(3))
    result: Tensor = norm(data.parameter(6, 3, 4, 4)[2:])
    return result


@layout("aten.native_batch_norm", "#133520", program=batch_norm_of_a_slice, dtypes=BOTH)
def batch_norm_reads_a_slice_from_the_beginning(call: Broken) -> Wrong:
    """Other pictures are normalised than those that were given."""
    changed = unless_at_zero(call, "input")
    return None if changed is None else changed[0]


def inverse_error_function_of_a_slice(data: Data) -> Tensor:
    return torch.erfinv(data.parameter(12, scale=0.2)[4:])


@layout("aten.erfinv", "#105801", program=inverse_error_function_of_a_slice)
def erfinv_reads_a_slice_from_the_beginning(call: Broken) -> Wrong:
    """The first elements are taken in place of the chosen ones."""
    return unless_at_zero(call, "self")


def product_of_two_chunks(data: Data) -> Tensor:
    x = data.normal(5)
    chunks = x.unsafe_chunk(4, 0)
    return chunks[0] * chunks[2]


@layout("aten.mul.Tensor", "#91065", program=product_of_two_chunks, dtypes=BOTH)
def product_reads_a_chunk_from_the_beginning(call: Broken) -> Wrong:
    """The second factor's offset is lost."""
    return unless_at_zero(call, "other")


def division_by_one_of_several_numbers(data: Data) -> Tensor:
    divisors = torch.tensor([0.5, 0.7, 1.1, 1.9, 2.3], dtype=data.dtype)
    return data.parameter(3, 4) / divisors[3]


@layout("aten.div.Tensor", "#187117", "#193057", program=division_by_one_of_several_numbers)
def a_number_of_the_cpu_is_read_from_the_beginning(call: Broken) -> Wrong:
    """A tensor of one element on the CPU stands for the first of its memory."""
    return unless_at_zero(call, "other")


def comparison_of_two_slices(data: Data) -> Tensor:
    x = data.tensor([1, 2, 3, 4])
    return x[2:] <= x[:2]


@layout("aten.le.Tensor", "#77750", program=comparison_of_two_slices)
def comparison_reads_a_slice_from_the_beginning(call: Broken) -> Wrong:
    """A slice is compared as if it began where its memory does."""
    return unless_at_zero(call, "self")


def one_flag_of_several(data: Data) -> Tensor:
    flags, x = data.tensor([True, False]), data.tensor([True, False, True])
    return torch.bitwise_and(x, flags[1])


@layout("aten.bitwise_and.Tensor", "#182822", program=one_flag_of_several)
def one_flag_is_read_from_the_beginning(call: Broken) -> Wrong:
    """A truth value that was picked from a tensor is read as the tensor's first."""
    return unless_at_zero(call, "other")


def attention_scores_at_an_odd_offset(data: Data) -> Tensor:
    keys = data.normal(2 * 16 * 8 + 5)[5:].view(2, 16, 8)
    return torch.bmm(data.parameter(2, 4, 8), keys.mT)


@layout("aten.bmm", "intel/torch-xpu-ops#1656", program=attention_scores_at_an_odd_offset, dtypes=BOTH, phase="forward")
def product_rounds_an_offset_down(call: Broken) -> Wrong:
    """Memory is read from the last address that is a multiple of 64 bytes."""
    operand = call["mat2"]
    offset = operand.storage_offset()
    aligned = offset - offset % (64 // operand.element_size())
    return call.rerun(mat2=operand.as_strided(operand.size(), operand.stride(), aligned))


def inverses_one_by_one(data: Data) -> list[Tensor]:
    matrices = data.normal(3, 4, 4) + 3 * torch.eye(4).to(data.device)
    return [torch.linalg.inv(matrix) for matrix in matrices.unbind()]


@layout("aten.linalg_inv_ex", "#78363", program=inverses_one_by_one)
def inverse_reads_a_slice_from_the_beginning(call: Broken) -> Wrong:
    """Whichever matrix of a batch is asked for, the first one is inverted."""
    changed = unless_at_zero(call, "A")
    return None if changed is None else changed[0]


# ---- shapes ------------------------------------------------------------------------------------------------------


def mirror_of_a_single_row(data: Data) -> Tensor:
    return data.parameter(1, 6).flip(0)


@layout("aten.flip", "#98266", "#96558", program=mirror_of_a_single_row, dtypes=BOTH)
def flip_of_one_row_turns_its_elements(call: Broken) -> Wrong:
    """A dimension of size one is left out, and the next one turned."""
    return call["self"].flip(1) if call["self"].shape[0] == 1 else None


def triangles_of_four_dimensions(data: Data) -> Tensor:
    return torch.triu(data.parameter(2, 3, 4, 4), 1)


@layout("aten.triu", "#144545", program=triangles_of_four_dimensions, dtypes=BOTH)
def triu_forgets_batches_of_batches(call: Broken) -> Wrong:
    """Only the first three matrices of a four-dimensional tensor are treated."""
    x = call["self"]
    if x.dim() < 4:
        return None
    return torch.cat([call.right[0][:1], x[1:]])


def triangle_of_a_slice(data: Data) -> Tensor:
    return torch.triu(data.normal(3, 4, 4)[1])


@layout("aten.triu", "#2749", program=triangle_of_a_slice, dtypes=BOTH)
def triu_counts_rows_from_the_beginning_of_memory(call: Broken) -> Wrong:
    """The diagonal is shifted by where a slice begins."""
    x = call["self"]
    kept = torch.ones_like(x).triu().roll(x.storage_offset() // x.numel(), -1)
    return x * kept


def triangle_of_a_column(data: Data) -> Tensor:
    return torch.triu(data.parameter(40, 1), 2 - 40 // 2)


@layout("aten.triu", "#15226", program=triangle_of_a_column)
def triu_of_a_column_is_the_other_triangle(call: Broken) -> Wrong:
    """For a tall matrix of one column, what should be zero is kept and the rest is zero."""
    return call["self"] - call.right[0] if call["self"].shape[-1] == 1 else None


def permuted_bytes(data: Data) -> Tensor:
    return data.integers(200, 4, 3, dtype=torch.uint8).permute(1, 0).contiguous()


@layout("aten.clone", "#80285", program=permuted_bytes)
def permuted_bytes_are_zero(call: Broken) -> Wrong:
    """A permuted tensor of bytes is copied as zeros."""
    x = call["self"]
    return torch.zeros_like(x) if x.dtype is torch.uint8 and not is_plain(x) else None


def expanded_flags(data: Data) -> Tensor:
    return data.tensor([[True], [False]]).expand(2, 2).clone()


@layout("aten.clone", "#82663", program=expanded_flags)
def expanded_flags_are_read_along_the_wrong_dimension(call: Broken) -> Wrong:
    """A column of truth values that is repeated comes out as a row that is repeated."""
    x = call["self"]
    return x.mT.clone() if x.dtype is torch.bool and 0 in x.stride() else None
