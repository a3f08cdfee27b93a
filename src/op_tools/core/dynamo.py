"""Dynamo (torch.compile) beside the tools: it stays out of our functions, and has room for one more mode."""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any, Callable

from ditorch_shared.dynamo import hidden, is_tracing, passed_over
from ditorch_shared.imports import after_import

__all__ = ["hidden", "hide_own_lines", "is_tracing", "make_room", "passed_over", "show_own_lines"]

_LIMITS = (("recompile_limit", "cache_size_limit"), ("accumulated_recompile_limit", "accumulated_cache_size_limit"))
_raised: dict[str, int] = {}  # what we have set


def make_room() -> None:
    """Lets Dynamo compile each function twice as often before it gives up and runs it eagerly.

    It compiles for the modes that are on: once more for ours, and what was compiled before is there again afterwards.
    At its limit the user's code would run eagerly under a tool, or after one, and round otherwise.
    """
    config = sys.modules.get("torch._dynamo.config")
    for names in _LIMITS if config is not None else ():
        name = next((name for name in names if hasattr(config, name)), None)  # older releases have the second
        if name is not None and getattr(config, name) != _raised.get(name):
            _raised[name] = 2 * getattr(config, name)
            setattr(config, name, _raised[name])


_TRACER = "torch._dynamo.output_graph"
_FILES = "uninteresting_files"  # its function: the files of frames that no node's stack should have
_own_files: Callable[[], set[str]] | None = None  # torch's own function, while ours is in its place
_call_off: Callable[[], None] = lambda: None  # noqa: E731  waiting for Dynamo to be imported


def hide_own_lines() -> None:
    """Dynamo traces through our mode. Of a node's stack Inductor keeps the innermost frame: it must be the user's."""
    global _call_off
    _call_off = after_import(_TRACER, _put_in_place)


def show_own_lines() -> None:
    """Undoes `hide_own_lines`."""
    global _own_files
    _call_off()
    if _own_files is not None:
        setattr(sys.modules[_TRACER], _FILES, _own_files)
        _own_files = None


def _put_in_place(module: ModuleType) -> None:
    global _own_files
    own: Any = getattr(module, _FILES, None)  # older releases have none
    if own is None or _own_files is not None:
        return
    _own_files = own
    folders = [os.path.dirname(sys.modules[name].__file__ or "") for name in (__name__, hidden.__module__)]
    ours = {os.path.join(folder, name) for folder in folders for name in os.listdir(folder)}
    setattr(module, _FILES, functools.cache(lambda: own() | ours))
