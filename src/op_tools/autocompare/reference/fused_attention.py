"""The kernels of fused attention, which compiled code calls by name, written out for other devices and for float64.

CUDA's have no CPU twin, and not all refuse float64 which they cannot compute: cuDNN's returns memory as it was.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn import functional

from op_tools.ops.names import normalized

_KERNEL = re.compile(
    r"_scaled_dot_product_(flash_attention|efficient_attention|cudnn_attention|fused_attention_overrideable)(_backward)?"
)
_HAS_PLAIN_LOGSUMEXP = "flash_attention"  # others pad it, or add a dimension


@functools.lru_cache(maxsize=1000)
def written_out(name: str) -> Callable[..., Any] | None:
    """What runs in place of a kernel of fused attention; None for all others.

    Of its results those are computed that are numbers: None stands for seeds, sizes, and what is laid out otherwise.
    """
    base = normalized(name).base
    found = _KERNEL.fullmatch(base)
    if found is None or not hasattr(torch.ops.aten, base):
        return None
    schema = getattr(torch.ops.aten, base).default._schema
    names = tuple(argument.name for argument in schema.arguments)
    compute = _gradients if found[2] else _results

    def run(*args: Any, **kwargs: Any) -> tuple[Tensor | None, ...]:
        given = {**dict(zip(names, args)), **kwargs}
        if given.get("dropout_p", 0.0) > 0:
            raise NotImplementedError("it drops numbers, and does not tell which")
        made = compute(given, found[1] == _HAS_PLAIN_LOGSUMEXP)
        return (*made, *[None] * (len(schema.returns) - len(made)))

    return run


def _results(given: dict[str, Any], has_plain_logsumexp: bool) -> tuple[Tensor, ...]:
    """The output, and the logarithms of the sums in its softmax."""
    query, key, value = _with_all_heads(given)
    is_causal, scale = given.get("is_causal", False), given.get("scale")
    output = functional.scaled_dot_product_attention(query, key, value, _bias(given), 0.0, is_causal, scale=scale)
    if not has_plain_logsumexp:
        return (output,)
    return output, _scores(query, key, given).logsumexp(-1)


def _gradients(given: dict[str, Any], has_plain_logsumexp: bool) -> tuple[Tensor, ...]:
    """From what the forward kernel has kept, right or wrong: whose fault that is shows there.

    16 bits are rounded where fused kernels round them: before each product.
    """
    query, key, value = _with_all_heads(given)
    output, arrived = given["out"], given["grad_out" if "grad_out" in given else "grad_out_"]
    dtype, scale = query.dtype, _scale(query, given)
    scores = _scores(query, key, given)
    logsumexp = given["logsumexp"] if has_plain_logsumexp else scores.logsumexp(-1)
    weights = (scores - logsumexp.to(scores.dtype).unsqueeze(-1)).exp().masked_fill(scores == -math.inf, 0.0)
    for_weights = _product(arrived, value.transpose(-2, -1))
    common = (arrived.to(scores.dtype) * output.to(scores.dtype)).sum(-1, keepdim=True)
    for_scores = (weights * (for_weights - common)).to(dtype)
    for_query = _product(for_scores, key) * scale
    for_key = _product(for_scores.transpose(-2, -1), query) * scale
    for_value = _product(weights.to(dtype).transpose(-2, -1), arrived)
    return for_query.to(dtype), _summed(for_key, given["key"]), _summed(for_value, given["value"])


def _scores(query: Tensor, key: Tensor, given: dict[str, Any]) -> Tensor:
    scores, bias = _product(query, key.transpose(-2, -1)) * _scale(query, given), _bias(given)
    if bias is not None:
        scores = scores + bias
    if given.get("is_causal", False):
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Of 16 bits in float32, as matrix units do."""
    wide = torch.promote_types(left.dtype, torch.float32)
    return left.to(wide) @ right.to(wide)


def _scale(query: Tensor, given: dict[str, Any]) -> float:
    scale = given.get("scale")
    return 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)


def _bias(given: dict[str, Any]) -> Tensor | None:
    """A backward pass is told by an empty tensor that there is none."""
    bias: Tensor | None = given.get("attn_bias")
    return None if bias is None or not bias.numel() else bias


def _with_all_heads(given: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Several heads of queries may share one of keys."""
    query, key, value = given["query"], given["key"], given["value"]
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    return query, key, value


def _summed(gradient: Tensor, like: Tensor) -> Tensor:
    """Over the heads that share one."""
    batch, heads = like.shape[:2]
    return gradient.reshape(batch, heads, -1, *gradient.shape[2:]).sum(2).to(like.dtype)
