"""A bar with counts and the time left; lines now and then where there is no terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ditorch_conformance.results import FAILING, PASSING, SKIPPED, Attempt

_SECONDS_BETWEEN_LINES = 30.0


class Screen:
    """What is shown while cases run. Threads may advance it."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self._bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._task = self._bar.add_task("looking for cases", total=None)
        self._counts: Counter[str] = Counter()
        self._total, self._rounds = 0, 0
        self._told = time.monotonic()
        self._lock = threading.Lock()

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._bar.stop()

    def plan(self, count: int) -> None:
        """So many attempts are to come; called again for those that failed."""
        self._total, self._counts, self._rounds = count, Counter(), self._rounds + 1
        self._bar.reset(self._task, total=count)

    def advance(self, attempt: Attempt) -> None:
        with self._lock:
            self._counts[attempt.status] += 1
            passed, failed = (sum(self._counts[status] for status in of) for of in (PASSING, FAILING))
            words = f"{passed:,} passed, {failed:,} failed, {self._counts[SKIPPED]:,} skipped"
            words = f"again: {words}" if self._rounds > 1 else words
            self._bar.update(self._task, advance=1, description=words)
            if self._bar.disable and time.monotonic() - self._told > _SECONDS_BETWEEN_LINES:
                self._told = time.monotonic()
                done = sum(self._counts.values())
                sys.stderr.write(f"{done:,} of {self._total:,}: {words}\n")
