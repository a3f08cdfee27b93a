"""The full verdict on the values of a call: one row for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from op_tools.autocompare.judging import choices, factors, jumps, rounded_scans, sensitivity, shares, ties, verdict
from op_tools.autocompare.judging.limits import MOVES, GivenTolerance, Precision, Tolerance, Tolerances
from op_tools.autocompare.judging.measures import dense, measured, same_bits
from op_tools.autocompare.judging.verdict import RIGHT, Row, Verdict, error_info
from op_tools.autocompare.observed import Value
from op_tools.autocompare.reference.runs import Reference
from op_tools.ops.catalogue import Trait


def rows_of(values: Sequence[Value], reference: Reference, tolerances: Tolerances) -> list[Row]:
    """One for each value; several for a list of tensors of which some are wrong."""
    rows: list[Row] = []
    made: dict[int, Row] = {}  # by the id of a value
    for value in values:
        if value.alike is not None:
            first, last = made[id(value.alike[0])], made[id(value.alike[1])]
            if first is last:
                rows.append(replace(first, name=value.name))
                continue
        row = _row(value, reference, tolerances)
        made[id(value)] = row
        if not value.members:
            rows.append(row)
            continue
        each = [row] * len(value.members)
        if row.is_wrong:
            alone = [_row(member, reference, tolerances) for member in value.members]
            each = alone if any(one.is_wrong for one in alone) else each
        made.update((id(member), one) for member, one in zip(value.members, each))
        rows += each if each[0] is not row else [row]
    return rows


def _row(value: Value, reference: Reference, tolerances: Tolerances) -> Row:
    name, got, expected, same, part, is_unchanged, before, _, _ = value
    if is_unchanged:
        of_tensor = isinstance(before, Tensor)
        tolerance = (
            tolerances.for_dtype(reference.name, before.dtype) if of_tensor else tolerances.of(reference.name, before)
        )
        return _unchanged(name, before, got, expected, tolerance)
    if not isinstance(got, Tensor) or not isinstance(expected, Tensor):
        tolerance = tolerances.of(reference.name, got)
        return verdict.plain_row(name, got, expected, same, tolerance)
    tolerance = tolerances.for_dtype(reference.name, got.dtype)
    info = error_info(got.dtype, expected.dtype)
    if got.shape != expected.shape:
        if choices.may_be_left_out(value, reference.name):
            return Row(name, None, *tolerance, info, "one of the two does not compute it")
        return Row(name, verdict.wrong_shape(got, expected), *tolerance, info)
    is_real = got.dtype.is_floating_point or got.dtype.is_complex
    if is_real and (not reference.is_exact or part.role == "gradient"):
        judged = _numbers(value, reference, tolerance)
        settled = value if judged.right else choices.settled(value, reference)
        if settled is not value:
            judged = _numbers(settled, reference, tolerance)
    else:
        judged = _exactly(value, reference)
    if judged.right and not judged.measures.allclose and _is_of_another_matrix(value, reference):
        judged = Verdict(False, "the factors do not give the matrix that they should be of", judged.measures, math.inf)
    if not judged.right and choices.is_allowed(value, reference):
        judged = RIGHT
    if not judged.right and not judged.measures.nonfinite and _is_free(value, reference):
        return Row(name, None, *tolerance, info, "several results are right")
    if isinstance(tolerance, GivenTolerance):
        judged = verdict.by_tolerance(judged, tolerance)
    return Row(name, judged, *tolerance, info)


def _is_free(value: Value, reference: Reference) -> bool:
    """Where several results are right, and this may be one of them."""
    is_gradient = value.part.role == "gradient"
    if is_gradient and choices.has_free_order(reference.observed):
        return True  # it comes in the order of the device's results
    if Trait.CHOICE not in reference.ways.traits:
        return False
    if is_gradient:
        return factors.are_others(reference.observed, reference.expected.result)
    return factors.hold(reference.observed)


def _is_of_another_matrix(value: Value, reference: Reference) -> bool:
    """Where the CPU has chosen other factors in the device's own dtype than in higher precision, the distance of the
    two is no error that the device may have as well: what counts is the matrix."""
    is_choice = Trait.CHOICE in reference.ways.traits and value.part.role == "output"
    return is_choice and not factors.hold(reference.observed)


def _unchanged(name: str, before: Any, after: Any, expected: Any, tolerance: Tolerance) -> Row:
    """An input that the call must leave alone."""
    if not isinstance(before, Tensor):
        return Row(name, RIGHT, *tolerance)
    if after is before or same_bits(before, after):
        return Row(name, RIGHT, *tolerance, error_info(before.dtype, expected.dtype))
    judged = verdict.judge_exact(after, before)
    reason = f"the call changed an input that it must leave alone: {judged.reason}"
    return Row(name, judged._replace(right=False, reason=reason, severity=math.inf), *tolerance)


def _numbers(value: Value, reference: Reference, tolerance: Tolerance) -> Verdict:
    """A floating-point or complex result. What is beyond the limits is looked at more and more closely."""
    precision, part = reference.precision(value.got, value.same, value.part.role), value.part
    got, expected, same = dense(value.got), dense(value.expected), None if value.same is None else dense(value.same)
    if same is not None and (same_bits(got, same) or verdict.is_as_good(got, same, precision)):
        # as good as the CPU in the same dtype: right, and only to be measured
        if got.numel() and not got.is_complex():
            measures = measured(got, expected, same, precision, tolerance)
            if measures is not None:
                return Verdict(True, "", measures)
            got, expected, same = got.reshape(-1), expected.reshape(-1), same.reshape(-1)
        return verdict.judge(got, expected, same, precision, tolerance)._replace(right=True, reason="")
    judged = verdict.judge(got, expected, same, precision, tolerance)
    if judged.right:
        return judged
    for other in reference.other_values(part, got.dtype):
        again = verdict.judge(got, expected, other, reference.precision(got, other, part.role), tolerance)
        if again.right:
            return again
    if reference.ways.scans:
        scanned = rounded_scans.judged(value, reference, precision, tolerance)
        if scanned is not None:
            return scanned
    if Trait.ORDER in reference.ways.traits and part.role == "gradient":
        summed = _with_ties_summed(got, expected, same, reference, precision, tolerance)
        if summed is not None and summed.right:
            return summed
    closer = sensitivity.of(reference)
    for roughly in (False, True) if closer.may_add_roughly(part, precision) else (False,):
        for moves in MOVES:  # often the first few are enough
            allowed = closer.sensitivity(part, precision, moves, roughly)
            if allowed is not None:
                jumps.withdraw(allowed, reference.observed, part)
                shares.withdraw(allowed, value, reference, precision)
                free = closer.may_overflow(part, precision, allowed) if judged.measures.nonfinite else None
                factor = closer.common_factor(part, precision, roughly)
                judged = verdict.judge(got, expected, same, precision, tolerance, allowed, free, factor)
            if judged.right:
                return judged
    return judged


def _with_ties_summed(
    got: Tensor, expected: Tensor, same: Tensor | None, reference: Reference, precision: Precision, tolerance: Tolerance
) -> Verdict | None:
    """A gradient that may go to any of several equal values; None where there are none."""
    equals = ties.Ties(reference.name, reference.expected.arguments)
    if not equals.exist:
        return None
    of_same = None if same is None else equals.summed(same.double())
    sums = equals.summed(got.double()), equals.summed(expected.double())
    return verdict.judge(*sums, of_same, precision, tolerance)


def _exactly(value: Value, reference: Reference) -> Verdict:
    """Whole numbers, truth values, moved data."""
    got, expected, traits = dense(value.got), dense(value.expected), reference.ways.traits
    judged = verdict.judge_exact(got, expected)
    if judged.right or (value.same is not None and same_bits(got, dense(value.same))):
        return RIGHT
    if Trait.ORDER in traits and not got.is_floating_point() and not choices.is_stable(reference.observed):
        return RIGHT if ties.same_values(reference.name, reference.expected.arguments, got, expected) else judged
    if Trait.JUMPS in traits or reference.ways.is_unknown:
        undecided = sensitivity.of(reference).undecided(value.part)
        if undecided is not None:
            jumps.withdraw(undecided, reference.observed, value.part)
            return verdict.judge_exact(got, expected, undecided)
    return judged
