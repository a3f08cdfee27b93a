"""Proofs of attention: of some rows, of the gradients of their queries, and of what holds of all rows together."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.by_identities import provable_of
from op_tools.autocompare.identities.proof import Measured
from op_tools.autocompare.judging.limits import PROOF_LIMITS
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients

NAME = "torch.nn.functional.scaled_dot_product_attention"
# before torch 2.5 heads share no keys, and what sees nothing is NaN
IS_OLD = not hasattr(torch.ops.aten, "_safe_softmax")


def numbers(*shape, dtype):
    return torch.randn(shape).to(dtype).requires_grad_()


def masks(rows, columns):
    allowed = torch.rand(rows, columns) > 0.4
    allowed[0] = IS_OLD  # the first row sees nothing
    allowed[1:, 0] = True
    heads = torch.rand(2, 4, rows, columns) > 0.4
    heads[..., 0] = True
    return {
        "none": {},
        "causal": {"is_causal": True},
        "truth values": {"attn_mask": allowed},
        "of each head": {"attn_mask": heads},
        "added": {"attn_mask": torch.randn(rows, columns).masked_fill(~allowed, float("-inf"))},
    }


def called(dtype, mask, groups, break_=lambda flowed: None):
    """One call, its result and its gradients as `break_` has left them: which of them are doubted."""
    if groups > 1 and IS_OLD:
        pytest.skip("this torch has no heads that share keys")
    torch.manual_seed(0)
    query, key, value = (numbers(2, heads, 20, 16, dtype=dtype) for heads in (4, 4 // groups, 4 // groups))
    kwargs = dict(masks(20, 20)[mask], **({"enable_gqa": True} if groups > 1 else {}))
    if kwargs.get("attn_mask") is not None and kwargs["attn_mask"].is_floating_point():
        kwargs["attn_mask"] = kwargs["attn_mask"].to(dtype)
    result = functional.scaled_dot_product_attention(query, key, value, **kwargs)
    arrived = torch.randn(result.shape).to(dtype)
    flowed = list(torch.autograd.grad(result, (query, key, value), arrived))
    result = result.detach().clone()
    break_([result, *flowed])
    given = Arguments((query, key, value), kwargs)
    function = functional.scaled_dot_product_attention
    provable = provable_of(ObservedCall(NAME, function, given, None, result))
    gradients = Gradients([*flowed, *[None] * (len(given.tensors) - 3)], [arrived])
    proofs = [*provable.forward(), *provable.backward(gradients)]
    assert all(isinstance(proof, Measured) for proof in proofs)
    assert {proof.name.partition(" ")[2] for proof in proofs} == {"output", "grad[0]", "grad[1]", "grad[2]"}
    return {
        proof.name.partition(" ")[2]
        for proof in proofs
        if not all(number <= limit for number, limit in zip(proof.numbers.tolist(), PROOF_LIMITS))
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("mask", masks(20, 20))
def test_healthy_attention_is_proven(dtype, mask, groups):
    assert called(dtype, mask, groups) == set()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("mask", masks(20, 20))
@pytest.mark.parametrize(
    ("number", "name"), [(0, "output"), (1, "grad[0]"), (2, "grad[1]"), (3, "grad[2]")], ids=lambda value: str(value)
)
def test_what_is_off_by_some_percent_is_doubted(dtype, mask, groups, number, name):
    assert name in called(dtype, mask, groups, lambda values: values[number].mul_(1.1))


def test_both_gradients_of_scores_off_alike_are_doubted():
    """Their products stay equal: only the rows of queries tell."""

    def scaled(values):
        values[1].mul_(1.1), values[2].mul_(1.1)

    assert "grad[0]" in called(torch.float32, "causal", 2, scaled)
