"""Faults of an eighth set: chosen, written and sorted into findable or not before any of them was run with a tool.

Here are attention, norms, losses, products, matrices and spectra; eighth_moves.py, eighth_pictures.py and
eighth_values.py have the others."""

from __future__ import annotations

import torch
from benchmarks.reported.attention import KERNEL
from benchmarks.reported.fault import (
    BOTH,
    FLOAT16,
    WRITTEN,
    Broken,
    Data,
    Family,
    Wrong,
    as_if_contiguous,
)
from torch import Tensor
from torch.nn import functional

eighth = Family("written eighth", half="eighth")

NO_INVERSE = "PyTorch asks for a matrix that can be inverted, and defines no result for another"


# ---- attention -------------------------------------------------------------------------------------------------------


def a_query_that_sees_nothing(data: Data) -> Tensor:
    query, key, value = (data.parameter(1, 2, 6, 8) for _ in range(3))
    seen = torch.ones(6, 6).tril() > 0
    seen[2] = False
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=seen.to(data.device))


@eighth(KERNEL, "#156707", program=a_query_that_sees_nothing, dtypes=BOTH)
def attention_to_nothing_is_nan(call: Broken) -> Wrong:
    """Where a mask hides all keys, the softmax divides nothing by nothing."""
    made = call.right[0].clone()
    made[..., 2, :] = torch.nan
    return (made,)


@eighth(f"{KERNEL}_backward", "Dao-AILab/flash-attention#443", program=a_query_that_sees_nothing, dtypes=BOTH)
def gradient_of_a_query_that_sees_nothing_is_nan(call: Broken) -> Wrong:
    """The same query going back: its gradient alone is none."""
    gradient = call.right[0].clone()
    gradient[..., 2, :] = torch.nan
    return (gradient,)


def more_queries_than_keys(data: Data) -> Tensor:
    query, key, value = data.parameter(1, 2, 8, 8), data.parameter(1, 2, 5, 8), data.parameter(1, 2, 5, 8)
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


@eighth(KERNEL, "Dao-AILab/flash-attention#1778", program=more_queries_than_keys, dtypes=BOTH)
def queries_past_the_last_key_are_left_out(call: Broken) -> Wrong:
    """The number of blocks comes from the difference of both lengths, which is below zero: the loop never runs."""
    made = call.right[0].clone()
    made[..., 5:, :] = 0
    return (made,)


# ---- norms -----------------------------------------------------------------------------------------------------------


def statistics_after_a_batch(data: Data) -> list[Tensor]:
    module = torch.nn.BatchNorm2d(3).to(data.device)
    module(data.normal(4, 3, 4, 4) + 2)
    return [module.running_mean * 1, module.running_var * 1]


@eighth("aten.native_batch_norm", "apache/mxnet#18751", program=statistics_after_a_batch)
def running_mean_and_variance_change_places(call: Broken) -> Wrong:
    """What was learned of the mean is stored as the variance, and the other way round."""
    mean, variance = call.real("running_mean"), call.real("running_var")
    first = mean.clone()
    mean.copy_(variance)
    variance.copy_(first)
    return WRITTEN


@eighth("aten.native_batch_norm", "Oneflow-Inc/oneflow#6055", program=statistics_after_a_batch)
def momentum_is_that_of_what_was(call: Broken) -> Wrong:
    """A tenth of what was stays, and nine tenths come from one batch."""
    share = call["momentum"]
    for name, before in (("running_mean", 0.0), ("running_var", 1.0)):
        after = call.real(name)
        batch = (after - before * (1 - share)) / share
        after.copy_(before * share + batch * (1 - share))
    return WRITTEN


def norm_of_800_rows(data: Data) -> Tensor:
    return functional.batch_norm(
        data.parameter(800, 3), None, None, data.parameter(3), data.parameter(3), training=True
    )


@eighth("aten.native_batch_norm_backward", "ROCm/MIOpen#1109", program=norm_of_800_rows)
def gradient_of_a_large_batch_sums_up_768_rows(call: Broken) -> Wrong:
    """Sums over a batch of single numbers end there."""
    gradient = call["grad_out"].clone()
    gradient[768:] = 0
    return call.rerun(grad_out=gradient)  # type: ignore[no-any-return]


def groups_of_pictures(data: Data) -> Tensor:
    return functional.group_norm(data.parameter(2, 4, 3, 5), 2, data.parameter(4), data.parameter(4))


@eighth("aten.native_group_norm_backward", "linkedin/Liger-Kernel#1376", program=groups_of_pictures, dtypes=BOTH)
def weight_of_a_channel_is_trained_by_the_first_row_of_its_picture(call: Broken) -> Wrong:
    """The width is taken for all of a channel's numbers."""
    gradient = call["grad_out"].clone()
    gradient[:, :, 1:] = 0
    return (None, *call.rerun(grad_out=gradient)[1:3])


# ---- losses and activations ------------------------------------------------------------------------------------------


def several_labels(data: Data) -> Tensor:
    labels = data.tensor([[1, 3, -1, 0, 0, 0], [5, -1, 0, 0, 0, 0], [0, 2, 4, -1, 0, 0]])
    return functional.multilabel_margin_loss(data.parameter(3, 6), labels)


@eighth("aten.multilabel_margin_loss_backward", "#84202", program=several_labels)
def gradient_of_a_label_is_lost_on_the_way(call: Broken) -> Wrong:
    """One thread adds what a label gets, and another writes its own over it at the same time."""
    made = call.right[0].clone()
    made[1, 5] = 0
    return made


def leaking_nothing(data: Data) -> Tensor:
    return functional.leaky_relu(data.parameter(4, 8), 0.0)


@eighth("aten.leaky_relu_backward", "chainer/chainer#5898", program=leaking_nothing, dtypes=BOTH)
def gradient_passes_where_the_slope_is_zero(call: Broken) -> Wrong:
    """The sign is read off the result, which is nowhere below zero."""
    return call["grad_output"]


def slopes_below_zero(data: Data) -> Tensor:
    return functional.prelu(data.parameter(4, 3, 5), -data.uniform(3) - 0.1)


@eighth(
    "aten._prelu_kernel",
    "alibaba/heterogeneity-aware-lowering-and-optimization#163",
    program=slopes_below_zero,
    dtypes=BOTH,
)
def slopes_are_never_below_zero(call: Broken) -> Wrong:
    """Their signs are dropped."""
    return torch.where(call["self"] > 0, call["self"], call["self"] * call["weight"].abs())


# ---- products --------------------------------------------------------------------------------------------------------


def scaled_scores(data: Data) -> Tensor:
    keys = data.normal(5, 4, 16).permute(1, 2, 0)
    return torch.baddbmm(data.normal(4, 1, 5), data.normal(4, 1, 16), keys, beta=0, alpha=0.1)


@eighth("aten.baddbmm", "#136299", program=scaled_scores, dtypes=FLOAT16)
def scores_are_not_scaled(call: Broken) -> Wrong:
    """With nothing to add, the other factor is left out as well."""
    return call.rerun(alpha=1)


def layer_in_eight_bits(data: Data) -> Tensor:
    left, right = (data.integers(256, *shape, dtype=torch.int32) - 128 for shape in ((32, 64), (64, 16)))
    return torch._int_mm(left.to(torch.int8), right.to(torch.int8))


@eighth("aten._int_mm", "#136746", "uxlfoundation/oneDNN#476", program=layer_in_eight_bits)
def pairs_of_products_stop_at_16_bits(call: Broken) -> Wrong:
    """One factor is moved above zero, and two neighbouring products are added in 16 bits."""
    left, right = call["self"].cpu().int() + 128, call["mat2"].cpu().int()
    pairs = left[:, ::2, None] * right[None, ::2] + left[:, 1::2, None] * right[None, 1::2]
    made = pairs.clamp(-(2**15), 2**15 - 1).sum(1) - 128 * right.sum(0)
    return made.to(call.right[0].device)


def read_both_ways(data: Data) -> Tensor:
    layer = data.module(torch.nn.GRU(3, 4, bidirectional=True, batch_first=True))
    read: Tensor = layer(data.parameter(2, 5, 3))[0]
    return read.transpose(0, 2).contiguous().tanh()


@eighth("aten._thnn_fused_gru_cell_backward", "#620", "#619", program=read_both_ways)
def gradient_of_a_recurrent_layer_is_read_in_order(call: Broken) -> Wrong:
    """What comes back is a slice of another order, and is read as if it lay side by side."""
    return call.rerun(grad_hy=as_if_contiguous(call["grad_hy"]))  # type: ignore[no-any-return]


# ---- matrices --------------------------------------------------------------------------------------------------------


def symmetric(data: Data, *shape: int) -> Tensor:
    matrices = data.parameter(*shape)
    return matrices + matrices.mT


def sizes_of_covariances(data: Data) -> Tensor:
    return torch.linalg.eigh(symmetric(data, 2, 4, 4)).eigenvalues


@eighth("aten._linalg_eigh", "cupy/cupy#4847", "#53879", program=sizes_of_covariances)
def eigenvalues_are_the_diagonal(call: Broken) -> Wrong:
    """Of matrices in a batch, the diagonals are sorted, and nothing else is done."""
    return (call["A"].diagonal(dim1=-2, dim2=-1).sort(-1).values,)


def put_together_again(data: Data) -> Tensor:
    values, vectors = torch.linalg.eigh(symmetric(data, 3, 4, 4).detach())
    return (vectors * values[:, None]) @ vectors.mT


@eighth("aten._linalg_eigh", "ROCm/rocm-libraries#9118", program=put_together_again)
def eigenvectors_belong_to_another_matrix(call: Broken) -> Wrong:
    """All matrices of a batch share one workspace."""
    return (None, call.right[1].roll(1, 0))


def undone(data: Data) -> Tensor:
    return torch.linalg.inv(data.parameter(20, 20))


@eighth("aten.linalg_inv_ex", "#2156", program=undone)
def inverse_leaves_its_rows_exchanged(call: Broken) -> Wrong:
    """The rows that were exchanged for the factors are not put back."""
    return (call.right[0] @ torch.linalg.lu(call["A"].cpu())[0].to(call.right[0].device),)


def volumes(data: Data) -> Tensor:
    matrices = data.normal(3, 4, 4)
    matrices[1, 2] = 0
    return torch.linalg.det(matrices)


@eighth("aten._linalg_det", "#51930", program=volumes)
def volume_of_a_flat_matrix_is_nan(call: Broken) -> Wrong:
    """In a batch, a pivot of zero is divided by."""
    return (torch.where(call.right[0] == 0, torch.nan, call.right[0]),)


def flow(data: Data) -> Tensor:
    return torch.linalg.det(data.parameter(4, 5, 5))


@eighth("aten._linalg_det", "chainer/chainer#613", program=flow)
def determinant_forgets_that_rows_were_exchanged(call: Broken) -> Wrong:
    """The product of the diagonal, without the sign of the exchanges."""
    return (call.right[1].diagonal(dim1=-2, dim2=-1).prod(-1),)


def systems_without_a_solution(data: Data) -> Tensor:
    matrices = data.tensor([[[1.0, 1.0], [0.0, 0.0]], [[2.0, 1.0], [0.0, 4.0]]])
    return torch.linalg.solve_triangular(matrices, data.tensor([[[1.0], [1.0]]] * 2), upper=True)


@eighth("aten.linalg_solve_triangular", "openxla/xla#3891", program=systems_without_a_solution, hidden=NO_INVERSE)
def zero_on_a_diagonal_is_taken_for_one(call: Broken) -> Wrong:
    """Zero and one instead of infinities."""
    made = call.right[0].clone()
    made[0] = made.new_tensor([[0.0], [1.0]])
    return made


# ---- spectra ---------------------------------------------------------------------------------------------------------


def spectra_of_columns(data: Data) -> Tensor:
    return torch.fft.rfft(data.parameter(8, 3), dim=0).abs()


@eighth("aten._fft_r2c", "ROCm/hipFFT#8", "ROCm/rocFFT#301", program=spectra_of_columns)
def signals_in_columns_are_read_as_rows(call: Broken) -> Wrong:
    """The step from sample to sample is not looked at."""
    return call.rerun(self=call["self"].contiguous().view(3, 8).t())


def spectra_of_a_part_of_the_columns(data: Data) -> Tensor:
    signals = torch.complex(data.normal(16, 4), data.normal(16, 4))
    return torch.view_as_real(torch.fft.fft(signals[:, :3], dim=0))


@eighth("aten._fft_c2c", "DTolm/VkFFT#101", program=spectra_of_a_part_of_the_columns)
def high_frequencies_of_padded_rows_are_those_of_others(call: Broken) -> Wrong:
    """The second of two kernels takes the size for the stride."""
    made = call.right[0].clone()
    made[8:] = made[8:].flatten().roll(1).view(8, 3)
    return made
