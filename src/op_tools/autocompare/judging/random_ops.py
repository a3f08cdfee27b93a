"""Random ops, judged as what they are: by their mask, or by the mean, the spread and the range of what they draw."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.ops.distributions import Draws, argument
from op_tools.ops.names import normalized

_SIGMAS = 7.0  # a healthy generator is this far off once in 10^11 draws


def is_random(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True where this call's result depends on random numbers: dropout in training, not in evaluation."""
    base = normalized(name).base
    if catalogue.has(name, Trait.RANDOM):
        if catalogue.has(name, Trait.DROPOUT) or base in ("alpha_dropout", "feature_alpha_dropout"):
            return drop_rate(args, kwargs) not in (0.0, 1.0) and _in_training(args, kwargs)
        if base == "rrelu":
            return bool(argument(args, kwargs, 3, "training", False))
        return True
    if base == "scaled_dot_product_attention":
        return float(argument(args, kwargs, 4, "dropout_p", 0.0)) > 0
    if base == "multi_head_attention_forward":
        return float(argument(args, kwargs, 10, "dropout_p", 0.0)) > 0 and bool(
            argument(args, kwargs, 13, "training", True)
        )
    if base in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        position = next((index for index, value in enumerate(args) if isinstance(value, float)), None)
        return position is not None and args[position] > 0 and bool(args[position + 1])
    return False


def drop_rate(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The share of elements that dropout should set to zero."""
    return float(argument(args, kwargs, 1, "p", 0.5))


def _in_training(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    training = argument(args, kwargs, 2, "training", kwargs.get("train", True))
    return training is None or bool(training)


# ---- dropout ---------------------------------------------------------------------------------------------------------


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
    if abs(share - rate) <= _SIGMAS * math.sqrt(rate * (1 - rate) / drawn) + 1 / drawn:
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
    values = args[1:] if fills else args
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
    if abs(mean - draws.mean) > _SIGMAS * draws.deviation / math.sqrt(count) + slack:
        return f"the mean of {count:,} random numbers is {mean:g}, it should be about {draws.mean:g}"
    deviation = float(values.std()) if count > 1 else draws.deviation
    # the fourth moment of an exponential distribution is the largest among these
    if abs(deviation - draws.deviation) > _SIGMAS * 1.5 * draws.deviation / math.sqrt(count) + slack and count >= 100:
        return f"the spread of {count:,} random numbers is {deviation:g}, it should be about {draws.deviation:g}"
    return ""
