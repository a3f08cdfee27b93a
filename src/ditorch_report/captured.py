"""Captured calls of a run: their folders, and histograms of what the device gave beside what the reference has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ditorch_report.call_table import CallTable
from ditorch_report.run_folder import Row, RunFolder, read_json

MAX_CAPTURES = 20_000
MAX_HISTOGRAMS = 300
HISTOGRAMS = "device/histograms-*.json"  # see op_tools/autocompare/histograms.py


def read(folder: RunFolder, table: CallTable, index: dict[tuple[int, int], int]) -> dict[int, Row]:
    """By the call's place in the list: `folder` (that of input.pth), and `values` with histograms."""
    pids = {pid: number for number, (_, _, pid) in enumerate(table.processes)}
    found: dict[int, Row] = {}
    histograms = 0
    for pid, forward_id, path, is_compared in _folders(folder.captures):
        call = index.get((pids.get(pid, -1), forward_id))
        if call is None or call in found:
            continue
        values = []
        if is_compared and histograms < MAX_HISTOGRAMS:
            values = [one for file in sorted(path.glob(HISTOGRAMS)) for one in read_json(file).get("values", [])]
            histograms += bool(values)
        found[call] = {"folder": str(path / "device" if is_compared else path), "values": values}
        if len(found) >= MAX_CAPTURES:
            break
    return found


def _folders(captures: Path) -> Iterator[tuple[int, int, Path, bool]]:
    """OP/PID/autocompare/ID/TIME first, which have a reference, then OP/PID/ID/TIME."""
    processes = [(op, pid) for op in _inside(captures) for pid in _inside(op) if pid.name.isdigit()]
    for is_compared in (True, False):
        for _, pid in processes:
            for call in _inside(pid / "autocompare" if is_compared else pid):
                if call.name.isdigit():
                    for moment in _inside(call)[:1]:
                        yield int(pid.name), int(call.name), moment, is_compared


def _inside(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    except OSError:
        return []
