"""Runs an op on a device and on the CPU, and tells whether the device is wrong. Reproducers hold this file's functions.

So it needs torch only, and reads on its own.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, Callable

import torch

# how many times larger than the CPU's own error in this dtype the device's may be
MAX_TIMES_USUAL_ERROR = 6.0


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor in nested lists, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


def run(
    op: Callable[..., Any],
    arguments: Callable[..., tuple[Any, dict[str, Any]]],
    gradients: list[torch.Tensor | None],
    autocast: torch.dtype | None,
    device: str,
    dtype: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """The results and gradients of the op, on the CPU. `dtype`: compute in this one instead."""
    leaves: list[torch.Tensor] = []

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        new = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        new = torch.complex128 if dtype is not None and tensor.is_complex() else new
        return tensor.detach().to(device=device, dtype=new, copy=True)

    def place(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.requires_grad:
            return moved(tensor)
        leaves.append(moved(tensor).requires_grad_())
        return leaves[-1].clone()  # ops that write into their argument refuse leaves

    args, kwargs = arguments(place, device, dtype)
    is_cast = autocast is not None and dtype is None
    with torch.autocast(torch.device(device).type, dtype=autocast) if is_cast else contextlib.nullcontext():
        result = op(*args, **kwargs)
    outputs = tensors_in(args if result is None else result)
    found = {f"result {number}": output.detach().cpu() for number, output in enumerate(outputs)}
    flowing = [
        (output, moved(gradient).to(output.dtype))
        for output, gradient in zip(outputs, gradients)
        if gradient is not None and output.requires_grad
    ]
    if flowing and leaves:
        given = torch.autograd.grad([o for o, _ in flowing], leaves, [g for _, g in flowing], allow_unused=True)
        found.update((f"gradient {n}", one.detach().cpu()) for n, one in enumerate(given) if one is not None)
    return found


def run_on_device(
    op: Callable[..., Any],
    arguments: Callable[..., tuple[Any, dict[str, Any]]],
    gradients: list[torch.Tensor | None],
    autocast: torch.dtype | None,
    device: str,
) -> dict[str, torch.Tensor]:
    """The same on the device, behind a call with other numbers: an op that leaves memory unwritten shows those."""

    def other(tensor: torch.Tensor) -> torch.Tensor:
        is_float = tensor.is_floating_point() or tensor.is_complex()
        return (tensor.detach() * 2 + 1).requires_grad_(tensor.requires_grad) if is_float else tensor

    def others(place: Callable[..., Any], device: str, dtype: torch.dtype | None) -> tuple[Any, dict[str, Any]]:
        return arguments(lambda tensor: place(other(tensor)), device, dtype)

    with contextlib.suppress(Exception):  # other numbers may be none that the op takes
        run(op, others, [None if one is None else other(one) for one in gradients], autocast, device)
    return run(op, arguments, gradients, autocast, device)


def difference(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """In numbers that have one: there is none of bool."""
    exact = torch.complex128 if want.is_complex() else torch.float64
    return got.to(exact) - want.to(exact)


def error(got: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """The largest difference, and that of the norms, relative to the right result."""
    if got.shape != want.shape:
        return math.inf, math.inf
    if got.numel() == 0:
        return 0.0, 0.0
    exact = want.to(torch.complex128 if want.is_complex() else torch.float64)
    given = got.to(exact.dtype)
    same = (given == exact) | (given.isnan() & exact.isnan())
    apart = torch.where(same, torch.zeros_like(exact), given - exact).abs()
    if not bool(apart.isfinite().all()):
        return math.inf, math.inf
    finite = exact.abs()[exact.isfinite()]
    size = (float(finite.max()), float(finite.norm())) if finite.numel() else (0.0, 0.0)
    return tuple(float(one) / max(s, 1e-300) for one, s in zip((apart.max(), apart.norm()), size))  # type: ignore[return-value]


def times_too_far(got: torch.Tensor, near: torch.Tensor, want: torch.Tensor) -> float:
    """The device's error over what is allowed: above 1 it is wrong. `near`: what the CPU gives in the same dtype."""
    if not got.is_floating_point() and not got.is_complex():
        return math.inf if not torch.equal(got, near) and torch.equal(near, want.to(near.dtype)) else 0.0
    epsilon = torch.finfo(got.dtype).eps / 2
    allowed = [MAX_TIMES_USUAL_ERROR * max(one, epsilon) for one in error(near, want)]
    return max(one / limit for one, limit in zip(error(got, want), allowed))
