"""How large the numbers are that cancel out in the gradient of attention.

The gradient of a row of weights is each weight times the difference between its own term and the mean of all terms.
Where one weight is nearly one, or the values are alike, that difference is small beside the terms, and their roundings
are what is left: devices keep the mean in the dtype of the results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare.arguments import Arguments

_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def sizes(given: Arguments, grad_outputs: Sequence[Tensor | None]) -> list[Tensor]:
    """For the gradients of query, key and value of torch's scaled_dot_product_attention: sums of absolute values.

    Nothing where the call is one of the unusual ones.
    """
    named: dict[str, Any] = {**dict(zip(_NAMES, given.args)), **given.kwargs}
    (arrived,) = grad_outputs
    if arrived is None or named.get("enable_gqa"):
        return []
    with torch.no_grad():
        query, key, value = (named[name].detach().double() for name in _NAMES[:3])
        scale = named.get("scale")
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        weights = _weights(query @ key.transpose(-1, -2) * scale, named)
        terms = weights * (arrived.detach().double().abs() @ value.abs().transpose(-1, -2))
        return [
            _like(query, terms @ key.abs() * abs(scale)),
            _like(key, terms.transpose(-1, -2) @ query.abs() * abs(scale)),
            _like(value, weights.transpose(-1, -2) @ arrived.detach().double().abs()),
        ]


def rows_without_keys(given: Arguments) -> Tensor | None:
    """Rows of the result that attend to nothing, as one column; None where there are none.

    PyTorch's own kernels disagree on them: zero, the mean of all values, NaN.
    """
    named: dict[str, Any] = {**dict(zip(_NAMES, given.args)), **given.kwargs}
    mask = named.get("attn_mask")
    if not isinstance(mask, Tensor):
        return None
    allowed = mask.detach() if mask.dtype is torch.bool else mask.detach() != -math.inf
    rows = ~allowed.any(-1, keepdim=True)
    return rows if bool(rows.any()) else None


def _weights(scores: Tensor, named: dict[str, Any]) -> Tensor:
    mask = named.get("attn_mask")
    if named.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        mask = mask.detach()
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask.double()
    return scores.softmax(-1).nan_to_num(0.0)


def _like(tensor: Tensor, size: Tensor) -> Tensor:
    """Summed over what was broadcast."""
    return size.sum_to_size(tensor.shape)
