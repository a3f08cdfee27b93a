"""Random ops, judged as what they are: by their mask, or by the mean, the spread and the range of what they draw."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare.judging import drawn_gradients, dropout
from op_tools.autocompare.judging.impossible_draws import IMPOSSIBLE, are_repeated
from op_tools.autocompare.judging.limits import (
    MIN_DRAWS_FOR_SPREAD,
    RANDOM_SIGMAS,
    SPREAD_MARGIN,
    Tolerances,
)
from op_tools.autocompare.judging.measures import EQUAL
from op_tools.autocompare.judging.scaled_draws import SCALED
from op_tools.autocompare.judging.verdict import Row, Verdict
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.ops.distributions import DISTRIBUTIONS, FILLS, Draws, argument
from op_tools.ops.names import normalized
from op_tools.values import trees


@functools.lru_cache(maxsize=10_000)
def may_be_random(name: str) -> bool:
    """Whether results of this op depend on random numbers, at least with some arguments."""
    return catalogue.has(name, Trait.RANDOM) or normalized(name).base in _RANDOM_AT_TIMES


_ATTENTION = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}  # where `dropout_p` stands
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_RANDOM_AT_TIMES = (*_ATTENTION, *_RECURRENT)
_MANY_VALUES = 2.0**12  # so many that two neighbours are hardly ever drawn again


def is_random(call: ObservedCall) -> bool:
    """True where this call's result depends on random numbers: dropout in training, not in evaluation."""
    name, args, kwargs = call.name, call.given.args, call.given.kwargs
    base = normalized(name).base
    if catalogue.has(name, Trait.RANDOM):
        if catalogue.has(name, Trait.DROPOUT):
            return dropout.drop_rate(args, kwargs) not in (0.0, 1.0) and _in_training(args, kwargs)
        if base == "rrelu":
            return bool(argument(args, kwargs, 3, "training", False))
        # a pool by fractions may be told where its windows begin
        return not (base.startswith("fractional_max_pool") and kwargs.get("_random_samples") is not None)
    return drops_inside(name, args, kwargs)


# ---- dropout inside of attention and of recurrent layers -------------------------------------------------------------


def drops_inside(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this call drops numbers on its way, where they cannot be seen."""
    base = normalized(name).base
    if base in _ATTENTION:
        drops = float(argument(args, kwargs, _ATTENTION[base], "dropout_p", 0.0)) > 0
        return drops and (base != "multi_head_attention_forward" or bool(argument(args, kwargs, 13, "training", True)))
    if base in _RECURRENT:
        place = _rate_of_recurrent(args)
        return place is not None and args[place] > 0 and bool(args[place + 1])
    return False


def is_attention(name: str) -> bool:
    return normalized(name).base in _ATTENTION


def with_rate(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], rate: float
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of such a call with another rate of dropout."""
    place = _ATTENTION.get(normalized(name).base, _rate_of_recurrent(args))
    if place is None or place >= len(args):
        return args, {**kwargs, "dropout_p": rate}
    return (*args[:place], rate, *args[place + 1 :]), kwargs


def rate_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The rate of dropout of such a call."""
    place = _ATTENTION.get(normalized(name).base, _rate_of_recurrent(args))
    return float(kwargs["dropout_p"] if place is None or place >= len(args) else args[place])


def _rate_of_recurrent(args: tuple[Any, ...]) -> int | None:
    return next((index for index, value in enumerate(args) if isinstance(value, float)), None)


# ---- how likely, and when --------------------------------------------------------------------------------------------


def _in_training(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    training = argument(args, kwargs, 2, "training", kwargs.get("train", True))
    return training is None or bool(training)


def forward_rows(call: ObservedCall, tolerances: Tolerances) -> list[Row]:
    """What can be said about the results of a random call; nothing where it is unknown what it should draw."""
    result = next(trees.tensors(call.result), None)
    if result is None:
        return []
    if catalogue.has(call.name, Trait.DROPOUT):
        return dropout.forward_rows(call, result, tolerances)
    judge_draws = IMPOSSIBLE.get(normalized(call.name).base)
    reason = None if judge_draws is None else judge_draws(call, result.detach())
    scale = None if reason is not None else SCALED.get(normalized(call.name).base)
    scaled = None if scale is None else scale(call, result.detach())
    if scaled is not None:
        wrong = draws_are_wrong(scaled.numbers, scaled.draws)
        reason = scaled.reason or (wrong and f"{scaled.kind}: {wrong}")
    if reason is None:
        draws = draws_of(call.name, call.given.args, call.given.kwargs)
        if draws is None:
            return []
        reason = draws_are_wrong(result, draws)
    judged = Verdict(not reason, reason, EQUAL, math.inf if reason else 0.0)
    return [Row(f"{call.name} output", judged, *tolerances.of(call.name, result))]


def backward_rows(call: ObservedCall, gradients: Gradients, tolerances: Tolerances) -> list[Row]:
    """Nothing for random ops whose gradients cannot be told from what was drawn."""
    of_dropout = catalogue.has(call.name, Trait.DROPOUT)
    return (dropout.backward_rows if of_dropout else drawn_gradients.rows)(call, gradients, tolerances)


# ---- generators ------------------------------------------------------------------------------------------------------


def draws_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws | None:
    """What the numbers should be like that this call draws."""
    describe = DISTRIBUTIONS.get(normalized(name).base)
    if describe is None:
        return None
    fills = name.startswith(("torch.Tensor.", "torch.nn.init."))
    if not fills and normalized(name).base in FILLS and args and isinstance(args[0], Tensor):
        args = args[1:]  # compiled code has them as functions of a tensor that has the shape
    values = args[1:] if fills or name.endswith("_like") else args
    if fills and not name.endswith("_"):
        return None  # its numbers depend on the tensor that it is a method of
    if any(isinstance(value, Tensor) for value in (*values, *kwargs.values())):
        return None
    try:
        return describe(values, kwargs)
    except (TypeError, ValueError, IndexError):
        return None


def draws_are_wrong(numbers: Tensor, draws: Draws) -> str:
    """Why these numbers cannot have been drawn so; "" where they can."""
    count = numbers.numel()
    if not count:
        return ""
    values = numbers.detach().double()
    if not bool(values.isfinite().all()):
        return "random numbers are NaN or infinite"
    grain = float(torch.finfo(numbers.dtype).eps) if numbers.is_floating_point() else 0.0
    least, most = float(values.min()), float(values.max())
    low, high = _bounds(draws, numbers.dtype)
    rounded = grain * max(abs(least), abs(most)) if draws.is_whole else 0.0
    if least < low - rounded or most > high + rounded:
        return f"random numbers from {least:g} to {most:g}, they should lie from {draws.low:g} to {draws.high:g}"
    if draws.is_below_high and most >= draws.high:
        return f"a random number is {most:g}, all should lie below {draws.high:g}"
    if draws.is_whole and not bool((values == values.round()).all()):
        return "random numbers that are no whole numbers"
    slack = grain * (abs(draws.mean) + draws.deviation)
    mean = float(values.mean())
    if abs(mean - draws.mean) > RANDOM_SIGMAS * draws.deviation / math.sqrt(count) + draws.rare / count + slack:
        return f"the mean of {count:,} random numbers is {mean:g}, it should be about {draws.mean:g}"
    deviation = float(values.std()) if count > 1 else draws.deviation
    allowed = RANDOM_SIGMAS * SPREAD_MARGIN * draws.deviation / math.sqrt(count) + slack
    allowed += math.hypot(draws.deviation, draws.rare / math.sqrt(count)) - draws.deviation
    if abs(deviation - draws.deviation) > allowed and count >= MIN_DRAWS_FOR_SPREAD:
        return f"the spread of {count:,} random numbers is {deviation:g}, it should be about {draws.deviation:g}"
    return are_repeated(numbers.detach()) if _has_many_values(numbers.dtype, draws) else ""


def _bounds(draws: Draws, dtype: torch.dtype) -> tuple[float, float]:
    """From where to where numbers of this dtype may lie: they are rounded, and what they are drawn from may be."""
    if not dtype.is_floating_point or not math.isfinite(draws.high - draws.low):
        return draws.low, draws.high
    low, high = torch.tensor([draws.low, draws.high], dtype=dtype, device="cpu")
    return min(draws.low, float(low)), max(draws.high, float(high), float(low + (high - low)))


def _has_many_values(dtype: torch.dtype, draws: Draws) -> bool:
    """Whether numbers have room to be all different, in this dtype and so far from zero."""
    coarse = torch.finfo(dtype).eps * abs(draws.mean) if dtype.is_floating_point else math.inf
    return draws.is_continuous and dtype.itemsize >= 4 and draws.deviation > _MANY_VALUES * coarse
