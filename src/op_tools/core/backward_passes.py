"""Hears of the program's backward passes, for those who want the loss, or gradients before they are clipped."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import Any, Callable, Protocol

import torch
from torch import Tensor

from op_tools.core import dynamo, graphs
from op_tools.core.modes import with_modes_aside

_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)


class BackwardListener(Protocol):
    """Its own errors must not get out: they would end the training."""

    def backward_begins(self, tensors: Any, gradients: Any) -> None:
        """`gradients`: what the program gives, None where it gives none."""

    def backward_ended(self) -> None:
        """All gradients have been added up, and reduced over the ranks."""


_listeners: list[BackwardListener] = []
_lock = threading.RLock()
_before: Callable[..., Any] | None = None  # torch's own


def is_running() -> bool:
    """Whether autograd is at work in this thread: checkpointing calls modules, and backward passes, from there."""
    return _graph_task() != -1


def losses_of(tensors: Any) -> Iterator[Tensor]:
    """Of what backward begins from. Copies: a program may write into a loss later."""
    for tensor in [tensors] if isinstance(tensors, Tensor) else list(tensors):
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if isinstance(local, Tensor) and local.numel() == 1 and not local.is_complex():
            yield local.detach().clone()


def listen(listener: BackwardListener) -> None:
    global _before
    with _lock:
        _listeners.append(listener)
        if _before is None:
            _before = torch.autograd.backward
            torch.autograd.backward = _announced(_before)


def leave(listener: BackwardListener) -> None:
    """The last one leaves torch as it was."""
    global _before
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)
        if not _listeners and _before is not None:
            torch.autograd.backward, _before = _before, None


def _announced(backward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(backward)
    @dynamo.hidden
    def announced(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dynamo.is_tracing() or graphs.is_capturing() or is_running():
            return backward(tensors, grad_tensors, *args, **kwargs)
        for listener in _listeners[:]:
            with_modes_aside(listener.backward_begins, tensors, grad_tensors)
        result = backward(tensors, grad_tensors, *args, **kwargs)
        for listener in _listeners[:]:
            with_modes_aside(listener.backward_ended)
        return result

    return announced
