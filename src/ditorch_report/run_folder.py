"""What the tools left on disk: a folder of `ditorch run`, or one that they wrote without it (op_tools_results)."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
_PARTS = {
    "compared": ("op_autocompare_result", "op_autocompare_info_*.csv"),
    "timed": ("op_time_measure_result", "op_elasped_info_*.csv"),
    "traces": ("op_time_measure_result", "op_elasped_info_*.json"),
    "overflow": ("op_overflow_result", "op_overflow_info_*.csv"),
    "memory": ("process_monitor_result", "process_monitor_result_*.csv"),
    "watch": ("watch_result", "*/steps.jsonl"),
    "alerts": ("watch_result", "*/alerts.jsonl"),
    "statistics": ("op_capture_results", "op_capture_statistics_*.pack"),
}
_LISTS = frozenset({"wrong", "alerts", "slow", "usage", "modules", "elsewhere", "not_looked_at", "next", "processes"})
_PID = re.compile(r"pid(\d+)")
_LONGEST_CELL = 2**24


class RunFolder:
    """The files of one run. What is missing is empty; a table of a killed process may end within a row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_json(path / "manifest.json")
        self.summary = checked(read_json(path / "summary.json"))

    @property
    def is_run(self) -> bool:
        return bool(self.manifest or self.summary) or any(map(self.files, _PARTS)) or self.captures.is_dir()

    @property
    def captures(self) -> Path:
        return self.path / "op_capture_results"

    def files(self, part: str) -> list[Path]:
        folder, pattern = _PARTS[part]
        return sorted((self.path / folder).glob(pattern))

    def signature(self) -> tuple[tuple[str, int, int], ...]:
        """It changes when a file does."""
        found = [path for part in _PARTS for path in self.files(part)]
        found += [*sorted((self.path / "processes").glob("*.json")), self.path / "summary.json"]
        return tuple((str(one), *_size_and_time(one)) for one in found)


def read_json(path: Path) -> Row:
    """A JSON object; an empty one where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"), parse_constant=str)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def checked(summary: Row) -> Row:
    """A summary of which each part is what it should be: files may be damaged, or of others."""
    found: Row = {}
    for key, value in summary.items():
        if isinstance(value, list):
            found[key] = [row for row in value if isinstance(row, dict) or key == "next"]
        elif key != "tools" or isinstance(value, dict):
            found[key] = value
    return {key: value for key, value in found.items() if isinstance(value, list) or key not in _LISTS}


def rows(path: Path) -> Iterator[Row]:
    """The whole rows of a CSV file, each with a `pid`: that of the file's name where it has none."""
    csv.field_size_limit(_LONGEST_CELL)
    pid = pid_of(path)
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            reader = csv.reader(line.replace("\0", "") for line in file)
            columns = next(reader, [])
            for cells in reader:
                if len(cells) == len(columns):
                    yield {"pid": pid, **dict(zip(columns, cells))}
    except (OSError, csv.Error):
        return


def pid_of(path: Path) -> int:
    found = _PID.search(path.name)
    return int(found[1]) if found else 0


def number(text: Any) -> float | None:
    """None where there is none."""
    try:
        found = float(text)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(found) else found


def whole(text: Any) -> int:
    """0 where there is none."""
    try:
        return int(text)
    except (TypeError, ValueError):
        return 0


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns
