"""Random ops, judged as what they are: by their mask, or by the mean, the spread and the range of what they draw."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare.judging import verdict
from op_tools.autocompare.judging.impossible_draws import IMPOSSIBLE
from op_tools.autocompare.judging.limits import (
    MIN_DRAWS_FOR_SPREAD,
    RANDOM_SIGMAS,
    SPREAD_MARGIN,
    Tolerances,
    precision_of,
)
from op_tools.autocompare.judging.measures import EQUAL
from op_tools.autocompare.judging.verdict import Row, Verdict, error_info
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.ops.distributions import Draws, argument
from op_tools.ops.names import normalized
from op_tools.values import trees


@functools.lru_cache(maxsize=10_000)
def may_be_random(name: str) -> bool:
    """Whether results of this op depend on random numbers, at least with some arguments."""
    return catalogue.has(name, Trait.RANDOM) or normalized(name).base in _RANDOM_AT_TIMES


_ATTENTION = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}  # where `dropout_p` stands
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_RANDOM_AT_TIMES = (*_ATTENTION, *_RECURRENT)


def is_random(call: ObservedCall) -> bool:
    """True where this call's result depends on random numbers: dropout in training, not in evaluation."""
    name, args, kwargs = call.name, call.given.args, call.given.kwargs
    base = normalized(name).base
    if catalogue.has(name, Trait.RANDOM):
        if catalogue.has(name, Trait.DROPOUT) or base in ("alpha_dropout", "feature_alpha_dropout"):
            return drop_rate(args, kwargs) not in (0.0, 1.0) and _in_training(args, kwargs)
        if base == "rrelu":
            return bool(argument(args, kwargs, 3, "training", False))
        # a pool by fractions may be told where its windows begin
        return not (base.startswith("fractional_max_pool") and kwargs.get("_random_samples") is not None)
    return drops_inside(name, args, kwargs)


# ---- dropout inside of attention and of recurrent layers -------------------------------------------------------------


def drops_inside(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this call drops numbers on its way, where nobody sees which."""
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


def _rate_of_recurrent(args: tuple[Any, ...]) -> int | None:
    return next((index for index, value in enumerate(args) if isinstance(value, float)), None)


# ---- how likely, and when --------------------------------------------------------------------------------------------


def drop_rate(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The share of elements that dropout should set to zero."""
    return float(argument(args, kwargs, 1, "p", 0.5))


def _in_training(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    training = argument(args, kwargs, 2, "training", kwargs.get("train", True))
    return training is None or bool(training)


def forward_rows(call: ObservedCall, tolerances: Tolerances) -> list[Row]:
    """What can be said about the results of a random call; nothing where nobody knows what it should draw."""
    result = next(trees.tensors(call.result), None)
    if result is None:
        return []
    if catalogue.has(call.name, Trait.DROPOUT):
        return [_dropout_row(call, result, tolerances)]
    judge_draws = IMPOSSIBLE.get(normalized(call.name).base)
    reason = None if judge_draws is None else judge_draws(call, result.detach())
    if reason is None:
        draws = draws_of(call.name, call.given.args, call.given.kwargs)
        if draws is None:
            return []
        reason = draws_are_wrong(result, draws)
    judged = Verdict(not reason, reason, EQUAL, math.inf if reason else 0.0)
    return [Row(f"{call.name} output", judged, *tolerances.of(call.name, result))]


def backward_rows(call: ObservedCall, gradients: Gradients, tolerances: Tolerances) -> list[Row]:
    """The gradient of dropout must have gone through its mask; nothing for other random ops."""
    result = next(trees.tensors(call.result), None)
    arrived, got = gradients.outputs[0], gradients.inputs[0]
    if not catalogue.has(call.name, Trait.DROPOUT) or result is None or arrived is None or got is None:
        return []
    given, rate = call.given.tensors[0].detach(), drop_rate(call.given.args, call.given.kwargs)
    # where the input was zero the mask cannot be seen: either gradient is right
    mask = torch.where(given == 0, got != 0, mask_of(given, result))
    return [_masked_row(call.given.gradient_names(call.name)[0], got, arrived, mask, rate, call.name, tolerances)]


# ---- dropout ---------------------------------------------------------------------------------------------------------


def _dropout_row(call: ObservedCall, result: Tensor, tolerances: Tolerances) -> Row:
    given, rate = call.given.tensors[0].detach(), drop_rate(call.given.args, call.given.kwargs)
    mask = mask_of(given, result)
    row = _masked_row(f"{call.name} output", result, given, mask, rate, call.name, tolerances)
    wrong_rate = rate_is_wrong(given, mask, rate, inner_dimensions(call.name, given))
    if wrong_rate and row.verdict is not None and row.verdict.right:
        row.verdict = row.verdict._replace(right=False, reason=wrong_rate, severity=math.inf)
    return row


def _masked_row(
    name: str, got: Tensor, given: Tensor, mask: Tensor, rate: float, op: str, tolerances: Tolerances
) -> Row:
    got, tolerance = got.detach(), tolerances.of(op, got)
    expected = dropped_out(given.double(), mask, rate)
    judged = verdict.judge(got, expected, expected.to(got.dtype), precision_of(got.dtype), tolerance)
    return Row(name, judged, *tolerance, error_info(got.dtype, expected.dtype))


def mask_of(given: Tensor, result: Tensor) -> Tensor:
    """Which elements dropout kept, as its result shows. One that was zero before counts as kept."""
    return (result != 0) | (given == 0)


def dropped_out(given: Tensor, mask: Tensor, rate: float) -> Tensor:
    """What dropout makes of its input with this mask."""
    return given * mask / (1 - rate)


def rate_is_wrong(given: Tensor, mask: Tensor, rate: float, inner: int) -> str:
    """Why the share of dropped elements cannot be chance; "" where it can.

    The last `inner` dimensions fall together, as those of a channel do; of some elements in a row that is not seen.
    """
    if inner >= given.dim() > 0:
        return ""
    seen = (given != 0) & given.isfinite()  # a dropped infinity is NaN
    kept = seen & mask
    if inner:
        seen, kept = seen.flatten(-inner).any(-1), kept.flatten(-inner).any(-1)
    drawn = int(seen.sum())
    if not drawn:
        return ""
    share = 1 - int(kept.sum()) / drawn
    if abs(share - rate) <= RANDOM_SIGMAS * math.sqrt(rate * (1 - rate) / drawn) + 1 / drawn:
        return ""
    return f"{share:.4f} of {drawn:,} are dropped where the rate is {rate:g}"


def inner_dimensions(name: str, given: Tensor) -> int:
    """How many of the last dimensions dropout drops as a whole."""
    base = normalized(name).base
    if base in ("dropout", "native_dropout"):
        return 0
    return int(base[-2]) if base[-2].isdigit() else max(given.dim() - 2, 0)


# ---- generators ------------------------------------------------------------------------------------------------------


def draws_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws | None:
    """What the numbers should be like that this call draws."""
    describe = catalogue.DISTRIBUTIONS.get(normalized(name).base)
    if describe is None:
        return None
    fills = name.startswith(("torch.Tensor.", "torch.nn.init."))
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
    least, most = float(values.min()), float(values.max())
    if least < draws.low or most > draws.high:
        return f"random numbers from {least:g} to {most:g}, they should lie from {draws.low:g} to {draws.high:g}"
    grain = float(torch.finfo(numbers.dtype).eps) if numbers.is_floating_point() else 0.0
    slack = grain * (abs(draws.mean) + draws.deviation)
    mean = float(values.mean())
    if abs(mean - draws.mean) > RANDOM_SIGMAS * draws.deviation / math.sqrt(count) + slack:
        return f"the mean of {count:,} random numbers is {mean:g}, it should be about {draws.mean:g}"
    deviation = float(values.std()) if count > 1 else draws.deviation
    allowed = RANDOM_SIGMAS * SPREAD_MARGIN * draws.deviation / math.sqrt(count) + slack
    if abs(deviation - draws.deviation) > allowed and count >= MIN_DRAWS_FOR_SPREAD:
        return f"the spread of {count:,} random numbers is {deviation:g}, it should be about {draws.deviation:g}"
    return ""
