"""CUDA's flash attention over sequences of several lengths packed into one tensor, as `varlen_attn` calls it.

Each sequence is a call of the fused kernel (`attention.py`). Tensors are [batch, length, heads, width], or, with the
places where sequences begin and end (`cum_seq_q`, `cum_seq_k`), [all lengths together, heads, width].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch import Tensor

from ditorch.sim.attention import backward, forward


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, ...]:
    if alibi_slopes is not None:
        raise NotImplementedError("_flash_attention_forward on the simulated accelerator takes no alibi_slopes")
    outputs, sums, states = [], [], []
    used = _used(_spans(key, cum_seq_k), key, value, seqused_k, block_table)
    for (begin, end), (own_keys, own_values) in zip(_spans(query, cum_seq_q), used):
        queries, keys, values = map(_heads_first, (_cut(query, begin, end), own_keys, own_values))
        mask = _band(queries, keys, is_causal, window_size_left, window_size_right)
        output, logsumexp, state = forward(queries, keys, values, mask, dropout_p, False, scale)
        outputs.append(output.transpose(1, 2))
        sums.append(logsumexp)
        states.append(state)
    packed = cum_seq_q is not None
    output = torch.cat(outputs, 1).squeeze(0) if packed else torch.cat(outputs)
    logsumexp = torch.cat(sums, -1).squeeze(0) if packed else torch.cat(sums)
    state = torch.stack(states)
    return output.contiguous(), logsumexp.contiguous(), state, state.new_empty(0), query.new_empty(0)


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
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Tensor, ...]:
    grads = [torch.zeros_like(tensor) for tensor in (query, key, value)]
    packed = cum_seq_q is not None
    places = zip(_spans(query, cum_seq_q), _spans(key, cum_seq_k))
    for number, (of_query, of_key) in enumerate(places):
        queries, grad, output = (_heads_first(_cut(tensor, *of_query)) for tensor in (query, grad_out, out))
        keys, values = (_heads_first(_cut(tensor, *of_key)) for tensor in (key, value))
        sums = logsumexp[:, of_query[0] : of_query[1]].unsqueeze(0) if packed else logsumexp[slice(*of_query)]
        mask = _band(queries, keys, is_causal, window_size_left, window_size_right)
        state = rng_state[number] if dropout_p else rng_state
        sums = sums.contiguous()
        found = backward(grad, queries, keys, values, mask, output, sums, state, dropout_p, False, scale)[:3]
        for whole, span, part in zip(grads, (of_query, of_key, of_key), found):
            target = whole[slice(*span)]
            target.copy_(part.transpose(1, 2).reshape(target.shape))
    return tuple(grads)


def _spans(tensor: Tensor, ends: Tensor | None) -> list[tuple[int, int]]:
    """Where each sequence begins and ends in the first dimension; without `ends` each row of a batch is one."""
    places = list(range(tensor.size(0) + 1)) if ends is None else ends.tolist()
    return list(zip(places[:-1], places[1:]))


def _cut(tensor: Tensor, begin: int, end: int) -> Tensor:
    """One sequence as a batch of one."""
    part = tensor[begin:end]
    return part if part.dim() == 4 else part.unsqueeze(0)


def _heads_first(tensor: Tensor) -> Tensor:
    return tensor.transpose(1, 2)


def _used(
    spans: list[tuple[int, int]], key: Tensor, value: Tensor, lengths: Tensor | None, pages: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """The keys and values of each sequence: in one piece or in pages, of which only a part may be in use."""
    count = len(spans) if pages is None else pages.size(0)
    for number in range(count):
        parts = [
            _cut(tensor, *spans[number]) if pages is None else tensor[pages[number]].flatten(0, 1).unsqueeze(0)
            for tensor in (key, value)
        ]
        length = parts[0].size(1) if lengths is None else int(lengths[number])
        yield parts[0][:, :length], parts[1][:, :length]


def _band(query: Tensor, key: Tensor, causal: bool, left: int | None, right: int | None) -> Tensor | None:
    """Which keys a query may look at, counted from the ends of both; None: all of them."""
    left, right = (-1 if side is None else side for side in (left, right))
    right = 0 if causal else right
    if left < 0 and right < 0:
        return None
    queries, keys = query.size(2), key.size(2)
    distance = torch.arange(keys, device=query.device) - torch.arange(queries, device=query.device).unsqueeze(1)
    distance = distance - (keys - queries)
    allowed = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        allowed &= distance >= -left
    if right >= 0:
        allowed &= distance <= right
    return allowed


KERNELS: dict[str, Callable[..., Any]] = {
    "_flash_attention_forward": _flash,
    "_flash_attention_backward": _flash_backward,
}
