"""SIGTERM: the tools write what they know, then the process ends by the signal, as without them.

Schedulers and torchrun end programs so, and Python would end without a word. A handler that the program installed is
left alone. A thread does the work: the main thread may hold a lock, or wait for a device that never answers.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Callable

GRACE_SECONDS = 20.0  # for the tools; a device that hangs must not keep the process alive
_CLOSED, _HANDLED = b"\0", b"\xff"  # in the pipe, beside the numbers of signals
_waiting: _Waiting | None = None


def watch(stop: Callable[[], None]) -> None:
    """From now on `stop` is called before SIGTERM ends the process. Only the main thread can arrange for it."""
    global _waiting
    finish()
    if _waiting is None and _is_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        with contextlib.suppress(ValueError, OSError):  # an interpreter without signals, no file descriptor left
            _waiting = _Waiting(stop)


def leave() -> None:
    """Undoes `watch`."""
    if _waiting is not None:
        _waiting.end_thread()
        finish()


def finish() -> None:
    """Puts the handler back, where the last tool was stopped in a thread that could not do it."""
    global _waiting
    if _waiting is not None and _waiting.has_ended and _is_main_thread():
        _waiting.restore()
        _waiting.close_pipe()
        _waiting = None


def wait() -> None:
    """At the program's own end: where a signal has come in time, it is the one that ends the process."""
    if _waiting is not None:
        _waiting.wait()


def abandon() -> None:
    """In a forked child, such as a worker of a DataLoader: signals do there what they do without us."""
    global _waiting
    if _waiting is not None:
        _waiting.restore()
        _waiting.close_pipe()
        _waiting = None


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class _Waiting:
    """A thread that waits for the signal: Python writes its number into a pipe, whatever the main thread does."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._stopping: threading.Thread | None = None
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._thread = threading.Thread(target=self._wait, name="op_tools SIGTERM", daemon=True)
        self._thread.start()
        self._others = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        if self._others != -1:  # it is used already, as by asyncio: then the handler alone has to do
            signal.set_wakeup_fd(self._others)
        signal.signal(signal.SIGTERM, self._handle)

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def end_thread(self) -> None:
        os.write(self._pipe[1], _CLOSED)
        while not self.has_ended and self._stopping is None:  # else it is the one that waits for us
            self._thread.join(0.01)

    def wait(self) -> None:
        if self._stopping is not None:
            self._thread.join()

    def close_pipe(self) -> None:
        for end in self._pipe:
            os.close(end)

    def restore(self) -> None:
        """The handler and the pipe for signals are as they were, unless the program has set others since."""
        with contextlib.suppress(ValueError, OSError):
            if signal.getsignal(signal.SIGTERM) == self._handle:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            current = signal.set_wakeup_fd(-1)
            if current != self._pipe[1]:
                signal.set_wakeup_fd(current)

    def _handle(self, number: int, frame: FrameType | None) -> Any:
        """In the main thread, where it runs Python code. The program may call it from a handler of its own."""
        if not self.has_ended:
            with contextlib.suppress(BlockingIOError):
                os.write(self._pipe[1], _HANDLED)
        else:
            _end()

    def _wait(self) -> None:
        while True:
            signals = os.read(self._pipe[0], 64)
            is_ours = signal.getsignal(signal.SIGTERM) == self._handle  # else the program has one of its own by now
            if _HANDLED in signals or (signal.SIGTERM in signals and is_ours):
                break
            if _CLOSED in signals:
                return
        self._stopping = threading.Thread(target=self._stop, name="op_tools stop", daemon=True)
        self._stopping.start()
        self._stopping.join(GRACE_SECONDS)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # any object may stand there; the process ends either way
                stream.flush()
        _end()


def _end() -> None:
    """Ends the process by the signal itself, so that its status tells. Python lets only the main thread ask for it."""
    with contextlib.suppress(Exception):  # a system without such a library: the exit status below has to do
        ctypes.CDLL(None).signal(signal.SIGTERM, None)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)  # any thread may be the one to get it
    os._exit(128 + signal.SIGTERM)
