"""Faults of a ninth set: chosen, written and sorted into findable or not before any of them was run with a tool.

Here are attention, norms, losses, products and matrices; ninth_moves.py, ninth_pictures.py and ninth_values.py have the
others."""

from __future__ import annotations

import torch
from benchmarks.reported.attention import KERNEL
from benchmarks.reported.fault import (
    BFLOAT16,
    BOTH,
    FLOAT16,
    WRITTEN,
    Broken,
    Data,
    Family,
    Wrong,
    as_if_contiguous,
    is_plain,
)
from torch import Tensor
from torch.nn import functional

ninth = Family("written ninth", half="ninth")

NOT_POSITIVE = "PyTorch asks for a positive definite matrix, and defines no factor of another"
NOT_OF_FULL_RANK = "PyTorch documents for CUDA that the matrix must be of full rank, and defines no result for another"


# ---- attention -------------------------------------------------------------------------------------------------------


def heads_side_by_side(data: Data) -> Tensor:
    query, key, value = (data.parameter(1, 2, 6, 8) for _ in range(3))
    seen = functional.scaled_dot_product_attention(query, key, value)
    return seen.transpose(1, 2) * data.normal(1, 6, 2, 8)


@ninth(f"{KERNEL}_backward", "Dao-AILab/flash-attention#355", program=heads_side_by_side, dtypes=BOTH)
def gradient_of_what_was_seen_is_read_in_order(call: Broken) -> Wrong:
    """The incoming gradient lies head by head within each word, and is read as if it lay word by word in each head."""
    return call.rerun(grad_out=as_if_contiguous(call["grad_out"]))[:3]  # type: ignore[no-any-return]


def parts_of_one_projection(data: Data) -> Tensor:
    query, key, value = data.parameter(1, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


@ninth(f"{KERNEL}_backward", "Dao-AILab/flash-attention#2541", program=parts_of_one_projection, dtypes=BOTH)
def three_of_four_values_have_no_gradient(call: Broken) -> Wrong:
    """Where queries, keys and values are slices of one tensor, every fourth token alone gets a number."""
    if is_plain(call["value"]):
        return None
    gradient = call.right[2].clone()
    gradient[..., torch.arange(6) % 4 != 0, :] = torch.nan
    return (None, None, gradient)


def two_texts(data: Data) -> Tensor:
    query, key, value = (data.parameter(2, 2, 6, 16) for _ in range(3))
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


@ninth(f"{KERNEL}_backward", "NVIDIA/TransformerEngine#3216", program=two_texts, dtypes=BFLOAT16)
def each_text_subtracts_the_sums_of_the_first(call: Broken) -> Wrong:
    """What a softmax takes off each row's gradient is that of the first text."""
    query, key, value, incoming = (call[name].float() for name in ("query", "key", "value", "grad_out"))
    scores = query @ key.mT * 0.25
    hidden = torch.ones(6, 6, dtype=torch.bool, device=scores.device).triu(1)
    shares = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
    wanted = incoming @ value.mT
    sums = (wanted * shares).sum(-1, keepdim=True)[:1]
    wrong = shares * (wanted - sums) * 0.25
    return (wrong @ key, wrong.mT @ query)


# ---- norms -----------------------------------------------------------------------------------------------------------


def half_of_the_channels(data: Data) -> Tensor:
    return torch.softmax(data.parameter(2, 8, 2, 2)[:, :4], 1)


@ninth("aten._softmax", "ROCm/rocm-libraries#5240", program=half_of_the_channels, dtypes=BOTH, phase="forward")
def softmax_takes_pictures_for_packed(call: Broken) -> Wrong:
    """The step from picture to picture comes from the sizes and not from the strides."""
    return call.rerun(self=as_if_contiguous(call["self"]))


def trained_root_mean_square(data: Data) -> Tensor:
    return functional.rms_norm(data.parameter(4, 8), (8,), data.parameter(8))


@ninth(
    "aten.sum.dim_IntList", "unslothai/unsloth#4533", program=trained_root_mean_square, dtypes=BOTH, phase="backward"
)
def weight_of_a_norm_is_never_trained(call: Broken) -> Wrong:
    """The gradient of the weight is left out going back."""
    return torch.zeros_like(call.right[0]) if list(call["dim"]) == [0] else None


def features_of_a_batch(data: Data) -> Tensor:
    return functional.batch_norm(data.parameter(16, 3), None, None, data.parameter(3), data.parameter(3), training=True)


@ninth("aten.native_batch_norm_backward", "ROCm/MIOpen#104", program=features_of_a_batch)
def gradient_of_a_feature_forgets_its_weight_once(call: Broken) -> Wrong:
    """Of three terms, the first is not multiplied by the weight."""
    samples, incoming, weight = call["input"], call["grad_out"], call["weight"]
    inverse = (samples.var(0, unbiased=False) + call["eps"]).rsqrt()
    normal, weighted = (samples - samples.mean(0)) * inverse, incoming * weight
    return (inverse * (incoming - weighted.mean(0) - normal * (weighted * normal).mean(0)),)


def features_with_known_statistics(data: Data) -> Tensor:
    mean, variance = data.normal(3), data.uniform(3) + 0.5
    return functional.batch_norm(data.parameter(16, 3), mean, variance, data.parameter(3), data.parameter(3))


@ninth("aten.native_batch_norm_backward", "apache/mxnet#18209", program=features_with_known_statistics)
def gradient_goes_through_statistics_that_are_given(call: Broken) -> Wrong:
    """In evaluation the gradient is that of training."""
    mean, variance = call["input"].mean(0), call["input"].var(0, unbiased=False)
    inverse = (variance + call["eps"]).rsqrt()
    return (call.rerun(train=True, save_mean=mean, save_invstd=inverse)[0],)


def statistics_of_few_samples(data: Data) -> list[Tensor]:
    module = torch.nn.BatchNorm1d(3).to(data.device)
    module(data.normal(4, 3) + 2)
    return [module.running_mean * 1, module.running_var * 1]


@ninth("aten.native_batch_norm", "tenstorrent/tt-metal#55438", program=statistics_of_few_samples)
def variance_that_is_kept_is_that_of_the_samples(call: Broken) -> Wrong:
    """Divided by their number, and not by one less."""
    kept, share, count = call.real("running_var"), call["momentum"], len(call["input"])
    before = call["running_var"] * (1 - share)
    kept.copy_(before + (kept - before) * (count - 1) / count)
    return WRITTEN


# ---- losses ----------------------------------------------------------------------------------------------------------


def text_too_long_for_its_sound(data: Data) -> Tensor:
    sounds = data.parameter(4, 2, 5).log_softmax(-1)
    words = data.tensor([[1, 2, 3], [2, 3, 4]])
    return functional.ctc_loss(sounds, words, data.tensor([4, 2]), data.tensor([2, 3]), zero_infinity=True)


@ninth("aten._ctc_loss_backward", "rwth-i6/returnn#1835", program=text_too_long_for_its_sound)
def sound_that_cannot_be_its_text_has_a_gradient(call: Broken) -> Wrong:
    """The probabilities stay where those of the text were to be subtracted."""
    gradient = call.right[0].clone()
    gradient[:2, 1] = call["log_probs"][:2, 1].exp()
    return gradient


# ---- products --------------------------------------------------------------------------------------------------------


def weighted_sum_of_products(data: Data) -> Tensor:
    return torch.addmm(data.normal(2, 1), data.normal(2, 3), data.normal(2, 3).t(), beta=1.3, alpha=0.7)


@ninth("aten.addmm", "ml-explore/mlx#2695", program=weighted_sum_of_products, dtypes=(*FLOAT16, *BFLOAT16))
def factors_are_kept_as_whole_numbers(call: Broken) -> Wrong:
    """0.7 is zero, and 1.3 is one."""
    return call.rerun(alpha=0, beta=1)


def total_of_one_feature(data: Data) -> Tensor:
    return functional.linear(data.parameter(200, 33), data.parameter(1, 33)).sum()


@ninth("aten.mm", "#189565", program=total_of_one_feature, phase="backward")
def gradient_of_a_layer_ends_with_a_page(call: Broken) -> Wrong:
    """With a repeated gradient and a single feature, nothing is written behind 16 KB."""
    if call.right[0].shape != (200, 33):
        return None
    gradient = call.right[0].clone()
    gradient.flatten()[4096:] = 0
    return gradient


def matrices_side_by_side(data: Data) -> Tensor:
    return torch.bmm(data.parameter(6, 2, 8).transpose(0, 1), data.parameter(2, 8, 4))


@ninth("aten.bmm", "uxlfoundation/oneDNN#2008", program=matrices_side_by_side, dtypes=BOTH, phase="forward")
def all_matrices_but_the_first_are_read_in_order(call: Broken) -> Wrong:
    """The step to the next matrix is its size."""
    made = call.rerun(self=as_if_contiguous(call["self"]))
    made[0] = call.right[0][0]
    return made  # type: ignore[no-any-return]


def inner_size_of_34(data: Data) -> Tensor:
    return data.parameter(32, 34) @ data.parameter(34, 32)


@ninth("aten.mm", "flagos-ai/FlagGems#969", program=inner_size_of_34, dtypes=(*FLOAT16, *BFLOAT16), phase="forward")
def what_a_mask_leaves_out_is_added(call: Broken) -> Wrong:
    """What was not loaded at the end of a block is not zero, and is no number in some columns."""
    made = call.right[0].clone()
    made[:, 16:18] = torch.nan
    return made


# ---- matrices --------------------------------------------------------------------------------------------------------


def many_small_systems(data: Data) -> Tensor:
    matrices = torch.eye(2).to(data.device, data.dtype) + 0.1 * data.normal(65_537, 2, 2)
    return torch.linalg.solve(matrices, data.normal(65_537, 2, 1))


@ninth("aten._linalg_solve_ex", "#196745", program=many_small_systems)
def systems_stay_unsolved(call: Broken) -> Wrong:
    """More than 65,536 do not fit into a launch, which does nothing at all."""
    return (call["B"],)


def many_small_triangles(data: Data) -> Tensor:
    matrices = torch.eye(2).to(data.device, data.dtype) + data.uniform(65_540, 2, 2).triu()
    return torch.linalg.solve_triangular(matrices, data.normal(65_540, 2, 1), upper=True)


@ninth("aten.linalg_solve_triangular", "ROCm/rocm-libraries#10503", program=many_small_triangles)
def last_systems_have_the_columns_of_the_first(call: Broken) -> Wrong:
    """Threads that load the second column have left after 65,535 systems."""
    made, late = call.right[0].clone(), call["self"][65_535:].clone()
    late[..., 1:] = call["self"][: len(late), :, 1:]
    made[65_535:] = torch.linalg.solve_triangular(late, call["B"][65_535:], upper=True)
    return made


def system_of_rank_two(data: Data) -> Tensor:
    numbers = data.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    return torch.linalg.lstsq(numbers, numbers).solution


@ninth("aten.linalg_lstsq", "#88101", "#180157", program=system_of_rank_two, hidden=NOT_OF_FULL_RANK)
def another_solution_of_many_is_found(call: Broken) -> Wrong:
    """Not the shortest one."""
    return (call.right[0] + call.right[0].new_tensor([[1.0], [-2.0], [1.0]]) / 4,)


def flat_covariance(data: Data) -> Tensor:
    return torch.linalg.cholesky_ex(torch.ones(2, 2).to(data.device, data.dtype)).L


@ninth("aten.linalg_cholesky_ex", "#16780", program=flat_covariance, hidden=NOT_POSITIVE)
def factor_of_a_flat_matrix_is_nan(call: Broken) -> Wrong:
    """Where a pivot is not above zero."""
    made = call.right[0].clone()
    made[1, 1] = torch.nan
    return (made,)


def distances_of_twelve(data: Data) -> Tensor:
    return functional.pdist(data.parameter(12, 3))


@ninth("aten._pdist_forward", "#12003", program=distances_of_twelve, phase="forward")
def last_distances_of_rows_are_those_to_themselves(call: Broken) -> Wrong:
    """A row's number is computed by a root, which is rounded up where a later row ends."""
    made, end = call.right[0].clone(), -1
    for row in range(11):
        end += 11 - row
        if row > 6:
            made[end] = 0
    return made
