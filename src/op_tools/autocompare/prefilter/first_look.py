"""A first look at a call: which of its values the device must check, and beside what.

The rows are those that a full comparison makes. What the device clears is as good as judged; else all is done in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from op_tools.autocompare.judging import sensitivity, verdict
from op_tools.autocompare.judging.limits import Tolerances
from op_tools.autocompare.judging.verdict import Row, Verdict
from op_tools.autocompare.observed import Value
from op_tools.autocompare.prefilter.screen import Look, OnlyInFull
from op_tools.autocompare.reference.runs import Reference
from op_tools.device import host_copies


class Glances:
    """The rows of one call, or of its gradients, some of them to be decided by looks."""

    __slots__ = ("_alike", "looks", "rows", "undecided")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.looks: list[Look] = []
        self.undecided: list[Row] = []  # one for each look
        self._alike: list[tuple[Row, Row]] = []  # a row that gets the verdict of another one

    def add(self, row: Row, look: Look) -> Row:
        """A row that is decided by a look."""
        self.rows.append(row)
        self.undecided.append(row)
        self.looks.append(look)
        return row

    def add_judged(self, row: Row) -> Row:
        self.rows.append(row)
        return row

    def add_alike(self, name: str, other: Row) -> None:
        """The same value under another name: what works in place returns what it was given."""
        row = replace(other, name=name)
        self.rows.append(row)
        self._alike.append((row, other))

    def decide(self, verdicts: Sequence[Verdict | None]) -> bool:
        """With what came of each look. False where not everything is cleared."""
        for row, judged in zip(self.undecided, verdicts):
            row.verdict = judged
        for row, other in self._alike:
            row.verdict = other.verdict
        return None not in verdicts


class FirstLook:
    """Says for each value of a call beside what the device is to look at it."""

    def __init__(self, tolerances: Tolerances) -> None:
        self._tolerances = tolerances

    def at(self, values: Sequence[Value], reference: Reference, leniently: bool = False) -> Glances:
        """`leniently`: with what cancels out allowed for. OnlyInFull where the device cannot tell."""
        glances = Glances()
        made: dict[int, Row] = {}  # by the id of a value
        for value in values:
            if value.alike is not None and made[id(value.alike[0])] is made[id(value.alike[1])]:
                glances.add_alike(value.name, made[id(value.alike[0])])
                continue
            row = self._add(glances, value, reference, leniently)
            made[id(value)] = row
            for member in value.members:
                made[id(member)] = row
        return glances

    def _add(self, glances: Glances, value: Value, reference: Reference, leniently: bool) -> Row:
        name, got, expected, _, part, is_unchanged, before, members, _ = value
        if is_unchanged and (not isinstance(before, Tensor) or got is before):
            return glances.add_judged(Row(name, verdict.RIGHT, *self._tolerances.of(reference.name, before)))
        if not isinstance(got, Tensor) or not isinstance(expected, Tensor):
            tolerance = self._tolerances.of(reference.name, got)
            judged = verdict.judge_plain(got, expected, None, tolerance)
            if not judged.right:
                raise OnlyInFull
            return glances.add_judged(Row(name, judged, *tolerance))
        if got.is_cpu:
            raise OnlyInFull
        dtype = got.dtype
        tolerance = self._tolerances.for_dtype(reference.name, dtype)
        row = Row(name, None, *tolerance, verdict.error_info(dtype, expected.dtype))
        if is_unchanged:
            return glances.add(row, Look(got, before, None, tolerance))
        precision = allowance = None
        if not dtype.is_floating_point or (reference.is_exact and part.role != "gradient"):
            expected = expected.to(dtype)
        else:
            precision = reference.precision(got, None)
            if leniently and part.role != "input" and not members:
                allowance = sensitivity.of(reference).allowance(part, precision)
        if not reference.ways.on_device and expected.is_cpu:
            expected = host_copies.on_device(expected, got.device)
            allowance = None if allowance is None else host_copies.on_device(allowance, got.device)
        return glances.add(row, Look(got, expected, precision, tolerance, allowance))
