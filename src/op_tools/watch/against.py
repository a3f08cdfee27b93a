"""The losses of another run, step by step, to see when this one parts from them."""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from op_tools.errors import SettingError
from op_tools.watch.log import FOLDER, STEPS_FILE
from op_tools.watch.recent_values import deviation

MIN_STEPS = 16  # that both runs have, before anything is judged
_SURE_STANDARD_ERRORS = 4.0  # standard errors of a mean


class Against:
    """`share`: of the other run's loss, as far as the two may be apart."""

    def __init__(self, run: Path, rank: int, share: float) -> None:
        self._losses = losses_of(run, rank)
        self._share = share
        self._apart: deque[float] = deque(maxlen=MIN_STEPS)
        self._others: deque[float] = deque(maxlen=MIN_STEPS)
        self.is_over = False
        self.compared = 0

    def parted(self, step: int, loss: float) -> tuple[float, float] | None:
        """How far apart the runs are, and how far they may be, once that is exceeded; told once.

        What counts is the median of the last steps, and more than their noise explains: rounding alone makes two runs
        differ in single steps.
        """
        other = self._losses.get(step)
        if other is None or self.is_over:
            return None
        self.compared += 1
        self._apart.append(loss - other)
        self._others.append(other)
        if len(self._apart) < MIN_STEPS:
            return None
        apart = abs(statistics.median(self._apart))
        others = list(self._others)
        noise = deviation(later - earlier for earlier, later in zip(others, others[1:])) / MIN_STEPS**0.5
        allowed = max(self._share * abs(statistics.median(others)), _SURE_STANDARD_ERRORS * noise)
        if apart <= allowed:
            return None
        self.is_over = True
        return apart, allowed


def losses_of(run: Path, rank: int) -> dict[int, float]:
    """By step; of a run that was watched, or that has the losses of every backward pass (--losses)."""
    found: dict[int, float] = {}
    for path in sorted((run / FOLDER).glob(f"*-rank{rank}-pid*/{STEPS_FILE}")):
        found.update(_losses(path))
    if not found:
        for path in sorted((run / "losses").glob(f"*-rank{rank}-pid*.jsonl")):
            for step, loss in _losses(path):
                found[step] = found.get(step, 0.0) + loss
    if not found:
        reason = "it does not exist" if not run.exists() else f"it has no loss of rank {rank}"
        raise SettingError(
            f"OP_WATCH_AGAINST={run} cannot be compared with: {reason}; make it with `ditorch run --watch` or --losses"
        )
    return found


def _losses(path: Path) -> Iterator[tuple[int, float]]:
    """A line may be cut, where the run was killed."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
                yield int(row["step"]), float(row["loss"])
            except (ValueError, KeyError, TypeError):
                continue
