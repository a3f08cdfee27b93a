"""A first look at a call: which of its values the device must check, and beside what.

The rows are those that a full comparison makes. What the device clears is as good as judged; else all is done in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools import native
from op_tools.autocompare.judging import random_ops, sensitivity, verdict
from op_tools.autocompare.judging.error_statistics import Found
from op_tools.autocompare.judging.limits import Precision, Tolerance, Tolerances
from op_tools.autocompare.judging.verdict import Row, Verdict
from op_tools.autocompare.observed import ObservedCall, Value
from op_tools.autocompare.reference.runs import Reference, References
from op_tools.core.gradients import Gradients
from op_tools.device import host_copies
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.values.tensors import is_dense

_FOUND: Callable[[Sequence[float]], Found] = partial(tuple.__new__, Found)  # quicker than its own function


class OnlyInFull(Exception):  # noqa: N818  it never reaches a user as an error
    """A first look cannot decide this."""


class Look:
    """A result beside what is expected. `precision` is None where both must be equal.

    `allowance`: what each element may be off by at least, in float64 and without gaps.
    """

    __slots__ = (
        "allowance", "are_in_order", "bytes", "elements", "expected", "expected_address", "got", "got_address",
        "precision", "tolerance",
    )  # fmt: skip

    def __init__(
        self,
        got: Tensor,
        expected: Tensor,
        precision: Precision | None,
        tolerance: Tolerance,
        allowance: Tensor | None = None,
    ) -> None:
        self.got: Any = got
        self.expected: Any = expected
        self.allowance = allowance
        self.precision = precision
        self.tolerance = tolerance
        layout = beside(got, expected)
        if layout is None:
            raise OnlyInFull
        self.elements, self.bytes, self.got_address, self.expected_address, self.are_in_order = layout
        if allowance is not None:
            self.bytes += allowance.nbytes  # that it holds until it is launched

    def verdict(self, numbers: Sequence[float]) -> Verdict | None:
        """What came out; None where it takes a closer look."""
        found = _FOUND(numbers)
        if self.precision is None or not self.elements:
            return verdict.RIGHT if found.max_abs == found.nonfinite == 0 else None
        return verdict.cleared(found, self.precision, self.tolerance, self.elements)


class PendingRows:
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
    """Says for each value of a call beside what the device is to look at it.

    OnlyInFull, or CannotCompare, where the device cannot tell: a full comparison says why.
    """

    def __init__(self, references: References, tolerances: Tolerances) -> None:
        self._references = references
        self._tolerances = tolerances
        self.lenient: set[str] = set()  # ops of which a full look has cleared what a first one had not

    def forward(self, call: ObservedCall, with_graph: bool) -> tuple[Reference, PendingRows]:
        """Inputs and outputs; and the run beside which they are looked at."""
        reference = self._reference(call, with_graph)
        return reference, self._pending_rows(call.values(reference, joins_unchanged=True), reference)

    def backward(
        self, call: ObservedCall, reference: Reference | None, arrived: Sequence[Any], gradients: Gradients
    ) -> PendingRows:
        """Its gradients, with the run that was kept for them if there is one. `arrived`: where the reference is."""
        if reference is None:
            reference = self._reference(call, True)
        if not reference.run_backward(arrived):
            raise OnlyInFull
        return self._pending_rows(call.gradient_values(reference, gradients), reference)

    def _reference(self, call: ObservedCall, with_graph: bool) -> Reference:
        name = call.name
        if catalogue.of(name) is None or catalogue.has(name, Trait.EMPTY) or call.is_tf32:
            raise OnlyInFull
        if random_ops.may_be_random(name) and random_ops.is_random(call):
            raise OnlyInFull
        return self._references.of(call, None, with_graph, first_look=True)

    def _pending_rows(self, values: Sequence[Value], reference: Reference) -> PendingRows:
        pending_rows = PendingRows()
        made: dict[int, Row] = {}  # by the id of a value
        for value in values:
            if value.alike is not None and made[id(value.alike[0])] is made[id(value.alike[1])]:
                pending_rows.add_alike(value.name, made[id(value.alike[0])])
                continue
            row = self._add(pending_rows, value, reference)
            made[id(value)] = row
            for member in value.members:
                made[id(member)] = row
        return pending_rows

    def _add(self, pending_rows: PendingRows, value: Value, reference: Reference) -> Row:
        name, got, expected, _, part, is_unchanged, before, members, _ = value
        if is_unchanged and (not isinstance(before, Tensor) or got is before):
            return pending_rows.add_judged(Row(name, verdict.RIGHT, *self._tolerances.of(reference.name, before)))
        if not isinstance(got, Tensor) or not isinstance(expected, Tensor):
            tolerance = self._tolerances.of(reference.name, got)
            row = verdict.plain_row(name, got, expected, None, tolerance)
            if row.is_wrong:
                raise OnlyInFull
            return pending_rows.add_judged(row)
        if got.is_cpu:
            raise OnlyInFull
        dtype = got.dtype
        tolerance = self._tolerances.for_dtype(reference.name, dtype)
        row = Row(name, None, *tolerance, verdict.error_info(dtype, expected.dtype))
        if is_unchanged:
            return pending_rows.add(row, Look(got, before, None, tolerance))
        precision = allowance = None
        if not dtype.is_floating_point or (reference.is_exact and part.role != "gradient"):
            expected = expected.to(dtype)
        else:
            precision = reference.precision(got, None, part.role)
            if reference.name in self.lenient and part.role != "input" and not members:
                # with what cancels out allowed for
                allowance = sensitivity.of(reference).allowance(part, precision)
        if not reference.ways.on_device and expected.is_cpu:
            expected = host_copies.on_device(expected, got.device)
            allowance = None if allowance is None else host_copies.on_device(allowance, got.device)
        return pending_rows.add(row, Look(got, expected, precision, tolerance, allowance))


# ---- how two tensors lie in memory beside each other -----------------------------------------------------------------

# elements, bytes of both, the address of each, and whether both are in order; addresses of 0 where elements of one
# index do not lie at one place in both, or nowhere
Beside = tuple[int, int, int, int, bool]


def choose_way() -> None:
    """With the C++ helper or without; asked when the tool starts."""
    global beside
    helper: Any = native.library()
    beside = _beside if helper is None else helper.beside


def _beside(got: Tensor, expected: Tensor) -> Beside | None:
    if got.shape != expected.shape or got.device != expected.device or not (_is_plain(got) and _is_plain(expected)):
        return None
    size = got.numel()
    are_in_order = got.is_contiguous() and expected.is_contiguous()
    lie_alike = are_in_order or (got.stride() == expected.stride() and is_dense(got))
    if not lie_alike or size == 0 or got._is_zerotensor() or expected._is_zerotensor():
        return size, got.nbytes + expected.nbytes, 0, 0, are_in_order
    return size, got.nbytes + expected.nbytes, got.data_ptr(), expected.data_ptr(), are_in_order


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.dtype.is_complex and not tensor.is_neg()


# how two tensors lie beside each other; None where a first look cannot compare them
beside: Callable[[Tensor, Tensor], Beside | None] = _beside
