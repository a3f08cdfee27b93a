"""Runs shards: the cases of one file, one after the other, in a worker that is replaced when a case has killed it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from ditorch_conformance.process import STOPPED, Limits, Recipe, WorkerGone, WorkerProcess
from ditorch_conformance.results import ERROR, IMPORT, Attempt, Case

Deliver = Callable[[Attempt], None]


@dataclass(frozen=True)
class Shard:
    """Cases of one file that one worker runs."""

    file: str
    recipe: Recipe
    cases: tuple[Case, ...]


class Executor:
    """One shard at a time. The worker stays for the next shard of the same file: importing one takes seconds."""

    def __init__(self, limits: Limits, log: Path, stopped: threading.Event) -> None:
        self._limits = limits
        self._log = log
        self._stopped = stopped
        self._worker: WorkerProcess | None = None
        self._file = ""

    def discover(self, file: str, recipe: Recipe) -> list[Case]:
        """The cases of a file; WorkerGone where it cannot be imported."""
        return [Case(file, *names) for names in self._started(file, recipe).cases]

    def run(self, shard: Shard, deliver: Deliver) -> None:
        """Every case gets its attempt, unless the run is stopped."""
        for case in shard.cases:
            if self._stopped.is_set():
                return
            attempt = self._run_case(shard, case)
            if attempt.status != STOPPED:
                deliver(attempt)

    def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()

    def _run_case(self, shard: Shard, case: Case) -> Attempt:
        try:
            worker = self._started(shard.file, shard.recipe)
        except WorkerGone as gone:  # it could be imported before
            if gone.outcome["status"] == STOPPED:
                return Attempt(case, STOPPED)
            return Attempt(case, ERROR, "ImportError", f"the file could not be imported again: {gone}")
        try:
            answer = worker.run(case.classname, case.name)
        except WorkerGone as gone:
            self._worker = None
            return Attempt(case, **gone.outcome)
        if answer.pop("memory") > self._limits.recycled_above:
            self.close()
        return Attempt(case, **answer)

    def _started(self, file: str, recipe: Recipe) -> WorkerProcess:
        if self._worker is None or self._file != file:
            self.close()
            self._worker = WorkerProcess(recipe, self._limits, self._log, self._stopped)
            self._file = file
        return self._worker


def not_imported(file: str, gone: WorkerGone) -> Attempt:
    """What stands for all cases of a file that cannot be imported."""
    return Attempt(Case(file, "", IMPORT), **gone.outcome)
