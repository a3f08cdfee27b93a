"""Sums, means and the loss over classes: added up again in halves, which takes no kernel that sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare.identities.projections import Residual, projected, signs, squared, wide
from op_tools.autocompare.identities.proof import Facts, Measured, Proof
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients
from op_tools.ops.distributions import argument
from op_tools.ops.names import normalized


def folded(tensor: Tensor) -> Tensor:
    """The sum over the last dimension, half upon half."""
    tensor = wide(tensor)
    while tensor.shape[-1] > 1:
        half, odd = divmod(tensor.shape[-1], 2)
        last = tensor[..., -1:] if odd else None
        tensor = tensor[..., :half] + tensor[..., half : 2 * half]
        if last is not None:
            tensor = torch.cat((tensor, last), -1)
    return tensor.squeeze(-1)


class Sum:
    """sum and mean of floating-point numbers."""

    def __init__(self, call: ObservedCall, given: Tensor, dimensions: Sequence[int]) -> None:
        self._facts = Facts(call)
        kept = [one for one in range(given.dim()) if one not in dimensions]
        self._order = [*kept, *dimensions]
        self._kept = len(kept)
        self._shape = given.shape
        self._given: Tensor | None = given.detach()
        self._result: Tensor | None = call.result.detach()
        self._terms = max(1, given.numel() // max(1, call.result.numel()))
        self._factor = 1 / self._terms if self._facts.base == "mean" else 1.0

    @classmethod
    def of(cls, call: ObservedCall) -> Sum | None:
        args, kwargs, result = call.given.args, call.given.kwargs, call.result
        if normalized(call.name).base not in ("sum", "mean") or len(call.given.tensors) != 1 or call.changed:
            return None
        given = call.given.tensors[0]
        dimensions = argument(args, kwargs, 1, "dim", None)
        if not isinstance(result, Tensor) or not given.is_floating_point() or not given.numel() or len(args) > 3:
            return None
        if dimensions is None or dimensions == ():
            dimensions = tuple(range(given.dim()))
        dimensions = (dimensions,) if isinstance(dimensions, int) else dimensions
        if not all(type(one) is int for one in dimensions):
            return None
        return cls(call, given, [one % given.dim() for one in dimensions] if given.dim() else [])

    def forward(self) -> Iterator[Proof]:
        given, result = self._given, self._result
        self._given = self._result = None
        rounding = None if result is None else self._facts.rounding(result)
        if given is None or result is None or rounding is None:
            return
        terms = given.permute(self._order).flatten(self._kept) if self._order else given.reshape(1)
        terms = terms if terms.dim() > self._kept else terms.unsqueeze(-1)
        wanted = folded(terms).reshape(-1, 1) * self._factor
        size, parts = wanted.square().squeeze(-1), squared(terms).reshape(-1) * self._factor**2
        variance = rounding.of_values(size, 1) + rounding.of_sums(self._terms, size, parts)
        got = wide(result).reshape(-1, 1)
        yield Measured.by(
            self._facts.output_name, result, Residual(got, wanted, variance, rounding.of_slope(self._terms))
        )

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        """Each term's gradient is that of the sum."""
        arrived, got = gradients.outputs[0], gradients.inputs[0]
        rounding = None if got is None else self._facts.rounding(got)
        if arrived is None or got is None or rounding is None:
            return
        found = got.detach().permute(self._order).flatten(self._kept) if self._order else got.detach().reshape(1)
        found = (found if found.dim() > self._kept else found.unsqueeze(-1)).reshape(-1, self._terms)
        columns = signs(self._terms, got.device)
        each = wide(arrived.detach()).reshape(-1, 1) * self._factor
        wanted = each * columns.to(each.dtype).sum(0)
        # equal numbers round alike: their errors add up with the signs
        alike = (columns.to(each.dtype).sum(0) ** 2).max().clamp(min=self._terms)
        variance = rounding.of_values(each.square().squeeze(-1) * alike, self._terms) * 4
        yield Measured.by(
            self._facts.gradient_names[0],
            got,
            Residual(projected(found, columns), wanted, variance, 2 * rounding.of_slope()),
        )

    def tensors(self) -> list[Tensor]:
        return []


class ClassLoss:
    """cross_entropy with one class for each row, without weights or smoothing."""

    def __init__(self, call: ObservedCall, given: Tensor, target: Tensor, ignored: int, reduction: str) -> None:
        self._facts = Facts(call)
        self._given, self._target = given.detach(), target.detach()
        self._ignored, self._reduction = ignored, reduction
        self._result: Tensor | None = call.result.detach()

    @classmethod
    def of(cls, call: ObservedCall) -> ClassLoss | None:
        args, kwargs = call.given.args, call.given.kwargs
        if normalized(call.name).base != "cross_entropy" or len(args) < 2 or len(args) > 2 or call.changed:
            return None
        given, target = args[:2]
        plain: dict[str, Any] = {"weight": None, "size_average": None, "reduce": None, "label_smoothing": 0.0}
        if any(kwargs.get(name, usual) != usual for name, usual in plain.items()):
            return None
        if given.dim() != 2 or target.dim() != 1 or target.is_floating_point() or not given.numel():
            return None
        return cls(call, given, target, int(kwargs.get("ignore_index", -100)), str(kwargs.get("reduction", "mean")))

    def forward(self) -> Iterator[Proof]:
        result, self._result = self._result, None
        rounding = None if result is None else self._facts.rounding(result)
        if result is None or rounding is None:
            return
        below, logarithm, picked, is_counted = self._rows()
        losses = torch.where(is_counted, logarithm - below.gather(-1, picked), below.new_zeros(()))
        noise = (4 + below.abs().amax(-1, keepdim=True) + wide(self._given).abs().amax(-1, keepdim=True)).square()
        noise = torch.where(is_counted, 16 * rounding.accumulator**2 * noise, below.new_zeros(()))
        # log_softmax may be rounded before it is picked from, and its parts as well
        noise = noise + torch.where(is_counted, (rounding.result * (losses.abs() + self._parts(logarithm))) ** 2, 0)
        if self._reduction == "none":
            variance = rounding.of_values(losses.square().squeeze(-1), 1) + noise.squeeze(-1)
            wanted = losses
        else:
            factor = 1 / is_counted.sum().to(losses.dtype) if self._reduction == "mean" else losses.new_ones(())
            wanted = (folded(losses.reshape(1, -1)) * factor).reshape(1, 1)
            parts = losses.square().sum().reshape(1) * factor**2
            size = wanted.square().reshape(1)
            variance = rounding.of_values(size, 1) + rounding.of_sums(len(losses), size, parts)
            variance = variance + noise.sum() * factor**2
        got = wide(result).reshape(-1, 1)
        yield Measured.by(
            self._facts.output_name, result, Residual(got, wanted, variance, 4 * rounding.of_slope(len(losses)))
        )

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        arrived, got = gradients.outputs[0], gradients.inputs[0]
        rounding = None if got is None else self._facts.rounding(got, self._given)
        if arrived is None or got is None or rounding is None:
            return
        below, logarithm, picked, is_counted = self._rows()
        shares = (below - logarithm).exp()
        arrived = wide(arrived.detach()).reshape(-1, 1)
        factor = arrived / is_counted.sum() if self._reduction == "mean" else arrived
        right = shares.scatter_add(-1, picked, -torch.ones_like(shares[:, :1]))
        right = torch.where(is_counted, right * factor, right.new_zeros(()))
        columns = signs(right.shape[-1], right.device)
        wanted = projected(right, columns)
        noise = squared((4 + 2 * below.clamp(min=-1e4).abs()) * shares) + 64 * shares.square().sum(-1)
        noise = torch.where(is_counted.squeeze(-1), noise * factor.square().squeeze(-1), noise.new_zeros(()))
        # what autograd keeps of log_softmax may be rounded, and its parts: that moves each probability
        logarithms = (below - logarithm).clamp(min=-1e4).abs() + self._parts(logarithm)
        kept = (rounding.result * logarithms * shares).square().sum(-1)
        kept = torch.where(is_counted.squeeze(-1), kept * factor.square().squeeze(-1), kept.new_zeros(()))
        variance = rounding.of_values(squared(right), right.shape[-1]) + rounding.accumulator**2 * noise + kept
        slope = rounding.of_slope() + 14 * rounding.accumulator
        yield Measured.by(
            self._facts.gradient_names[0], got, Residual(projected(got.detach(), columns), wanted, variance, slope)
        )

    def _rows(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits below their largest, the logarithm of their sum, the class of each row, and whether it counts."""
        given = wide(self._given)
        below = given - given.amax(-1, keepdim=True)
        is_counted = (self._target != self._ignored).unsqueeze(-1)
        picked = torch.where(is_counted, self._target.unsqueeze(-1), 0)
        return below, below.exp().sum(-1, keepdim=True).log(), picked, is_counted

    def _parts(self, logarithm: Tensor) -> Tensor:
        """The size of what is subtracted from each logit."""
        return (wide(self._given).amax(-1, keepdim=True) + logarithm).abs()

    def tensors(self) -> list[Tensor]:
        return [self._given, self._target]
