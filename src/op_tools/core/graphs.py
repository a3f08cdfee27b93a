"""CUDA graphs: a capture runs no kernel that a look could read, and a replay runs kernels without any call of torch's.

So the tools leave a capture alone (route.py), and say once that they do not see what is replayed.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable

import torch

from op_tools.output.messages import say_not_seen_once

captures: list[None] = []  # one entry for each capture under way: asked at every call, so it costs no function call
# the questions below would raise without a driver; torch.cuda.is_available() may speak of another accelerator (ditorch)
HAS_CUDA = bool(getattr(torch._C, "_cuda_getDeviceCount", int)())
_cuda_is_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)
_cuda_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: 0)
_cuda_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: -1)

_replaced: list[tuple[type, str, Any]] = []  # a class, a method, and the class's own if it has one
_watching: set[int] = set()
_lock = threading.Lock()


def is_capturing() -> bool:
    """Whether a graph is being captured. None can be on CUDA's default stream, which costs less to ask for."""
    if HAS_CUDA:
        return _cuda_stream(_cuda_device()) != 0 and _cuda_is_capturing()
    return bool(captures) and _question_of_accelerator()()


def for_helper() -> tuple[Callable[[], bool], ...]:
    """What the C++ helper has to ask."""
    return (_cuda_is_capturing,) if HAS_CUDA else ()


@functools.cache
def _question_of_accelerator() -> Callable[[], bool]:
    """Another accelerator's own; asked when there are tensors on it, so that it has started."""
    name = getattr(torch._C, "_get_privateuse1_backend_name", lambda: "")()
    module = getattr(torch, name, None) or getattr(torch, "xpu", None)
    return getattr(module, "is_current_stream_capturing", None) or (lambda: False)


def watch(session: object) -> None:
    """Notices captures and replays, as long as a session wants it."""
    with _lock:
        _watching.add(id(session))
        if _replaced:
            return
        for kind in _graph_classes():
            for name, wrap in (("capture_begin", _beginning), ("capture_end", _ending), ("replay", _told)):
                if hasattr(kind, name):
                    _replaced.append((kind, name, vars(kind).get(name)))
                    setattr(kind, name, wrap(getattr(kind, name)))


def leave(session: object) -> None:
    """Undoes `watch`; the last one puts everything back as it was."""
    with _lock:
        _watching.discard(id(session))
        while _replaced and not _watching:
            kind, name, own = _replaced.pop()
            if own is None:
                delattr(kind, name)
            else:
                setattr(kind, name, own)


def _graph_classes() -> list[type]:
    """CUDA's, which may stand for another accelerator's (ditorch), and PyTorch's for any accelerator."""
    found = [torch.cuda.CUDAGraph, getattr(getattr(torch, "accelerator", None), "Graph", None)]
    return [kind for kind in found if isinstance(kind, type) and hasattr(kind, "replay")]


def _beginning(capture_begin: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(capture_begin)
    def beginning(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = capture_begin(self, *args, **kwargs)
        captures.append(None)
        return result

    return beginning


def _ending(capture_end: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(capture_end)
    def ending(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return capture_end(self, *args, **kwargs)
        finally:
            del captures[-1:]  # none where it began before the tools

    return ending


def _told(replay: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(replay)
    def told(self: Any) -> Any:
        say_not_seen_once(
            "replay",
            text="a CUDA graph is replayed: the tools do not see its kernels; run without graphs to see their ops",
        )
        return replay(self)

    return told
