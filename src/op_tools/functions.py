"""Sees calls of `autograd.Function.apply`, which torch does not offer to function modes."""

from __future__ import annotations

import threading
from typing import Any, Callable

import torch
from torch.autograd.function import _SingleLevelFunction

# `Function.apply` asks its base class, and that is looked up at each call. So a method put there sees every call, also
# of an `apply` that was bound to a name long before.
_watching: set[int] = set()
_lock = threading.Lock()


def watch(session: object) -> None:
    """From now on the calls of this session's thread are seen."""
    with _lock:
        _watching.add(id(session))
        _SingleLevelFunction.apply = classmethod(_apply)  # type: ignore[attr-defined]


def leave(session: object) -> None:
    """Undoes `watch`; the last one puts everything back as it was."""
    with _lock:
        _watching.discard(id(session))
        if not _watching and "apply" in _SingleLevelFunction.__dict__:
            del _SingleLevelFunction.apply  # type: ignore[attr-defined]


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    run = super(_SingleLevelFunction, cls).apply
    mode = _mode_of_this_thread()
    if mode is None:
        return run(*args, **kwargs)
    return mode.function_applied(cls, run, args, kwargs)


def _mode_of_this_thread() -> Any | None:
    """Autograd's threads carry the mode of the thread that called backward."""
    from op_tools.intercept import Mode

    if _all_disabled():
        return None
    for index in range(torch._C._len_torch_function_stack()):
        mode = torch._C._get_function_stack_at(index)
        if isinstance(mode, Mode):
            return mode
    return None


_all_disabled: Callable[[], bool] = getattr(torch._C, "_is_torch_function_all_disabled", lambda: False)
