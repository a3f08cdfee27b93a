"""One run: which cases there are, a first attempt for each, a second for those that failed. Everything is resumable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

from ditorch_conformance.engines import Engine, Found
from ditorch_conformance.executor import Shard, not_imported
from ditorch_conformance.journal import Contents, Journal
from ditorch_conformance.process import Recipe
from ditorch_conformance.results import FAILING, IMPORT, Attempt, Case
from ditorch_conformance.selection import Selection

SHARD_CASES = 50
_SHARDS_PER_WORKER = 4  # of a file, at least: the last worker is not left alone with all the slow cases

Progress = Callable[[Attempt], None]
Plan = Callable[[int], None]  # how many attempts are to come


def run(
    files: Sequence[tuple[str, Recipe]],
    engine: Engine,
    journal: Journal,
    *,
    wanted: Selection = Selection(),  # noqa: B008 - it cannot change
    tries: int = 2,
    shard_cases: int = SHARD_CASES,
    plan: Plan = lambda _: None,
    progress: Progress = lambda _: None,
) -> None:
    """Runs every wanted case that the journal does not have; ConformanceError where nothing is wanted.

    `shard_cases`: how many a worker takes at once, at most.

    Those that failed are run again, in fresh workers, after all others and the other way round: a case may fail by
    chance, or for what its neighbours have left behind, also those that fail themselves.
    """
    contents = journal.contents

    def found(file: str, cases: Found) -> None:
        if isinstance(cases, list):
            journal.add_cases(file, wanted.of(cases))
        else:
            journal.add_cases(file, [Case(file, "", IMPORT)])
            journal.add(not_imported(file, cases))

    def deliver(attempt: Attempt) -> None:
        journal.add(attempt)
        progress(attempt)

    try:
        engine.discover([(file, recipe) for file, recipe in files if file not in contents.cases], found)
        wanted.check([case for file, _ in files for case in contents.cases.get(file, ())])
        for number in range(tries):
            shards = [
                Shard(file, recipe, tuple(piece))
                for file, recipe in files
                for piece in _pieces(_due(contents, file, number), shard_cases, engine.workers)
            ]
            plan(sum(len(shard.cases) for shard in shards))
            engine.run(shards, deliver)
            engine.close()  # the next attempts are made by fresh workers
    finally:
        engine.close()


def _due(contents: Contents, file: str, number: int) -> list[Case]:
    """The cases whose attempt with this number, from 0, is still to be made; every second time the other way round."""

    def is_due(case: Case) -> bool:
        made = contents.attempts.get(case, [])
        return len(made) == number and (number == 0 or (made[-1].status in FAILING and case.name != IMPORT))

    due = [case for case in contents.cases.get(file, ()) if is_due(case)]
    return due[::-1] if number % 2 else due


def _pieces(cases: list[Case], largest: int, workers: int) -> list[list[Case]]:
    """What several workers can share."""
    size = max(1, min(largest, len(cases) // (_SHARDS_PER_WORKER * workers)))
    return [cases[start : start + size] for start in range(0, len(cases), size)]
