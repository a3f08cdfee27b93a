"""What the numbers that a random op draws should be like, told from its arguments."""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple


class Draws(NamedTuple):
    """What random numbers should be like."""

    mean: float
    deviation: float
    low: float = -math.inf
    high: float = math.inf
    is_continuous: bool = True  # no number comes twice, but by rounding
    is_whole: bool = False
    rare: float = 0.0  # so far from the mean a few numbers may lie, whatever the deviation says
    is_below_high: bool = False  # `high` itself is never drawn


_RARE_COUNT = 7.0  # events that hardly ever happen come in ones
_RARE_WAIT = 17.0  # waiting times have a long tail: the 10^11th part of them is longer than this and 7 deviations

# from the positional arguments, without the tensor that a method fills, and those by name
Describe = Callable[[tuple[Any, ...], dict[str, Any]], Draws]


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str, default: Any) -> Any:
    """An argument that may be given by position or by name."""
    return args[position] if len(args) > position else kwargs.get(name, default)


def standard_uniform(values: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws:
    return Draws(0.5, math.sqrt(1 / 12), 0.0, 1.0, is_below_high=True)


def standard_normal(values: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws:
    return Draws(0.0, 1.0)


def uniform(values: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws:
    low = float(argument(values, kwargs, 0, "from", kwargs.get("a", 0.0)))
    high = float(argument(values, kwargs, 1, "to", kwargs.get("b", 1.0)))
    # between other bounds a number may be rounded to the upper one; from 0 to 1 there is nothing to be rounded
    return Draws((low + high) / 2, (high - low) / math.sqrt(12), low, high, is_below_high=(low, high) == (0.0, 1.0))


def normal(values: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws:
    return Draws(float(argument(values, kwargs, 0, "mean", 0.0)), abs(float(argument(values, kwargs, 1, "std", 1.0))))


def bernoulli(values: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws:
    share = float(argument(values, kwargs, 0, "p", 0.5))
    return Draws(share, math.sqrt(share * (1 - share)), 0.0, 1.0, False, True, _RARE_COUNT)


def exponential(values: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws:
    rate = float(argument(values, kwargs, 0, "lambd", 1.0))
    return Draws(1 / rate, 1 / rate, 0.0, rare=_RARE_WAIT / rate)


def geometric(values: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws:
    share = float(argument(values, kwargs, 0, "p", 0.5))
    return Draws(
        1 / share, math.sqrt(1 - share) / share, 1.0, is_continuous=False, is_whole=True, rare=_RARE_WAIT / share
    )


def randint(values: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws:
    numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    high = float(kwargs.get("high", numbers[-1] if numbers else 1))
    low = float(kwargs.get("low", numbers[0] if len(numbers) > 1 else 0))
    return Draws((low + high - 1) / 2, math.sqrt(((high - low) ** 2 - 1) / 12), low, high - 1, False, True)


def random_integers(values: tuple[Any, ...], kwargs: dict[str, Any]) -> Draws:
    """Of `random_`; without an end it depends on the dtype."""
    given = (*values, *(kwargs[name] for name in ("from", "to") if kwargs.get(name) is not None))
    if not 1 <= len(given) <= 2 or given[-1] is None:
        raise TypeError("random_ has no end")
    return randint(given, {})


# By OpName.base.
DISTRIBUTIONS: dict[str, Describe] = {
    "rand": standard_uniform,
    "rand_like": standard_uniform,
    "randn": standard_normal,
    "randn_like": standard_normal,
    "uniform": uniform,
    "nn.init.uniform": uniform,
    "normal": normal,
    "nn.init.normal": normal,
    "bernoulli": bernoulli,
    "exponential": exponential,
    "geometric": geometric,
    "randint": randint,
    "randint_like": randint,
    "random": random_integers,
}
# Of these the ones that take nothing of the tensor that they are given but its shape, also as functions.
FILLS = frozenset({"uniform", "exponential", "geometric", "random"})
