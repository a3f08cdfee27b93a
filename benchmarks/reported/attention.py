"""Attention, and the softmax in it."""

from __future__ import annotations

import torch
from benchmarks.reported.fault import BFLOAT16, BOTH, FLOAT16, Broken, Data, Family, Wrong
from torch import Tensor
from torch.nn import functional

attention = Family("attention")

KERNEL = "aten._scaled_dot_product_fused_attention_overrideable"


def causal(data: Data, queries: int = 16, keys: int = 16) -> Tensor:
    query, key, value = (data.parameter(1, 2, length, 8) for length in (queries, keys, keys))
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def with_mask(call: Broken, mask: Tensor) -> Tensor:
    """The result with this mask in place of the causal one."""
    query, key, value = (call[name].float() for name in ("query", "key", "value"))
    scores = query @ key.mT * (call["scale"] or query.shape[-1] ** -0.5)
    return torch.softmax(scores.masked_fill(~mask.to(scores.device), -torch.inf), -1) @ value


@attention(KERNEL, "#195910", program=causal, dtypes=(*BFLOAT16, *FLOAT16))
def causal_mask_is_the_same_for_four_queries(call: Broken) -> Wrong:
    """Three of four queries see keys of the future."""
    last = torch.arange(16) // 4 * 4 + 3
    return (with_mask(call, torch.arange(16)[None, :] <= last[:, None]),)


def causal_with_more_keys(data: Data) -> Tensor:
    return causal(data, 6, 16)


@attention(KERNEL, "ml-explore/mlx#2835", program=causal_with_more_keys, dtypes=BOTH)
def causal_mask_ends_in_the_other_corner(call: Broken) -> Wrong:
    """With more keys than queries, the mask is aligned at the end."""
    return (with_mask(call, torch.ones(6, 16, dtype=torch.bool).tril(10)),)


def attention_of_odd_length(data: Data) -> Tensor:
    query, key, value = (data.parameter(1, 3, 21, 8) for _ in range(3))
    return functional.scaled_dot_product_attention(query, key, value)


@attention(f"{KERNEL}_backward", "flagos-ai/FlagGems#898", program=attention_of_odd_length, dtypes=BOTH)
def gradient_of_the_values_is_wrong_in_later_heads(call: Broken) -> Wrong:
    """Where the length is no multiple of a block, the first tokens of later heads get another head's gradient."""
    gradient = call.right[2].clone()
    gradient[:, 1:, :11] = gradient[:, :-1, -11:]
    return (None, None, gradient)


def masked_attention(data: Data) -> Tensor:
    query, key, value = (data.parameter(1, 2, 8, 8) for _ in range(3))
    mask = torch.ones(8, 8, dtype=torch.bool).tril().to(data.device)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


@attention(KERNEL, "intel/torch-xpu-ops#1920", "#154051", program=masked_attention, dtypes=BOTH)
def attention_with_a_mask_has_nan(call: Broken) -> Wrong:
    """Some elements are NaN."""
    wrong = call.right[0].clone()
    wrong[..., 0, 3] = torch.nan
    return (wrong,)


def attention_with_a_bias(data: Data) -> Tensor:
    query, key, value = (data.parameter(1, 2, 8, 8) for _ in range(3))
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=data.normal(8, 8))


@attention(KERNEL, "meta-pytorch/segment-anything-fast#71", program=attention_with_a_bias, dtypes=BOTH)
def bias_is_not_scaled_for_powers_of_two(call: Broken) -> Wrong:
    """Exponentials are powers of two, and the bias is not multiplied by the logarithm."""
    bias = call["attn_bias"].float() * 0.6931
    query, key, value = (call[name].float() for name in ("query", "key", "value"))
    return (torch.softmax(query @ key.mT * 8**-0.5 + bias, -1) @ value,)


def shared_keys(data: Data) -> Tensor:
    query = data.parameter(1, 4, 6, 8)
    key, value = data.parameter(1, 2, 6, 8), data.parameter(1, 2, 6, 8)
    return functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)


@attention(f"{KERNEL}_backward", "marin-community/levanter#449", program=shared_keys, dtypes=BOTH)
def gradient_of_shared_keys_is_that_of_one_head(call: Broken) -> Wrong:
    """Of the query heads that share a key head, the first one's gradient counts alone."""
    heads = [call.right[0].shape[1], call.right[1].shape[1]]
    query = call["query"].clone()
    gradient = call["grad_out"].clone()
    gradient[:, 1 :: heads[0] // 2] = 0
    return (None, *call.rerun(grad_out=gradient, query=query)[1:3])


def rows_of_probabilities(data: Data) -> Tensor:
    return torch.softmax(data.parameter(6, 6), 1)


@attention("aten._softmax", "triton-lang/triton#11406", program=rows_of_probabilities, dtypes=BOTH)
def softmax_divides_by_the_sum_of_another_row(call: Broken) -> Wrong:
    """The sums of rows are laid along the columns."""
    powers = (call["self"] - call["self"].amax(1)).exp()
    return powers / powers.sum(1)
