"""Scans (cumsum and its like) of chips that round each partial result: judged by what that costs on these numbers."""

from __future__ import annotations

import contextlib

from torch import Tensor

from op_tools.autocompare.judging import verdict
from op_tools.autocompare.judging.limits import Precision, Tolerance, in_steps
from op_tools.autocompare.judging.measures import dense, same_bits
from op_tools.autocompare.judging.verdict import Verdict
from op_tools.autocompare.observed import Value
from op_tools.autocompare.reference.runs import Reference
from op_tools.ops.catalogue import Trait


def judged(value: Value, reference: Reference, precision: Precision, tolerance: Tolerance) -> Verdict | None:
    """None where the value is as wrong as it was."""
    got, expected = dense(value.got), dense(value.expected)
    precision = in_steps(precision, are_logarithms=Trait.LOGITS in reference.ways.traits)
    for way in reference.ways.scans:
        other = None
        with contextlib.suppress(Exception):  # the CPU may lack a kernel for it: one way less to be right
            other = value.part.of(*reference.run_by(way))
        if not isinstance(other, Tensor):
            continue
        other = dense(other)
        again = verdict.judge(got, expected, other, precision, tolerance)
        if way is not reference.ways.scans[-1]:
            if again.right:
                return again
        # numbers one by one cost so much that this says nothing of a result that is not nearly the same
        elif same_bits(got, other) or verdict.is_as_good(got, other, precision):
            return again._replace(right=True, reason="", severity=min(again.severity, 1.0))
    return None
