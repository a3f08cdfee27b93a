"""Copies of tensors on another device: same strides, same sharing of memory, and gradients find the way back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.device import host_copies

CPU = torch.device("cpu")
MIN_PINNED_BYTES = 2**18

# how a tensor lies in memory; opaque ones (sparse, quantized, nested, conjugated on demand) copy themselves
DENSE, GAPS, OVERLAPPING, OPAQUE = "dense", "gaps", "overlapping", "opaque"


def copies_on(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Differentiable copies on `device`, moved together."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return list(_Copied.apply(device, *tensors))  # type: ignore[no-untyped-call]
    return _copies(tensors, device)


class _Copied(torch.autograd.Function):
    """All tensors of a call in one node, so that their gradients come back together, too."""

    @staticmethod
    def forward(ctx: Any, device: torch.device, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.origins = [tensor.device for tensor in tensors]
        ctx.set_materialize_grads(False)
        copies = _copies(tensors, device)
        ctx.mark_non_differentiable(*(copy for copy, tensor in zip(copies, tensors) if not tensor.requires_grad))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        back = list(gradients)
        with torch._C.DisableTorchFunction():
            for origin in dict.fromkeys(ctx.origins):
                places = [
                    place
                    for place, gradient in enumerate(gradients)
                    if gradient is not None and ctx.origins[place] == origin
                ]
                copies = copies_on([gradients[place] for place in places], origin)  # type: ignore[misc]
                for place, copy in zip(places, copies):
                    back[place] = copy
                _wait_for([origin])  # which stream goes on from here is autograd's choice
        return (None, *back)


def _copies(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copies that autograd takes for no views of each other, even where they share memory."""
    copies: list[Tensor] = list(tensors)
    layouts = [layout_of(tensor) for tensor in tensors]
    move = _to_host if device.type == "cpu" else partial(_to_device, device=device)
    together = _sharing(tensors, layouts) if len(tensors) > 1 else []
    together += [[place] for place, layout in enumerate(layouts) if layout is OVERLAPPING]
    done = set()
    for group in together:
        if group[0] not in done:
            _copy_stretch(tensors, group, move, copies)
            done.update(group)
    for place, tensor in enumerate(tensors):
        if place not in done:
            # a copy under way must not need a second step on the host: that would not wait for it
            copies[place] = move(tensor.contiguous() if layouts[place] is GAPS else tensor)
    if device.type == "cpu":
        _wait_for(dict.fromkeys([tensor.device for tensor in tensors]))
    for place, layout in enumerate(layouts):
        if layout is GAPS and place not in done:
            copies[place] = blank_copy(tensors[place], device).copy_(copies[place])
    return copies


def _to_host(tensor: Tensor) -> Tensor:
    is_async = _current_stream(tensor.device.type) is not None and layout_of(tensor) is DENSE
    copy = tensor.to(CPU, non_blocking=is_async)
    if is_async:
        host_copies.hold([(copy.detach(), [copy])])
    return copy


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """By way of memory that the device reads by itself: half the time, and the host can go on meanwhile."""
    if layout_of(tensor) is not DENSE or tensor.nbytes < MIN_PINNED_BYTES or not _can_pin(device.type):
        return tensor.to(device)
    pinned = torch.empty_like(tensor, pin_memory=True).copy_(tensor)
    host_copies.free_later(pinned)
    return pinned.to(device, non_blocking=True)


@cache
def _current_stream(device_type: str) -> Callable[[torch.device], Any] | None:
    """How to get the stream to wait for; None where the device has none, and its copies have to block."""
    module = getattr(torch, device_type, None)
    return None if device_type == "cpu" else getattr(module, "current_stream", None)


@cache
def _can_pin(device_type: str) -> bool:
    try:
        return _current_stream(device_type) is not None and torch.empty(1, pin_memory=True).is_pinned()
    except RuntimeError:  # the device has no such memory
        return False


def _wait_for(devices: Iterable[torch.device]) -> None:
    for device in devices:
        stream = _current_stream(device.type)
        if stream is not None:
            stream(device).synchronize()
            host_copies.let_go()


def blank_copy(tensor: Tensor, device: torch.device) -> Tensor:
    """Memory like that of a tensor without overlaps, with nothing in it."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)


def layout_of(tensor: Tensor) -> str:
    """How the tensor lies in memory."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return OPAQUE
    if tensor.is_neg() or tensor.is_conj():
        return OPAQUE
    if tensor.is_contiguous():
        return DENSE
    extent, has_gaps = 1, False
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.size(), tensor.stride()) if size > 1):
        if stride < extent:
            return OVERLAPPING
        has_gaps = has_gaps or stride > extent
        extent += (size - 1) * stride
    return GAPS if has_gaps else DENSE


def stretch_of(tensor: Tensor) -> tuple[int, int]:
    """Where in its storage a tensor begins and ends, in elements."""
    begin = int(tensor.storage_offset())
    if not tensor.numel():
        return begin, begin
    return begin, begin + 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride()))


def _sharing(tensors: Sequence[Tensor], layouts: Sequence[str]) -> list[list[int]]:
    """The places of tensors whose stretches of memory cross, in groups."""
    by_storage: dict[tuple[int, torch.dtype], list[int]] = {}
    for place, tensor in enumerate(tensors):
        if layouts[place] is not OPAQUE:
            by_storage.setdefault((tensor.untyped_storage()._cdata, tensor.dtype), []).append(place)
    groups: list[list[int]] = []
    for places in by_storage.values():
        if len(places) > 1:
            stretches = sorted((*stretch_of(tensors[place]), place) for place in places)
            end = -1
            for begin, until, place in stretches:
                if begin < end:
                    groups[-1].append(place)
                else:
                    groups.append([place])
                end = max(end, until)
    return [group for group in groups if len(group) > 1]


def _copy_stretch(
    tensors: Sequence[Tensor], group: Sequence[int], move: Callable[[Tensor], Tensor], copies: list[Tensor]
) -> None:
    stretches = [stretch_of(tensors[place]) for place in group]
    begin, end = min(first for first, _ in stretches), max(last for _, last in stretches)
    stretch = move(tensors[group[0]].as_strided((end - begin,), (1,), begin))
    for place in group:
        tensor = tensors[place]
        copies[place] = torch.empty(0, dtype=tensor.dtype, device=stretch.device).set_(
            stretch.untyped_storage(), tensor.storage_offset() - begin, tensor.size(), tensor.stride()
        )
