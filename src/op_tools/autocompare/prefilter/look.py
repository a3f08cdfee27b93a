"""One result beside what is expected of it, as the device's first look takes it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Callable

from torch import Tensor

from op_tools.autocompare import places
from op_tools.autocompare.judging import verdict
from op_tools.autocompare.judging.error_statistics import Found
from op_tools.autocompare.judging.limits import Precision, Tolerance
from op_tools.autocompare.judging.verdict import Verdict

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
        beside = places.beside(got, expected)
        if beside is None:
            raise OnlyInFull
        self.elements, self.bytes, self.got_address, self.expected_address, self.are_in_order = beside
        if allowance is not None:
            self.bytes += allowance.nbytes  # that it holds until it is launched

    def verdict(self, numbers: Sequence[float]) -> Verdict | None:
        """What came out; None where it takes a closer look."""
        found = _FOUND(numbers)
        if self.precision is None or not self.elements:
            return verdict.RIGHT if found.max_abs == found.nonfinite == 0 else None
        return verdict.cleared(found, self.precision, self.tolerance, self.elements)
