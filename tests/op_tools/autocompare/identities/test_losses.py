"""Proofs of losses that add up: of differences, and of logarithms that are picked."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.by_identities import provable_of
from op_tools.autocompare.judging.limits import PROOF_LIMITS
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients

DIFFERENCES = {
    "mse_loss": {},
    "l1_loss": {},
    "smooth_l1_loss": {"beta": 0.5},
    "huber_loss": {"delta": 0.7},
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def doubted(name, args, kwargs, break_=None, number=0):
    """What is doubted of a call whose result (0), or a tensor's gradient (1, 2), is broken; and how much is proven."""
    function = getattr(functional, name)
    result = function(*args, **kwargs)
    arrived = torch.tensor(3.0, dtype=result.dtype)
    asks = [one for one in args if one.requires_grad]
    values = [result.detach().clone(), *torch.autograd.grad(result, asks, arrived)]
    if break_ is not None:
        values[number] = break_(values[number])
    call = ObservedCall(f"torch.nn.functional.{name}", function, Arguments(args, kwargs), None, values[0])
    flowed = iter(values[1:])
    gradients = Gradients([next(flowed) if one.requires_grad else None for one in args], [arrived])
    provable = provable_of(call)
    proofs = [*provable.forward(), *provable.backward(gradients)]
    is_over = [any(not got <= most for got, most in zip(one.numbers.tolist(), PROOF_LIMITS)) for one in proofs]
    return [one.name.partition(" ")[2] for one, over in zip(proofs, is_over) if over], len(proofs)


def differences(dtype, shape=(40, 130)):
    torch.manual_seed(0)
    return tuple(torch.randn(shape).to(dtype).requires_grad_() for _ in range(2))


def classes(dtype):
    torch.manual_seed(0)
    target = torch.randint(0, 30, (500,))
    target[::7] = -100
    return torch.randn(500, 30).log_softmax(-1).to(dtype).requires_grad_(), target


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", [*DIFFERENCES, "nll_loss"])
def test_healthy_losses_are_proven_with_their_gradients(name, reduction, dtype):
    args = classes(dtype) if name == "nll_loss" else differences(dtype)
    found, count = doubted(name, args, {**DIFFERENCES.get(name, {}), "reduction": reduction})
    assert found == []
    assert count == 1 + sum(one.requires_grad for one in args)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("name", [*DIFFERENCES, "nll_loss"])
def test_what_is_broken_is_doubted_and_nothing_else(name, number, reduction):
    args = classes(torch.float32) if name == "nll_loss" else differences(torch.float32)
    if number > sum(one.requires_grad for one in args):
        pytest.skip("whole numbers have no gradient")
    names = ["output", "grad[0]", "grad[1]"]
    kwargs = {**DIFFERENCES.get(name, {}), "reduction": reduction}

    def row_is_lost(value):
        value[3] = 0
        return value

    breaks = [lambda value: value * 1.001, lambda value: value * torch.nan]
    for break_ in [*breaks, row_is_lost] if number else breaks:
        assert doubted(name, args, kwargs, break_, number)[0] == [names[number]]


@pytest.mark.parametrize("shape", [(), (1,), (3, 1)])
def test_few_numbers_are_proven(shape):
    assert doubted("mse_loss", differences(torch.float32, shape), {}) == ([], 3)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("mse_loss", {"reduction": "none"}), ("smooth_l1_loss", {"beta": 0.0}), ("nll_loss", {"weight": torch.ones(30)})],
)
def test_other_forms_have_no_such_proof(name, kwargs):
    args = classes(torch.float32) if name == "nll_loss" else differences(torch.float32)
    function = getattr(functional, name)
    call = ObservedCall(
        f"torch.nn.functional.{name}", function, Arguments(args, kwargs), None, function(*args, **kwargs)
    )
    assert type(provable_of(call)).__name__ in ("NoneType", "Piecewise")
