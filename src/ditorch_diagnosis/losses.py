"""The losses of a run: as `ditorch run --losses` noted them, or as the program printed them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

from ditorch_diagnosis.errors import DiagnosisError

PATTERN = r"\bloss\b\W{0,3}({})"  # {} is a number
_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
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
    """The losses that the first rank of a run has noted, in their order."""
    return [loss for _, loss in noted_with_steps(run)]


def noted_with_steps(run: Path) -> list[tuple[int, float]]:
    """The same, each with its training step; a line that is half-written ends them."""
    files = sorted((run / "losses").glob("*.jsonl"), key=_rank_and_size)
    if not files:
        return []
    try:
        lines = files[0].read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except OSError as error:
        raise DiagnosisError(f"{files[0]} cannot be read: {error.strerror}") from None
    found = []
    for line in lines:
        if not line.endswith("\n"):
            break
        try:
            content = json.loads(line)
            found.append((int(content["step"]), float(content["loss"])))
        except (ValueError, TypeError, KeyError):
            raise DiagnosisError(f"{files[0]} cannot be used: line {len(found) + 1} is no loss") from None
    return found


def _rank_and_size(path: Path) -> tuple[int, int]:
    match = re.search(r"-rank(\d+)-", path.name)
    return int(match[1]) if match else 0, -path.stat().st_size


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
