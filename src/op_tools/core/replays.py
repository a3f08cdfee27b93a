"""Replays of CUDA graphs: kernels that run without any call of torch's, so that no tool sees them. It is said once."""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch

from op_tools.output.messages import say_once

_replaced: list[tuple[type, Any]] = []  # a class, and its own replay() if it has one
_watching: set[int] = set()
_lock = threading.Lock()


def watch(session: object) -> None:
    """Says so at the first replay, as long as a session wants it."""
    with _lock:
        _watching.add(id(session))
        if not _replaced:
            for kind in _graph_classes():
                _replaced.append((kind, vars(kind).get("replay")))
                kind.replay = _told(kind.replay)  # type: ignore[attr-defined]


def leave(session: object) -> None:
    """Undoes `watch`; the last one puts everything back as it was."""
    with _lock:
        _watching.discard(id(session))
        while _replaced and not _watching:
            kind, own = _replaced.pop()
            if own is None:
                del kind.replay  # type: ignore[attr-defined]
            else:
                kind.replay = own  # type: ignore[attr-defined]


def _graph_classes() -> list[type]:
    """CUDA's, which may stand for another accelerator's (ditorch), and PyTorch's for any accelerator."""
    found = [torch.cuda.CUDAGraph, getattr(getattr(torch, "accelerator", None), "Graph", None)]
    return [kind for kind in found if isinstance(kind, type) and hasattr(kind, "replay")]


def _told(replay: Any) -> Any:
    @functools.wraps(replay)
    def told(self: Any) -> Any:
        say_once(
            "replay",
            text="a CUDA graph is replayed: the tools do not see its kernels; run without graphs to see their ops",
        )
        return replay(self)

    return told
