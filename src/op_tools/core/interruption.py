"""What cannot be done at this moment, in this thread: it is done before the next line of the program that can be.

Torch holds a mode while it runs an op, and a signal handler may start or stop a tool in the middle of the tools' own
work: this thread holds their locks then, and would wait for itself.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import sys
import threading
import types
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, Callable

import torch

from op_tools.errors import StopTraining
from op_tools.output import messages

_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep
# what the tools call; "<string>" is generated code, such as a dataclass has
_LIBRARIES = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.__file__) + os.sep,
    os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "ditorch"),
    "<",
)
_INSTALLED = re.compile(r"[\\/](site|dist)-packages[\\/]")


class _Local(threading.local):
    def __init__(self) -> None:
        self.waiting: list[Callable[[], bool]] = []
        self.frame: FrameType | None = None  # that the program is in


_local = _Local()


def soon(finish: Callable[[], bool]) -> bool:
    """Calls `finish` in this thread until it returns True, beginning before the next line of the program is run.

    Python's hook for profilers, set for that moment, is what tells; False where a profiler uses it.
    """
    if finish not in _local.waiting:
        _local.waiting.append(finish)
    if sys.getprofile() is None:
        sys.setprofile(_look)
    if sys.getprofile() is _look:
        return True
    _local.waiting.remove(finish)
    return False


def _look(frame: FrameType, event: str, argument: Any) -> None:
    _local.frame = frame
    for finish in _local.waiting[:]:  # a handler may add to it meanwhile
        if finish():
            _local.waiting.remove(finish)
    _local.frame = None
    if not _local.waiting:
        sys.setprofile(None)


@contextlib.contextmanager
def ctrl_c_waits(name: str) -> Iterator[None]:
    """Ctrl-C is raised at the end of this block, so that nothing is lost; the second one is raised at once."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # the program's own
        yield
        return
    times = 0

    def count(number: int, frame: FrameType | None) -> None:
        nonlocal times
        times += 1
        if times > 1:
            signal.default_int_handler(number, frame)
        with contextlib.suppress(RuntimeError):  # it came while something was printed
            messages.complain(f"{name} writes what it has, then Ctrl-C ends the program; once more, and it does so now")

    signal.signal(signal.SIGINT, count)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is count:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if times == 1:
            raise KeyboardInterrupt


def put_off(work: Callable[[], Any]) -> bool:
    """Where a signal handler has interrupted the tools' own work: has `work` done after it. False: do it now."""
    if not _is_own_work_interrupted(sys._getframe()):
        return False
    if not soon(functools.partial(_do, work)):
        threading.Thread(target=_tried, args=(work,), name="op_tools signal").start()
    return True


def _do(work: Callable[[], Any]) -> bool:
    if _is_own_work(_local.frame) or _is_own_work_interrupted(_local.frame):
        return False
    _tried(work)
    return True


def _tried(work: Callable[[], Any]) -> None:
    try:
        work()
    except StopTraining:
        raise
    except Exception as error:  # noqa: BLE001  who asked for it has gone on
        messages.complain(f"what a signal handler asked of the tools has failed: {error}")


def _is_own_work_interrupted(frame: FrameType | None) -> bool:
    """Whether a handler is what runs here, and came in the middle of the tools' work."""
    if threading.current_thread() is not threading.main_thread():
        return False  # handlers run in that one
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    while handlers and frame is not None:
        if frame.f_code in handlers and _is_own_work(frame.f_back):
            return True
        frame = frame.f_back
    return False


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not isinstance(handler, (types.FunctionType, types.MethodType)):
        handler = type(handler).__call__ if callable(handler) else None
    return getattr(handler, "__code__", None)


def _is_own_work(frame: FrameType | None) -> bool:
    """Whether the tools are what runs here, with what they call of libraries."""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_OWN):
            return True
        if not path.startswith(_LIBRARIES) and not _INSTALLED.search(path):
            return False
        frame = frame.f_back
    return False
