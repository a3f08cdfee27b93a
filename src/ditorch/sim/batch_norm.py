"""SyncBatchNorm's kernels for the simulated accelerator, composed of its other kernels: the CPU has none of them."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor


def _channels(values: Tensor, like: Tensor) -> Tensor:
    """One value per channel, in a shape that broadcasts over a batch."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


def _over_batch(values: Tensor) -> Tensor:
    return values.float().sum([dim for dim in range(values.dim()) if dim != 1])


def _stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(input.float(), [dim for dim in range(input.dim()) if dim != 1], correction=0)
    return mean, (variance + eps).rsqrt()


def _gather_stats(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """The statistics of all processes together from those of each, one row per process."""
    weights = counts.view(-1, 1)
    total = weights.sum()
    overall = (mean * weights).sum(0) / total
    squares = invstd.pow(-2) - eps + mean * mean
    variance = (squares * weights).sum(0) / total - overall * overall
    if running_mean is not None and running_var is not None:
        running_mean.lerp_(overall.to(running_mean.dtype), momentum)
        running_var.lerp_((variance * total / (total - 1)).to(running_var.dtype), momentum)
    return overall, (variance + eps).rsqrt()


def _gather_stats_of_equals(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    """The same where every process had as many values."""
    counts = mean.new_full((mean.size(0),), count)
    return _gather_stats(input, mean, invstd, running_mean, running_var, momentum, eps, counts)


def _elements(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    result = (input.float() - _channels(mean, input)) * _channels(invstd, input)
    if weight is not None:
        result = result * _channels(weight, input)
    if bias is not None:
        result = result + _channels(bias, input)
    return result.to(input.dtype)


def _backward_reduce(
    grad: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grads = _over_batch(grad)
    grads_by_distance = _over_batch(grad.float() * (input.float() - _channels(mean, input)))
    dtype = mean.dtype if weight is None else weight.dtype
    return grads, grads_by_distance, (grads_by_distance * invstd).to(dtype), grads.to(dtype)


def _backward_elements(
    grad: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    grads: Tensor,
    grads_by_distance: Tensor,
    counts: Tensor,
) -> Tensor:
    total = counts.sum()
    distance = input.float() - _channels(mean, input)
    correction = distance * _channels(invstd * invstd * grads_by_distance / total, input)
    result = (grad.float() - _channels(grads / total, input) - correction) * _channels(invstd, input)
    if weight is not None:
        result = result * _channels(weight, input)
    return result.to(input.dtype)


KERNELS: dict[str, Callable[..., Any]] = {
    "batch_norm_stats": _stats,
    "batch_norm_gather_stats": _gather_stats_of_equals,
    "batch_norm_gather_stats_with_counts": _gather_stats,
    "batch_norm_elemt": _elements,
    "batch_norm_backward_reduce": _backward_reduce,
    "batch_norm_backward_elemt": _backward_elements,
}
