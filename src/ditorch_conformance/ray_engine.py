"""The same workers on the machines of a Ray cluster: shards are handed out, attempts come back one by one.

Every machine needs ditorch, torch and, for PyTorch's tests, the checkout under the same paths as this one.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ditorch_conformance.engines import ThreadedEngine
from ditorch_conformance.errors import ConformanceError
from ditorch_conformance.executor import Deliver, Executor, Shard
from ditorch_conformance.process import STOPPED, Limits, Recipe, WorkerGone
from ditorch_conformance.results import Attempt, Case
from ditorch_shared import ray_cluster
from ditorch_shared.ray_cluster import ClusterError

_POLL_SECONDS = 0.5
_MAX_LOST_MACHINES = 3  # of one executor, before the run gives up


def on_cluster(jobs: int, limits: Limits) -> ThreadedEngine:
    """With so many workers, spread over the machines of the cluster: that of RAY_ADDRESS, or the one that is here."""
    ray = _connected()
    stopped = threading.Event()
    return ThreadedEngine([RemoteExecutor(ray, limits, stopped) for _ in range(jobs)], stopped)


def _connected() -> Any:
    try:
        return ray_cluster.connected()
    except ClusterError as error:
        raise ConformanceError(str(error)) from None


class RemoteExecutor:
    """An executor on some machine of the cluster. One that is lost with its machine is made anew on another."""

    def __init__(self, ray: Any, limits: Limits, stopped: threading.Event) -> None:
        self._ray = ray
        self._limits = limits
        self._stopped = stopped
        self._actor: Any = None

    def discover(self, file: str, recipe: Recipe) -> list[Case]:
        """The cases of a file; WorkerGone where it cannot be imported."""
        for _ in self._machines():
            reference = self._started().discover.remote(file, recipe)
            while not self._ray.wait([reference], timeout=_POLL_SECONDS)[0]:
                if self._stopped.is_set():
                    raise WorkerGone(STOPPED, "", "the run was stopped")
            try:
                found = self._ray.get(reference)
            except self._ray.exceptions.RayActorError:
                continue
            if isinstance(found, dict):
                raise WorkerGone(**found)
            return [Case(*names) for names in found]
        raise AssertionError("unreachable")

    def run(self, shard: Shard, deliver: Deliver) -> None:
        """Every case gets its attempt, unless the run is stopped. What a lost machine delivered is not run again."""
        done: set[Case] = set()
        for _ in self._machines():
            left = replace(shard, cases=tuple(case for case in shard.cases if case not in done))
            attempts = self._started().run.options(num_returns="streaming").remote(left)
            try:
                while len(done) < len(shard.cases):
                    if self._stopped.is_set():
                        return
                    if self._ray.wait([attempts], timeout=_POLL_SECONDS)[0]:
                        attempt = self._ray.get(next(attempts))
                        done.add(Case(*attempt["case"]))
                        deliver(Attempt(**{**attempt, "case": Case(*attempt["case"])}))
                return
            except (self._ray.exceptions.RayActorError, StopIteration):
                continue

    def close(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            self._ray.kill(actor)  # its worker ends with it: see worker.py

    def _machines(self) -> Iterator[int]:
        """One try after the other; ConformanceError after the last."""
        for number in range(_MAX_LOST_MACHINES + 1):
            yield number
            self.close()
        raise ConformanceError("Ray lost the machine of a worker again and again: the same command goes on later.")

    def _started(self) -> Any:
        if self._actor is None:
            remote = self._ray.remote(num_cpus=1, scheduling_strategy="SPREAD", max_restarts=0)(_Host)
            self._actor = remote.remote(self._limits)
        return self._actor


class _Host:
    """Lives on a machine of the cluster, with one executor. What it is given and returns is plain data."""

    def __init__(self, limits: Limits) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ditorch-conformance-")
        self._executor = Executor(limits, Path(self._folder.name) / "worker.log", threading.Event())

    def discover(self, file: str, recipe: Recipe) -> Any:
        try:
            return [tuple(case) for case in self._executor.discover(file, recipe)]
        except WorkerGone as gone:
            return gone.outcome

    def run(self, shard: Shard) -> Iterator[dict[str, Any]]:
        """One attempt after the other, as they come."""
        for case in shard.cases:
            attempts: list[Attempt] = []
            self._executor.run(replace(shard, cases=(case,)), attempts.append)
            for attempt in attempts:
                yield {**asdict(attempt), "case": tuple(attempt.case)}
