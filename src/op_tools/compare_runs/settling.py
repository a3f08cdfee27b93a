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

from op_tools.compare_runs.calls import plain_module, plain_source
from op_tools.compare_runs.findings import Findings, Place
from op_tools.errors import OpToolsError
from op_tools.output import messages
from op_tools.replay import replay
from op_tools.replay.runner import captured_results
from op_tools.storage import store

_Key = tuple[int, int, str, str, str]  # step, rank, op, module, source
_Order = tuple[int, bool, int]
_MAX_GUILTY = 5


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


def settle(findings: Findings, data: Path, of_suspects: bool = False) -> None:
    """Judges what was captured below `data` on the side of run B, and puts guilty calls in their order.

    `of_suspects`: `data` is run B itself, which kept everything, and only what is in doubt is computed again.
    """
    wrong: list[tuple[_Order, Place]] = []
    right: Counter[tuple[_Key, str]] = Counter()
    known = {_key(place): place for place in (*findings.suspects, *findings.guilty)}
    first = [] if findings.first_divergence is None else [findings.first_divergence]
    doubtful = [*first, *findings.guilty[:_MAX_GUILTY], *findings.suspects]
    ids = {(place.rank, place.other_forward_id) for place in doubtful} if of_suspects else None
    for captured in _captures(data, ids):
        for phase, reason, name in _judged(captured, findings):
            if reason:
                place = _place(captured, phase, known.get((captured.key, phase)), name, reason)
                wrong.append((_order(captured.step, phase, captured.id), place))
            else:
                right[captured.key, phase] += 1
    wrong.sort(key=lambda one: one[0])
    _put(findings, [place for _, place in wrong], right)
    if wrong or right:
        findings.second_pass = None


def doubt_good_side(findings: Findings, data: Path) -> None:
    """The same calls of run A, which kept everything, too: is it the good run that is wrong?"""
    doubtful = [*findings.guilty[:_MAX_GUILTY], *findings.cleared]
    places = {(place.rank, place.forward_id, place.phase): place for place in doubtful}
    if not places:
        return
    for captured in _captures(data, {key[:2] for key in places}):
        for phase, reason, _ in _judged(captured, findings):
            place = places.get((captured.rank, captured.id, phase))
            if reason and place is not None:
                _blame_good_side(findings, place, reason, str(captured.folder))


def _blame_good_side(findings: Findings, place: Place, reason: str, capture: str) -> None:
    is_wrong_in_both = any(one.capture and _key(one) == _key(place) for one in findings.guilty)
    if is_wrong_in_both:
        findings.not_comparable.append(f"{place.op} is wrong in both runs: in {findings.a}, {reason}")
        return
    found = replace(place, kind="guilty", side="a", reason=reason, capture=capture)
    findings.cleared = [one for one in findings.cleared if _key(one) != _key(place)]
    findings.guilty = sorted([found, *(one for one in findings.guilty if _key(one) != _key(place))], key=_order_of)
    findings.first_divergence = findings.guilty[0]


def _captures(data: Path, ids: set[tuple[int, int]] | None) -> list[_Captured]:
    """Of these ranks and calls, or all; in the order in which they were made."""
    notes = ((folder, store.load_note(folder)) for folder in store.find_captures(data))
    found = [_Captured(folder, note) for folder, note in notes if note]
    chosen = [one for one in found if ids is None or (one.rank, one.id) in ids]
    return sorted(chosen, key=lambda one: (one.step, one.rank, one.id))


def _judged(captured: _Captured, findings: Findings) -> Iterator[tuple[str, str, str]]:
    """Of each phase: what is wrong with the result that is furthest off, and its name; empty where nothing is."""
    try:
        capture = replay.load(captured.folder)
        for phase, comparison in captured_results(captured.folder, capture):
            reasons = [(row.verdict, row.name) for row in comparison.rows if row.is_wrong and row.verdict is not None]
            worst = max(reasons, key=lambda one: one[0].severity, default=None)
            yield (phase, "", "") if worst is None else (phase, worst[0].reason, worst[1])
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
    """What data has shown to be right is no longer guilty; what it has shown to be wrong comes first in its pass.

    The calls of the data may have other numbers than those of the run: they are in the order of their own.
    """
    blamed = {_key(place) for place in wrong}
    findings.cleared = [place for place in findings.guilty if right[_key(place)] and _key(place) not in blamed]
    kept = [place for place in findings.guilty if place not in findings.cleared and _key(place) not in blamed]
    kept.sort(key=_order_of)
    findings.guilty = sorted([*wrong, *kept], key=lambda place: (place.step, place.phase == "backward"))
    first = findings.first_divergence
    if first is None or first.kind == "guilty" or (first.origin and findings.guilty):
        findings.first_divergence = findings.guilty[0] if findings.guilty else None


def _order(step: int, phase: str, id: int) -> _Order:
    """Forward before backward, which runs from the last call to the first."""
    is_backward = phase == "backward"
    return step, is_backward, -id if is_backward else id


def _order_of(place: Place) -> _Order:
    return _order(place.step, place.phase, place.other_forward_id)
