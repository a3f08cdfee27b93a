"""steps.jsonl: a line for each step, written when its numbers have come. Of a process that is killed, all lines stay.

A first line tells whose it is. `{"kind": …, "modules": […]}` names the modules that the figures of later lines are of.
docs/watch.md describes it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from op_tools.output import messages, process
from op_tools.output.results import finite
from op_tools.watch.statistics import FIGURES, StepStatistics, Table

SCHEMA = "ditorch.watch/1"
FOLDER = "watch_result"
STEPS_FILE, ALERTS_FILE, CHECKSUMS_FILE = "steps.jsonl", "alerts.jsonl", "checksums.jsonl"


def new_folder(out: Path) -> Path:
    """Of this process alone."""
    return out / FOLDER / "{host}-rank{rank}-pid{pid}".format(**process.identity())


class LineFile:
    """Lines that are appended, each at once. A disk that is full is told once; what was written stays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.is_broken = False

    def add(self, text: str) -> None:
        if self.is_broken:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append(f"{text}\n".encode())
        except OSError as error:
            self.is_broken = True
            messages.complain(
                f"TrainingWatch cannot write {self.path} ({error.strerror}): it writes nothing more there; alerts in "
                "the terminal and training go on"
            )

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            while line:
                written = os.write(descriptor, line)
                self.size += written
                line = line[written:]
        finally:
            os.close(descriptor)


class StepLog:
    """`limit`: bytes; towards it, ever fewer steps have figures by module: every second, every fourth …"""

    def __init__(self, folder: Path, limit: int) -> None:
        self.file = LineFile(folder / STEPS_FILE)
        self._limit = limit
        self._named: dict[str, dict[str, list[Any]]] = {}

    def begin(self, facts: dict[str, Any]) -> None:
        about = {**process.identity(), "world_size": process.world_size(), "started": time.time()}
        self.file.add(json.dumps({"schema": SCHEMA, **about, **facts}))

    def add(self, found: StepStatistics) -> None:
        row: dict[str, Any] = {"step": found.step, "time": round(found.time, 3)}
        for name in ("loss", "gradient_norm", "scale"):
            value = getattr(found, name)
            if value is not None:
                row[name] = value
        if found.was_left_out:
            row["left_out"] = True
        text = json.dumps(finite(row))
        if found.tables and found.step % self._stride() == 0:
            for kind, table in found.tables.items():
                self._name(kind, table)
            kinds = ", ".join(f"{json.dumps(kind)}: {_figures(table)}" for kind, table in found.tables.items())
            text = f"{text[:-1]}, {kinds}}}"
        self.file.add(text)

    def _stride(self) -> int:
        """1 in the first half of the file, 2 in the next quarter, 4 in the next eighth …"""
        stride, left = 1, self._limit - self.file.size
        while left * 2 * stride < self._limit and stride < 2**20:
            stride *= 2
        return stride

    def _name(self, kind: str, table: Table) -> None:
        """What has changed: modules rarely, the elements of activations with each batch of another size."""
        now: dict[str, list[Any]] = {"modules": table.modules, "count": table.count}
        before = self._named.get(kind, {})
        changed = {name: values for name, values in now.items() if before.get(name) != values}
        if changed:
            self._named[kind] = now
            self.file.add(json.dumps({"kind": kind, **changed}))


def _figures(table: Table) -> str:
    parts = (f'"{name}": {_list(getattr(table, name))}' for name in FIGURES)
    return f"{{{', '.join(parts)}}}"


def _list(values: list[float]) -> str:
    """In four digits: figures of a hundred thousand steps are to be read."""
    text = ",".join([f"{value:.4g}" for value in values])
    if "n" in text:  # nan, inf
        text = ",".join(f'"{cell}"' if "n" in cell else cell for cell in text.split(","))
    return f"[{text}]"
