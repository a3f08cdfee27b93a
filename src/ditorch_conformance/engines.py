"""Runs shards side by side. An engine is asked for the cases of files, then for the attempts of shards."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, Protocol, TypeVar, Union

from ditorch_conformance.executor import Deliver, Executor, Shard
from ditorch_conformance.process import Limits, Recipe, WorkerGone
from ditorch_conformance.results import Case

Found = Union[list[Case], WorkerGone]
Task = TypeVar("Task")


class Engine(Protocol):
    """Ctrl-C while it waits: what is under way is given up and not delivered, then KeyboardInterrupt is raised."""

    @property
    def workers(self) -> int:
        """How many shards are run side by side."""

    def discover(self, files: Sequence[tuple[str, Recipe]], found: Callable[[str, Found], None]) -> None:
        """Calls `found` with the cases of each file."""

    def run(self, shards: Sequence[Shard], deliver: Deliver) -> None:
        """Delivers one attempt per case."""

    def close(self) -> None: ...


class AnyExecutor(Protocol):
    """What runs one shard after the other: see executor.py; ray_engine.py has one on another machine."""

    def discover(self, file: str, recipe: Recipe) -> list[Case]: ...
    def run(self, shard: Shard, deliver: Deliver) -> None: ...
    def close(self) -> None: ...


class ThreadedEngine:
    """Threads of this process, each with one executor. They end when `stopped` is set."""

    def __init__(self, executors: Sequence[AnyExecutor], stopped: threading.Event) -> None:
        self._stopped = stopped
        self._executors = executors

    @property
    def workers(self) -> int:
        return len(self._executors)

    def discover(self, files: Sequence[tuple[str, Recipe]], found: Callable[[str, Found], None]) -> None:
        def one(executor: AnyExecutor, task: tuple[str, Recipe]) -> None:
            try:
                cases: Found = executor.discover(*task)
            except WorkerGone as gone:
                cases = gone
            if not self._stopped.is_set():
                found(task[0], cases)

        self._side_by_side(files, one)

    def run(self, shards: Sequence[Shard], deliver: Deliver) -> None:
        self._side_by_side(shards, lambda executor, shard: executor.run(shard, deliver))

    def close(self) -> None:
        for executor in self._executors:
            executor.close()

    def _side_by_side(self, tasks: Sequence[Task], work: Callable[[AnyExecutor, Task], None]) -> None:
        waiting, failures = iter(tasks), []  # the threads share one iterator: its next is atomic

        def consume(executor: AnyExecutor) -> None:
            try:
                for task in waiting:
                    if self._stopped.is_set():
                        return
                    work(executor, task)
            except Exception as error:  # noqa: BLE001 - raised again below, in the thread that waits
                failures.append(error)

        threads = [threading.Thread(target=consume, args=(executor,), daemon=True) for executor in self._executors]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():  # in pieces: a plain join would not let Ctrl-C through
                    thread.join(0.2)
        finally:
            if any(thread.is_alive() for thread in threads):
                self._stopped.set()
            for thread in threads:
                thread.join()
        if failures:
            raise failures[0]


def local(jobs: int, limits: Limits, folder: Path) -> ThreadedEngine:
    """On this machine: each executor has a worker process. `folder`: for what their cases print."""
    stopped = threading.Event()
    return ThreadedEngine(
        [Executor(limits, folder / f"worker{number}.log", stopped) for number in range(jobs)], stopped
    )
