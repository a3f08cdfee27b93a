"""Random ops, judged as what they are: by their mask, or by the mean, the spread and the range of what they draw."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from op_tools.autocompare.judging import verdict
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
from op_tools.ops import traits
from op_tools.ops.traits import Trait
from op_tools.values import trees


class Draws(NamedTuple):
    """What random numbers should be like. None where nothing is known."""

    mean: float
    deviation: float
    low: float = -math.inf
    high: float = math.inf


@functools.lru_cache(maxsize=10_000)
def may_be_random(name: str) -> bool:
    """Whether results of this op depend on random numbers, at least with some arguments."""
    return traits.has(name, Trait.RANDOM) or traits.base_name(name) in _RANDOM_AT_TIMES


_RANDOM_AT_TIMES = (
    "scaled_dot_product_attention", "multi_head_attention_forward", "lstm", "gru", "rnn_tanh", "rnn_relu",
)  # fmt: skip


def is_random(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True where this call's result depends on random numbers: dropout in training, not in evaluation."""
    base = traits.base_name(name)
    if traits.has(name, Trait.RANDOM):
        if traits.has(name, Trait.DROPOUT) or base in ("alpha_dropout", "feature_alpha_dropout"):
            return drop_rate(args, kwargs) not in (0.0, 1.0) and _in_training(args, kwargs)
        if base == "rrelu":
            return bool(_argument(args, kwargs, 3, "training", False))
        return True
    if base == "scaled_dot_product_attention":
        return float(_argument(args, kwargs, 4, "dropout_p", 0.0)) > 0
    if base == "multi_head_attention_forward":
        return float(_argument(args, kwargs, 10, "dropout_p", 0.0)) > 0 and bool(
            _argument(args, kwargs, 13, "training", True)
        )
    if base in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        position = next((index for index, value in enumerate(args) if isinstance(value, float)), None)
        return position is not None and args[position] > 0 and bool(args[position + 1])
    return False


def drop_rate(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The share of elements that dropout should set to zero."""
    return float(_argument(args, kwargs, 1, "p", 0.5))


def _in_training(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    training = _argument(args, kwargs, 2, "training", kwargs.get("train", True))
    return training is None or bool(training)


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str, default: Any) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def forward_rows(call: ObservedCall, tolerances: Tolerances) -> list[Row]:
    """What can be said about the results of a random call; nothing where nobody knows what it should draw."""
    result = next(trees.tensors(call.result), None)
    if result is None:
        return []
    if traits.has(call.name, Trait.DROPOUT):
        return [_dropout_row(call, result, tolerances)]
    draws = draws_of(call.name, call.given.args, call.given.kwargs)
    if draws is None:
        return []
    reason = draws_are_wrong(result, draws)
    judged = Verdict(not reason, reason, EQUAL, math.inf if reason else 0.0)
    return [Row(f"{call.name} output", judged, *tolerances.of(call.name, result))]


def backward_rows(
    call: ObservedCall,
    grad_outputs: Sequence[Tensor | None],
    grad_inputs: Sequence[Tensor | None],
    tolerances: Tolerances,
) -> list[Row]:
    """The gradient of dropout must have gone through its mask; nothing for other random ops."""
    result, arrived, got = next(trees.tensors(call.result), None), grad_outputs[0], grad_inputs[0]
    if not traits.has(call.name, Trait.DROPOUT) or result is None or arrived is None or got is None:
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

    The last `inner` dimensions fall together, as those of a channel do.
    """
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
    base = traits.base_name(name)
    if base in ("dropout", "native_dropout"):
        return 0
    return int(base[-2]) if base[-2].isdigit() else max(given.dim() - 2, 0)


# ---- generators ------------------------------------------------------------------------------------------------------


def draws_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws | None:
    """What the numbers should be like that this call draws."""
    describe = _DRAWS.get(traits.base_name(name))
    if describe is None:
        return None
    fills = name.startswith(("torch.Tensor.", "torch.nn.init."))
    values = args[1:] if fills else args
    if fills and not name.endswith("_"):
        return None  # its numbers depend on the tensor that it is a method of
    if any(isinstance(value, Tensor) for value in (*values, *kwargs.values())):
        return None
    try:
        return describe(values, kwargs)
    except (TypeError, ValueError, IndexError):
        return None


def _uniform(values: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws:
    low = float(_argument(values, kwargs, 0, "from", kwargs.get("a", 0.0)))
    high = float(_argument(values, kwargs, 1, "to", kwargs.get("b", 1.0)))
    return Draws((low + high) / 2, (high - low) / math.sqrt(12), low, high)


def _normal(values: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws:
    return Draws(float(_argument(values, kwargs, 0, "mean", 0.0)), abs(float(_argument(values, kwargs, 1, "std", 1.0))))


def _bernoulli(values: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws:
    share = float(_argument(values, kwargs, 0, "p", 0.5))
    return Draws(share, math.sqrt(share * (1 - share)), 0.0, 1.0)


def _exponential(values: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws:
    rate = float(_argument(values, kwargs, 0, "lambd", 1.0))
    return Draws(1 / rate, 1 / rate, 0.0)


def _randint(values: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws:
    numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    high = float(kwargs.get("high", numbers[-1] if numbers else 1))
    low = float(kwargs.get("low", numbers[0] if len(numbers) > 1 else 0))
    return Draws((low + high - 1) / 2, math.sqrt(((high - low) ** 2 - 1) / 12), low, high - 1)


_DRAWS: dict[str, Callable[[tuple[Any, ...], dict[str, Any]], Draws]] = {
    "rand": lambda values, kwargs: Draws(0.5, math.sqrt(1 / 12), 0.0, 1.0),
    "rand_like": lambda values, kwargs: Draws(0.5, math.sqrt(1 / 12), 0.0, 1.0),
    "randn": lambda values, kwargs: Draws(0.0, 1.0),
    "randn_like": lambda values, kwargs: Draws(0.0, 1.0),
    "uniform": _uniform,
    "nn.init.uniform": _uniform,
    "normal": _normal,
    "nn.init.normal": _normal,
    "bernoulli": _bernoulli,
    "exponential": _exponential,
    "randint": _randint,
}


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
