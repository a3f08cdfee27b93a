"""The thread in which references make their graphs, so that training keeps its bits.

Autograd runs the nodes of a graph in the order of numbers that each thread gives to those it makes. Graphs of ours made
in a thread of the program's would shift its numbers against those of another thread: where gradients are differentiated
again (create_graph), they would be added up in another order.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Any, Callable, TypeVar

import torch
from torch import Tensor

from op_tools.device import queues

Found = TypeVar("Found")
_Task = Callable[[], None]


class _Thread(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="OpAutoCompare graphs", daemon=True)
        self.tasks: SimpleQueue[_Task | None] = SimpleQueue()

    def run(self) -> None:
        while True:
            task = self.tasks.get()
            if task is None:
                return
            task()


_lock = threading.Lock()
_thread: _Thread | None = None
_tools = 0  # that compare a program while it runs; without one there is nothing to keep in order


def run_there(work: Callable[[], Found], tensors: Iterable[Tensor] = ()) -> Found:
    """Waits for what `work` returns, or raises. It runs on the tensors' device, on the stream that is current here."""
    if not _tools or threading.current_thread() is _thread:
        return work()
    device = next((tensor.device for tensor in tensors if not tensor.is_cpu), None)
    stream = contextlib.nullcontext if device is None else queues.this_stream(device)
    answer: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def task() -> None:
        try:
            if device is not None:
                _choose(device)
            with stream():
                found = work()
            answer.put((found, None))
        except BaseException as error:  # noqa: BLE001  it is raised where it is waited for
            answer.put((None, error))

    with _lock:
        _running().tasks.put(task)
    found, error = answer.get()
    if error is not None:
        raise error
    result: Found = found
    return result


def _choose(device: torch.device) -> None:
    """A thread begins on the first device, where another rank may be at work."""
    set_device = getattr(getattr(torch, device.type, None), "set_device", None)
    if set_device is not None and device.index is not None:
        set_device(device.index)


def _running() -> _Thread:
    global _thread
    if _thread is None:
        _thread = _Thread()
        _thread.start()
    return _thread


def begin() -> None:
    """A tool has started."""
    global _tools
    with _lock:
        _tools += 1


def end() -> None:
    """It has stopped; the last one ends the thread."""
    global _thread, _tools
    ending = None
    with _lock:
        _tools -= 1
        if not _tools:
            ending, _thread = _thread, None
            if ending is not None:
                ending.tasks.put(None)
    if ending is not None:
        ending.join()


def _forget() -> None:
    """In a child process there is no such thread."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
