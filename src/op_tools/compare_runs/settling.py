"""Settles suspects by their data: each captured call is computed again in float64, from the inputs that it had.

What statistics leave in doubt, in bfloat16 above all, data decides: a call whose captured results are wrong is guilty,
and one whose results are right is not, however far apart the two runs are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from op_tools.autocompare.judging.comparer import Comparison
from op_tools.compare_runs.calls import plain_module, plain_source
from op_tools.compare_runs.findings import Findings, Place
from op_tools.errors import OpToolsError
from op_tools.output import messages
from op_tools.replay import replay
from op_tools.replay.runner import captured_results
from op_tools.storage import store

_Key = tuple[int, int, str, str, str]  # step, rank, op, module, source


class _Captured:
    """A call whose data was kept."""

    def __init__(self, folder: Path, note: dict[str, Any]) -> None:
        self.folder = folder
        self.op, self.source = str(note.get("name", "")), str(note.get("source", ""))
        self.module = plain_module(str(note.get("module", "")))
        self.id, self.step, self.rank = (int(note.get(key) or 0) for key in ("forward_id", "step", "rank"))

    @property
    def key(self) -> _Key:
        return self.step, self.rank, self.op, self.module, plain_source(self.source)


def settle(findings: Findings, data: Path) -> None:
    """Judges what was captured below `data` on the side of run B, and puts guilty calls in their order."""
    wrong: list[Place] = []
    right: Counter[tuple[_Key, str]] = Counter()
    known = {_key(place): place for place in (*findings.suspects, *findings.guilty)}
    for captured in sorted(_captures(data), key=lambda one: (one.step, one.rank, one.id)):
        for phase, comparison in _judged(captured, findings):
            reasons = [row for row in comparison.rows if row.is_wrong and row.verdict is not None]
            if not reasons:
                right[captured.key, phase] += 1
                continue
            worst = max(reasons, key=lambda row: row.verdict.severity if row.verdict is not None else 0.0)
            reason = worst.verdict.reason if worst.verdict is not None else ""
            wrong.append(_place(captured, phase, known.get((captured.key, phase)), worst.name, reason))
    _put(findings, wrong, right)
    if wrong or right:
        findings.second_pass = None


def _captures(data: Path) -> Iterator[_Captured]:
    for folder in store.find_captures(data):
        note = store.load_note(folder)
        if note:
            yield _Captured(folder, note)


def _judged(captured: _Captured, findings: Findings) -> Iterator[tuple[str, Comparison]]:
    try:
        capture = replay.load(captured.folder)
        yield from captured_results(captured.folder, capture)
    except OpToolsError as error:
        findings.not_comparable.append(str(error))
    except Exception as error:  # noqa: BLE001  whatever the op raises
        findings.not_comparable.append(f"{captured.folder} cannot be computed again: {messages.in_short(error)}")


def _key(place: Place) -> tuple[_Key, str]:
    return (place.step, place.rank, place.op, place.module, plain_source(place.where)), place.phase


def _place(captured: _Captured, phase: str, like: Place | None, name: str, reason: str) -> Place:
    part = "output" if phase == "forward" else "grad_inputs"
    if like is not None:
        return replace(like, kind="guilty", reason=reason, capture=str(captured.folder))
    place = name[name.index("[") :] if "[" in name else ""
    return Place(
        captured.step, captured.rank, captured.op, captured.module, captured.source, phase, part, place, "guilty",
        0.0, 0.0, 0.0, [], "", 0, captured.id, reason, str(captured.folder),
    )  # fmt: skip


def _put(findings: Findings, wrong: list[Place], right: Counter[tuple[_Key, str]]) -> None:
    """What data has shown to be wrong comes first; what it has shown to be right is no longer guilty."""
    blamed = {_key(place) for place in wrong}
    findings.cleared = [place for place in findings.guilty if right[_key(place)] and _key(place) not in blamed]
    kept = [place for place in findings.guilty if place not in findings.cleared and _key(place) not in blamed]
    findings.guilty = sorted([*wrong, *kept], key=_order)
    first = findings.first_divergence
    if first is None or first.kind == "guilty":
        findings.first_divergence = findings.guilty[0] if findings.guilty else None


def _order(place: Place) -> tuple[int, bool, int]:
    """Forward before backward, which runs from the last call to the first."""
    is_backward = place.phase == "backward"
    return place.step, is_backward, -place.other_forward_id if is_backward else place.other_forward_id
