"""What is usual of a curve: the median of its last values, and how far values lie from it. Few wild ones move neither.

The median is that of few values, so that a curve which falls fast, as in the beginning, is no reason for a wide limit.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable

WARM_UP = 24  # values before anything is judged
_VALUES_OF_LEVEL = 9
_MAX_DISTANCES = 64
_TO_DEVIATION = 1.4826  # of normal values, for their median distance


def deviation(distances: Iterable[float]) -> float:
    """As a standard deviation, but half of the values may be anything."""
    return _TO_DEVIATION * statistics.median(map(abs, distances))


class RecentValues:
    """The last values of a curve."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_VALUES_OF_LEVEL)
        self._distances: deque[float] = deque(maxlen=_MAX_DISTANCES)  # of each value from the median of those before it

    def limit(self, number: float, least: float) -> float | None:
        """So many deviations above the last values, each `least` at least; None in the beginning."""
        if len(self._distances) < WARM_UP:
            return None
        return self.level() + number * max(deviation(self._distances), least)

    def level(self) -> float:
        return statistics.median(self._last) if self._last else 0.0

    def add(self, value: float) -> None:
        """What is not finite says nothing about what is usual."""
        if math.isfinite(value):
            if self._last:
                self._distances.append(value - self.level())
            self._last.append(value)
