"""A first look at a call: which of its values the device must look at, and beside what.

The rows are those that `Comparer` makes in full. What the device clears is as good as judged; else all is done in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from op_tools.autocompare.arguments import Arguments, is_long_list
from op_tools.autocompare.judging import verdict
from op_tools.autocompare.judging.tolerance import Tolerances
from op_tools.autocompare.judging.verdict import Verdict
from op_tools.autocompare.parts import Gradient, Output, end_to_end
from op_tools.autocompare.prefilter.screen import Look, OnlyInFull
from op_tools.autocompare.reference.pair import Pair
from op_tools.autocompare.row import Row, error_info, inconsistent, judge_plain, output_names, range_of
from op_tools.autocompare.seen import Seen
from op_tools.device import host_copies
from op_tools.values import trees


class Glances:
    """The rows of one call, or of its gradients, some of them to be decided by looks."""

    __slots__ = ("_alike", "looks", "rows", "undecided")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.looks: list[Look] = []
        self.undecided: list[Row] = []  # one for each look
        self._alike: list[tuple[Row, Row]] = []  # a row that gets the verdict of another one

    def add(self, row: Row, look: Look) -> None:
        """A row that is decided by a look."""
        self.rows.append(row)
        self.undecided.append(row)
        self.looks.append(look)

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


class Glancer:
    """Says for each value of a call beside what it is to be looked at."""

    def __init__(self, tolerances: Tolerances) -> None:
        self._tolerances = tolerances

    def forward(self, seen: Seen, pair: Pair, leniently: bool = False) -> Glances:
        """Inputs, where they may have changed, and outputs. `leniently`: with what cancels out allowed for."""
        glances = Glances()
        result, expected = seen.result, pair.expected.results
        got = [result] if isinstance(result, Tensor) else [value for _, value in trees.leaves(result)]
        if got and len(got) != len(expected):
            raise OnlyInFull
        known: dict[int, Row] = {}  # by the id of a tensor: a call that works in place returns an argument
        if seen.kept is not None:
            self._add_inputs(glances, seen, seen.kept, pair, known)
        names = output_names(seen.name, len(got))
        if is_long_list(result):
            first, last = known.get(id(got[0])), known.get(id(got[-1]))
            if first is not None and first is last:
                glances.add_alike(range_of(names), first)
            else:
                self._add(glances, range_of(names), end_to_end(got), end_to_end(expected), pair)
            return glances
        for index, (name, value, right) in enumerate(zip(names, got, expected)):
            row = known.get(id(value))
            if row is None:
                self._add(glances, name, value, right, pair, Output(index) if leniently else None)
            else:
                glances.add_alike(name, row)
        return glances

    def backward(
        self, seen: Seen, pair: Pair, grad_inputs: Sequence[Tensor | None], leniently: bool = False
    ) -> Glances:
        """The gradients that flowed out of the call's inputs; the pair has those that are expected."""
        glances, names = Glances(), seen.given.gradient_names(seen.name)
        for place, (name, got, right) in enumerate(zip(names, grad_inputs, pair.gradients or ())):
            if got is not None and right is not None:
                part = Gradient(place) if leniently else None
                self._add_tensor(glances, name, got, right, pair, is_exact=False, part=part)
        return glances

    def _add_inputs(self, glances: Glances, seen: Seen, kept: Arguments, pair: Pair, known: dict[int, Row]) -> None:
        names, changed, right = seen.given.names(seen.name, "input"), pair.changed, pair.expected.arguments.leaves
        before, after = seen.before.leaves, kept.leaves
        together: set[int] = set()
        for places in seen.given.long_lists():
            listed, are_changed = slice(places.start, places.stop), [index in changed for index in places]
            name = range_of(names[listed])
            if all(are_changed):
                row = self._add(glances, name, end_to_end(after[listed]), end_to_end(right[listed]), pair)
                known.update((id(value), row) for value in after[listed])
            elif not any(are_changed):
                self._add_unchanged(
                    glances, name, end_to_end(before[listed]), end_to_end(after[listed]), right[places.start], pair
                )
            else:
                continue
            together.update(places)
        for index, (name, old, new) in enumerate(zip(names, before, after)):
            if index in together:
                continue
            if index in changed:
                known[id(new)] = self._add(glances, name, new, right[index], pair)
            else:
                self._add_unchanged(glances, name, old, new, right[index], pair)

    def _add(self, glances: Glances, name: str, got: Any, expected: Any, pair: Pair, part: Output | None = None) -> Row:
        if isinstance(got, Tensor) and isinstance(expected, Tensor):
            return self._add_tensor(glances, name, got, expected, pair, pair.is_exact, part)
        tolerance = self._tolerances.of(pair.name, got)
        judged = judge_plain(got, expected, None, tolerance)
        if not judged.right:
            raise OnlyInFull
        row = Row(name, judged, *tolerance)
        glances.rows.append(row)
        return row

    def _add_tensor(
        self,
        glances: Glances,
        name: str,
        got: Tensor,
        expected: Tensor,
        pair: Pair,
        is_exact: bool,
        part: Output | Gradient | None = None,
    ) -> Row:
        if got.is_cpu:
            raise OnlyInFull
        tolerance = self._tolerances.for_dtype(pair.name, got.dtype)
        row = Row(
            name, None, *tolerance, "" if got.dtype is expected.dtype else inconsistent(got.dtype, expected.dtype)
        )
        precision = allowance = None
        if is_exact or not got.dtype.is_floating_point:
            expected = expected.to(got.dtype)
        else:
            precision = pair.precision(got, None)
            if part is not None:
                allowance = pair.second_look.allowance(part, precision)
        if not pair.on_device and expected.is_cpu:
            expected = host_copies.on_device(expected, got.device)
            allowance = None if allowance is None else host_copies.on_device(allowance, got.device)
        glances.add(row, Look(got, expected, precision, tolerance, allowance))
        return row

    def _add_unchanged(self, glances: Glances, name: str, before: Any, after: Any, expected: Any, pair: Pair) -> None:
        tolerance = self._tolerances.of(pair.name, before)
        if not isinstance(before, Tensor) or after is before:
            glances.rows.append(Row(name, verdict.RIGHT, *tolerance))
            return
        if before.is_cpu:
            raise OnlyInFull
        glances.add(Row(name, None, *tolerance, error_info(before, expected)), Look(after, before, None, tolerance))
