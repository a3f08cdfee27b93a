"""The last line of the terminal while `ditorch run` works with tools: the step, the calls, what was found.

    ditorch: step 120, 45,678 calls, 2 findings, 2 ranks, 0:01:23

The terminal scrolls above it, so that what the program prints stays its own: each drawing saves the cursor, sets the
region that scrolls, writes the line below it, and puts the cursor back. In logs there is none, nor with
DITORCH_PROGRESS=0.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from ditorch_cli import summary

VARIABLE = "DITORCH_PROGRESS"
SECONDS_BETWEEN = 1.0
SECONDS_BETWEEN_RECORDS = 2  # a process writes its own so often, where there is somebody who looks
MAX_PROCESSES = 16  # that are read
_SAVE, _RESTORE, _CLEAR = "\0337", "\0338", "\033[K"
_DIM, _RED, _PLAIN = "\033[2m", "\033[31m", "\033[0m"


def is_wanted(stream: TextIO | None) -> bool:
    """On a terminal that knows how to scroll a part of itself."""
    if os.environ.get(VARIABLE, "").strip() == "0" or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return stream is not None and stream.isatty() and _size(stream)[0] > 4


class ProgressLine:
    """From `begin` to `end`, a thread draws it."""

    def __init__(self, folder: Path, stream: TextIO = sys.stderr) -> None:
        self._folder = folder
        self._stream = stream
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="ditorch progress", daemon=True)
        self._started = time.monotonic()

    def begin(self) -> None:
        rows, _ = _size(self._stream)
        # makes room where the cursor is in the last line
        self._write(f"\n{_SAVE}\033[1;{rows - 1}r{_RESTORE}\033[1A")
        self._thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        rows, _ = _size(self._stream)
        self._write(f"{_SAVE}\033[r\033[{rows};1H{_CLEAR}{_RESTORE}")

    def _draw(self) -> None:
        while True:
            rows, columns = _size(self._stream)
            words, findings = text(summary.records(self._folder, MAX_PROCESSES), time.monotonic() - self._started)
            colour = _RED if findings else _DIM
            line = f"{colour}{words[: columns - 1]}{_PLAIN}"
            self._write(f"{_SAVE}\033[1;{rows - 1}r\033[{rows};1H{line}{_CLEAR}{_RESTORE}")
            if self._is_over.wait(SECONDS_BETWEEN):
                return

    def _write(self, sequence: str) -> None:
        """In one call, so that what others write does not come between."""
        try:
            os.write(self._stream.fileno(), sequence.encode())
        except OSError:  # the terminal is gone
            self._is_over.set()


def text(records: list[dict[str, Any]], seconds: float) -> tuple[str, int]:
    """The line, and how many calls in which something was found."""
    passed = f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"
    if not records:
        return f"ditorch: no step has ended yet, {passed}", 0
    tools = [tool for record in records for tool in record["tools"]]
    calls = max((sum(tool["calls"] for tool in tools if tool["tool"] == name) for name in _names(tools)), default=0)
    findings = sum(tool.get("wrong_calls", 0) for tool in tools)
    told = "nothing found" if not findings else "1 finding" if findings == 1 else f"{findings:,} findings"
    ranks = f"{len(records)} ranks, " if len(records) > 1 else ""
    return (
        f"ditorch: step {max(record['steps'] for record in records)}, {calls:,} calls, {told}, {ranks}{passed}",
        findings,
    )


def _names(tools: list[dict[str, Any]]) -> set[str]:
    return {tool["tool"] for tool in tools}


def _size(stream: TextIO) -> tuple[int, int]:
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 0, 0
    return size.lines, size.columns
