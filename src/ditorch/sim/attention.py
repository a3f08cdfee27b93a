"""CUDA's three fused attention kernels on the simulated accelerator: flash, memory-efficient and cuDNN's.

Programs and libraries call them by name, or choose them with `torch.nn.attention.sdpa_kernel`. The CPU's own flash
kernel does what it can, so results have its bits. It knows neither dropout nor the gradient of a mask: these are
composed here. Dropout is drawn again in the backward pass from the generator's state, which the forward pass returns.
"""

from __future__ import annotations

import math
from typing import Any, Callable

import torch
from torch import Tensor

_aten = torch.ops.aten
_FORWARD = "_scaled_dot_product_flash_attention_for_cpu"


# the CPU's kernel in older releases takes as many heads of keys as of queries, and does not check
_TAKES_SHARED_HEADS = any(
    argument.name == "enable_gqa" for argument in _aten.scaled_dot_product_attention.default._schema.arguments
)


def _flash_fits(query: Tensor, value: Tensor, dropout: float) -> bool:
    is_usual = dropout == 0 and query.dim() == 4 and query.size(-1) == value.size(-1) and 0 not in query.shape
    return is_usual and (_TAKES_SHARED_HEADS or query.size(1) == value.size(1))


def forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, its logsumexp [batch, heads, queries] and the state of the generator before dropout was drawn."""
    bias = _added(bias, query)
    state = torch.empty(0, dtype=torch.int64)
    if _flash_fits(query, value, dropout):
        output, logsumexp = getattr(_aten, _FORWARD)(query, key, value, 0.0, causal, attn_mask=bias, scale=scale)
        return output, logsumexp, state
    scores = _scores(query, key, bias, causal, scale)
    logsumexp = scores.logsumexp(-1)
    probabilities = _probabilities(scores, logsumexp)
    if dropout:
        state = _generator(query).get_state().view(torch.int64)
        probabilities = probabilities * _kept(probabilities, dropout, _generator(query))
    output = (probabilities @ _for_each_query_head(value, query).float()).to(query.dtype)
    return output, logsumexp, state


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    output: Tensor,
    logsumexp: Tensor,
    state: Tensor,
    dropout: float,
    causal: bool,
    scale: float | None,
    bias_wanted: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of query, key, value and, where it is wanted, of the bias."""
    bias = _added(bias, query)
    if _flash_fits(query, value, dropout) and not bias_wanted:
        kernel = getattr(_aten, f"{_FORWARD}_backward")
        arguments = (grad, query, key, value, output, logsumexp, 0.0, causal)
        return (*kernel(*arguments, attn_mask=bias, scale=scale), None)
    factor = _factor(query, scale)
    queries, keys = query.float(), _for_each_query_head(key, query).float()
    values, grads = _for_each_query_head(value, query).float(), grad.float()
    probabilities = _probabilities(_scores(query, key, bias, causal, scale), logsumexp)
    grad_probabilities = grads @ values.mT
    dropped = probabilities
    if dropout:
        generator = torch.Generator(query.device)
        generator.set_state(state.view(torch.uint8))
        kept = _kept(probabilities, dropout, generator)
        dropped, grad_probabilities = probabilities * kept, grad_probabilities * kept
    grad_scores = probabilities * (grad_probabilities - (grads * output.float()).sum(-1, keepdim=True))
    return (
        (grad_scores @ keys * factor).to(query.dtype),
        _over_shared_heads(grad_scores.mT @ queries * factor, key),
        _over_shared_heads(dropped.mT @ grads, value),
        grad_scores.sum_to_size(bias.shape).to(bias.dtype) if bias is not None and bias_wanted else None,
    )


def _added(bias: Tensor | None, query: Tensor) -> Tensor | None:
    """A mask as the CPU's kernel wants it: a number to add, in the query's dtype."""
    if bias is None or bias.dtype != torch.bool:
        return None if bias is None else bias.to(query.dtype)
    return torch.zeros_like(bias, dtype=query.dtype).masked_fill(~bias, -math.inf)


def _factor(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.size(-1)) if scale is None else scale


def _scores(query: Tensor, key: Tensor, bias: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    scores = query.float() @ _for_each_query_head(key, query).float().mT * _factor(query, scale)
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return scores if bias is None else scores + bias.float()


def _probabilities(scores: Tensor, logsumexp: Tensor) -> Tensor:
    """Softmax of the scores; a query that may look at nothing gets zeros."""
    return (scores - logsumexp.unsqueeze(-1)).exp().nan_to_num(0.0)


def _for_each_query_head(tensor: Tensor, query: Tensor) -> Tensor:
    """Keys or values with a head for each of the query's, where several share one."""
    return tensor.repeat_interleave(query.size(-3) // tensor.size(-3), -3)


def _over_shared_heads(grad: Tensor, like: Tensor) -> Tensor:
    groups: Tensor = grad.unflatten(-3, (like.size(-3), -1))
    return groups.sum(-3).to(like.dtype)


def _generator(tensor: Tensor) -> torch.Generator:
    generator: torch.Generator = torch.ops.ditorch_sim.default_generator(tensor.device.index)
    return generator


def _kept(like: Tensor, dropout: float, generator: torch.Generator) -> Tensor:
    """What dropout multiplies with: 0, or what makes up for the zeros."""
    return torch.empty_like(like).bernoulli_(1 - dropout, generator=generator) / (1 - dropout)


def _seed_and_offset(state: Tensor) -> tuple[Tensor, Tensor]:
    """Of a state, as CUDA returns them: two numbers, which mean nothing where nothing is dropped."""
    seed, offset = state.unbind() if state.numel() else state.new_zeros(2).unbind()
    return seed.clone(), offset.clone()


# ---- CUDA's names: they differ in their arguments, their results, and the shape of the logsumexp ---------------------


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    output, logsumexp, state = forward(query, key, value, None, dropout_p, is_causal, scale)
    nothing = query.new_empty(0)
    return output, logsumexp, None, None, query.size(2), key.size(2), state, state.new_empty(0), nothing


def _flash_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    arguments = (grad_out, query, key, value, None, out, logsumexp, philox_seed, dropout_p, is_causal, scale)
    return backward(*arguments)[:3]


def _efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    output, logsumexp, state = forward(query, key, value, attn_bias, dropout_p, is_causal, scale)
    # CUDA's comes in whole blocks of 32 queries
    blocks = -query.size(2) % 32 if compute_log_sumexp else -query.size(2)
    return output, torch.nn.functional.pad(logsumexp, (0, blocks)), *_seed_and_offset(state)


def _efficient_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    if not any(grad_input_mask):
        return None, None, None, None
    logsumexp = logsumexp[..., : query.size(2)].contiguous()
    state = torch.stack((philox_seed, philox_offset))
    arguments = (grad_out, query, key, value, attn_bias, out, logsumexp, state, dropout_p, is_causal, scale)
    return backward(*arguments, bias_wanted=grad_input_mask[3])


def _cudnn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    output, logsumexp, state = forward(query, key, value, attn_bias, dropout_p, is_causal, scale)
    sizes = (query.size(2), key.size(2))
    return output, logsumexp.unsqueeze(-1), None, None, *sizes, *_seed_and_offset(state), None


def _cudnn_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    attn_bias: Tensor | None,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    state = torch.stack((philox_seed, philox_offset))
    of_forward = (out, logsumexp.squeeze(-1), state, dropout_p, is_causal, scale)
    return backward(grad_out, query, key, value, attn_bias, *of_forward)[:3]


KERNELS: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_cudnn_attention": _cudnn,
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
}
