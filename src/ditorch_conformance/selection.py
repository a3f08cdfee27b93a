"""Which of a file's cases are run."""

from __future__ import annotations

import fnmatch
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ditorch_conformance.errors import ConformanceError
from ditorch_conformance.results import IMPORT, Case, portable

_EXAMPLES = "add, nn.functional.gelu, nn.Linear, optim.SGD, _refs.add, kernel.mm"


@dataclass(frozen=True)
class Selection:
    """Cases whose `Class.name` fits the pattern, and of these one in so many.

    Which one depends on the case's name alone, without its device's: runs on two devices take the same cases, and a
    test that is made in a hundred dtypes and ops has its share.
    """

    pattern: str = "*"
    one_in: int = 1
    names: tuple[str, ...] = ()  # of the op matrix: what its worker was asked for

    def of(self, cases: Iterable[Case]) -> list[Case]:
        return [case for case in cases if self._takes(case)]

    def check(self, cases: Sequence[Case]) -> None:
        """ConformanceError where nothing was found to run, or nothing of what was named."""
        found = {case.classname for case in cases}
        missing = [name for name in self.names if not fnmatch.filter(found, name)]
        if missing and self.one_in == 1 and not any(case.name == IMPORT for case in cases):
            raise ConformanceError(
                f"There is no {missing[0]!r} in torch's lists in these dtypes. Names are such as {_EXAMPLES}; "
                "* stands for anything."
            )
        if cases:
            return
        if self.one_in > 1:
            raise ConformanceError(f"--one-in {self.one_in} leaves no case: take a smaller number.")
        if self.pattern != "*":
            raise ConformanceError(f"No case fits -k {self.pattern!r}. It is matched with Class.name; * is anything.")
        raise ConformanceError("There is no case for this device.")

    def options(self) -> dict[str, Any]:
        """As a run's journal keeps them."""
        given = {"wanted": (self.pattern, "*"), "one_in": (self.one_in, 1)}
        return {name: value for name, (value, default) in given.items() if value != default}

    def _takes(self, case: Case) -> bool:
        if not fnmatch.fnmatch(f"{case.classname}.{case.name}", self.pattern):
            return False
        return zlib.crc32(str(portable(case)).encode()) % self.one_in == 0
