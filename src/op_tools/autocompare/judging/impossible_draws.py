"""What no chance can draw: places that do not exist, what has the probability 0, counts far from what is likely."""

from __future__ import annotations

from typing import Callable

import torch
from torch import Tensor

from op_tools.autocompare.judging import continuous_draws
from op_tools.autocompare.judging.chance import are_far, coarse, sums_by_size
from op_tools.autocompare.judging.limits import RANDOM_SIGMAS
from op_tools.autocompare.observed import ObservedCall
from op_tools.ops.distributions import argument

_RARE_COUNTS = 20.0  # of one count above its deviations
_PIECES, _PIECE_LENGTH = 64, 1024  # of large tensors
_MIN_PAIRS, _USUAL_SHARE_AGAIN = 64, 1 / 16


def are_repeated(numbers: Tensor) -> str:
    """Why numbers of many values were drawn once and used again; "" where there is no sign of it.

    Looked at are pairs of neighbours: a number alone may come again by chance.
    """
    pieces = numbers.reshape(1, -1)
    if pieces.numel() > _PIECES * _PIECE_LENGTH:
        pieces = pieces[:, : pieces.numel() // _PIECES * _PIECES].view(_PIECES, -1)[:, :_PIECE_LENGTH]
    bits = pieces.float().cpu().contiguous().view(torch.int32).long()
    pairs = (bits[:, 1:] * 2**32 + bits[:, :-1]).flatten()
    again = pairs.numel() - pairs.unique().numel()
    if pairs.numel() < _MIN_PAIRS or again <= _USUAL_SHARE_AGAIN * pairs.numel():
        return ""
    return f"{again:,} of {pairs.numel():,} pairs of neighbours are drawn more than once"


def _multinomial(call: ObservedCall, drawn: Tensor) -> str:
    weights = call.given.tensors[0].detach()
    if bool(((drawn < 0) | (drawn >= weights.shape[-1])).any()):
        return "places are drawn that do not exist"
    impossible = weights.gather(-1, drawn) == 0
    if bool(impossible.any()):
        return f"{int(impossible.sum()):,} of {drawn.numel():,} drawn places have the probability 0"
    with_replacement = argument(call.given.args, call.given.kwargs, 2, "replacement", False)
    if not with_replacement and bool((drawn.sort(-1).values.diff(dim=-1) == 0).any()):
        return "a place is drawn twice, without replacement"
    if with_replacement or drawn.shape[-1] == 1:
        shares = weights.double().reshape(-1, weights.shape[-1])
        shares = shares / shares.sum(-1, keepdim=True)
        counts = torch.bincount(drawn.reshape(-1), minlength=weights.shape[-1]).double()
        each = drawn.shape[-1]
        if are_far(counts, each * shares.sum(0), each * (shares * (1 - shares)).sum(0), weights.dtype):
            return f"the places of {drawn.numel():,} draws do not have their probabilities"
    return ""


def _permutation(call: ObservedCall, drawn: Tensor) -> str:
    drawn = drawn.long()
    if not torch.equal(drawn.sort().values, torch.arange(drawn.numel(), device=drawn.device)):
        return "not each number is there once"
    count = drawn.numel()
    rises = (drawn.diff() > 0).sum().double()  # of all permutations: (count - 1) / 2, variance (count + 1) / 12
    if are_far(rises, rises.new_tensor((count - 1) / 2), rises.new_tensor((count + 1) / 12)):
        return f"{int(rises):,} of {count:,} numbers are followed by a larger one, no order of chance"
    return ""


def _bernoulli(call: ObservedCall, drawn: Tensor) -> str | None:
    """None where one number is the probability of all."""
    fills = call.name.endswith("_")
    tensors = [one.detach() for one in call.given.tensors[fills:] if one.is_floating_point()]
    if not tensors or any(isinstance(one, float) for one in call.given.leaves):
        return None
    shares = tensors[0].double().expand(drawn.shape)
    ones = drawn == 1
    if not bool((ones | (drawn == 0)).all()):
        return "numbers are drawn that are neither 0 nor 1"
    if bool((ones & (shares == 0)).any()) or bool((~ones & (shares == 1)).any()):
        return "what has the probability 0 is drawn"
    if are_far(ones.sum().double(), shares.sum(), (shares * (1 - shares)).sum(), tensors[0].dtype):
        return f"{int(ones.sum()):,} of {drawn.numel():,} draws are 1, it should be about {float(shares.sum()):,.0f}"
    return ""


def _poisson(call: ObservedCall, drawn: Tensor) -> str:
    rates, counts = call.given.tensors[0].detach().double(), drawn.double()
    dtype = call.given.tensors[0].dtype
    if bool(((counts < 0) | (counts != counts.round())).any()):
        return "numbers are drawn that are no counts"
    if bool(((rates == 0) & (counts != 0)).any()):
        return "what has the probability 0 is drawn"
    off, farthest = counts - rates, RANDOM_SIGMAS * rates.sqrt() + _RARE_COUNTS + coarse(dtype) * rates
    if not bool((off.abs() <= farthest).all()):
        return f"a count is {float((off.abs() - farthest).max()):g} farther from its rate than chance brings it"
    sums, means = sums_by_size(rates, counts, rates)
    if are_far(sums, means, means, dtype):
        return f"{drawn.numel():,} counts add up to {float(counts.sum()):g}, it should be about {float(rates.sum()):g}"
    squares, variance = off.square().sum(), (rates * (1 + 2 * rates)).sum()
    rounding = (coarse(dtype) * counts).square().sum()
    if are_far(squares, rates.sum(), variance, dtype, rare=farthest.square().max() + rounding):
        times = float((squares / rates.sum()).sqrt())
        return f"the spread of {drawn.numel():,} counts is {times:g} times what it should be"
    return ""


def _binomial(call: ObservedCall, drawn: Tensor) -> str:
    sizes, shares = (one.detach().double() for one in call.given.tensors[:2])
    sizes, shares, counts = torch.broadcast_tensors(sizes, shares, drawn.double())
    if bool(((counts < 0) | (counts > sizes) | (counts != counts.round())).any()):
        return "numbers are drawn that are no count of so many"
    if bool((((shares == 0) & (counts > 0)) | ((shares == 1) & (counts < sizes))).any()):
        return "what has the probability 0 is drawn"
    expected = sizes * shares
    if are_far(counts.sum(), expected.sum(), (expected * (1 - shares)).sum(), call.given.tensors[1].dtype):
        return (
            f"{drawn.numel():,} counts add up to {float(counts.sum()):g}, it should be about {float(expected.sum()):g}"
        )
    return ""


# the reason why a call cannot have drawn this, "" where it can, None where nothing can be said here
IMPOSSIBLE: dict[str, Callable[[ObservedCall, Tensor], str | None]] = {
    "_sample_dirichlet": continuous_draws.dirichlet,
    "_standard_gamma": continuous_draws.gamma,
    "bernoulli": _bernoulli,
    "binomial": _binomial,
    "gumbel_softmax": continuous_draws.gumbel_softmax,
    "multinomial": _multinomial,
    "poisson": _poisson,
    "randperm": _permutation,
    "rrelu": continuous_draws.rrelu,
}
