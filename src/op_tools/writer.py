"""A background thread that writes: the training thread hands work over and goes on."""

from __future__ import annotations

import queue
import threading
from typing import Callable

from op_tools import messages

Work = Callable[[], None]
_LONGEST_QUEUE = 4096


class Writer:
    """Does pieces of work in order. After the first that cannot write, all others are dropped: nobody waits in vain."""

    def __init__(self, owner: str, after_each: Callable[[], None] = lambda: None) -> None:
        self._owner = owner
        self._after_each = after_each
        self._queue: queue.Queue[Work | None] = queue.Queue(_LONGEST_QUEUE)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self.is_broken = False
        self.dropped = 0

    def add(self, work: Work) -> None:
        """To be done soon. Waits where too much is waiting already."""
        with self._lock:
            if self._is_closed:
                return
            if self._thread is None:
                # a daemon: Python waits for other threads before the tools hear that the program is over
                self._thread = threading.Thread(target=self._run, name=f"{self._owner} writer", daemon=True)
                self._thread.start()
            self._queue.put(work)

    def is_busy(self) -> bool:
        """True while there is work to do."""
        return self._queue.unfinished_tasks > 0

    def close(self) -> None:
        """Returns when all is done and the thread has ended. What is added later is dropped."""
        with self._lock:
            self._is_closed = True
            if self._thread is not None:
                self._queue.put(None)
                self._thread.join()

    def _run(self) -> None:
        while True:
            work = self._queue.get()
            if work is not None:
                self._do(work)
            is_last = work is None
            work = None  # and what it holds
            self._queue.task_done()
            self._after_each()
            if is_last:
                return

    def _do(self, work: Work) -> None:
        if self.is_broken:
            self.dropped += 1
            return
        try:
            work()
        except OSError as error:
            self.is_broken = True
            self.dropped += 1
            place = f" {error.filename}" if error.filename else ""
            messages.complain(
                f"{self._owner} cannot write{place} ({error.strerror or error}): it writes nothing more until it is "
                "started again, what was written before is whole, training goes on"
            )
        except Exception as error:  # noqa: BLE001  a defect of ours: it costs this piece of work only
            self.dropped += 1
            messages.complain_once(
                "writer",
                type(error).__name__,
                text=f"{self._owner} could not write a call: {type(error).__name__}: {error}; training goes on",
            )
