"""Draws that are those of a well-known distribution once they are scaled: logarithms, angles, deviations."""

from __future__ import annotations

import math
from typing import Callable, NamedTuple

import torch
from torch import Tensor

from op_tools.autocompare.observed import ObservedCall
from op_tools.ops.distributions import Draws, argument

_FINE_SPREAD = 64.0  # units in the last place of the mean: below, rounding shows in what is drawn


class Scaled(NamedTuple):
    """`kind`: what the numbers are now. `reason`: why they cannot have been drawn at all."""

    kind: str
    numbers: Tensor
    draws: Draws
    reason: str = ""


def _log_normal(call: ObservedCall, drawn: Tensor) -> Scaled:
    given = call.given.args[1:], call.given.kwargs
    mean, deviation = float(argument(*given, 0, "mean", 1.0)), float(argument(*given, 1, "std", 2.0))
    values = drawn.double()
    may_underflow = mean - 10 * deviation < math.log(torch.finfo(drawn.dtype).tiny)
    wrong = not bool(((values >= 0) if may_underflow else (values > 0)).all())
    logs = values[(values > 0) & values.isfinite()].log()  # very large ones overflow in 16 bits
    draws = Draws(mean, deviation, is_continuous=False, rare=math.inf if len(logs) < len(values) else 0.0)
    return Scaled("logarithms", logs, draws, "numbers are drawn that are not above zero" if wrong else "")


def _cauchy(call: ObservedCall, drawn: Tensor) -> Scaled | None:
    given = call.given.args[1:], call.given.kwargs
    middle, width = float(argument(*given, 0, "median", 0.0)), float(argument(*given, 1, "sigma", 1.0))
    if width < _FINE_SPREAD * torch.finfo(drawn.dtype).eps * abs(middle):
        return None
    angles = torch.atan((drawn.double() - middle) / width)
    return Scaled("angles", angles, Draws(0.0, math.pi / math.sqrt(12), is_continuous=False))


def _normal(call: ObservedCall, drawn: Tensor) -> Scaled | None:
    """None where no tensor tells mean or spread."""
    values = call.given.args[1:] if "normal_" in call.name else call.given.args
    mean, spread = (
        argument(values, call.given.kwargs, place, name, 1.0 * place) for place, name in ((0, "mean"), (1, "std"))
    )
    if not (isinstance(mean, Tensor) or isinstance(spread, Tensor)):
        return None
    middle, width = (torch.as_tensor(one, device=drawn.device).detach().double() for one in (mean, spread))
    middle, width = middle.expand(drawn.shape), width.expand(drawn.shape)
    apart = drawn.double() - middle
    grain = _FINE_SPREAD * torch.finfo(drawn.dtype).eps * middle.abs()
    wrong = bool((apart[width == 0].abs() > grain[width == 0]).any())
    is_seen = (width > grain) & (width > 0) & (middle.abs() + 10 * width < torch.finfo(drawn.dtype).max)
    deviations = apart[is_seen] / width[is_seen]
    reason = "numbers that have no spread are not their mean" if wrong else ""
    return Scaled("deviations", deviations, Draws(0.0, 1.0, is_continuous=False), reason)


SCALED: dict[str, Callable[[ObservedCall, Tensor], Scaled | None]] = {
    "cauchy": _cauchy,
    "log_normal": _log_normal,
    "normal": _normal,
}
