"""Everything that the page shows, in pieces: the index first, what is large or rare when it is asked for."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ditorch_report import comparison, conformance, run_contents
from ditorch_report.errors import ReportError
from ditorch_report.run_folder import Row, RunFolder

SCHEMA = "ditorch.report/1"


class Contents:
    """`pieces` by name; the index names those of each run."""

    def __init__(self) -> None:
        self.pieces: dict[str, Any] = {}
        self.runs: list[Row] = []
        self.comparison: str | None = None
        self.conformance: list[str] = []

    def index(self, is_live: bool = False) -> Row:
        return {
            "schema": SCHEMA,
            "made": time.time(),
            "live": is_live,
            "runs": self.runs,
            "comparison": self.comparison,
            "conformance": self.conformance,
        }

    def add_run(self, folder: RunFolder, summary: Row | None = None) -> None:
        """`summary`: that of a run which goes on, and has not written one yet."""
        self.runs.append(run_contents.of(folder, summary or folder.summary, f"run{len(self.runs)}", self.pieces))

    def add_comparison(self, found: Row) -> None:
        self.comparison = "comparison"
        self.pieces["comparison"] = found

    def add_conformance(self, found: Row) -> None:
        name = f"conformance{len(self.conformance)}"
        self.conformance.append(name)
        self.pieces[name] = found


def of(paths: Iterable[Path]) -> Contents:
    """Folders of runs or of conformance results, and what `ditorch compare --json` printed."""
    found, folders = Contents(), []
    for path in paths:
        folder = RunFolder(path)
        compared = comparison.read(path) if path.is_file() else None
        if compared is not None:
            found.add_comparison(compared)
        elif path.is_dir() and folder.is_run:
            folders.append(folder)
            found.add_run(folder)
        else:
            results = conformance.read(path) if conformance.is_results(path) else None
            if results is None:
                raise ReportError(_complaint(path))
            found.add_conformance(results)
    if len(folders) == 2 and found.comparison is None:
        compared = comparison.of(*folders)
        if compared is not None:
            found.add_comparison(compared)
    return found


def _complaint(path: Path) -> str:
    if not path.exists():
        return f"{path} cannot be reported: there is no such folder"
    return (
        f"{path} cannot be reported: it holds nothing that `ditorch run`, the tools, `ditorch compare --json` or "
        "`ditorch conformance` have written"
    )
