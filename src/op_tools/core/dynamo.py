"""Dynamo (torch.compile) beside the tools: it stays out of our functions, and has room for one more mode."""

from __future__ import annotations

import sys

from ditorch_shared.dynamo import hidden, is_tracing, passed_over

__all__ = ["hidden", "is_tracing", "make_room", "passed_over"]

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
