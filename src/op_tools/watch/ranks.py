"""Whether ranks that train together have the same weights: each writes a checksum of every step, rank 0 compares them.

By files and not by a collective: one more of those could hang a run in which the ranks are out of step. So it needs a
folder that all of them see.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from op_tools.output import process
from op_tools.watch.log import CHECKSUMS_FILE, LineFile

SCHEMA = "ditorch.checksums/1"
_SECONDS_BETWEEN_LOOKS = 1.0
_MAX_STEPS = 4096  # of this rank's own that are kept
_RANK = re.compile(r"-rank(\d+)-pid\d+$")


class Checksums:
    """Of this rank, and in rank 0 of the others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = LineFile(folder / CHECKSUMS_FILE)
        self._own: dict[int, int] = {}
        self._positions: dict[Path, int] = {}
        self._looked = 0.0
        self._started = time.time()
        self._is_told = False
        self.last = -1  # step

    def add(self, step: int, checksum: int) -> None:
        if self._file.size == 0:
            self._file.add(json.dumps({"schema": SCHEMA, **process.identity(), "group": _group()}))
        self._file.add(json.dumps({"step": step, "checksum": f"{checksum:016x}"}))
        self.last = step
        self._own[step] = checksum
        if len(self._own) > _MAX_STEPS:
            self._own.pop(next(iter(self._own)))

    def parted(self, is_end: bool = False) -> tuple[int, int] | None:
        """The first step, and the rank, in which another rank's weights differ; told once, in rank 0."""
        is_due = time.monotonic() - self._looked >= _SECONDS_BETWEEN_LOOKS
        if self._is_told or process.this_rank() != 0 or process.world_size() < 2 or not (is_due or is_end):
            return None
        self._looked = time.monotonic()
        found = min(self._differences(), default=None)
        self._is_told = found is not None
        return found

    def is_behind(self) -> bool:
        """Whether a rank that has written some steps has not got as far as this one."""
        return any(self._last_of(path) < self.last for path in self._positions)

    def _last_of(self, path: Path) -> int:
        with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
            return int(json.loads(path.read_bytes().splitlines()[-1])["step"])
        return self.last

    def _differences(self) -> Iterator[tuple[int, int]]:
        for path in sorted(self._folder.parent.glob(f"*/{CHECKSUMS_FILE}")):
            rank = _RANK.search(path.parent.name)
            if rank is None or path.parent == self._folder:
                continue
            for row in self._new_rows(path):
                own = self._own.get(row.get("step", -1))
                if own is not None and f"{own:016x}" != row.get("checksum"):
                    yield row["step"], int(rank[1])

    def _new_rows(self, path: Path) -> Iterator[dict[str, Any]]:
        """Whole lines that have come since the last look, and those that this rank had not got to then."""
        try:
            if path.stat().st_mtime < self._started - 60:  # of an earlier run
                return
            with open(path, "rb") as file:
                if path not in self._positions:
                    if json.loads(file.readline()).get("group") != _group():
                        return
                    self._positions[path] = file.tell()
                file.seek(self._positions[path])
                for line in file:
                    row = json.loads(line)
                    if not line.endswith(b"\n") or row.get("step", 0) > self.last:
                        return
                    self._positions[path] = self._positions[path] + len(line)
                    yield row
        except (OSError, ValueError, AttributeError):
            return


def _group() -> str:
    """The same in the ranks of one launch."""
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    return ":".join(os.environ.get(name, "") for name in names)
