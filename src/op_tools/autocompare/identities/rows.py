"""Norms and softmax: signs over each row, beside what the row itself tells the result to be.

Means, deviations and exponentials are computed again, in float64, from what the op was given. Of large tensors a part
of the rows is taken, another one at each call; sums over all rows, such as a weight's gradient, take them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare.identities.projections import Residual, Rounding, projected, signs, some, squared, wide
from op_tools.autocompare.identities.proof import Facts, Measured, Proof, place_of
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients
from op_tools.ops.distributions import argument
from op_tools.ops.names import normalized

_MAX_ELEMENTS = 2**22  # of the rows that are taken


class Softmax:
    """softmax and log_softmax."""

    def __init__(self, call: ObservedCall, given: Tensor, dimension: int) -> None:
        self._facts = Facts(call)
        self._given: Tensor | None = given.detach()
        self._dimension = dimension
        self._result: Tensor = call.result.detach()
        self._is_log = self._facts.base == "log_softmax"

    @classmethod
    def of(cls, call: ObservedCall) -> Softmax | None:
        args, kwargs = call.given.args, call.given.kwargs
        if normalized(call.name).base not in ("softmax", "log_softmax") or not args or not isinstance(args[0], Tensor):
            return None
        dimension = argument(args, kwargs, 1, "dim", None)
        result = call.result
        if type(dimension) is not int or not isinstance(result, Tensor) or call.changed:
            return None
        if args[0].dim() == 0 or result.shape != args[0].shape or not result.numel():
            return None
        return cls(call, args[0], dimension)

    def forward(self) -> Iterator[Proof]:
        rounding = self._facts.rounding(self._result)
        given, self._given = self._given, None  # gradients need the result alone
        if rounding is None or given is None:
            return
        part = _part(given.movedim(self._dimension, -1))
        given, result = (part(one.movedim(self._dimension, -1)) for one in (given, self._result))
        residual = self._log_residual if self._is_log else self._residual
        yield Measured.by(self._facts.output_name, self._result, residual(wide(given), result, rounding))

    def _residual(self, given: Tensor, result: Tensor, rounding: Rounding) -> Residual:
        count, columns = given.shape[-1], signs(given.shape[-1], given.device)
        below = given - given.amax(-1, keepdim=True)
        powers = below.exp()
        total = powers.sum(-1, keepdim=True)
        shares = powers / total
        wanted = projected(shares, columns)
        noise = squared((4 + 2 * below.clamp(min=-1e4).abs()) * shares)  # of the exponentials
        common = 64 * (wanted * wanted).mean(-1)  # exponentials err alike, and so does their sum
        variance = rounding.of_values(squared(shares), count) + rounding.accumulator**2 * (noise + common)
        slope = rounding.of_slope() + 14 * rounding.accumulator
        return Residual(projected(result, columns), wanted, variance, slope)

    def _log_residual(self, given: Tensor, result: Tensor, rounding: Rounding) -> Residual:
        count, columns = given.shape[-1], signs(given.shape[-1], given.device)
        below = given - given.amax(-1, keepdim=True)
        logarithm = below.exp().sum(-1, keepdim=True).log()
        right = below - logarithm
        wanted = projected(right, columns)
        # the row's common term errs by its own size and by that of what it was made from; signs add it up at random
        common = (4 + logarithm.abs() + given.abs().amax(-1, keepdim=True)).square().squeeze(-1)
        total = (columns.to(wanted.dtype).sum(0) ** 2).mean().clamp(min=count)
        accumulated = rounding.accumulator**2 * (4 * squared(below) + 4 * common * total)
        variance = rounding.of_values(squared(right), count) + accumulated
        return Residual(projected(result, columns), wanted, variance, rounding.of_slope() + 14 * rounding.accumulator)

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        arrived, got = gradients.outputs[0], gradients.inputs[0]
        rounding = None if got is None else self._facts.rounding(got, self._result)
        if arrived is None or got is None or rounding is None:
            return
        part = _part(self._result.movedim(self._dimension, -1))
        result, arrived, found = (
            part(one.detach().movedim(self._dimension, -1)) for one in (self._result, arrived, got)
        )
        result, arrived = wide(result), wide(arrived)
        count, columns = result.shape[-1], signs(result.shape[-1], result.device)
        shares = result.exp() if self._is_log else result
        product = arrived * shares if not self._is_log else arrived
        total = product.sum(-1, keepdim=True)
        right = arrived - shares * total if self._is_log else product - shares * total
        wanted = projected(right, columns)
        # what was subtracted is a sum of its own, and the result that is kept is rounded
        terms = squared(product) + squared(shares) * count * squared(product) * 2.0**-2
        accumulated = 16 * rounding.accumulator**2 * (terms + squared(shares * total) + squared(right))
        variance = rounding.of_values(squared(right), count) + accumulated
        yield Measured.by(
            self._facts.gradient_names[0],
            got,
            Residual(projected(found, columns), wanted, variance, rounding.of_slope() + 14 * rounding.accumulator),
        )

    def tensors(self) -> list[Tensor]:
        return [self._result]


class Norm:
    """layer_norm and rms_norm over the last dimensions."""

    def __init__(self, call: ObservedCall, given: Tensor, width: int, weight: Any, bias: Any, epsilon: float) -> None:
        self._facts = Facts(call)
        self._given = given.detach()
        self._width = width
        self._weight: Tensor | None = weight
        self._bias: Tensor | None = bias
        self._epsilon = epsilon
        self._places = {place_of(call, weight): True, place_of(call, bias): False}  # whether it is the weight
        self._is_centred = self._facts.base == "layer_norm"
        self._result: Tensor | None = call.result.detach()

    @classmethod
    def of(cls, call: ObservedCall) -> Norm | None:
        args, kwargs, base = call.given.args, call.given.kwargs, normalized(call.name).base
        if base not in ("layer_norm", "rms_norm") or not args or not isinstance(args[0], Tensor):
            return None
        if not isinstance(call.result, Tensor) or call.changed or not call.result.numel():
            return None
        shape = argument(args, kwargs, 1, "normalized_shape", ())
        weight = argument(args, kwargs, 2, "weight", None)
        bias = argument(args, kwargs, 3, "bias", None) if base == "layer_norm" else None
        is_centred = base == "layer_norm"
        epsilon = argument(args, kwargs, 4 if is_centred else 3, "eps", 1e-5 if is_centred else None)
        if epsilon is None:
            epsilon = torch.finfo(torch.promote_types(args[0].dtype, torch.float32)).eps  # 16 bits are widened first
        width = math.prod((shape,) if isinstance(shape, int) else tuple(shape))
        return cls(call, args[0], width, weight, bias, float(epsilon)) if width > 1 else None

    def forward(self) -> Iterator[Proof]:
        result, self._result = self._result, None  # gradients do not need it
        rounding = None if result is None else self._facts.rounding(result)
        if result is None or rounding is None:
            return
        part = _part(self._given.reshape(-1, self._width))
        given, found = wide(part(self._given.reshape(-1, self._width))), part(result.reshape(-1, self._width))
        columns = signs(self._width, given.device).to(given.dtype)
        mean, scale = self._moments(given)
        weighted = columns if self._weight is None else wide(self._weight.detach()).reshape(-1, 1) * columns
        total = weighted.sum(0)
        wanted = scale * (projected(given, weighted) - mean * total)
        if self._bias is not None:
            wanted = wanted + projected(wide(self._bias.detach()).reshape(-1), columns)
        factor = scale if self._weight is None else scale * wide(self._weight.detach()).reshape(-1)
        inside = squared(factor * given) + squared(factor * mean)  # what the mean is subtracted from
        common = 4 * (wanted * wanted).mean(-1)  # of mean and deviation
        shift = 4 * (scale * mean).square().squeeze(-1) * (total**2).mean()
        variance = rounding.of_values(squared(found), self._width) + rounding.accumulator**2 * (inside + common + shift)
        slope = rounding.of_slope() + 8 * rounding.accumulator
        yield Measured.by(self._facts.output_name, result, Residual(projected(found, columns), wanted, variance, slope))

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        arrived, names = gradients.outputs[0], self._facts.gradient_names
        if arrived is None:
            return
        arrived = arrived.detach().reshape(-1, self._width)
        for place, got in enumerate(gradients.inputs):
            rounding = None if got is None else self._facts.rounding(got)
            if got is None or rounding is None:
                continue
            if place == 0:
                yield Measured.by(names[0], got, self._given_residual(arrived, got.detach(), rounding))
            elif place in self._places:
                of_weight = self._places[place]
                residual = self._parameter_residual(arrived, got.detach(), rounding, of_weight)
                yield Measured.by(names[place], got, residual)

    def _given_residual(self, arrived: Tensor, got: Tensor, rounding: Rounding) -> Residual:
        rows = self._given.reshape(-1, self._width)
        part = _part(rows)
        given, arrived, found = wide(part(rows)), wide(part(arrived)), part(got.reshape(-1, self._width))
        columns = signs(self._width, given.device).to(given.dtype)
        mean, scale = self._moments(given)
        normal = (given - mean) * scale
        if self._weight is not None:
            arrived = arrived * wide(self._weight.detach()).reshape(-1)
        middle = arrived.mean(-1, keepdim=True) if self._is_centred else torch.zeros_like(mean)
        along = (arrived * normal).mean(-1, keepdim=True)
        right = scale * (arrived - middle - normal * along)
        wanted = projected(right, columns)
        terms = scale.square().squeeze(-1) * squared(arrived) + squared(right)
        # mean and deviation may be kept in the dtype of the result; where the mean is large, little is left of the
        # normalized values' digits
        kept = scale.square().squeeze(-1) * (squared(normal * along) + self._width * middle.square().squeeze(-1))
        kept = kept + squared(scale * along * scale * mean.expand_as(given))
        variance = rounding.of_values(squared(right), self._width) + 16 * rounding.accumulator**2 * terms
        variance = variance + _kept(rounding) * kept
        slope = rounding.of_slope() + 8 * rounding.accumulator
        return Residual(projected(found, columns), wanted, variance, slope)

    def _parameter_residual(self, arrived: Tensor, got: Tensor, rounding: Rounding, of_weight: bool) -> Residual:
        """A sum over all rows: of what arrived, for the weight times the normalized values."""
        columns = signs(self._width, arrived.device)
        terms = wide(arrived)
        noise = terms.new_zeros(())
        if of_weight:
            given = wide(self._given.reshape(-1, self._width))
            mean, scale = self._moments(given)
            noise = _kept(rounding) * squared(terms * (scale * mean)).sum()
            terms = terms * ((given - mean) * scale)
        found = got.reshape(1, -1)
        wanted = projected(terms, columns).sum(0, keepdim=True)
        size, parts = squared(found), squared(terms).sum().reshape(1)
        variance = rounding.of_values(size, self._width) + rounding.of_sums(len(arrived), size, parts)
        variance = variance + 16 * rounding.accumulator**2 * parts + noise
        return Residual(projected(found, columns), wanted, variance, rounding.of_slope(len(arrived)))

    def _moments(self, given: Tensor) -> tuple[Tensor, Tensor]:
        mean = given.mean(-1, keepdim=True) if self._is_centred else given.new_zeros((*given.shape[:-1], 1))
        return mean, ((given - mean).square().mean(-1, keepdim=True) + self._epsilon).rsqrt()

    def tensors(self) -> list[Tensor]:
        return [self._given]


def _kept(rounding: Rounding) -> float:
    """The variance of a mean or deviation that was kept for the gradients."""
    return max(16 * rounding.accumulator**2, rounding.result**2)


class _Part:
    """Some of the rows, the same ones of every tensor."""

    def __init__(self, start: int, count: int) -> None:
        self._start, self._count = start, count

    def __call__(self, tensor: Tensor) -> Tensor:
        rows = tensor.reshape(-1, tensor.shape[-1])
        return rows[self._start : self._start + self._count]


def _part(rows: Tensor) -> _Part:
    number = rows.numel() // rows.shape[-1]
    count = min(number, max(1, _MAX_ELEMENTS // rows.shape[-1]))
    return _Part(some(count, number), count)
