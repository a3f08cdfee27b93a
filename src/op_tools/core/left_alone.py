"""Calls that the tools leave alone, because a look at them would disturb them or could not be right."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Callable, Union

import torch
from torch import Tensor
from torch.nn import Parameter

# where the tensors of a call are; where there is a tensor subclass with a behaviour of its own, its class
DEVICE = "device"
CPU = "cpu"
META = "meta"
Place = Union[None, str, type]

_is_plain: dict[type, bool] = {Tensor: True, Parameter: True}


def place_of(values: Iterable[Any]) -> Place:
    """Where the tensors among `values` are: None where there are none. One on the accelerator is enough."""
    place: Place = None
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            if not value.is_cpu:
                return META if value.is_meta else DEVICE
            place = CPU
        elif kind is list or kind is tuple or isinstance(value, (list, tuple)):
            inner = place_of(value)
            if inner is not None:
                if inner is not CPU:
                    return inner
                place = inner
        elif isinstance(value, Tensor):
            if not _plain(kind):
                return kind
            if not value.is_cpu:
                return META if value.is_meta else DEVICE
            place = CPU
    return place


def _plain(kind: type) -> bool:
    """True for subclasses that are only a name, such as Buffer; false for DTensor, FakeTensor and the like."""
    plain = _is_plain.get(kind)
    if plain is None:
        plain = _is_plain[kind] = (
            getattr(kind, "__torch_dispatch__", None) is getattr(Tensor, "__torch_dispatch__", None)
        ) and kind.__torch_function__.__func__ is Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
    return plain


_functorch: Callable[[], Any] = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)
_tracing: Callable[[], Any] = getattr(torch._C, "_get_tracing_state", lambda: None)
# the questions below would raise without a driver; torch.cuda.is_available() may speak of another accelerator (ditorch)
_has_cuda = bool(getattr(torch._C, "_cuda_getDeviceCount", int)())
_is_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)
_cuda_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: 0)
_cuda_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: -1)


def _capturing() -> bool:
    """Whether a CUDA graph is being captured. None can be on the default stream, which costs less to ask for."""
    return _cuda_stream(_cuda_device()) != 0 and _is_capturing() if _has_cuda else _elsewhere()()


@functools.cache
def _elsewhere() -> Callable[[], bool]:
    """The question of another accelerator's module; asked when there are tensors on it, so that it has started."""
    name = getattr(torch._C, "_get_privateuse1_backend_name", lambda: "")()
    module = getattr(torch, name, None) or getattr(torch, "xpu", None)
    return getattr(module, "is_current_stream_capturing", None) or (lambda: False)


def reason(place: Place) -> str | None:
    """Why a call is left alone; None for the usual call."""
    if place is META:
        return "its tensors are on the meta device and have no data"
    if isinstance(place, type):
        return f"tensors of the class {place.__name__} have a behaviour of their own"
    if _tracing() is not None:
        return "torch.jit.trace is recording"
    if _functorch() is not None:
        return "a function transform (torch.func, vmap) is active"
    if place is DEVICE and _capturing():
        return "a CUDA graph is being captured, and what it replays is not seen"
    return None


def for_helper() -> tuple[Any, ...]:
    """The classes of tensors that are known, and questions that it cannot answer by itself: yes is unusual."""
    return _is_plain, (_is_capturing if _has_cuda else lambda: _elsewhere()(),)
