"""Dropout, judged with the mask that it drew: the mask can be seen in its result."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare.judging import verdict
from op_tools.autocompare.judging.limits import RANDOM_SIGMAS, Tolerances, precision_of
from op_tools.autocompare.judging.verdict import Row, error_info
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients
from op_tools.ops.distributions import argument
from op_tools.ops.names import normalized
from op_tools.values import trees

_ALPHA = 1.7580993408473766  # alpha dropout sets numbers to the least value of SELU, less what keeps mean and spread
_CLEARLY_APART = 16  # roundings, between a number that was kept and one that was dropped


def drop_rate(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The share of elements that dropout should set to zero."""
    return float(argument(args, kwargs, 1, "p", 0.5))


def forward_rows(call: ObservedCall, result: Tensor, tolerances: Tolerances) -> list[Row]:
    """The result must be what this mask makes of the input, and the mask one that can have been drawn."""
    given, got = call.given.tensors[0].detach(), result.detach()
    mask = _mask_of(call, given, got)
    row = _judged(f"{call.name} output", got, mask.applied(given.double()), mask.applied_in(given), call, tolerances)
    wrong_rate = mask.wrong_rate(inner_dimensions(call.name, given))
    if wrong_rate and row.verdict is not None and row.verdict.right:
        row.verdict = row.verdict._replace(right=False, reason=wrong_rate, severity=math.inf)
    return [row]


def backward_rows(call: ObservedCall, gradients: Gradients, tolerances: Tolerances) -> list[Row]:
    """The gradient must have gone through the mask."""
    result = next(trees.tensors(call.result), None)
    arrived, got = gradients.outputs[0], gradients.inputs[0]
    if result is None or arrived is None or got is None:
        return []
    got = got.detach()
    mask = _mask_of(call, call.given.tensors[0].detach(), result.detach())
    # where the mask cannot be seen either gradient is right
    mask.kept = torch.where(mask.is_seen, mask.kept, got != 0)
    name = call.given.gradient_names(call.name)[0]
    return [_judged(name, got, mask.backward(arrived.double()), mask.backward_in(arrived), call, tolerances)]


def _judged(name: str, got: Tensor, expected: Tensor, same: Tensor, call: ObservedCall, tolerances: Tolerances) -> Row:
    tolerance = tolerances.of(call.name, got)
    judged = verdict.judge(got, expected, same.to(got.dtype), precision_of(got.dtype), tolerance)
    return Row(name, judged, *tolerance, error_info(got.dtype, expected.dtype))


def inner_dimensions(name: str, given: Tensor) -> int:
    """How many of the last dimensions dropout drops as a whole."""
    base = normalized(name).base.rstrip("_")
    if base in ("dropout", "native_dropout", "alpha_dropout"):
        return 0
    if base[-2].isdigit():
        return int(base[-2])
    return given.dim() - 2 if given.dim() >= 2 else given.dim()  # fewer: it is a piece of a call's tensor


# ---- masks -----------------------------------------------------------------------------------------------------------


class _Mask:
    """`kept`: which elements dropout kept, as its result shows. `is_seen`: where it shows that."""

    def __init__(self, given: Tensor, result: Tensor, rate: float) -> None:
        self.rate = rate
        self.kept = (result != 0) | (given == 0)
        self.is_seen = given != 0
        self._may_count = self.is_seen & given.isfinite()  # a dropped infinity is NaN

    def applied(self, given: Tensor) -> Tensor:
        """What dropout makes of its input with this mask."""
        return given * self.kept / (1 - self.rate)

    def applied_in(self, given: Tensor) -> Tensor:
        """The same, rounded as it is in the input's dtype."""
        return self.applied(given.double()).to(given.dtype)

    def backward(self, arrived: Tensor) -> Tensor:
        return arrived * self.kept / (1 - self.rate)

    def backward_in(self, arrived: Tensor) -> Tensor:
        return self.backward(arrived.double()).to(arrived.dtype)

    def wrong_rate(self, inner: int) -> str:
        """Why the share of dropped elements cannot be chance; "" where it can.

        The last `inner` dimensions fall together, as those of a channel do; of some elements in a row that is not seen.
        """
        seen = self._may_count
        if inner >= seen.dim() > 0:
            return ""
        kept = seen & self.kept
        if inner:
            seen, kept = seen.flatten(-inner).any(-1), kept.flatten(-inner).any(-1)
        drawn = int(seen.sum())
        if not drawn:
            return ""
        rate, share = self.rate, 1 - int(kept.sum()) / drawn
        if abs(share - rate) <= RANDOM_SIGMAS * math.sqrt(rate * (1 - rate) / drawn) + 1 / drawn:
            return ""
        return f"{drawn - int(kept.sum()):,} of {drawn:,} are dropped where the rate is {rate:g}"


class _AlphaMask(_Mask):
    """Of alpha dropout, which scales and moves all numbers: their mean and spread stay, and dropped ones are alike."""

    def __init__(self, given: Tensor, result: Tensor, rate: float) -> None:
        self.rate = rate
        self._scale = 1 / math.sqrt((_ALPHA**2 * rate + 1) * (1 - rate))
        wide, got = given.double(), result.double()
        if_kept = self._scale * (wide + _ALPHA * rate)
        if_dropped = self._scale * _ALPHA * (rate - 1)
        from_dropped, from_kept = (got - if_dropped).abs(), (got - if_kept).abs()
        is_dropped = from_dropped < from_kept
        self.kept = torch.where(given.isfinite(), ~is_dropped, ~got.isnan())  # a dropped infinity is NaN
        rounding = torch.finfo(given.dtype).eps * self._scale * (wide.abs() + _ALPHA)
        is_either = torch.minimum(from_dropped, from_kept) <= _CLEARLY_APART / 2 * rounding  # if not, it is wrong
        self.is_seen = ((if_kept - if_dropped).abs() > _CLEARLY_APART * rounding) & is_either
        self._may_count = self.is_seen & given.isfinite()

    def applied(self, given: Tensor) -> Tensor:
        return given * (self.kept * self._scale) + self._scale * _ALPHA * (self.kept.to(given.dtype) - 1 + self.rate)

    def applied_in(self, given: Tensor) -> Tensor:
        dtype = given.dtype

        def rounded(number: Tensor) -> Tensor:
            return number.to(dtype).double()

        factor = rounded(self.kept.double() * self._scale)
        shift = rounded((self.kept.double() - 1) * (self._scale * _ALPHA))
        shift = rounded(shift + self._scale * _ALPHA * self.rate)
        return rounded(rounded(given.double() * factor) + shift).to(dtype)

    def backward(self, arrived: Tensor) -> Tensor:
        return arrived * (self.kept * self._scale)

    def backward_in(self, arrived: Tensor) -> Tensor:
        factor = (self.kept.double() * self._scale).to(arrived.dtype).double()
        return (arrived.double() * factor).to(arrived.dtype)


def _mask_of(call: ObservedCall, given: Tensor, result: Tensor) -> _Mask:
    rate = drop_rate(call.given.args, call.given.kwargs)
    kind = _AlphaMask if "alpha_dropout" in normalized(call.name).base else _Mask
    return kind(given, result, rate)
