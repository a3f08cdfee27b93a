"""What a comparison found, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from op_tools.compare_runs.findings import SCHEMA, Before, Findings, Place
from op_tools.output.boxes import fitted
from op_tools.output.results import finite

_MAX_BEFORE = 12
_MAX_MODULES = 30
_MAX_GUILTY = 5


def as_json(found: Findings) -> dict[str, Any]:
    """docs/compare.md describes it."""
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "runs": [found.a, found.b],
        "exit_code": found.exit_code,
        "first_divergence": None if found.first_divergence is None else asdict(found.first_divergence),
        "guilty": [asdict(place) for place in found.guilty],
        "before": [asdict(one) for one in found.before],
        "suspects": [asdict(place) for place in found.suspects],
        "second_pass": None if found.second_pass is None else asdict(found.second_pass),
        "cleared": [asdict(place) for place in found.cleared],
        "chain": [asdict(place) for place in found.chain],
        "worst": [asdict(place) for place in found.worst],
        "modules": [asdict(row) for row in found.modules],
        "not_comparable": found.not_comparable,
        "counts": {
            "steps": found.steps,
            "calls": found.calls,
            "events": found.events,
            "same": found.same,
            "only_a": found.only_a,
            "only_b": found.only_b,
        },
        "outside_steps": [asdict(one) for one in found.outside_steps],
        "ranks": found.ranks,
        "replicas": found.replicas,
    }
    plain: dict[str, Any] = finite(content)
    return plain


def text(found: Findings, width: int) -> str:
    """What differs before the first op; the first divergence; the worst; the modules; what cannot be compared."""
    lines = [*_before(found), *_first(found), *_worst(found, width), *_modules(found, width), *_rest(found)]
    # names come from files, and must not be able to steer the terminal
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in "\n".join(lines))


def _before(found: Findings) -> Iterator[str]:
    if not found.before:
        return
    yield "before the first op"
    for one in found.before[:_MAX_BEFORE]:
        yield f"  {_difference(found, one)}"
    if len(found.before) > _MAX_BEFORE:
        yield f"  … and {len(found.before) - _MAX_BEFORE} more (--json)"
    yield ""


def _difference(found: Findings, one: Before) -> str:
    if one.moves_numbers:
        apart = f", {one.a:.2g} apart" if isinstance(one.a, float) else ""
        if one.what == "weights":
            return f"weights differ: {one.name}{apart} ({found.step_name(one.step, one.rank)}, rank {one.rank})"
        return f"{found.step_name(one.step, one.rank)} got other data: {one.name}{apart} (rank {one.rank})"
    return f"{one.what}: {one.name}: {_short(one.a)} | {_short(one.b)}"


def _short(value: Any) -> str:
    words = str(value)
    return words if len(words) <= 100 else f"{words[:99]}…"


def _first(found: Findings) -> Iterator[str]:
    first = found.first_divergence
    if first is None:
        same = f"{found.same:,} of {found.events:,} bit by bit"
        if found.calls:
            yield f"no divergence: {found.calls:,} calls {_in_steps(found)} agree within rounding, {same}"
        else:
            yield "cannot tell: the runs have no call in common"
        yield ""
        return
    yield f"first divergence: {first.kind}"
    yield from (f"  {line}" for line in _place(found, first))
    reason = f"it came from {first.origin or 'outside'}"
    if first.kind == "guilty":
        reason = "its inputs agree within rounding, its results do not"
    yield f"  {reason}: results {first.distance:.2g} apart, inputs {first.inputs:.2g} (relative to their norms)"
    if first.reason:
        whose = f"it is {found.a} whose data is wrong" if first.side == "a" else "its data says so, too"
        yield f"  {whose}: {first.reason}"
        yield f"  ditorch reproduce {first.capture}"
    if len(found.chain) > 1:
        ways = " → ".join(f"{one.op.rpartition('.')[2]} {one.distance:.1g}" for one in found.chain)
        yield f"  from there: {ways}"
    others = found.guilty[1:] if first.kind == "guilty" else found.guilty
    if others:
        yield f"perhaps guilty as well, behind it: {len(others)}"
        for place in others[:_MAX_GUILTY]:
            yield f"  {' | '.join(_place(found, place))}: {place.distance:.2g} from {place.inputs:.2g}"
    yield ""


def _place(found: Findings, place: Place) -> Iterator[str]:
    module = f" in {place.module}" if place.module else ""
    tensor = f"{place.part}{place.place} {tuple(place.shape)} {place.dtype}"
    yield f"{found.step_name(place.step, place.rank)}, rank {place.rank}: {place.op}{module}, {place.phase}, {tensor}"
    yield place.where


def _worst(found: Findings, width: int) -> Iterator[str]:
    if not found.worst:
        return
    rows = [
        [
            found.step_name(one.step, one.rank, in_short=True),
            str(one.rank),
            one.op,
            one.module,
            one.phase,
            f"{one.distance:.2g}",
            f"{one.inputs:.2g}",
            one.kind,
        ]
        for one in found.worst[:_MAX_GUILTY]
    ]
    yield "furthest apart"
    yield fitted(("step", "rank", "op", "module", "phase", "distance", "of inputs", "kind"), rows, width)


def _modules(found: Findings, width: int) -> Iterator[str]:
    rows = [row for row in found.modules if row.distance > 0]
    if not rows:
        return
    cells = [
        [
            row.module or "(no module)",
            str(row.events),
            str(row.same),
            str(row.guilty or ""),
            f"{row.distance:.2g}",
            row.op,
        ]
        for row in rows[:_MAX_MODULES]
    ]
    yield "by module, in the order in which they ran"
    yield fitted(("module", "events", "same bits", "guilty", "largest", "of"), cells, width)
    if len(rows) > _MAX_MODULES:
        yield f"… and {len(rows) - _MAX_MODULES} more (--json)"


def _rest(found: Findings) -> Iterator[str]:
    for place in found.cleared:
        where = f"{found.step_name(place.step, place.rank)}, {place.op} in {place.module or 'no module'}"
        yield f"cleared by its data: {where}, {place.phase}"
    if found.second_pass is not None:
        if not found.guilty:
            yield f"nothing is certain, most suspect: {', '.join(found.second_pass.ops)}"
        purpose = "to prove it" if found.guilty else "to settle it"
        yield f"{purpose}, capture their data and compare again: {found.second_pass.command}"
    for line in found.not_comparable:
        yield f"not comparable: {line}"
    yield (
        f"{found.calls:,} calls compared {_in_steps(found)}, {_on_ranks(found)}; only in the first run "
        f"{found.only_a:,}, only in the second {found.only_b:,}"
    )


def _in_steps(found: Findings) -> str:
    """`in 6 steps and after the last step`."""
    steps = [f"in {found.steps} step{'s' * (found.steps != 1)}"] if found.steps else []
    words = [*steps, *dict.fromkeys(one.when for one in found.outside_steps)] or ["in no step"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _on_ranks(found: Findings) -> str:
    """`4 ranks (2 replicas of the model)`."""
    count = len(found.ranks)
    return f"{count} rank(s)" + (f" ({found.replicas} replicas of the model)" if found.replicas > 1 else "")
