"""Losses that add up over elements or rows: their terms are computed again and added up in halves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from op_tools.autocompare.identities.projections import Residual, Rounding, projected, signs, squared, wide
from op_tools.autocompare.identities.proof import Facts, Measured, Proof, place_of
from op_tools.autocompare.identities.sums import folded
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients
from op_tools.ops.distributions import argument
from op_tools.ops.names import normalized

_ROUNDINGS = 4.0  # of a term: the difference, what is made of it, and the factor of the mean


class _Curve(NamedTuple):
    """What a loss makes of a difference, and the slope there. `bend`: where a parabola becomes a line."""

    value: Callable[[Tensor, float], Tensor]
    slope: Callable[[Tensor, float], Tensor]
    bend_name: str = ""


def _huber(difference: Tensor, bend: float) -> Tensor:
    size = difference.abs()
    return torch.where(size < bend, 0.5 * size * size, bend * (size - 0.5 * bend))


_CURVES = {
    "mse_loss": _Curve(lambda d, _: d * d, lambda d, _: 2 * d),
    "l1_loss": _Curve(lambda d, _: d.abs(), lambda d, _: d.sign()),
    "huber_loss": _Curve(_huber, lambda d, bend: d.clamp(-bend, bend), "delta"),
    "smooth_l1_loss": _Curve(
        lambda d, bend: _huber(d, bend) / bend, lambda d, bend: d.clamp(-bend, bend) / bend, "beta"
    ),
}  # fmt: skip


class DifferenceLoss:
    """A loss of the differences of two tensors of one shape, without weights."""

    def __init__(self, call: ObservedCall, given: Tensor, target: Tensor, bend: float, is_mean: bool) -> None:
        self._facts = Facts(call)
        self._curve, self._bend = _CURVES[self._facts.base], bend
        self._given, self._target = given.detach(), target.detach()
        self._places = place_of(call, given), place_of(call, target)
        self._factor = 1 / given.numel() if is_mean else 1.0
        self._result: Tensor | None = call.result.detach()

    @classmethod
    def of(cls, call: ObservedCall) -> DifferenceLoss | None:
        args, kwargs, base = call.given.args, call.given.kwargs, normalized(call.name).base
        if base not in _CURVES or call.changed or len(args) > 2:
            return None
        given, target = argument(args, kwargs, 0, "input", None), argument(args, kwargs, 1, "target", None)
        if not all(isinstance(one, Tensor) and one.is_floating_point() for one in (given, target)):
            return None
        bend, reduction = kwargs.get(_CURVES[base].bend_name, 1.0), _reduction(kwargs)
        if given.shape != target.shape or not given.numel() or reduction is None or not float(bend) > 0:
            return None
        return cls(call, given, target, float(bend), reduction == "mean")

    def forward(self) -> Iterator[Proof]:
        result, self._result = self._result, None
        rounding = None if result is None else self._facts.rounding(result, self._given, self._target)
        if result is not None and rounding is not None:
            terms = self._curve.value(self._difference(), self._bend)
            yield Measured.by(self._facts.output_name, result, _of_terms(result, terms, self._factor, rounding))

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        arrived = gradients.outputs[0]
        if arrived is None:
            return
        slope = self._curve.slope(self._difference(), self._bend) * (wide(arrived.detach()) * self._factor)
        for place, sign in zip(self._places, (1.0, -1.0)):
            got = gradients.inputs[place] if place >= 0 else None
            rounding = None if got is None else self._facts.rounding(got, self._given, self._target)
            if got is not None and rounding is not None:
                residual = _of_gradient(_rows(got.detach()), _rows(sign * slope), rounding)
                yield Measured.by(self._facts.gradient_names[place], got, residual)

    def _difference(self) -> Tensor:
        return wide(self._facts.as_computed(self._given)) - wide(self._facts.as_computed(self._target))

    def tensors(self) -> list[Tensor]:
        return [self._given, self._target]


class PickedLoss:
    """nll_loss of rows, with one class for each and without weights: logarithms that are picked, and added up."""

    def __init__(self, call: ObservedCall, given: Tensor, target: Tensor, ignored: int, is_mean: bool) -> None:
        self._facts = Facts(call)
        self._given: Tensor | None = given.detach()
        self._target, self._ignored, self._is_mean = target.detach(), ignored, is_mean
        self._classes = given.shape[1]
        self._result: Tensor | None = call.result.detach()

    @classmethod
    def of(cls, call: ObservedCall) -> PickedLoss | None:
        args, kwargs = call.given.args, call.given.kwargs
        if normalized(call.name).base != "nll_loss" or len(args) != 2 or call.changed:
            return None
        (given, target), reduction = args, _reduction(kwargs)
        if reduction is None or given.dim() != 2 or target.dim() != 1 or not given.numel():
            return None
        return cls(call, given, target, int(kwargs.get("ignore_index", -100)), reduction == "mean")

    def forward(self) -> Iterator[Proof]:
        given, result = self._given, self._result
        self._given = self._result = None
        rounding = None if result is None else self._facts.rounding(result)
        if given is not None and result is not None and rounding is not None:
            is_counted, picked = self._picked()
            terms = torch.where(is_counted, -wide(given.gather(1, picked)), wide(given).new_zeros(()))
            residual = _of_terms(result, terms, self._factor(is_counted), rounding)
            yield Measured.by(self._facts.output_name, result, residual)

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        arrived, got = gradients.outputs[0], gradients.inputs[0]
        rounding = None if got is None else self._facts.rounding(got)
        if arrived is None or got is None or rounding is None:
            return
        is_counted, picked = self._picked()
        each = torch.where(is_counted, -wide(arrived.detach()) * self._factor(is_counted), wide(arrived).new_zeros(()))
        columns = signs(self._classes, got.device)
        variance = rounding.of_values(each.square().squeeze(-1) * _ROUNDINGS, self._classes)
        wanted = each * columns[picked.squeeze(-1)].to(each.dtype)
        residual = Residual(projected(got.detach(), columns), wanted, variance, _ROUNDINGS * rounding.of_slope())
        yield Measured.by(self._facts.gradient_names[0], got, residual)

    def _picked(self) -> tuple[Tensor, Tensor]:
        is_counted = (self._target != self._ignored).unsqueeze(-1)
        return is_counted, torch.where(is_counted, self._target.unsqueeze(-1), 0)

    def _factor(self, is_counted: Tensor) -> Any:
        return 1 / wide(is_counted.sum().float()) if self._is_mean else 1.0

    def tensors(self) -> list[Tensor]:
        return [self._target]


def _reduction(kwargs: dict[str, Any]) -> str | None:
    """mean or sum; None where each term is a result, or the call is of another form."""
    plain: dict[str, Any] = {"weight": None, "size_average": None, "reduce": None}
    found = kwargs.get("reduction", "mean")
    is_plain = all(kwargs.get(name, usual) is usual for name, usual in plain.items())
    return found if is_plain and found in ("mean", "sum") else None


def _of_terms(result: Tensor, terms: Tensor, factor: Any, rounding: Rounding) -> Residual:
    """That the result is the sum of these terms, times a factor. In 16 bits each of them may be rounded before."""
    wanted = (folded(terms.reshape(1, -1)) * factor).reshape(1, 1)
    size, parts = wanted.square().reshape(1), squared(terms.reshape(1, -1)).reshape(1) * factor**2
    variance = rounding.of_values(size + _ROUNDINGS * parts, 1) + rounding.of_sums(terms.numel(), size, parts)
    return Residual(wide(result).reshape(1, 1), wanted, variance, 2 * rounding.of_slope(terms.numel()))


def _of_gradient(got: Tensor, wanted: Tensor, rounding: Rounding) -> Residual:
    columns = signs(got.shape[-1], got.device)
    variance = rounding.of_values(_ROUNDINGS * squared(wanted), got.shape[-1])
    return Residual(projected(got, columns), projected(wanted, columns), variance, _ROUNDINGS * rounding.of_slope())


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() else tensor.reshape(1, 1)
