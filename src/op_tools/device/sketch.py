"""The numbers of a sketch (digest.py says what it is), for those who read and move them. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

NUMBERS = 4  # complex numbers of the sketch proper
PROFILES = 2  # of them also along rows, and along columns
SKETCH = 2 * NUMBERS + 4 * PROFILES + 2
SKETCH_VERSION = 2  # in the head of every file: only sketches of one version can be compared
PERIOD = 16  # places of the last dimension after which its weights repeat but for a turn

# about 0.31, 0.11, 0.037 and 0.013 of a circle, and no simple fractions; slow ones, too, or all would miss what is
# constant along a dimension
_TURNS = (1332921573, 471529187, 160596103, 56294617)


def turn(number: int, dimension: int) -> int:
    """By how much the weight turns from one place to the next; of the last dimension, which is 0, with each PERIOD."""
    return _TURNS[number] + dimension * (_TURNS[number] // 10)


def matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns: all dimensions but the last, and the last."""
    columns = shape[-1] if shape else 1
    return (math.prod(shape[:-1]) if shape else 1), columns
