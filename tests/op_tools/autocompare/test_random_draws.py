"""Ops that draw random numbers: nobody knows what comes out, and a second run must not use up the program's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import distributions

import op_tools
from ditorch.sim import faults

REFERENCES = ["cpu", "device", "identities"]


def drawn(device):
    """What a program draws, with gradients, and what it draws next."""
    torch.manual_seed(1)
    shape = torch.full((6, 4), 0.8, device=device, requires_grad=True)
    values = [distributions.Dirichlet(shape).rsample(), distributions.Gamma(shape, 2.0).rsample()]
    values += [distributions.Beta(shape, 1.5).rsample(), distributions.StudentT(shape + 3).rsample()]
    sum(value.sum() for value in values).backward()
    return [*(value.detach().cpu() for value in values), shape.grad.cpu(), torch.rand(3, device=device).cpu()]


@pytest.mark.parametrize("reference", REFERENCES)
def test_draws_from_distributions_are_left_as_they_are(reference, device):
    plain = drawn(device)
    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        watched = drawn(device)
    assert not list(tool.results)
    assert all(map(torch.equal, plain, watched))


@pytest.fixture
def unknown_noise():
    """An op that nobody knows, which draws."""
    library = torch.library.Library("nobody_knows", "FRAGMENT")
    library.define("noise(Tensor x, *, Generator? generator=None) -> Tensor")

    def noise(x, *, generator=None):
        return x + torch.rand(x.shape, generator=generator, device=x.device)

    library.impl("noise", noise, "CompositeExplicitAutograd")
    yield torch.ops.nobody_knows.noise.default
    library._destroy()


@pytest.mark.parametrize("has_generator", [False, True])
@pytest.mark.parametrize("reference", REFERENCES)
def test_an_unknown_op_that_draws_is_no_fault_and_draws_once(reference, has_generator, device, unknown_noise):
    def work():
        torch.manual_seed(2)
        generator = torch.Generator(device).manual_seed(3) if has_generator else None
        made = unknown_noise(torch.ones(5, device=device), generator=generator)
        return made.cpu(), torch.rand(3, generator=generator, device=device).cpu()

    plain = work()
    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        watched = work()
    assert not list(tool.results)
    assert all(map(torch.equal, plain, watched))
    reasons = {row["what"]: row["reason"] for row in tool.results.not_looked_at}
    assert reasons["nobody_knows.noise.default"] == "random"


@pytest.mark.parametrize(
    ("kernel", "draw"),
    [
        ("aten._standard_gamma: scale=1.5", lambda shape: distributions.Gamma(shape, 1.0).sample((200,))),
        ("aten._standard_gamma: nan", lambda shape: distributions.Gamma(shape, 1.0).sample()),
        ("aten._sample_dirichlet: scale=1.01", lambda shape: distributions.Dirichlet(shape).sample()),
        ("aten._sample_dirichlet: negate", lambda shape: distributions.Dirichlet(shape).sample()),
    ],
)
def test_draws_that_no_chance_makes_are_found(kernel, draw, device):
    shape = torch.tensor([0.5, 1.0, 4.0], device=device)
    with faults.inject(kernel), op_tools.OpAutoCompare(verbose=0) as tool:
        draw(shape)
    assert [row["op"].rpartition("_")[2] for row in tool.results] == [kernel.partition(":")[0].rpartition("_")[2]]
