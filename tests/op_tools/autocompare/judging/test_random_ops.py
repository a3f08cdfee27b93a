"""Random ops are never blamed for being random, and found where no chance can draw so."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

import op_tools
from ditorch.sim import faults
from op_tools.autocompare.arguments import Arguments
from tests.op_tools.autocompare.net import compare_call, rows_of

pytestmark = pytest.mark.usefixtures("who_looks")


def test_dropout_is_judged_by_its_mask(device):
    x = torch.randn(50, 50, device=device, requires_grad=True)
    tool = op_tools.OpAutoCompare(verbose=0)
    with tool:
        functional.dropout(x, 0.3).sum().backward()
        functional.dropout(x, 0.3, training=False).sum().backward()
        functional.dropout1d(x, 0.5).sum().backward()
    assert tool.summary.ranked() == []
    kinds = [row["name"] for row in rows_of()]
    assert "torch.nn.functional.dropout grad" in kinds


@pytest.mark.parametrize("fault", ["aten.native_dropout: scale=1.01", "aten.native_dropout_backward: scale=1.01"])
def test_a_wrong_dropout_is_found(device, fault):
    x = torch.randn(50, 50, device=device, requires_grad=True)
    tool = op_tools.OpAutoCompare(verbose=0)
    try:
        injection = faults.inject(fault)
    except ValueError:
        pytest.skip("no such kernel on this device")
    with injection as struck, tool:
        functional.dropout(x, 0.3).sum().backward()
    if not sum(struck.struck.values()):
        pytest.skip("this device has another kernel for dropout")
    assert [one.name for one in tool.summary.ranked()] == ["torch.nn.functional.dropout"]


def test_a_wrong_rate_of_dropout_is_found():
    given = torch.randn(100, 100)
    result = torch.where(torch.rand(100, 100) < 0.5, 0.0, given / 0.7)
    (found,) = compare_call("torch.nn.functional.dropout", functional.dropout, Arguments((given, 0.3), {}), result)
    assert found.is_wrong
    dropped = int((result == 0).sum())
    assert found.rows[0].verdict.reason == f"{dropped:,} of 10,000 are dropped where the rate is 0.3"


def test_random_numbers_are_never_blamed_for_being_random(device):
    torch.manual_seed(0)
    tool = op_tools.OpAutoCompare(verbose=0)
    x = torch.zeros(1000, device=device)
    query = torch.randn(1, 1, 4, 4, device=device)
    with tool:
        torch.rand(1000, device=device)
        torch.randn(1000, device=device)
        torch.randint(5, (1000,), device=device)
        torch.randperm(10, device=device)
        torch.empty(1000, device=device)
        x.normal_(3, 2).uniform_(-1, 1).bernoulli_(0.3).exponential_(2)
        torch.bernoulli(torch.full((10,), 0.5, device=device))
        torch.multinomial(torch.ones(10, device=device), 3)
        torch.nn.init.kaiming_uniform_(x.view(10, 100))
        functional.scaled_dot_product_attention(query, query, query, dropout_p=0.5)
        functional.rrelu(x, training=True)
    assert tool.summary.ranked() == []


@pytest.mark.parametrize(
    ("name", "args", "numbers", "reason"),
    [
        ("torch.rand", (1000,), torch.rand(1000) * 2, "should lie from 0 to 1"),
        ("torch.rand", (1000,), torch.rand(1000) / 2, "the mean of 1,000 random numbers is"),
        ("torch.randn", (1000,), torch.randn(1000) * 2, "the spread of 1,000 random numbers is"),
        ("torch.randn", (1000,), torch.full((1000,), math.nan), "NaN or infinite"),
        ("torch.Tensor.normal_", (torch.zeros(1000), 3.0), torch.randn(1000), "the mean"),
        ("torch.randint", (5, (1000,)), torch.full((1000,), 5), "should lie from 0 to 4"),
        ("torch.randn", ((2, 500),), torch.randn(1, 500).repeat(2, 1), "499 of 999 pairs of neighbours"),
        ("torch.rand", (400_000,), torch.rand(100_000).repeat(4), "pairs of neighbours are drawn more than once"),
        ("torch.Tensor.bernoulli_", (torch.zeros(9), 0.5), torch.full((9,), 0.5), "that are no whole numbers"),
        ("torch.Tensor.bernoulli_", (torch.zeros(1000), 0.5), torch.rand(1000).lt(0.3).float(), "the mean of 1,000"),
        ("torch.Tensor.exponential_", (torch.zeros(1000), 2.0), torch.rand(1000).log().neg(), "the mean of 1,000"),
        ("torch.Tensor.geometric_", (torch.zeros(1000), 0.5), torch.zeros(1000).geometric_(0.3), "the mean of 1,000"),
        ("torch.Tensor.geometric_", (torch.zeros(9), 0.5), torch.zeros(9).geometric_(0.5) - 1, "should lie from 1"),
        ("torch.Tensor.random_", (torch.zeros(1000), 2, 9), torch.randint(2, 10, (1000,)), "should lie from 2 to 8"),
        ("aten.exponential.default", (torch.zeros(9),), torch.full((9,), math.nan), "NaN or infinite"),
        ("aten.uniform.default", (torch.zeros(1000), 0.0, 2.0), torch.rand(1000), "the mean of 1,000"),
        ("aten.geometric.default", (torch.zeros(9), 0.5), torch.full((9,), 0.5), "should lie from 1"),
        ("aten.random.from", (torch.zeros(9), 2, 4), torch.full((9,), 4), "should lie from 2 to 3"),
        ("torch.randint_like", (torch.zeros(1000), 4), torch.randint(2, (1000,)), "the mean of 1,000"),
        ("torch.Tensor.log_normal_", (torch.zeros(1000), 1.0, 0.5), torch.randn(1000).exp(), "logarithms: the mean"),
        ("torch.Tensor.log_normal_", (torch.zeros(9), 0.0, 0.5), torch.full((9,), -1.0), "are not above zero"),
        ("torch.Tensor.cauchy_", (torch.zeros(1000), 1.0, 2.0), torch.randn(1000) + 1, "angles: the spread"),
        (
            "torch.normal",
            (torch.arange(1000.0), 0.5),
            torch.arange(1000.0) + torch.randn(1000),
            "deviations: the spread",
        ),
        ("torch.normal", (torch.ones(5), torch.zeros(5)), torch.zeros(5), "that have no spread are not their mean"),
        (
            "torch.binomial",
            (torch.full((9,), 3.0), torch.full((9,), 0.5)),
            torch.full((9,), 4.0),
            "no count of so many",
        ),
        ("torch.binomial", (torch.full((999,), 9.0), torch.full((999,), 0.5)), torch.full((999,), 3.0), "add up to"),
        ("torch.binomial", (torch.ones(9), torch.zeros(9)), torch.ones(9), "the probability 0 is drawn"),
    ],
)
def test_wrong_random_numbers_are_found(name, args, numbers, reason):
    (found,) = compare_call(name, torch.rand, Arguments(args, {}), numbers)
    assert found.is_wrong
    assert reason in found.rows[0].verdict.reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("low", "high"), [(0.99, 1.01), (-0.2727724, 0.2727724), (0.0, 0.3), (-0.7, 0.0)])
def test_bounds_are_rounded_as_the_numbers_are(low, high, dtype):
    numbers = torch.empty(4000, dtype=dtype).uniform_(low, high)
    numbers[:2] = torch.tensor([low, high])  # as it may be drawn
    given = Arguments((torch.zeros(4000, dtype=dtype), low, high), {})
    (found,) = compare_call("torch.Tensor.uniform_", torch.Tensor.uniform_, given, numbers)
    assert not found.is_wrong, found
    for place, beyond in ((0, low - 0.02 * (high - low)), (1, high + 0.02 * (high - low))):
        off = numbers.clone()
        off[place] = beyond - 0.01 if place == 0 else beyond + 0.01
        (found,) = compare_call("torch.Tensor.uniform_", torch.Tensor.uniform_, given, off)
        assert found.is_wrong


@pytest.mark.parametrize(
    ("name", "args", "numbers"),
    [
        ("torch.randint", (5, (1000,)), torch.randint(5, (500,)).repeat(2)),
        ("torch.rand", ((1000,),), torch.rand(1000, dtype=torch.bfloat16)),
        ("torch.Tensor.uniform_", (torch.zeros(1000), 1.0, 1.000001), 1 + 1e-6 * torch.rand(1000)),
        ("torch.Tensor.normal_", (torch.zeros(1000), 3.0, 0.0), torch.full((1000,), 3.0)),
        ("torch.rand", ((1_000_000,),), torch.rand(1_000_000)),
    ],
)
def test_numbers_of_which_there_are_few_may_be_drawn_again(name, args, numbers):
    (found,) = compare_call(name, torch.rand, Arguments(args, {}), numbers)
    assert not found.is_wrong


@pytest.mark.parametrize(
    ("name", "args", "numbers"),
    [
        ("torch.Tensor.bernoulli_", (torch.zeros(10), 0.001), torch.eye(10)[0]),  # one time in 100
        ("torch.Tensor.bernoulli_", (torch.zeros(100), 0.001), torch.eye(100)[0]),
        ("torch.Tensor.exponential_", (torch.zeros(1), 1.0), torch.tensor([12.0])),  # one time in 160,000
        ("torch.Tensor.geometric_", (torch.zeros(1), 0.1), torch.tensor([90.0])),
    ],
)
def test_rare_draws_are_no_fault(name, args, numbers):
    (found,) = compare_call(name, torch.rand, Arguments(args, {}), numbers)
    assert not found.is_wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 30, 3000])
def test_draws_of_many_kinds_are_compared_and_right(device, dtype, count):
    torch.manual_seed(0)
    x, aten = torch.zeros(count, device=device, dtype=dtype), torch.ops.aten
    with op_tools.OpAutoCompare(verbose=0) as tool:
        for _ in range(20):
            x.geometric_(0.2), x.log_normal_(1, 0.7), x.cauchy_(0.5, 0.5), x.random_(1, 200), x.exponential_(0.3)
            torch.randint_like(x, 5), torch.normal(x, 0.5), torch.normal(1.0, x.abs()), torch.normal(x, x.abs())
            aten.exponential(x, 0.3), aten.uniform(x, -1.0, 3.0), aten.geometric(x, 0.2), aten.random(x, 1, 200)
            x.bernoulli_(0.02), torch.binomial(torch.full_like(x, 6), torch.full_like(x, 0.3))
    assert not tool.results, list(tool.results)
    assert not tool.results.not_looked_at


def test_the_programs_random_numbers_stay_as_they_are(device):
    def draw():
        torch.manual_seed(0)
        x = torch.randn(10, 10, device=device, requires_grad=True)
        functional.dropout(x @ x, 0.5).sum().backward()
        return torch.rand(3), torch.rand(3, device=device)

    plain = draw()
    with op_tools.OpAutoCompare(verbose=0):
        watched = draw()
    assert torch.equal(plain[0], watched[0])
    assert torch.equal(plain[1], watched[1])
