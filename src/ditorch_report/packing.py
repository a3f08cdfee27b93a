"""Data in pieces that the page unpacks when it needs them: JSON, compressed by zlib, as base64.

Base64 has no letter that means something in HTML: what comes from a run cannot leave its piece.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from typing import Any


def packed(content: Any) -> str:
    """One piece; the browser has DecompressionStream("deflate") for it."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "backslashreplace"), 6)).decode()


class Texts:
    """Texts that come again and again, by number."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.all)
            self.all.append(text)
        return found


HUGE = 1e300  # stands for infinity, which JSON does not have


def short(value: float | None, digits: int = 4) -> float | int | None:
    """A number with so many digits: more are noise, and cost bytes."""
    if value is None or math.isnan(value):
        return None
    if math.isinf(value):
        return HUGE if value > 0 else -HUGE
    found = float(f"{value:.{digits}g}")
    return int(found) if found.is_integer() and abs(found) < 1e15 else found


def differences(values: list[int]) -> list[int]:
    """Each as the difference to the one before, which compresses well."""
    return [value - before for before, value in zip([0, *values], values)]
