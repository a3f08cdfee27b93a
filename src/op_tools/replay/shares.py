"""Replays captures in several processes. A call that ends its process costs that call, and the others go on."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

from op_tools.replay.results import CallResult, ReplayResults
from op_tools.replay.runner import Options, Progress, accelerator, call_name, replay_these

_SHARES_PER_PROCESS = 4  # so that none is left with all the slow ones
_ENDED = "the process that ran it ended by itself: it was killed, or the op crashed"
Answer = tuple["list[CallResult]", "list[str]"]


def replay(options: Options, folders: list[Path], results: ReplayResults, progress: Progress) -> None:
    """Fills `results` in the order of `folders`."""
    size = max(1, -(-len(folders) // (options.jobs * _SHARES_PER_PROCESS)))
    found = _run(options, [folders[at : at + size] for at in range(0, len(folders), size)], results, progress)
    groups = [[folder for folder in folders if str(folder) not in found]]
    while groups:  # halved until only the calls that are to blame are lost
        group = groups.pop()
        if group:
            found.update(_run(options, [group], results, lambda done, total: None))
        if len(group) > 1 and any(str(folder) not in found for folder in group):
            groups += [group[len(group) // 2 :], group[: len(group) // 2]]
    for folder in folders:
        ended = CallResult(str(folder), call_name(folder), "failed", _ENDED)
        results.calls.append(found.get(str(folder), ended))


def _run(
    options: Options, shares: list[list[Path]], results: ReplayResults, progress: Progress
) -> dict[str, CallResult]:
    found: dict[str, CallResult] = {}
    total = sum(map(len, shares))
    # a fork would share the device's state, which most drivers refuse
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures: list[Future[Answer]] = [pool.submit(_share, options, share, results.device) for share in shares]
        for future in as_completed(futures):
            try:
                calls, files = future.result()
            except BrokenProcessPool:
                continue
            found.update((call.folder, call) for call in calls)
            results.files += files
            progress(len(found), total)
    return found


def _share(options: Options, folders: list[Path], device: str) -> Answer:
    """In a process of its own."""
    accelerator()
    results = ReplayResults(
        str(options.directory), "", device, options.run_times, options.forward_only, options.is_compared, False
    )
    replay_these(replace(options, jobs=1), folders, results, lambda done, total: None)
    return results.calls, results.files
