"""What no chance can draw of numbers that are no counts: signs, sizes, sums and shares far from what is likely."""

from __future__ import annotations

import torch
from torch import Tensor

from op_tools.autocompare.judging.chance import EXPONENTIAL_DRAWS, are_far, coarse, sums_by_size
from op_tools.autocompare.judging.limits import IN_16_BITS
from op_tools.autocompare.observed import ObservedCall
from op_tools.ops.distributions import argument


def gamma(call: ObservedCall, drawn: Tensor) -> str:
    shapes, values = call.given.tensors[0].detach().double(), drawn.double()
    if not bool(((values >= 0) & values.isfinite()).all()):
        return "numbers are drawn that are negative, NaN or infinite"
    sums, means = sums_by_size(shapes, values, shapes)  # the mean of a draw, and its variance
    if are_far(sums, means, means, drawn.dtype, EXPONENTIAL_DRAWS):
        return f"{_many(drawn)} add up to {float(values.sum()):g}, it should be about {float(shapes.sum()):g}"
    return ""


def dirichlet(call: ObservedCall, drawn: Tensor) -> str:
    shapes, shares = (one.double().reshape(-1, drawn.shape[-1]) for one in (call.given.tensors[0].detach(), drawn))
    slack = coarse(drawn.dtype)
    if not bool(((shares >= 0) & (shares <= 1 + slack)).all()):
        return "shares are drawn that are not between 0 and 1"
    if bool(((shares.sum(-1) - 1).abs() > slack).any()):
        return "shares do not add up to 1"
    whole = shapes.sum(-1, keepdim=True)
    means = shapes / whole
    if are_far(shares.sum(0), means.sum(0), (means * (1 - means) / (whole + 1)).sum(0), drawn.dtype):
        return f"the means of {len(shares):,} draws are not what they should be"
    return ""


def gumbel_softmax(call: ObservedCall, drawn: Tensor) -> str:
    """The largest share of each row falls to a place with the probability that softmax gives it."""
    args, kwargs = call.given.args, call.given.kwargs
    logits, dimension = call.given.tensors[0].detach(), int(argument(args, kwargs, 4, "dim", -1))
    is_hard = bool(argument(args, kwargs, 2, "hard", False))
    logits, shares = (one.movedim(dimension, -1).double().flatten(0, -2) for one in (logits, drawn))
    known = logits.isneginf().logical_or(logits.isfinite()).all(-1) & logits.isfinite().any(-1)
    logits, shares = logits[known], shares[known]
    if not shares.numel():
        return ""
    if is_hard and not bool(((shares == 0) | ((shares - 1).abs() <= coarse(drawn.dtype))).all()):
        return "numbers are drawn that are neither 0 nor 1"
    slack = coarse(drawn.dtype)
    if not bool(((shares >= 0) & (shares <= 1 + slack)).all()) or bool(((shares.sum(-1) - 1).abs() > slack).any()):
        return "shares are drawn that do not add up to 1"
    likely = logits.softmax(-1)
    if bool(((likely == 0) & (shares > 0)).any()) and bool((logits.isneginf() & (shares > 0)).any()):
        return "what has the probability 0 is drawn"
    if drawn.dtype in IN_16_BITS and not is_hard:
        return ""  # the largest of several that were rounded to the same number cannot be told
    chosen = torch.zeros_like(likely).scatter_(-1, shares.argmax(-1, keepdim=True), 1.0)
    if are_far(chosen.sum(0), likely.sum(0), (likely * (1 - likely)).sum(0), drawn.dtype):
        return f"the places of {len(shares):,} draws do not have their probabilities"
    return ""


def rrelu(call: ObservedCall, drawn: Tensor) -> str | None:
    args, kwargs = call.given.args, call.given.kwargs
    low, high = float(argument(args, kwargs, 1, "lower", 1 / 8)), float(argument(args, kwargs, 2, "upper", 1 / 3))
    if call.changed:
        return None  # its input is gone
    given, values = call.given.tensors[0].detach(), drawn.double()
    if bool((given.gt(0) & (drawn != given)).any()):
        return "positive numbers are not left as they are"
    grain = torch.finfo(drawn.dtype).eps
    smallest = torch.finfo(drawn.dtype).tiny / grain
    is_seen = (given < -smallest) & given.isfinite()
    slopes = values[is_seen] / given.double()[is_seen]
    if not slopes.numel():
        return ""
    slack = 2 * grain * max(abs(low), abs(high))
    if bool(((slopes < low - slack) | (slopes > high + slack) | slopes.isnan()).any()):
        return f"slopes are drawn that do not lie from {low:g} to {high:g}"
    count = torch.tensor(float(slopes.numel()), dtype=torch.float64, device=slopes.device)
    if high > low and are_far(
        ((slopes - low) / (high - low)).sum(), count / 2, count / 12, rare=count * slack / (high - low)
    ):
        return (
            f"the mean of {len(slopes):,} slopes is {float(slopes.mean()):g}, it should be about {(low + high) / 2:g}"
        )
    return ""


def _many(drawn: Tensor) -> str:
    return f"{drawn.numel():,} draws"
