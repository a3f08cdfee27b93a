"""Fake quantization written out, for float64: its kernels take float32 and 16 bits alone.

Numbers go to the nearest of few levels and come back; a gradient passes where a number was within their range. Learned
scales and zero points have gradients of their own.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.ops.names import normalized

_NAMES = {
    "fake_quantize_per_tensor_affine": ("input", "scale", "zero_point", "quant_min", "quant_max"),
    "fake_quantize_per_channel_affine": ("input", "scale", "zero_point", "axis", "quant_min", "quant_max"),
    "_fake_quantize_learnable_per_tensor_affine": (
        *("input", "scale", "zero_point", "quant_min", "quant_max", "grad_factor"),
    ),
    "_fake_quantize_learnable_per_channel_affine": (
        *("input", "scale", "zero_point", "axis", "quant_min", "quant_max", "grad_factor"),
    ),
}  # fmt: skip


_LEVELS = ("scale", "zero_point")


def written_out(name: str) -> Callable[..., Any] | None:
    """What runs in place of an op of fake quantization; None for all others."""
    base = normalized(name).base
    names = _NAMES.get(base)
    if names is None:
        return None

    def run(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args)), **kwargs}
        x: Tensor = given["input" if "input" in given else "self"]
        scale, zero_point = (torch.as_tensor(given[one], dtype=x.dtype, device=x.device) for one in _LEVELS)
        shape = [-1 if place == given["axis"] % x.dim() else 1 for place in range(x.dim())] if "axis" in given else []
        if shape or scale.dim():
            scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
        least, most = given["quant_min"], given["quant_max"]
        if "learnable" not in base:
            scale, zero_point = scale.detach(), zero_point.detach()
        return _Levels.apply(x, scale, zero_point, least, most, given.get("grad_factor", 1.0))  # type: ignore[no-untyped-call]

    return run


class _Levels(torch.autograd.Function):
    """To the nearest level, and back. A learned zero point is rounded to a level, forward to the nearest one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor, least: int, most: int, factor: float) -> Tensor:
        ctx.save_for_backward(x, scale, zero_point)
        ctx.range, ctx.factor = (least, most), factor
        zero = zero_point.round().clamp(least, most)
        return ((x / scale).round() + zero).clamp(least, most).sub(zero) * scale

    @staticmethod
    def backward(ctx: Any, arrived: Tensor) -> tuple[Any, ...]:
        x, scale, zero_point = ctx.saved_tensors
        least, most = ctx.range
        zero = (zero_point + 0.5).clamp(least, most).floor()
        level = (x / scale).round() + zero
        is_below, is_above = level < least, level > most
        is_within = ~(is_below | is_above)
        off = (level.clamp(least, most) - zero) - torch.where(is_within, x / scale, 0.0)
        for_scale = (arrived * off).sum_to_size(scale.shape) * ctx.factor
        for_zero = (arrived * torch.where(is_within, 0.0, -scale)).sum_to_size(scale.shape) * ctx.factor
        return arrived * is_within, for_scale, for_zero, None, None, None
