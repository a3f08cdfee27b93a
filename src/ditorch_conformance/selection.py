"""Which of a file's cases are run."""

from __future__ import annotations

import fnmatch
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ditorch_conformance.results import Case, portable


@dataclass(frozen=True)
class Selection:
    """Cases whose `Class.name` fits the pattern, and of these one in so many.

    Which one depends on the case's name alone, without its device's: runs on two devices take the same cases, and a
    test that is made in a hundred dtypes and ops has its share.
    """

    pattern: str = "*"
    one_in: int = 1

    def of(self, cases: Iterable[Case]) -> list[Case]:
        return [case for case in cases if self._takes(case)]

    def options(self) -> dict[str, Any]:
        """As a run's journal keeps them."""
        given = {"wanted": (self.pattern, "*"), "one_in": (self.one_in, 1)}
        return {name: value for name, (value, default) in given.items() if value != default}

    def _takes(self, case: Case) -> bool:
        if not fnmatch.fnmatch(f"{case.classname}.{case.name}", self.pattern):
            return False
        return zlib.crc32(str(portable(case)).encode()) % self.one_in == 0
