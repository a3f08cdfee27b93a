"""Every attempt of a run, one line of JSON each, written as it comes: all that is needed to go on after a kill.

A line is one `write`; a kill or a power cut leaves at most one broken line, the last, which the next run cuts off.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ditorch_conformance.errors import ConformanceError
from ditorch_conformance.results import STATUSES, Attempt, Case, Result, result_of

NAME = "journal.jsonl"
_MAX_QUOTED = 60


class Journal:
    """Open for one runner: another one on the same folder is refused. Threads may add."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        """`options`: what the results depend on; a folder with results of other options is refused."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / NAME
        self._lock = threading.Lock()
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise ConformanceError(
                f"{folder} is in use by another run: wait for it, or choose another --out."
            ) from None
        self.contents = Contents(_whole_lines(self._file), self.path)
        if self.contents.options != options and not self.contents.attempts:  # it never came to run anything
            os.ftruncate(self._file, 0)
            self.contents = Contents([], self.path)
        if self.contents.options is None:
            self._write({"options": options})
            self.contents.options = options
        elif self.contents.options != options:
            before = {name: value for name, value in self.contents.options.items() if options.get(name) != value}
            raise ConformanceError(
                f"{folder} holds a run with other options ({', '.join(f'{k}: {v}' for k, v in before.items())}): "
                "choose another --out, or remove it."
            )

    def add(self, attempt: Attempt) -> None:
        with self._lock:
            self._write({"attempt": _plain(attempt)})
            self.contents.take(attempt)

    def add_cases(self, file: str, cases: list[Case]) -> None:
        """What discovery found in a file."""
        with self._lock:
            self._write({"file": file, "cases": [[case.classname, case.name] for case in cases]})
            self.contents.cases[file] = cases

    def close(self) -> None:
        os.close(self._file)

    def _write(self, line: dict[str, Any]) -> None:
        """All of it or nothing: a disk that is full takes a part."""
        content, size = (json.dumps(line) + "\n").encode(), os.fstat(self._file).st_size
        try:
            while content:
                content = content[os.write(self._file, content) :]
        except OSError as error:
            os.ftruncate(self._file, size)
            raise ConformanceError(
                f"{self.path} cannot be written ({error.strerror}). What is in it is whole: the same command goes on."
            ) from None


class Contents:
    """What a journal says."""

    def __init__(self, lines: list[str], path: Path) -> None:
        """`path`: for messages."""
        self.options: dict[str, Any] | None = None
        self.cases: dict[str, list[Case]] = {}
        self.attempts: dict[Case, list[Attempt]] = {}
        for number, text in enumerate(lines, 1):
            try:
                if not text.isascii():  # not as it was written
                    raise ValueError(text)
                self._take_line(json.loads(text))
            except (ValueError, TypeError, KeyError):
                raise ConformanceError(
                    f"{path} line {number} is not a run's: {text[:_MAX_QUOTED]!r}. Remove the line, or the folder."
                ) from None

    def _take_line(self, line: dict[str, Any]) -> None:
        if "options" in line:
            self.options = line["options"]
        elif "cases" in line:
            self.cases[line["file"]] = [Case(line["file"], *names) for names in line["cases"]]
        else:
            attempt = Attempt(**{**line["attempt"], "case": Case(*line["attempt"]["case"])})
            if attempt.status not in STATUSES:
                raise ValueError(attempt.status)
            self.take(attempt)

    def take(self, attempt: Attempt) -> None:
        self.attempts.setdefault(attempt.case, []).append(attempt)

    def results(self) -> list[Result]:
        """One per case that was run, in the order of their first attempts."""
        return [result_of(attempts) for attempts in self.attempts.values()]

    def never_run(self) -> list[Case]:
        return [case for cases in self.cases.values() for case in cases if case not in self.attempts]


def read(folder: Path) -> Contents:
    """The journal of a run, also of one that is under way."""
    try:
        content = (folder / NAME).read_bytes()
    except OSError:
        raise ConformanceError(
            f"There is no run in {folder}: {NAME} is missing. `ditorch conformance pytorch` and `ops` make one."
        ) from None
    return Contents(_lines(content[: content.rfind(b"\n") + 1]), folder / NAME)


def _whole_lines(file: int) -> list[str]:
    """All lines; a broken last one is cut off."""
    with os.fdopen(os.dup(file), "rb") as whole:
        content = whole.read()
    end = content.rfind(b"\n") + 1
    with contextlib.suppress(OSError):
        os.ftruncate(file, end)
    return _lines(content[:end])


def _lines(content: bytes) -> list[str]:
    return content.decode("ascii", errors="replace").split("\n")[:-1]


def _plain(attempt: Attempt) -> dict[str, Any]:
    return {name: value for name, value in asdict(attempt).items() if value not in ("", 0, {})}
