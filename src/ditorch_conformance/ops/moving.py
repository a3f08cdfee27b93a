"""Arguments that were made on the CPU, as the device gets them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ditorch_conformance.ops.samples import Call
from op_tools.replay.replay import fresh_arguments
from op_tools.values import trees


def moved(call: Call, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies, each time new ones; strides, and what overlaps in memory, stay as they are."""
    if call.stays_on_host:
        args, kwargs = trees.map_tensors(
            lambda one: one if _is_index(one) else _alone(one, device), (call.args, call.kwargs)
        )
        return args, kwargs
    args, kwargs = fresh_arguments(call.args, call.kwargs, device)
    return _redirected(args, device), _redirected(kwargs, device)


def _is_index(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def _alone(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.detach().to(device, copy=True).requires_grad_(tensor.requires_grad)


def _redirected(value: Any, device: torch.device) -> Any:
    """Where a call names the CPU, it means the device; and a generator must be one of the device's."""
    if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
        return device
    if isinstance(value, torch.Generator):
        return torch.Generator(device).manual_seed(value.initial_seed())
    if isinstance(value, dict):
        return {key: _redirected(part, device) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_redirected(part, device) for part in value)
    return value
