"""The results of `ditorch conformance` as a page: op by dtype, causes, and the cases that did not pass."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ditorch_conformance import journal, summary, tables
from ditorch_conformance.causes import group, kind_of
from ditorch_conformance.errors import ConformanceError
from ditorch_conformance.ops.recipe import DTYPES
from ditorch_conformance.results import PASSING, SKIPPED
from ditorch_report.run_folder import Row

MAX_CASES = 20_000
_MAX_MESSAGE = 300


def is_results(path: Path) -> bool:
    return (path / journal.NAME).is_file() or path.suffix in (".csv", ".tar", ".gz")


def read(path: Path) -> Row | None:
    """None where it cannot be read as results."""
    try:
        table = tables.read(path)
    except ConformanceError:
        return None
    results = table.results
    matrix = summary.matrix(results)
    seen = {dtype for dtypes in matrix.values() for dtype in dtypes}
    failed = [result for result in results if result.status not in (*PASSING, SKIPPED)]
    return {
        "title": table.title,
        "options": table.options,
        "statuses": dict(Counter(result.status for result in results)),
        "files": [{"file": name, **counted} for name, counted in sorted(summary.by_file(results).items())],
        "dtypes": [dtype for dtype in DTYPES if dtype in seen] + sorted(seen.difference(DTYPES)),
        "matrix": [
            [op, {dtype: [_passed(counted), _run(counted)] for dtype, counted in dtypes.items() if _run(counted)}]
            for op, dtypes in sorted(matrix.items())
        ],
        "causes": [cause.as_dictionary(table.options) for cause in group(results)],
        "failed": [
            [str(one.case), one.status, kind_of(one), " ".join(one.message.split())[:_MAX_MESSAGE], one.where]
            for one in failed[:MAX_CASES]
        ],
    }


def _run(counted: Counter[str]) -> int:
    return sum(count for status, count in counted.items() if status != SKIPPED)


def _passed(counted: Counter[str]) -> int:
    return sum(counted[status] for status in PASSING)
