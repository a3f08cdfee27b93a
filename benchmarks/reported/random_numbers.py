"""Random numbers that no chance can draw."""

from __future__ import annotations

import torch
from benchmarks.reported.fault import BOTH, Broken, Data, Family, Wrong
from torch import Tensor

random = Family("random numbers")


@random("aten.bernoulli", "#85611", program=lambda data: torch.bernoulli(data.normal(10, 10) * 0 + 1), dtypes=BOTH)
def bernoulli_is_always_zero(call: Broken) -> Wrong:
    """Zero, even with probability one."""
    return torch.zeros_like(call.right[0])


def sampled_word(data: Data) -> Tensor:
    return torch.multinomial(data.tensor([[2.4e-4, 1.2e-5, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0]]), 1)


@random("aten.multinomial", "#98612", "#92752", program=sampled_word)
def multinomial_draws_the_smallest_number_there_is(call: Broken) -> Wrong:
    """An index far outside comes out."""
    return torch.full_like(call.right[0], -(2**63))


@random("aten.multinomial", "#99802", program=sampled_word)
def multinomial_draws_the_first_whatever_its_probability(call: Broken) -> Wrong:
    """Index 0, also where its probability is zero."""
    return torch.zeros_like(call.right[0])


def many_samples(data: Data) -> Tensor:
    return torch.multinomial(data.uniform(10) + 0.1, 500, replacement=True)


@random("aten.multinomial", "#136623", program=many_samples)
def multinomial_draws_outside(call: Broken) -> Wrong:
    """Once in a while an index is one past the end, or two."""
    wrong = call.right[0].clone()
    wrong[77] = 11
    return wrong


@random("aten.randperm", "#104170", "#104315", program=lambda data: torch.randperm(1000, device=data.device))
def permutation_hardly_permutes(call: Broken) -> Wrong:
    """All keys that are sorted by are equal: the order stays as it was."""
    return torch.arange(1000, device=call.right[0].device)


def thousand_normal_numbers(data: Data) -> list[Tensor]:
    return [torch.randn(1000, device=data.device) for _ in range(2)]


@random(
    "aten.randn",
    "#78110",
    program=thousand_normal_numbers,
    hidden="each call's numbers are what chance may give; only two calls together show it",
)
def normal_numbers_are_always_the_same(call: Broken) -> Wrong:
    """Each call gives the numbers of the first."""
    return call.memory.setdefault("first", call.right[0].clone())
