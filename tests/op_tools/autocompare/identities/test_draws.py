"""Large calls that draw random numbers, where there is no reference: a stretch of what came out is judged."""

from __future__ import annotations

import pytest
import torch
from benchmarks.reported import REPORTED

from ditorch.sim import faults

from ....conftest import DEVICE

SIZE = 3 * 2**14

CALLS = {
    "randn": lambda device: torch.randn(SIZE, device=device),
    "rand": lambda device: torch.rand(64, SIZE // 64, device=device),
    "exponential_": lambda device: torch.empty(SIZE, device=device).exponential_(2.0),
    "normal_": lambda device: torch.empty(SIZE // 8, 8, device=device).t().normal_(1.0, 0.1),
    "uniform_": lambda device: torch.empty(SIZE, device=device).uniform_(-2.0, 2.0),
    "multinomial": lambda device: torch.multinomial(torch.rand(9, SIZE, device=device) + 0.1, 7),
    "randperm": lambda device: torch.randperm(SIZE, device=device),
}


@pytest.mark.parametrize("name", CALLS)
def test_healthy_draws_are_compared_and_right(compared, device, name):
    results = compared(lambda: CALLS[name](device))
    assert list(results) == []
    assert list(results.not_looked_at) == []


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("multinomial", "randperm")])
def test_a_generator_of_other_numbers_is_found(compared, device, name):
    with faults.inject(f"aten.{name}: scale=1.5") as injection:
        results = compared(lambda: CALLS[name](device))
    assert sum(injection.struck.values())
    assert {row["op"].rpartition(".")[2] for row in results} == {name}


@pytest.mark.skipif(DEVICE != "sim", reason="its kernels are broken")
@pytest.mark.parametrize(
    ("name", "fault"),
    [("multinomial", "a_word_is_drawn_twice"), ("randperm", "permutation_is_zero_from_a_place_on")],
)
def test_places_that_come_twice_are_found(compared, device, name, fault):
    (broken,) = (one for one in REPORTED if one.name == fault)
    with broken.inject("sim"):
        results = compared(lambda: CALLS[name](device))
    assert {row["op"].rpartition(".")[2] for row in results} == {name}


def test_a_tensor_with_gaps_is_left_alone(compared, device):
    results = compared(lambda: torch.zeros(SIZE, 2, device=device)[:, 0].normal_())
    assert list(results) == []
    assert "torch.Tensor.normal_" in [row["what"] for row in results.not_looked_at]
