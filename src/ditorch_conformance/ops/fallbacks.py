"""Which kernels go to the CPU: by the dispatcher's table, or inside themselves, as the profiler sees it.

A kernel that copies its data to the host and something back has computed there. What it copies without the dispatcher
(a vendor's own memcpy) is invisible from outside.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.profiler import profile

# All ways of copying end in the first three; what calls these, and nothing else, is a program's own copy.
_TARGET_FIRST, _SOURCE_FIRST = ("aten::copy_",), ("aten::_copy_from", "aten::_copy_from_and_resize")
_COPIES = {*_TARGET_FIRST, *_SOURCE_FIRST, "aten::to", "aten::_to_copy", "aten::_to_cpu", "aten::clone"}
# of tensors that are sparse on a device, too: in the dispatcher's order
_BACKENDS = ("PrivateUse1", "CUDA", "XPU", "MPS", "HPU")
_KEYS = tuple(f"{layout}{backend}" for layout in ("SparseCsr", "Sparse", "Quantized", "") for backend in _BACKENDS)
_KEYS = tuple(name for name in _KEYS if hasattr(torch._C.DispatchKey, name))
_KERNEL = re.compile(r"(?!autograd::|profiler::)\w+::[\w.]+")


def by_table(kernel: str, tensors: Iterable[Tensor]) -> bool:
    """Whether it has no kernel of the device's own for such tensors, so that the fall-back of their key runs."""
    there = {key for tensor in tensors for key in _keys_of(tensor)}
    key = next((key for key in _KEYS if key in there), None)  # the dispatcher takes the first of them
    return key is not None and _is_fallback(kernel, key)


@contextlib.contextmanager
def watched(found: dict[str, None]) -> Iterator[None]:
    """Adds the kernels of what is called meanwhile that went to the CPU and came back."""
    if not torch._C._autograd.kineto_available():  # this torch was built without
        yield
        return
    with profile(use_kineto=True, record_shapes=True) as profiler:
        yield
    results = profiler.kineto_results
    for root in results.experimental_event_tree() if results is not None else ():
        _walk(root, found)


def _walk(event: Any, found: dict[str, None]) -> tuple[int, bool]:
    """The elements of the largest tensor that came down to the host within an event, and whether any went up."""
    below = [_walk(child, found) for child in event.children]
    down, up = max((one for one, _ in below), default=0), any(one for _, one in below)
    if event.name in _COPIES:
        own_down, own_up = _copied(event)
        return max(down, own_down), up or own_up
    given = max((tensor.numel for tensor in _tensors(event) if not tensor.is_on_host), default=0)
    if up and down and down >= given and _KERNEL.fullmatch(event.name):
        found[event.name] = None
        return 0, False  # those around it only call it
    return down, up


def _copied(event: Any) -> tuple[int, bool]:
    tensors = _tensors(event)
    if event.name not in (*_TARGET_FIRST, *_SOURCE_FIRST) or len(tensors) < 2:
        return 0, False
    first, second = tensors[:2]
    source, target = (second, first) if event.name in _TARGET_FIRST else (first, second)
    if target.is_on_host:
        return (0 if source.is_on_host else source.numel), False
    return 0, source.is_on_host


class _Tensor:
    """What the profiler tells of an argument."""

    def __init__(self, metadata: Any) -> None:
        self.is_on_host = metadata.device.type == "cpu"
        self.numel = 1
        for size in metadata.sizes:
            self.numel *= size


def _tensors(event: Any) -> list[_Tensor]:
    if event.tag.name != "TorchOp":
        return []
    given = event.typed[1].inputs
    flat = [one for part in given for one in (part if isinstance(part, list) else [part])]
    return [_Tensor(one) for one in flat if hasattr(one, "device") and hasattr(one, "sizes")]


def _keys_of(tensor: Tensor) -> list[str]:
    """Of a device's tensor, which may go by another name. Nothing for the CPU, and where this torch does not tell."""
    try:
        keys = torch._C._dispatch_keys(tensor)
        return [name for name in _KEYS if keys.has(getattr(torch._C.DispatchKey, name))]
    except AttributeError:
        return []


@functools.cache
def _is_fallback(kernel: str, key: str) -> bool:
    """By the dispatcher's own table: a line such as `PrivateUse1: … [backend fallback]`."""
    try:
        table = torch._C._dispatch_dump_table(kernel)
    except (AttributeError, RuntimeError):  # another release
        return False
    line = next((line for line in table.splitlines() if line.startswith(f"{key}:")), "")
    return "[backend fallback]" in line
