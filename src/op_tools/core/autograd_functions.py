"""What torch does not offer to function modes: calls of `autograd.Function.apply`, and Python code run by backward."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import torch
from torch.autograd.function import _SingleLevelFunction
from torch.overrides import TorchFunctionMode

from op_tools.core import dynamo

RUN_BACKWARD = frozenset((torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad))

_watching: set[int] = set()
_lock = threading.Lock()
_local = threading.local()
_mode_class: type = type(None)
_run_engine: Callable[..., Any] | None = getattr(torch.autograd, "_engine_run_backward", None)
_all_disabled: Callable[[], bool] = getattr(torch._C, "_is_torch_function_all_disabled", lambda: False)


def watch(session: object, mode_class: type) -> None:
    """From now on such calls of this session's thread are seen, and handed to its mode, which is of this class."""
    global _mode_class
    with _lock:
        _mode_class = mode_class
        _watching.add(id(session))
        # `Function.apply` asks its base class, and that is looked up at each call. So a method put there sees every
        # call, also of an `apply` that was bound to a name long before.
        _SingleLevelFunction.apply = classmethod(_apply)  # type: ignore[attr-defined]
        if _run_engine is not None:
            torch.autograd._engine_run_backward = _run_engine_with_mode  # type: ignore[attr-defined]


def leave(session: object) -> None:
    """Undoes `watch`; the last one puts everything back as it was."""
    with _lock:
        _watching.discard(id(session))
        if _watching:
            return
        if "apply" in _SingleLevelFunction.__dict__:
            del _SingleLevelFunction.apply  # type: ignore[attr-defined]
        if _run_engine is not None:
            torch.autograd._engine_run_backward = _run_engine  # type: ignore[attr-defined]


@contextmanager
def backward_seen_by(mode: TorchFunctionMode) -> Iterator[None]:
    """While torch runs `backward` for a mode, that mode is off; the pass itself shall see it again.

    Autograd's threads take it over, so ops of custom backward functions and recomputed layers are seen there.
    """
    before = getattr(_local, "mode", None)
    _local.mode = mode
    _local.passes = passes_running() + 1
    try:
        yield
    finally:
        _local.mode = before
        _local.passes -= 1


def passes_running() -> int:
    """Backward passes that this thread is in the middle of."""
    passes: int = getattr(_local, "passes", 0)
    return passes


@dynamo.hidden
def _run_engine_with_mode(*args: Any, **kwargs: Any) -> Any:
    assert _run_engine is not None
    mode, _local.mode = getattr(_local, "mode", None), None
    if mode is None:
        return _run_engine(*args, **kwargs)
    with mode:
        return _run_engine(*args, **kwargs)


@dynamo.hidden
def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    run = super(_SingleLevelFunction, cls).apply
    mode = mode_of_this_thread()
    if mode is None:
        return run(*args, **kwargs)
    return mode.function_applied(cls, run, args, kwargs)


def mode_of_this_thread() -> Any:
    """Ours, if it is on."""
    if _all_disabled():
        return None
    for index in range(torch._C._len_torch_function_stack()):
        mode = torch._C._get_function_stack_at(index)
        if isinstance(mode, _mode_class):
            return mode
    return None
