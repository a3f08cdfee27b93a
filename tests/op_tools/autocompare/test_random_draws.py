"""Ops that draw random numbers: nobody knows what comes out, and a second run must not use up the program's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import distributions
from torch.nn import functional

import op_tools
from ditorch.sim import faults

from ...conftest import DEVICE
from .kernels import kernel

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


RATES = (0.0, 0.001, 0.3, 1.0, 7.0, 40.0, 900.0)


def drawn_by_all(device, dtype, count):
    """Everything that draws, with the gradients that it has."""
    rates = torch.tensor(RATES, device=device, dtype=dtype).repeat(count).requires_grad_()
    shares = torch.tensor((0.0, 0.01, 0.5, 0.97, 1.0), device=device, dtype=dtype).repeat(count).requires_grad_()
    signed = torch.linspace(-3, 3, 6 * count, device=device).to(dtype).requires_grad_()
    logits = torch.tensor((0.5, -2.0, 1.5, 0.0), device=device, dtype=dtype).expand(3 * count, -1)
    logits = logits.contiguous().requires_grad_()
    empty = torch.empty(5 * count, device=device, dtype=dtype)
    made = [torch.poisson(rates), torch.bernoulli(shares), functional.rrelu(signed, 0.1, 0.4, True)]
    made += [torch._standard_gamma(rates[rates > 0.1]), torch._standard_gamma(shares[shares > 0] * 4)]
    made += [torch.normal(signed, 0.25), torch.normal(2.0, rates), torch.normal(signed[: 5 * count], shares)]
    made += [functional.gumbel_softmax(logits, tau, hard) for tau, hard in ((1.0, False), (0.3, False), (2.0, True))]
    if dtype is not torch.float16:  # the CPU has none
        torch.binomial(rates.detach().round()[: 5 * count], shares.detach())
    empty.exponential_(0.5), empty.cauchy_(1.0, 3.0), empty.log_normal_(0.5, 0.75), empty.geometric_(0.2)
    empty.geometric_(0.97), empty.random_(3, 9), empty.random_(100), empty.normal_(-1.0, 0.5), empty.uniform_(2, 3)
    made += [(signed * 2).exponential_(), functional.rrelu(signed, 0.1, 0.4, True).mul_(2)]
    made += [functional.dropout(signed, 0.5).add_(2)]
    sum((one * one.detach()).sum() for one in made).backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_healthy_draws_are_compared_and_never_blamed(device, dtype):
    torch.manual_seed(4)
    with op_tools.OpAutoCompare(verbose=0) as tool:
        for count in (*[1] * 12, 10, 10, 300, 3000):
            drawn_by_all(device, dtype, count)
    assert [row["reason"] for row in tool.results] == []
    unseen = {row["what"].rpartition(".")[2] for row in tool.results.not_looked_at}
    assert unseen == {"gumbel_softmax"}  # where it is hard, of its gradient


@pytest.mark.parametrize("reference", REFERENCES)
def test_healthy_draws_are_not_blamed_with_any_reference(device, reference):
    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        drawn_by_all(device, torch.float32, 100)
    assert [row["reason"] for row in tool.results] == []


def one_of_each(device):
    """A thousand draws of everything that may be broken."""
    rates = torch.tensor([0.5, 4.0, 60.0], device=device).repeat(400).requires_grad_()
    logits = torch.tensor([0.5, -2.0, 1.5], device=device).expand(1000, -1).contiguous().requires_grad_()
    empty = torch.empty(2000, device=device)
    return {
        "poisson": lambda: torch.poisson(rates).sum().backward(),
        "_standard_gamma": lambda: torch._standard_gamma(rates).square().sum().backward(),
        "gumbel_softmax": lambda: functional.gumbel_softmax(logits).square().sum().backward(),
        "rrelu": lambda: functional.rrelu(rates - 50, training=True).square().sum().backward(),
        "binomial": lambda: torch.binomial(torch.full_like(rates.detach(), 30.0), rates.detach() / 100),
        "normal": lambda: torch.normal(rates, rates).sum().backward(),
        "exponential_": lambda: empty.exponential_(2.0),
        "cauchy_": lambda: empty.cauchy_(1.0, 2.0),
        "log_normal_": lambda: empty.log_normal_(),
        "geometric_": lambda: empty.geometric_(0.3),
        "random_": lambda: empty.random_(3, 20),
    }


BROKEN = {
    "poisson": ("aten.poisson: scale=2", "aten.poisson: scale=0.5@0.5", "aten.poisson: negate", "aten.poisson: zero"),
    "_standard_gamma": ("aten._standard_gamma_grad: scale=1.05", "aten._standard_gamma: scale=1.5"),
    "gumbel_softmax": (
        "aten._softmax: scale=1.01",
        "aten._softmax_backward_data: scale=1.01",
        "aten.exponential_: zero",
    ),
    "rrelu": ("aten.rrelu_with_noise: scale=1.5", "aten.rrelu_with_noise_backward: scale=1.01"),
    "binomial": ("aten.binomial: scale=2", "aten.binomial: noise=0.1", "aten.binomial: zero"),
    "normal": ("aten.normal: scale=1.5", "aten.normal: nan", "aten.normal: zero"),
    "exponential_": ("aten.exponential_: scale=1.3", "aten.exponential_: negate"),
    "cauchy_": ("aten.cauchy_: scale=3", "aten.cauchy_: negate", "aten.cauchy_: zero"),
    "log_normal_": ("aten.log_normal_: scale=2", "aten.log_normal_: negate"),
    "geometric_": ("aten.geometric_: scale=2", "aten.geometric_: zero@one"),
    "random_": ("aten.random_: scale=1.5", "aten.random_: scale=0.5"),
}


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name in BROKEN for fault in BROKEN[name]])
def test_broken_generators_are_found(device, name, fault):
    torch.manual_seed(5)
    run = one_of_each(device)[name]
    with faults.inject(fault) as struck, op_tools.OpAutoCompare(verbose=0) as tool:
        run()
    assert sum(struck.struck.values())
    assert name in {row["op"].rpartition(".")[2] for row in tool.results}


@pytest.mark.skipif(DEVICE != "sim", reason="a kernel of the simulated accelerator is replaced")
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_chance_is_never_one(device, dtype, reference):
    """Numbers just below one may be rounded to it in 16 bits; between other bounds that happens on the CPU, too."""

    def rounded(x, start=0.0, end=1.0, *, generator=None):
        return x.copy_(torch.linspace(start, end - 1e-5, x.numel())[torch.randperm(x.numel())].view(x.shape))

    def draw():
        numbers = torch.empty(64, 64, device=device, dtype=dtype)
        return [torch.rand(64, 64, device=device, dtype=dtype), torch.rand_like(numbers), numbers.uniform_()]

    numbers = torch.empty(64, 64, device=device, dtype=dtype)
    with op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        draw()
    assert not list(tool.results)
    with kernel("uniform_", rounded), op_tools.OpAutoCompare(verbose=0, reference=reference) as tool:
        draw()
        numbers.uniform_(2, 5)
    assert {(row["op"], row["reason"]) for row in tool.results} == {
        (f"torch.{op}", "a random number is 1, all should lie below 1")
        for op in ("rand", "rand_like", "Tensor.uniform_")
    }
    assert [row["calls"] for row in tool.results] == [1, 1, 1]
