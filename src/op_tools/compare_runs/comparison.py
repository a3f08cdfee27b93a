"""Compares two runs: rank by rank, in processes of their own if wanted, and puts together what was found."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ditorch_shared import ray_cluster
from ditorch_shared.ray_cluster import ClusterError
from op_tools.compare_runs import before, second_pass
from op_tools.compare_runs.findings import Findings, ModuleRow, Place
from op_tools.compare_runs.joining import Layout, Table
from op_tools.compare_runs.judging import LIMIT, Judge
from op_tools.compare_runs.reading import Run, Stream
from op_tools.compare_runs.stream import MAX_GUILTY, MAX_SUSPECTS, MAX_WORST, StreamComparison, Told
from op_tools.errors import CaptureError


def compare(
    a: Run,
    b: Run,
    healthy: Run | None = None,
    limit: float = LIMIT,
    told: Told | None = None,
    shards: Table = (),
    jobs: int = 1,
    engine: str = "local",
    replicas: int | None = None,
) -> Findings:
    """`healthy`: a second run of the good side, with its weights moved by a rounding error, or on a healthy device.

    `shards`: how tensors of modules are cut, where shapes do not tell; `replicas`: how many of the model there are on
    the ranks, where its parameters do not tell (joining.py). `jobs`: ranks at a time.
    `engine`: local, or ray: a task for each rank on a cluster, whose machines see the folders under the same paths.
    """
    findings = Findings(str(a.path), str(b.path), before.differences(a, b))
    if not _have_one_sketch(a, b):
        findings.not_comparable.append("the sketches are of different versions: noise and permutations are not seen")
    streams = []
    is_joined = _have_one_sketch(a, b) and len(a.ranks) != len(b.ranks) and 1 in (len(a.ranks), len(b.ranks))
    layout = _layout(max(len(a.ranks), len(b.ranks)), shards, replicas) if is_joined else None
    for stream in [(0, 0)] if is_joined else sorted({*a.streams, *b.streams}):
        if is_joined or (stream in a.streams and stream in b.streams):
            streams.append(stream)
        else:
            where = a.path if stream in a.streams else b.path
            findings.not_comparable.append(f"rank {stream[0]} is only in {where}")
    paths = (a.path, b.path, None if healthy is None else healthy.path)
    tasks = [_Task(*paths, stream, limit, layout) for stream in streams]
    steps: Counter[int] = Counter()  # of a rank: of all processes that had it, one after the other
    training: dict[int, list[range]] = {}  # … and the numbers of these
    for task, found in zip(tasks, _all_done(tasks, (a, b, healthy), told, jobs, engine)):
        _merge(findings, found)
        training.setdefault(task.stream[0], []).append(found.training)
        steps[task.stream[0]] += found.steps
        if task.stream[0] not in findings.ranks:
            findings.ranks.append(task.stream[0])
    findings.steps = max(steps.values(), default=0)
    # a number that is a step of another process of the rank tells nothing
    outside = findings.outside_steps
    findings.outside_steps = [one for one in outside if not any(one.step in steps for steps in training[one.rank])]
    if is_joined:
        findings.replicas = found.replicas
        findings.ranks = sorted({*a.ranks, *b.ranks})
    findings.second_pass = second_pass.wanted(findings, b.path, b.manifest())
    return findings


def _layout(ranks: int, shards: Table, replicas: int | None) -> Layout:
    if replicas is not None and ranks % replicas:
        raise CaptureError(f"{ranks} ranks cannot be {replicas} replicas of the model, each on as many ranks")
    return Layout(shards, replicas)


def _have_one_sketch(a: Run, b: Run) -> bool:
    return a.sketch == b.sketch and len(a.sketch) == 1


@dataclass(frozen=True)
class _Task:
    """One process of each run; where they lie, so that another process can do it."""

    a: Path
    b: Path
    healthy: Path | None
    stream: Stream
    limit: float
    layout: Layout | None

    def absolute(self) -> dict[str, Any]:
        """Its folders, for a process that works elsewhere."""
        return {name: path.absolute() for name in ("a", "b", "healthy") if (path := getattr(self, name)) is not None}

    def done(self, runs: tuple[Run, Run, Run | None] | None = None, told: Told | None = None) -> Findings:
        a, b, healthy = runs or (Run(self.a), Run(self.b), None if self.healthy is None else Run(self.healthy))
        found = Findings(str(self.a), str(self.b))
        judge = Judge(a.tf32 | b.tf32, _have_one_sketch(a, b), self.limit)
        with _without_collector():
            StreamComparison(found, judge, self.stream, told, self.layout).compare(a, b, healthy)
        found.not_comparable += [*a.problems, *b.problems]
        found.is_cut_short |= a.is_incomplete or b.is_incomplete
        return found


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """A step is many objects and no circle: looking for circles would take a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _all_done(
    tasks: list[_Task], runs: tuple[Run, Run, Run | None], told: Told | None, jobs: int, engine: str
) -> Iterator[Findings]:
    if engine == "ray":
        yield from _done_on_cluster(tasks)
        return
    if jobs == 1 or len(tasks) == 1:
        for task in tasks:
            yield task.done(runs, told)
        return
    with ProcessPoolExecutor(min(jobs, len(tasks)), multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_Task.done, tasks)


def _done_on_cluster(tasks: list[_Task]) -> Iterator[Findings]:
    """In the order of the tasks, whoever is done first."""
    try:
        ray = ray_cluster.connected()
    except ClusterError as error:
        raise CaptureError(str(error)) from None
    done = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(_Task.done)
    references = [done.remote(replace(task, **task.absolute())) for task in tasks]
    for task, reference in zip(tasks, references):
        try:
            found: Findings = ray.get(reference)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise CaptureError(f"rank {task.stream[0]} could not be compared on the cluster: {reason}") from None
        yield found


# ---- what several ranks have found ---------------------------------------------------------------------------------


def _merge(findings: Findings, found: Findings) -> None:
    """The earliest step's divergence is the first; of one step, that of the lowest rank."""
    findings.before += found.before
    first, other = findings.first_divergence, found.first_divergence
    if other is not None and (first is None or _rank_of(other) < _rank_of(first)):
        findings.first_divergence, findings.chain = other, found.chain
        findings.only_in_b = found.only_in_b
    findings.guilty = sorted([*findings.guilty, *found.guilty], key=lambda place: place.step)[:MAX_GUILTY]
    findings.worst = sorted([*findings.worst, *found.worst], key=lambda place: -place.distance)[:MAX_WORST]
    findings.suspects = _suspects([*findings.suspects, *found.suspects])
    _merge_modules(findings.modules, found.modules)
    findings.is_cut_short |= found.is_cut_short
    findings.outside_steps += found.outside_steps
    findings.not_comparable += [line for line in found.not_comparable if line not in findings.not_comparable]
    for count in ("calls", "events", "same", "only_a", "only_b"):
        setattr(findings, count, getattr(findings, count) + getattr(found, count))


def _rank_of(place: Place) -> tuple[int, bool]:
    return place.step, place.kind != "guilty"


def _suspects(places: list[Place]) -> list[Place]:
    """The most suspect of each op."""
    best: dict[tuple[str, str], Place] = {}
    for place in places:
        known = best.get((place.op, place.phase))
        if known is None or place.score > known.score:
            best[place.op, place.phase] = place
    return sorted(best.values(), key=lambda place: -place.score)[:MAX_SUSPECTS]


def _merge_modules(rows: list[ModuleRow], others: list[ModuleRow]) -> None:
    known = {row.module: row for row in rows}
    for other in others:
        row = known.get(other.module)
        if row is None:
            rows.append(replace(other))
            continue
        row.events, row.same, row.guilty = row.events + other.events, row.same + other.same, row.guilty + other.guilty
        if other.distance > row.distance:
            row.distance, row.op = other.distance, other.op
