"""Runs captured calls again, forward and backward."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from op_tools.core.where import RecordedWhere, Where, pretended
from op_tools.errors import CaptureError
from op_tools.ops.autocast_policy import Autocast, from_note
from op_tools.ops.lookup import torch_op
from op_tools.storage import store
from op_tools.storage.encoding import ForeignDevice, Unstorable
from op_tools.values import trees


@dataclass
class Replayable:
    """One captured call that can be run again: on the CPU, whatever device it was captured on."""

    name: str
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grad_outputs: tuple[Tensor | None, ...]
    where: Where
    autocast: Autocast | None


def load(folder: Path, trusted: tuple[str, ...] = ()) -> Replayable:
    """Reads one capture. A damaged or incomplete one is a CaptureError that names it."""
    capture = store.load(folder)
    given = capture.input
    for _, value in trees.arguments(given.args, given.kwargs):
        if isinstance(value, Unstorable):
            raise CaptureError(f"{folder} cannot be run again: its argument {value} could not be stored")
    gradients = () if capture.grad_outputs is None else capture.grad_outputs.args
    note = store.load_note(folder)
    where = RecordedWhere(str(note.get("source") or folder), str(note.get("module") or ""))
    try:
        autocast = from_note(note.get("autocast"))
    except ValueError as error:
        raise CaptureError(f"{folder}/input.pth.json cannot be used: {error}") from None
    function = torch_op(given.name, trusted)
    return Replayable(given.name, function, given.args, given.kwargs, gradients, where, autocast)


def run(capture: Replayable, device: torch.device, forward_only: bool) -> None:
    """Runs the call once on the device. The tools that are on see the call itself, and nothing of its preparation."""
    with torch._C.DisableTorchFunction():
        args, kwargs = fresh_arguments(capture.args, capture.kwargs, device)
    with pretended(capture.where):
        with _autocast(capture.autocast, device):
            result = capture.func(*args, **kwargs)
        if not forward_only:
            _run_backward(capture, result, device)


def _autocast(autocast: Autocast | None, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """As it was when the call was captured, for the device that runs it now."""
    if autocast is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=autocast.dtype, cache_enabled=autocast.caches)


def fresh_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments on the device; those that overlap in memory do so there, too."""
    together: dict[int, list[Tensor]] = {}
    for tensor in trees.tensors((args, kwargs)):
        if tensor.layout is torch.strided:
            together.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
    moved: dict[int, Tensor] = {}
    for sharing in together.values():
        moved.update(_moved_together(sharing, device))

    def on_device(tensor: Tensor) -> Tensor:
        return moved[id(tensor)] if id(tensor) in moved else tensor.to(device)

    args, kwargs = trees.map_tensors(on_device, (args, kwargs))
    return _redirected(args, device), _redirected(kwargs, device)


def _moved_together(sharing: list[Tensor], device: torch.device) -> dict[int, Tensor]:
    """Tensors of one storage. What needs a gradient is no leaf: in-place ops refuse leaves."""
    if len({tensor.dtype for tensor in sharing}) > 1:
        return {id(tensor): tensor.detach().to(device).requires_grad_(tensor.requires_grad) for tensor in sharing}
    first = sharing[0].detach()
    alone = first.to(device, copy=True)
    if alone.stride() == first.stride() and len({_place_in_memory(tensor) for tensor in sharing}) == 1:
        # no view: autograd treats in-place ops on views in a way of its own
        alone = alone.requires_grad_().clone() if sharing[0].requires_grad else alone
        return {id(tensor): alone for tensor in sharing}
    size = first.untyped_storage().nbytes() // first.element_size()
    base = first.as_strided((size,), (1,), 0).to(device, copy=True)
    if any(tensor.requires_grad for tensor in sharing):
        base = base.requires_grad_().clone()
    moved: dict[int, Tensor] = {}
    same: dict[Any, Tensor] = {}  # one tensor that was given twice is one again
    for tensor in sharing:
        place = _place_in_memory(tensor)
        if place not in same:
            source = base if tensor.requires_grad else base.detach()
            same[place] = source.as_strided(*place[:3])
        moved[id(tensor)] = same[place]
    return moved


def _place_in_memory(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.requires_grad


def _redirected(value: Any, device: torch.device) -> Any:
    """A device among the arguments is the one of the machine that captured; here it is this machine's."""
    if isinstance(value, torch.device):
        return value if value.type == "cpu" else device
    if isinstance(value, ForeignDevice):
        return device
    if isinstance(value, dict):
        return {key: device if _names_device(key, part) else _redirected(part, device) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_redirected(part, device) for part in value)
    return value


def _names_device(key: str, value: Any) -> bool:
    return key == "device" and isinstance(value, str) and not value.startswith("cpu")


def _run_backward(capture: Replayable, result: Any, device: torch.device) -> None:
    with torch._C.DisableTorchFunction():
        outputs = list(trees.tensors(result))
        given = capture.grad_outputs or tuple(_random_gradient(output) for output in outputs)
        pairs = [
            (output, gradient.to(device))
            for output, gradient in zip(outputs, given)
            if gradient is not None and output.requires_grad and output.grad_fn is not None
        ]
    if pairs:
        torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])


def _random_gradient(output: Tensor) -> Tensor:
    """Where backward was not captured; the same each time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(output.shape, generator=generator).to(output.dtype)
