"""The truth about a faulty run, which no rule of `ditorch compare` sees: which of its calls are broken.

A kernel that strikes is counted, and so is the call that it struck in. A call whose forward is broken may keep wrong
tensors for its backward (cross entropy its log-probabilities, attention its weights): that backward is broken as well,
though each kernel in it is healthy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, NamedTuple

import op_tools
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.core.tool import Tool

Broken = tuple[int, str]  # the number of a call in its run, from 0, and the phase


class Truth(Tool[int, bool]):
    """Which calls a broken kernel ran in: (id, phase) in their order."""

    hook, prefix, feature = "TruthHook", "OP_TRUTH", "truth"
    watches_gradients = True

    def __init__(self, struck: Callable[[], int], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._struck = struck
        self._last = 0
        self.calls: list[tuple[int, str]] = []

    def before(self, call: OpCall) -> int:
        return self._struck()

    def after(self, call: OpCall, state: int) -> bool:
        if self._struck() > state:
            self.calls.append((call.id, "forward"))
        self._last = self._struck()
        return True

    def flowed(self, call: OpCall, state: bool, gradients: Gradients) -> None:
        if self._struck() > self._last:
            self.calls.append((call.id, "backward"))
        self._last = self._struck()

    def write(self, run: Path) -> None:
        (run / "truth.json").write_text(json.dumps(self.calls))


class Checksums(NamedTuple):
    """Of a run's tensors, by the number of the call and the part."""

    base: int  # the id of its first call
    parts: dict[tuple[int, str], list[int]]

    @classmethod
    def of(cls, run: Path) -> Checksums:
        records = [record for record in op_tools.read_statistics(run) if record.forward_id > 0]
        base = min(record.forward_id for record in records)
        parts: dict[tuple[int, str], list[int]] = {}
        for record in records:
            parts.setdefault((record.forward_id - base, record.part), []).append(record.checksum)
        return cls(base, parts)

    def differ(self, other: Checksums, call: int, *parts: str) -> bool:
        return any(self.parts.get((call, part)) != other.parts.get((call, part)) for part in parts)


def struck(run: Path, base: int) -> list[Broken]:
    """The calls that the broken kernel has touched, in their order."""
    return [(id - base, phase) for id, phase in json.loads((run / "truth.json").read_text())]


def first_wrong(faulty: Path, healthy: Path) -> Broken | None:
    """The first call that was struck and gives something else than the healthy kernels."""
    own, others = Checksums.of(faulty), Checksums.of(healthy)
    for call, phase in struck(faulty, own.base):
        if own.differ(others, call, "output" if phase == "forward" else "grad_inputs"):
            return call, phase
    return None


def broken(faulty: Path, healthy: Path) -> set[Broken]:
    """The struck calls, and the backwards that read what their broken forward kept.

    Such a backward is known by being given the healthy run's tensors, bit by bit, and giving others. One that is given
    others is not told from one that passes them on: it counts as healthy.
    """
    own, others = Checksums.of(faulty), Checksums.of(healthy)
    found = set(struck(faulty, own.base))
    for call, phase in list(found):
        is_given_the_same = not own.differ(others, call, "input", "grad_outputs")
        if phase == "forward" and is_given_the_same and own.differ(others, call, "grad_inputs"):
            found.add((call, "backward"))
    return found
