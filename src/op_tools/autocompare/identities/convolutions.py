"""Convolutions: signs over the channels of the result. What is left is a convolution with a few channels, done by hand.

For each place of the kernel, the input moved by so much is multiplied by element and added up over its channels: no
kernel of the library for convolutions takes part. All images are taken only where a result is a sum over them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare.identities.projections import Residual, Rounding, projected, signs, some, squared, wide
from op_tools.autocompare.identities.proof import Facts, Measured, Proof, place_of
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients
from op_tools.ops.distributions import argument
from op_tools.ops.names import normalized

_DIMENSIONS = {"conv1d": 1, "conv2d": 2, "conv3d": 3}
_SHARE_OF_IMAGES = 8  # one in so many
_COLUMNS = 2  # each costs a pass for every place of the kernel


class Geometry:
    """How a convolution's windows lie."""

    def __init__(self, kernel: Sequence[int], stride: Any, padding: Any, dilation: Any, groups: int) -> None:
        count = len(kernel)
        self.kernel, self.groups = tuple(kernel), groups
        self.stride, self.dilation = _each(stride, count), _each(dilation, count)
        if padding == "valid":
            padding = 0
        if padding == "same":
            whole = [spread * (size - 1) for spread, size in zip(self.dilation, self.kernel)]
            self.padding = [(one // 2, one - one // 2) for one in whole]
        else:
            self.padding = [(one, one) for one in _each(padding, count)]

    def places(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(*(range(size) for size in self.kernel))

    def padded(self, tensor: Tensor) -> Tensor:
        amounts = [amount for pair in reversed(self.padding) for amount in pair]
        return torch.nn.functional.pad(tensor, amounts) if any(amounts) else tensor

    def moved(self, padded: Tensor, place: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """What each window has at one place of the kernel: a view."""
        for dimension, (at, size) in enumerate(zip(place, sizes)):
            start = at * self.dilation[dimension]
            step = self.stride[dimension]
            padded = padded.narrow(2 + dimension, start, (size - 1) * step + 1)
            padded = padded[(slice(None),) * (2 + dimension) + (slice(None, None, step),)]
        return padded

    def cropped(self, padded: Tensor, sizes: Sequence[int]) -> Tensor:
        """Without what was padded."""
        for dimension, ((before, _), size) in enumerate(zip(self.padding, sizes)):
            padded = padded.narrow(2 + dimension, before, size)
        return padded


class Convolution:
    """One call of conv1d, conv2d or conv3d."""

    def __init__(self, call: ObservedCall, geometry: Geometry, bias: Any) -> None:
        given, weight = call.given.tensors[:2]
        self._facts = Facts(call)
        self._geometry = geometry
        self._given, self._weight = self._facts.as_computed(given), self._facts.as_computed(weight)
        self._bias: Tensor | None = bias
        self._places = (place_of(call, given), place_of(call, weight), place_of(call, bias))
        self._result: Tensor | None = call.result.detach()

    @classmethod
    def of(cls, call: ObservedCall) -> Convolution | None:
        args, kwargs = call.given.args, call.given.kwargs
        dimensions = _DIMENSIONS.get(normalized(call.name).base)
        if dimensions is None or call.changed or len(call.given.tensors) < 2 or not call.result.numel():
            return None
        given, weight = call.given.tensors[:2]
        named = argument(args, kwargs, 0, "input", None), argument(args, kwargs, 1, "weight", None)
        if named[0] is not given or named[1] is not weight or given.dim() != dimensions + 2:  # a single image
            return None
        stride, padding = argument(args, kwargs, 3, "stride", 1), argument(args, kwargs, 4, "padding", 0)
        dilation, groups = argument(args, kwargs, 5, "dilation", 1), argument(args, kwargs, 6, "groups", 1)
        geometry = Geometry(weight.shape[2:], stride, padding, dilation, groups)
        return cls(call, geometry, argument(args, kwargs, 2, "bias", None))

    def forward(self) -> Iterator[Proof]:
        result, self._result = self._result, None
        rounding = None if result is None else self._facts.rounding(result)
        if result is None or rounding is None:
            return
        geometry, groups = self._geometry, self._geometry.groups
        images = max(1, len(self._given) // _SHARE_OF_IMAGES)
        start = some(images, len(self._given))
        given, result = self._given[start : start + images], result[start : start + images]
        padded, sizes = geometry.padded(given), result.shape[2:]
        weight = _apart(self._weight, groups)  # groups, results of a group, channels of a group, kernel
        columns = _columns(self._weight.shape[0], groups, given.device)
        mixed = [(wide(weight) * _like(column, weight)).sum(1) for column in columns]
        wanted = [_windows(geometry, padded, kernel, sizes) for kernel in mixed]
        parts = _windows(geometry, padded.float().square(), wide(weight).square().sum(1), sizes)
        apart = _grouped(result, groups)
        got = [(apart * _beside(column, apart)).sum(2, dtype=wide(apart[:1, :1, :1]).dtype) for column in columns]
        if self._bias is not None:
            bias = wide(self._bias.detach()).reshape(groups, -1)
            totals = [(bias * column).sum(-1) for column in columns]
            wanted = [one + total.reshape(1, -1, *[1] * len(sizes)) for one, total in zip(wanted, totals)]
        size = wide(apart).square().sum(2)
        terms = self._weight[0].numel()
        variance = rounding.of_values(size, apart.shape[2]) + rounding.of_sums(terms, size, parts)
        residual = Residual(torch.stack(got, -1), torch.stack(wanted, -1), variance, rounding.of_slope(terms))
        yield Measured.by(self._facts.output_name, result, residual)

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        arrived = gradients.outputs[0]
        if arrived is None:
            return
        arrived = self._facts.as_computed(arrived)
        proofs = (self._given_residual, self._weight_residual, self._bias_residual)
        for place, prove in zip(self._places, proofs):
            got = gradients.inputs[place] if place >= 0 else None
            rounding = None if got is None else self._facts.rounding(got)
            if got is not None and rounding is not None:
                yield Measured.by(self._facts.gradient_names[place], got, prove(arrived, got.detach(), rounding))

    def _given_residual(self, arrived: Tensor, got: Tensor, rounding: Rounding) -> Residual:
        """Each window's gradient goes back to where the window was; signs over the input's channels."""
        geometry, groups = self._geometry, self._geometry.groups
        images = max(1, len(got) // _SHARE_OF_IMAGES)
        start = some(images, len(got))
        arrived, got = arrived[start : start + images], got[start : start + images]
        weight = wide(_apart(self._weight, groups))
        columns = _columns(got.shape[1], groups, got.device)
        mixed = [(weight * _like(column, weight, 2)).sum(2) for column in columns]
        shape = got.shape[2:]
        wanted = [_scattered(geometry, arrived, kernel, shape) for kernel in mixed]
        parts = _scattered(geometry, arrived.float().square(), weight.square().sum(2), shape)
        apart = _grouped(got, groups)
        found = [(apart * _beside(column, apart)).sum(2, dtype=weight.dtype) for column in columns]
        size = wide(apart).square().sum(2)
        terms = weight.shape[1] * len(list(geometry.places()))
        variance = rounding.of_values(size, apart.shape[2]) + rounding.of_sums(terms, size, parts)
        return Residual(torch.stack(found, -1), torch.stack(wanted, -1), variance, rounding.of_slope(terms))

    def _weight_residual(self, arrived: Tensor, got: Tensor, rounding: Rounding) -> Residual:
        """A sum over all windows of all images; signs over the results' channels."""
        geometry, groups = self._geometry, self._geometry.groups
        padded, sizes = geometry.padded(self._given), arrived.shape[2:]
        apart = _grouped(arrived, groups)
        columns = _columns(arrived.shape[1], groups, arrived.device)
        mixed = [(apart * _beside(column, apart)).sum(2, dtype=torch.float32) for column in columns]
        squares = apart.float().square().sum(2)
        wanted, parts, dtype = [], [], wide(got[:1]).dtype
        over = (0, *range(3, apart.dim()))
        for place in geometry.places():
            window = _grouped(geometry.moved(padded, place, sizes), groups)
            wanted.append(torch.stack([(window * one.unsqueeze(2)).sum(over, dtype=dtype) for one in mixed], -1))
            parts.append((window.float().square() * squares.unsqueeze(2)).sum(over, dtype=dtype))
        kernels = _apart(got, groups).flatten(3)
        found = torch.stack([(kernels * column.reshape(1, -1, 1, 1)).sum(1, dtype=dtype) for column in columns], -1)
        size = wide(kernels).square().sum(1)
        terms = arrived.numel() // arrived.shape[1]
        variance = rounding.of_values(size, kernels.shape[1]) + rounding.of_sums(terms, size, torch.stack(parts, -1))
        return Residual(found, torch.stack(wanted, 2), variance, rounding.of_slope(terms))

    def _bias_residual(self, arrived: Tensor, got: Tensor, rounding: Rounding) -> Residual:
        columns = signs(got.shape[0], got.device)
        each = arrived.transpose(0, 1).flatten(1)
        sums = each.sum(-1, dtype=wide(got[:1]).dtype)
        size, parts = squared(got).reshape(1), squared(each).sum().reshape(1)
        variance = rounding.of_values(size, got.shape[0]) + rounding.of_sums(each.shape[1], size, parts)
        return Residual(
            projected(got, columns).reshape(1, -1), projected(sums, columns).reshape(1, -1), variance,
            rounding.of_slope(each.shape[1]),
        )  # fmt: skip

    def tensors(self) -> list[Tensor]:
        return [self._given, self._weight]


def _each(value: Any, count: int) -> tuple[int, ...]:
    values = (value,) * count if isinstance(value, int) else tuple(value)
    return values * count if len(values) == 1 else values


def _apart(weight: Tensor, groups: int) -> Tensor:
    """The results of each group by themselves."""
    return weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])


def _grouped(images: Tensor, groups: int) -> Tensor:
    """The channels of each group by themselves."""
    return images.reshape(images.shape[0], groups, images.shape[1] // groups, *images.shape[2:])


def _columns(channels: int, groups: int, device: torch.device) -> list[Tensor]:
    found = signs(channels // groups, device)
    return [found[:, number] for number in range(_COLUMNS)]


def _like(column: Tensor, weight: Tensor, dimension: int = 1) -> Tensor:
    """So that it goes with one dimension of the weight."""
    shape = [1] * weight.dim()
    shape[dimension] = -1
    return column.reshape(shape)


def _beside(column: Tensor, apart: Tensor) -> Tensor:
    return column.reshape(1, 1, -1, *[1] * (apart.dim() - 3))


def _at(kernel: Tensor, place: Sequence[int]) -> Tensor:
    """The factors of all channels at one place of the kernel."""
    for number in reversed(place):
        kernel = kernel[..., number]
    return kernel


def _windows(geometry: Geometry, padded: Tensor, kernel: Tensor, sizes: Sequence[int]) -> Tensor:
    """The convolution with one result for each group; `kernel`: groups, channels of a group, places."""
    groups, total = geometry.groups, None
    for place in geometry.places():
        window = _grouped(geometry.moved(padded, place, sizes), groups)
        factors = _at(kernel, place).reshape(1, groups, -1, *[1] * len(sizes))
        factors = factors if padded.dtype is torch.float64 else factors.float()
        part = (window * factors).sum(2, dtype=kernel.dtype)
        total = part if total is None else total + part
    assert total is not None  # a kernel has at least one place
    return total


def _scattered(geometry: Geometry, arrived: Tensor, kernel: Tensor, shape: Sequence[int]) -> Tensor:
    """The reverse: `kernel`: groups, results of a group, places."""
    groups, apart = geometry.groups, _grouped(arrived, geometry.groups)
    whole = [size + sum(padding) for size, padding in zip(shape, geometry.padding)]
    total = kernel.new_zeros(arrived.shape[0], groups, *whole)
    for place in geometry.places():
        factors = _at(kernel, place).reshape(1, groups, -1, *[1] * len(shape))
        factors = factors if arrived.dtype is torch.float64 else factors.float()
        geometry.moved(total, place, arrived.shape[2:]).add_((apart * factors).sum(2, dtype=kernel.dtype))
    return geometry.cropped(total, shape)
