"""Hears of every call of an nn.Module, without hooks: those take torch's own modules off their fast paths."""

from __future__ import annotations

import threading
from typing import Any, Callable, Protocol

from torch.nn import Module

from op_tools.core import dynamo

_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "OptimizedModule")


class ModuleListener(Protocol):
    """Its own errors must not get out: they would end the training."""

    def module_called(self, module: Module, is_outermost: bool) -> None:
        """It is about to run."""

    def module_returned(self, module: Module, result: Any) -> None:
        """It has run."""


_listeners: list[ModuleListener] = []
_lock = threading.RLock()
_before: Callable[..., Any] | None = None  # torch's own


class _Depth(threading.local):
    modules = 0  # that are running in this thread


_depth = _Depth()


def unwrapped(module: Module) -> Module:
    """The program's own module: names are to be the same with and without wrappers."""
    while type(module).__name__ in _WRAPPERS:
        module = next(module.children(), module)
    return module


def listen(listener: ModuleListener) -> None:
    global _before
    with _lock:
        _listeners.append(listener)
        if _before is None:
            _before = Module.__call__
            Module.__call__ = _announced(_before)  # type: ignore[method-assign]


def leave(listener: ModuleListener) -> None:
    """The last one leaves torch as it was."""
    global _before
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)
        if not _listeners and _before is not None:
            Module.__call__, _before = _before, None  # type: ignore[method-assign]


def _announced(call: Callable[..., Any]) -> Callable[..., Any]:
    @dynamo.hidden
    def announced(module: Module, *args: Any, **kwargs: Any) -> Any:
        if dynamo.is_tracing():
            return call(module, *args, **kwargs)
        for listener in _listeners:
            listener.module_called(module, _depth.modules == 0)
        _depth.modules += 1
        try:
            result = call(module, *args, **kwargs)
        finally:
            _depth.modules -= 1
        for listener in _listeners:
            listener.module_returned(module, result)
        return result

    return announced
