"""The losses of a run: as `ditorch run --losses` noted them, or as the program printed them."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path

from ditorch_diagnosis.errors import DiagnosisError

PATTERN = r"\bloss\b\W{0,3}({})"  # {} is a number
_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_FOLDER = "losses"
_MAX_SECONDS_APART = 10  # in which all ranks have noted their first loss
_MAX_BYTES = 256 * 2**20  # of a log


def pattern(text: str | None) -> re.Pattern[str]:
    """`text`: a regular expression; its first group is the number, and {} stands for one."""
    try:
        found = re.compile((text or PATTERN).replace("{}", _NUMBER), re.IGNORECASE)
    except re.error as error:
        raise DiagnosisError(f"--pattern {text!r} is no regular expression: {error}") from None
    if found.groups < 1:
        raise DiagnosisError(f"--pattern {text!r} has no group: put the number in brackets, as in 'loss=({{}})'")
    return found


def printed(path: Path, wanted: re.Pattern[str]) -> list[float]:
    """The losses in what a program printed."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise DiagnosisError(f"{path} cannot be read: {error.strerror}") from None
    found = []
    for match in wanted.finditer(text):
        try:
            found.append(float(match[1]))
        except (TypeError, ValueError):
            raise DiagnosisError(f"--pattern found {match[1]!r} in {path}, which is no number") from None
    return found


def noted(run: Path) -> list[float]:
    """The losses of a run, in their order: the mean over its ranks, which is the whole's where they share a batch."""
    ranks = [[loss for _, loss in _read(file)] for file in _files(run).values()]
    return [sum(of_step) / len(of_step) for of_step in zip(*filter(None, ranks))]


def noted_with_steps(run: Path) -> list[tuple[int, float]]:
    """Those of the first rank, each with its training step."""
    return next(map(_read, _files(run).values()), [])


def are_of_all_ranks(run: Path) -> bool:
    """Whether each rank of a run that goes on has noted one; or is one without, as the first of a pipeline."""
    files = _files(run)
    if len(files) == next((_count(file) for file in files.values()), 0):
        return True
    return bool(files) and time.time() - (run / _FOLDER).stat().st_mtime > _MAX_SECONDS_APART


def _files(run: Path) -> dict[int, Path]:
    """Of each rank; of processes that had it one after the other, the longest."""
    found: dict[int, Path] = {}
    for file in sorted((run / _FOLDER).glob("*.jsonl"), key=_rank_and_size):
        found.setdefault(_rank_and_size(file)[0], file)
    return found


def _rank_and_size(path: Path) -> tuple[int, int]:
    match = re.search(r"-rank(\d+)-", path.name)
    return int(match[1]) if match else 0, -path.stat().st_size


def _count(file: Path) -> int:
    """How many ranks there are, as its first line tells; 1 where that has not been written yet."""
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            return int(json.loads(lines.readline()).get("ranks", 1))
    except (OSError, ValueError, TypeError, AttributeError):
        return 1


def _read(file: Path) -> list[tuple[int, float]]:
    """A line that is half-written ends them."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except OSError as error:
        raise DiagnosisError(f"{file} cannot be read: {error.strerror}") from None
    found = []
    for line in lines:
        if not line.endswith("\n"):
            break
        try:
            content = json.loads(line)
            found.append((int(content["step"]), float(content["loss"])))
        except (ValueError, TypeError, KeyError):
            raise DiagnosisError(f"{file} cannot be used: line {len(found) + 1} is no loss") from None
    return found


def of_good(path: Path, wanted: re.Pattern[str]) -> list[float]:
    """Of a good run's folder, or of the text that it printed."""
    if not path.exists():
        raise DiagnosisError(f"{path} does not exist: give the folder of a good run, or what it printed")
    found = noted(path) if path.is_dir() else printed(path, wanted)
    if not found:
        how = (
            "make it with `ditorch run --losses`, or --capture=statistics"
            if path.is_dir()
            else "--pattern says how they are written"
        )
        raise DiagnosisError(f"{path} holds no losses: {how}")
    return found


def distance(good: Sequence[float], other: Sequence[float]) -> float:
    """How far the two curves are apart at most, relative to the good one's size; infinite where one is not a number."""
    size = max((abs(loss) for loss in good if math.isfinite(loss)), default=0.0) or 1.0
    return max((_apart(a, b) / size for a, b in zip(good, other)), default=0.0)


def _apart(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    return abs(a - b) if math.isfinite(a) and math.isfinite(b) else math.inf
