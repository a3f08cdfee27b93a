"""How the times of an op's runs spread: the median and the 90th percentile, from the table that OpTimeMeasure wrote."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import NamedTuple

_COLUMNS = {"forward_elasped": "forward", "backward_elasped": "backward"}


class TimeSpread(NamedTuple):
    """In ms; None where nothing ran."""

    forward_median: float | None
    forward_p90: float | None
    backward_median: float | None
    backward_p90: float | None


def of_table(path: Path) -> dict[str, TimeSpread]:
    """By op; nothing where the table cannot be read."""
    times: dict[str, dict[str, list[float]]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                own = times.setdefault(str(row["name"]), {"forward": [], "backward": []})
                for column, phase in _COLUMNS.items():
                    time = _number(row[column])
                    if time is not None:
                        own[phase].append(time)
    except (OSError, KeyError, ValueError):
        return {}
    return {name: TimeSpread(*_two(own["forward"]), *_two(own["backward"])) for name, own in times.items()}


def _number(text: str | None) -> float | None:
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if found >= 0 else None


def _two(times: list[float]) -> tuple[float | None, float | None]:
    """The median, and the smallest time that 90 % of the runs do not exceed."""
    if not times:
        return None, None
    ordered = sorted(times)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return median, ordered[math.ceil(0.9 * len(ordered)) - 1]
