"""Tables that grow on disk: CSV files, written in whole rows so that a killed process leaves a readable file."""

from __future__ import annotations

import csv
import io
import os
import threading
import weakref
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from op_tools.output import messages, paths, process


@lru_cache(maxsize=10_000)
def cell(text: str) -> str:
    """As it stands in the file; the same few texts come again and again."""
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text


# those that exist, for who wants their rows on disk now
_files: weakref.WeakSet[CsvFile] = weakref.WeakSet()


def write_out() -> None:
    """Writes the rows of all tables that wait: a page that follows the run sees them, and no kill can take them."""
    for file in list(_files):
        file.close()


class CsvFile:
    """Rows are kept until there are `most` of them, then written out; `close` writes the rest.

    The file is made with the first rows, and ends each with the host and the rank. Where it cannot be written (a full
    disk), that is said once, and rows are dropped.
    """

    def __init__(self, path: Path, columns: Sequence[str], most: int) -> None:
        self.path = path
        self._columns = columns
        self._most = most
        self._rows: list[Sequence[Any] | str | bytes] = []
        self._more = 0  # rows, where one of `_rows` is several
        self._lock = threading.Lock()
        self._begun = False
        self._broken = False
        _files.add(self)

    def add(self, row: Sequence[Any] | str) -> None:
        """A row, or the line that is to stand in the file: cells made by `cell`, with commas between."""
        with self._lock:
            self._rows.append(row)
            if len(self._rows) >= self._most:
                self._write()

    def add_lines(self, lines: bytes, count: int) -> None:
        """Some rows as they are to stand in the file, each with its end."""
        if count:
            with self._lock:
                self._rows.append(lines)
                self._more += count - 1
                if len(self._rows) + self._more >= self._most:
                    self._write()

    def close(self) -> None:
        with self._lock:
            self._write()

    @property
    def written(self) -> bool:
        """True where there is a file to point the user to."""
        return self._begun and not self._broken

    def _write(self) -> None:
        rows, self._rows, self._more = self._rows, [], 0
        if not rows or self._broken:
            return
        end = f",{cell(process.this_host())},{process.this_rank()}\r\n".encode()
        text = b"".join(map(_row, rows)).replace(b"\r\n", end)
        try:
            if self._begun:
                file = open(self.path, "ab")  # noqa: SIM115  closed below
            else:
                descriptor, self.path = paths.create(self.path)
                file = os.fdopen(descriptor, "ab")
                text = _row((*self._columns, "host", "rank")) + text
            with file:
                file.write(text)
            self._begun = True
        except OSError as error:
            self._broken = True
            messages.complain(f"{self.path} cannot be written ({error.strerror}): its rows are lost, training goes on")


def _row(row: Sequence[Any] | str | bytes) -> bytes:
    """As it stands in the file."""
    if isinstance(row, bytes):
        return row
    if isinstance(row, str):
        return f"{row}\r\n".encode(errors="backslashreplace")
    text = io.StringIO()
    csv.writer(text).writerow(row)
    return text.getvalue().encode(errors="backslashreplace")
