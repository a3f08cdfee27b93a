"""The sizes of what cancels out in attention's gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.judging import attention

SHAPE = (2, 3, 8, 4)
MASK = torch.arange(64).view(8, 8) % 3 > 0
CALLS = [
    {},
    {"scale": 0.3},
    {"is_causal": True},
    {"attn_mask": MASK},
    {"attn_mask": torch.where(MASK, 0.5, -1.0)},
]


def gradients_without_the_mean(query, key, value, arrived, attn_mask=None, is_causal=False, scale=None):
    """With all numbers positive, nothing cancels out but the mean of each row, which is left out."""
    query, key, value = (part.double().requires_grad_() for part in (query, key, value))
    scores = query @ key.transpose(-1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    mask = torch.ones(8, 8, dtype=torch.bool).tril() if is_causal else attn_mask
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    weights = (scores - scores.logsumexp(-1, keepdim=True).detach()).exp()
    return torch.autograd.grad(weights @ value, (query, key, value), arrived.double())


@pytest.mark.parametrize("kwargs", CALLS, ids=lambda kwargs: " ".join(kwargs) or "plain")
def test_they_are_the_sums_of_absolute_values(kwargs):
    torch.manual_seed(0)
    parts = [torch.rand(SHAPE) for _ in range(3)]
    arrived = torch.rand(SHAPE)
    for signs in (1, -1):
        found = attention.sizes(Arguments((signs * parts[0], *parts[1:]), kwargs), [signs * arrived])
        if signs == 1:
            torch.testing.assert_close(found, list(gradients_without_the_mean(*parts, arrived, **kwargs)))
        assert all(bool((size >= 0).all()) for size in found)


def test_what_is_broadcast_is_summed_up():
    parts = [torch.rand(SHAPE), torch.rand(1, 3, 8, 4), torch.rand(SHAPE)]
    found = attention.sizes(Arguments(tuple(parts), {}), [torch.rand(SHAPE)])
    assert [size.shape for size in found] == [part.shape for part in parts]


def test_unusual_calls_are_left_alone():
    parts = tuple(torch.rand(SHAPE) for _ in range(3))
    assert attention.sizes(Arguments(parts, {"enable_gqa": True}), [torch.rand(SHAPE)]) == []
    assert attention.sizes(Arguments(parts, {}), [None]) == []


@pytest.mark.parametrize("certainty", [1, 30])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_error_of_an_honest_gradient_is_of_that_size(certainty, dtype):
    torch.manual_seed(0)
    query, key, value, arrived = (torch.randn(2, 4, 32, 16) for _ in range(4))
    parts = [part.to(dtype).requires_grad_() for part in (certainty * query, key, value + 5)]
    exact = [part.detach().double().requires_grad_() for part in parts]
    for given in (parts, exact):
        functional.scaled_dot_product_attention(*given, is_causal=True).backward(arrived.to(given[0].dtype))
    size = attention.sizes(Arguments(tuple(parts), {"is_causal": True}), [arrived.to(dtype)])[0]
    errors = (parts[0].grad.double() - exact[0].grad).abs()
    assert bool((errors <= 4 * torch.finfo(dtype).eps / 2 * size).all())
    assert float(errors.max() / exact[0].grad.abs().mean()) > 10 * torch.finfo(dtype).eps, "it is no small error"
