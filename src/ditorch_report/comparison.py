"""Two runs beside each other: what `ditorch compare` finds in their statistics. Comparing needs torch."""

from __future__ import annotations

from pathlib import Path

from ditorch_report.run_folder import Row, RunFolder, read_json

SCHEMA = "ditorch.compare/1"
_LISTS = ("guilty", "suspects", "cleared", "chain", "worst", "modules", "before")
_MAX_ROWS = 500


def read(path: Path) -> Row | None:
    """What `ditorch compare --json` printed into a file."""
    found = read_json(path)
    return _shortened(found) if found.get("schema") == SCHEMA else None


def of(first: RunFolder, second: RunFolder) -> Row | None:
    """None where one of them has no statistics; where they cannot be compared, `problem` says why."""
    if not first.files("statistics") or not second.files("statistics"):
        return None
    from op_tools.compare_runs import report
    from op_tools.compare_runs.comparison import compare
    from op_tools.compare_runs.reading import Run
    from op_tools.errors import CaptureError

    try:
        return _shortened(report.as_json(compare(Run(first.path), Run(second.path))))
    except CaptureError as error:
        return {"problem": str(error)}


def _shortened(found: Row) -> Row:
    return {key: value[:_MAX_ROWS] if key in _LISTS else value for key, value in found.items()}
