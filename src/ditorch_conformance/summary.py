"""Counts of results: by file, by op, by dtype; and the share of what passes on the CPU that passes here, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Callable

from ditorch_conformance.causes import group
from ditorch_conformance.known import Known, Pattern
from ditorch_conformance.results import (
    CRASH,
    ERROR,
    FAILING,
    FAILURE,
    FLAKY,
    GENERATOR,
    HARNESS,
    PASSED,
    PASSING,
    REDIRECT,
    RIGHT,
    SKIPPED,
    TIMEOUT,
    UNSUPPORTED,
    WRONG,
    Result,
    dtype_of,
    portable,
)
from ditorch_conformance.tables import Table

# in the order of tables, which have those that occur
_STATUSES = (
    PASSED, RIGHT, FAILURE, ERROR, WRONG, UNSUPPORTED, GENERATOR, REDIRECT, HARNESS, CRASH, TIMEOUT, FLAKY, SKIPPED,
)  # fmt: skip


@dataclass(frozen=True)
class Agreement:
    """Of the cases that pass on the CPU: how many run here, how many of these pass, and fail for known reasons."""

    run: int
    passed: int
    known: int = 0

    @property
    def share(self) -> float:
        return self.passed / self.run if self.run else 1.0

    @property
    def share_without_known(self) -> float:
        return self.passed / (self.run - self.known) if self.run > self.known else 1.0


def counts(results: Iterable[Result], key: Callable[[Result], str]) -> dict[str, Counter[str]]:
    """Statuses by whatever `key` says of a result; what has no key is left out."""
    found: dict[str, Counter[str]] = {}
    for result in results:
        name = key(result)
        if name:
            found.setdefault(name, Counter())[result.status] += 1
    return found


def statuses(results: Iterable[Result]) -> list[str]:
    """Those that occur, as columns of a table."""
    seen = {result.status for result in results}
    return [status for status in _STATUSES if status in seen]


def by_file(results: Iterable[Result]) -> dict[str, Counter[str]]:
    return counts(results, lambda result: result.case.file or "(no file)")


def by_op(results: Iterable[Result]) -> dict[str, Counter[str]]:
    return counts(results, lambda result: result.op)


def by_dtype(results: Iterable[Result]) -> dict[str, Counter[str]]:
    return counts(results, lambda result: dtype_of(result.case))


def failing_most(counted: dict[str, Counter[str]]) -> list[tuple[str, int]]:
    """Names with their failures, the most first; those without are left out."""
    found = {name: sum(statuses[status] for status in FAILING) for name, statuses in counted.items()}
    return sorted(((name, count) for name, count in found.items() if count), key=lambda one: (-one[1], one[0]))


def matrix(results: Iterable[Result]) -> dict[str, dict[str, Counter[str]]]:
    """Statuses by op and dtype."""
    found: dict[str, dict[str, Counter[str]]] = {}
    for result in results:
        dtype = dtype_of(result.case)
        if result.op and dtype:
            found.setdefault(result.op, {}).setdefault(dtype, Counter())[result.status] += 1
    return found


def falls_back(results: Iterable[Result]) -> dict[str, list[str]]:
    """Kernels that computed on the CPU, as the op matrix saw it, each with its dtypes."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        for kernel in result.details.get("falls_back", ()):
            found.setdefault(kernel, {})[dtype_of(result.case)] = None
    return {kernel: [*dtypes] for kernel, dtypes in sorted(found.items())}


def agreement(results: Iterable[Result], baseline: Iterable[Result], known: Known | None = None) -> Agreement:
    """Cases that this device skips by name (`@onlyCPU`) do not count, and neither do those that fail on the CPU."""
    passing = {portable(result.case) for result in baseline if result.status in PASSING}
    here = [result for result in results if result.status != SKIPPED and portable(result.case) in passing]
    passed = sum(result.status in PASSING for result in here)
    expected = sum(result.is_failing and known.reason(result.case) is not None for result in here) if known else 0
    return Agreement(len(here), passed, expected)


def unmatched(table: Table, known: Known) -> list[Pattern]:
    """Known failures that are about these files and fit no case of theirs; nothing is said of a part of the cases."""
    return known.unmatched(table.results, table.never_run) if table.is_whole else []


def as_dictionary(table: Table, baseline: Table | None = None, known: Known | None = None) -> dict[str, Any]:
    """Everything, for JSON (schema ditorch.conformance/1)."""
    results = table.results
    found: dict[str, Any] = {
        "schema": "ditorch.conformance/1",
        "title": table.title,
        "options": table.options,
        "cases": len(results),
        "never_run": len(table.never_run),
        "without_cases": table.without_cases,
        "statuses": dict(Counter(result.status for result in results)),
        "files": {name: dict(counted) for name, counted in by_file(results).items()},
        "dtypes": {name: dict(counted) for name, counted in by_dtype(results).items()},
        "ops": {name: dict(counted) for name, counted in sorted(by_op(results).items())},
        "falls_back": falls_back(results),
        "causes": [cause.as_dictionary(table.options) for cause in group(results)],
    }
    if baseline is not None:
        agreed = agreement(results, baseline.results, known)
        found["baseline"] = {"title": baseline.title, **vars(agreed), "share": agreed.share}
    known = known or Known()
    found["news"] = [str(result.case) for result in known.news(results)]
    found["mended"] = [pattern.text for pattern in known.mended(results)]
    found["unmatched"] = [pattern.text for pattern in unmatched(table, known)]
    return found


def markdown(table: Table, baseline: Table | None = None, known: Known | None = None) -> str:
    """The table by file, as the docs have it."""
    head = ["file", "cases", "run", "passed", "failed", "flaky", "skipped"]
    files, of_baseline = by_file(table.results), {}
    if baseline is not None:
        head += ["pass on the CPU and run here", "of them pass", "known not to", "share without these"]
        of_baseline = {file: [r for r in baseline.results if r.case.file == file] for file in files}
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for file, counted in sorted(files.items()):
        mine = [result for result in table.results if result.case.file == file]
        one_in = table.slices.get(file, 1)
        cases = "all" if one_in == 1 else f"1 in {one_in}"
        if left_over := sum(case.file == file for case in table.never_run):
            cases += f", {left_over:,} not reached"
        lines.append(_line(file, cases, counted, agreement(mine, of_baseline[file], known) if baseline else None))
    whole = Counter(result.status for result in table.results)
    lines.append(_line("all", "", whole, agreement(table.results, baseline.results, known) if baseline else None))
    return "\n".join(lines)


def _line(name: str, cases: str, counted: Counter[str], agreed: Agreement | None) -> str:
    passed, failed = (sum(counted[status] for status in of) for of in (PASSING, FAILING))
    values = [name, cases, f"{sum(counted.values()):,}", f"{passed:,}", f"{failed:,}"]
    values += [f"{counted['flaky']:,}", f"{counted['skipped']:,}"]
    if agreed is not None:
        values += [f"{agreed.run:,}", f"{agreed.passed:,} ({100 * agreed.share:.2f} %)"]
        values += [f"{agreed.known:,}", f"{100 * agreed.share_without_known:.2f} %"]
    return f"| {' | '.join(values)} |"
