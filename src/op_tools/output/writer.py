"""Background threads that write: the training thread hands work over and goes on."""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from typing import Callable

from op_tools.output import messages

Work = Callable[[], None]
MAX_QUEUED_WORK = 4096
MAX_THREADS = 8  # where one alone is slower than the disk
_open: weakref.WeakSet[Writer] = weakref.WeakSet()


def finish_all(seconds: float) -> None:
    """At the program's end: those that were not closed (Ctrl-C, twice) write what they were given, in this time."""
    until = time.monotonic() + seconds
    for writer in list(_open):
        writer.finish(until)


def forget_all() -> None:
    """In a forked child: the parent's writers, whose threads are not here."""
    _open.clear()


def spare_threads() -> int:
    """Half of the processors that are ours, for other processes of the run want to write, too."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = os.environ.get("LOCAL_WORLD_SIZE", "")  # torchrun sets it
    share = available // (int(processes) if processes.isdigit() and int(processes) else 1)
    return max(1, min(MAX_THREADS, share // 2))


class Writer:
    """Runs work in order, where it has one thread. After the first error of writing, all other work is dropped."""

    def __init__(
        self,
        owner: str,
        threads: int = 1,
        after_each: Callable[[], None] = lambda: None,
        is_excused: Callable[[Exception], bool] = lambda error: False,
    ) -> None:
        self._owner = owner
        self._is_excused = is_excused  # what is said elsewhere
        self._after_each = after_each
        self._queue: queue.Queue[Work | None] = queue.Queue(MAX_QUEUED_WORK)
        self._lock = threading.Lock()
        self._wanted_threads = threads
        self._threads: list[threading.Thread] = []
        self._ended = 0  # threads that were told to end
        self._is_closed = False
        self._breaking = threading.Lock()
        self.is_broken = False
        self.dropped = 0

    def add(self, work: Work) -> None:
        """To be done soon. Waits where too much is waiting already."""
        with self._lock:
            if self._is_closed:
                return
            # one after the other, when there is more to do than those at work can take
            if len(self._threads) < self._wanted_threads and (not self._threads or not self._queue.empty()):
                # a daemon: Python waits for other threads before the tools hear that the program is over
                thread = threading.Thread(target=self._run, name=f"{self._owner} writer", daemon=True)
                self._threads.append(thread)
                thread.start()
                _open.add(self)
            self._queue.put(work)

    def is_busy(self) -> bool:
        """True while there is work to do."""
        return self._queue.unfinished_tasks > 0

    def close(self) -> None:
        """Returns when all is done and the threads have ended. What is added later is dropped."""
        with self._lock:
            self._is_closed = True
            try:
                self._end_threads()
                for thread in self._threads:
                    thread.join()
                _open.discard(self)
            except BaseException:  # Ctrl-C, twice: the threads do what is left while the process lives, and end
                threading.Thread(target=self._end_threads, name=f"{self._owner} writer's end", daemon=True).start()
                raise

    def finish(self, until: float) -> None:
        """Waits until then for what is left; a daemon's work ends with the process."""
        self._is_closed = True
        self._end_threads()
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        if self.is_busy():
            left = self._queue.unfinished_tasks
            messages.complain(f"{self._owner}: {left} parts were not written before the program's end")
        _open.discard(self)

    def _end_threads(self) -> None:
        while self._ended < len(self._threads):
            self._queue.put(None)
            self._ended += 1

    def _run(self) -> None:
        while True:
            work = self._queue.get()
            is_last = work is None
            if work is not None:
                self._do(work)
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
            self.dropped += 1
            with self._breaking:
                was_broken, self.is_broken = self.is_broken, True
            if not was_broken:
                place = f" {error.filename}" if error.filename else ""
                messages.complain(
                    f"{self._owner} cannot write{place} ({error.strerror or error}): it writes nothing more until it "
                    "is started again, what was written before is whole, training goes on"
                )
        except Exception as error:  # noqa: BLE001  a defect of ours: it costs this piece of work only
            self.dropped += 1
            if self._is_excused(error):
                return
            messages.complain_once(
                "writer",
                type(error).__name__,
                text=f"{self._owner} could not write a call: {type(error).__name__}: {error}; training goes on",
            )
