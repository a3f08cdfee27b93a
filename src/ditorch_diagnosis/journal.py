"""What is known of the trials of a search, on disk: a search that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ditorch_diagnosis.errors import DiagnosisError

SCHEMA = "ditorch.trials/1"
FILE = "trials.jsonl"
_MAX_HASHED = 16 * 2**20  # bytes of a file that is named in the command
_COUNTED = ("DITORCH_", "OP_", "CUDA_", "TORCH_", "CUBLAS_")  # variables that make another program of it
_LEFT_OUT = ("OP_TOOLS_VERBOSE", "OP_TOOLS_OUT", "OP_TOOLS", "DITORCH_RUN")


@dataclass(frozen=True)
class Outcome:
    """Of one trial."""

    ops: list[str]
    passes: bool | None
    reason: str
    distance: float | None
    seconds: float
    folder: str


class Log:
    """A file to which lines of JSON are appended, behind one that says what they belong to.

    A last line that is half-written, because the process was killed, is dropped.
    """

    def __init__(self, folder: Path, name: str, schema: str, identity: str) -> None:
        self.folder = folder
        self._path = folder / name
        self.lines: list[dict[str, Any]] = []
        if self._path.exists():
            self._read(schema, identity)
        else:
            self._write({"schema": schema, "identity": identity})

    def append(self, content: dict[str, Any]) -> None:
        self.lines.append(content)
        self._write(content)

    def damaged(self) -> DiagnosisError:
        return DiagnosisError(f"{self._path} is damaged: remove it, or give another folder (--out)")

    def _write(self, content: dict[str, Any]) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(content, ensure_ascii=False) + "\n")
        except OSError as error:
            raise DiagnosisError(
                f"{self.folder} cannot be written ({error.strerror}): give another folder (--out)"
            ) from None

    def _read(self, schema: str, identity: str) -> None:
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise DiagnosisError(f"{self._path} cannot be read: {error.strerror}") from None
        whole, _, half = text.rpartition("\n")
        try:
            head, *lines = [json.loads(line) for line in whole.splitlines()]
            if head["schema"] != schema:
                raise DiagnosisError(f"{self._path} is of another release ({head['schema']}): give another folder")
            if head["identity"] != identity:
                raise DiagnosisError(f"{self.folder} holds the search of another command or check: give another folder")
        except (ValueError, TypeError, KeyError):
            raise self.damaged() from None
        if not all(isinstance(line, dict) for line in lines):
            raise self.damaged()
        self.lines = lines
        if half:
            self._path.write_text(whole + "\n", encoding="utf-8")


class Journal:
    """The trials of a search."""

    def __init__(self, folder: Path, identity: str) -> None:
        self.folder = folder
        self._log = Log(folder, FILE, SCHEMA, identity)
        self._known: dict[tuple[str, ...], Outcome] = {}
        self.trials: list[Outcome] = []
        try:
            for line in self._log.lines:
                self._keep(Outcome(**line))
        except TypeError:
            raise self._log.damaged() from None

    def find(self, ops: Sequence[str]) -> Outcome | None:
        return self._known.get(tuple(sorted(ops)))

    def add(self, outcome: Outcome) -> None:
        self._keep(outcome)
        self._log.append(asdict(outcome))

    def _keep(self, outcome: Outcome) -> None:
        self._known.setdefault(tuple(sorted(outcome.ops)), outcome)
        self.trials.append(outcome)


def identity(command: Sequence[str], *more: str) -> str:
    """The same for the same command, files named in it, variables and check, and for nothing else."""
    variables = sorted(
        f"{name}={text}" for name, text in os.environ.items() if name.startswith(_COUNTED) and name not in _LEFT_OUT
    )
    parts = [*command, *(_content(word) for word in command), os.getcwd(), *variables, *more]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _content(word: str) -> str:
    path = Path(word)
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return hashlib.sha256(file.read(_MAX_HASHED)).hexdigest()
    except (OSError, ValueError):
        return ""
