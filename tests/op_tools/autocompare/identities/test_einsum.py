"""Proofs of einsum: as the matrix product that it is."""

from __future__ import annotations

import pytest
import torch

from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.by_identities import provable_of
from op_tools.autocompare.judging.limits import PROOF_LIMITS
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients

SIZES = {"b": 3, "h": 2, "i": 20, "j": 17, "k": 9, "d": 16}
EQUATIONS = [
    "bhid,bhjd->bhij",
    "bhij,bhjd->bihd",
    "id,dj",
    "ijk,kd->dji",
    "bij,bj->bi",
    "b i d, b d j -> b i j",
]


def provable(equation, dtype=torch.float32, break_=None, number=0):
    """A call whose result (0), or the gradient of a tensor (1, 2), is broken: its proofs."""
    torch.manual_seed(0)
    inputs = equation.replace(" ", "").partition("->")[0].split(",")
    tensors = [torch.randn([SIZES[one] for one in labels]).to(dtype).requires_grad_() for labels in inputs]
    result = torch.einsum(equation, *tensors)
    arrived = torch.randn(result.shape).to(dtype)
    values = [result.detach().clone(), *torch.autograd.grad(result, tensors, arrived)]
    if break_ is not None:
        values[number] = break_(values[number])
    call = ObservedCall("torch.einsum", torch.einsum, Arguments((equation, *tensors), {}), None, values[0])
    found = provable_of(call)
    return found and [*found.forward(), *found.backward(Gradients(values[1:], [arrived]))]


def doubted(proofs):
    return [
        proof.name.partition(" ")[2]
        for proof in proofs
        if not all(number <= limit for number, limit in zip(proof.numbers.tolist(), PROOF_LIMITS))
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_healthy_calls_are_proven_with_their_gradients(equation, dtype):
    proofs = provable(equation, dtype)
    assert len(proofs) == 3
    assert doubted(proofs) == []


@pytest.mark.parametrize(("number", "name"), [(0, "output"), (1, "grad[1]"), (2, "grad[2]")])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_what_is_broken_is_doubted_and_nothing_else(equation, number, name):
    def one_element(value):
        value[tuple(size // 2 for size in value.shape)] += 1.0
        return value

    for break_ in (lambda value: value * 1.001, one_element):
        assert doubted(provable(equation, break_=break_, number=number)) == [name]


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ii,id->id", ((4, 4), (4, 16))),
        ("...id,...dj->...ij", ((20, 16), (16, 17))),
        ("bij,jd->id", ((3, 20, 17), (17, 16))),
        ("bi,bj->bij", ((3, 20), (3, 17))),
        ("ij,jk,kl->il", ((3, 4), (4, 5), (5, 6))),
    ],
)
def test_what_is_no_product_of_two_matrices_has_no_proof(equation, shapes):
    tensors = tuple(torch.randn(shape) for shape in shapes)
    given = Arguments((equation, *tensors), {})
    call = ObservedCall("torch.einsum", torch.einsum, given, None, torch.einsum(equation, *tensors))
    assert provable_of(call) is None
