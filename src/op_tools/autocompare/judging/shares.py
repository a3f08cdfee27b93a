"""Where roundings of inputs are no excuse: the numbers of a softmax are shares of a whole, whoever gets how much.

Moved by a rounding error, a row of very large numbers (masks of the lowest number there is) may go to any of its
elements. But it is divided by its own sum in the end: it adds up to one.
"""

from __future__ import annotations

from torch import Tensor

from op_tools.autocompare.judging.limits import Precision
from op_tools.autocompare.judging.measures import dense
from op_tools.autocompare.observed import Value
from op_tools.autocompare.reference.runs import Reference
from op_tools.ops.catalogue import Trait
from op_tools.ops.distributions import argument


def withdraw(excuse: Tensor, value: Value, reference: Reference, precision: Precision) -> None:
    """Takes allowed distances away from rows that do not add up to what they should."""
    if Trait.SHARES not in reference.ways.traits or value.part.role != "output":
        return
    given = reference.observed.given
    dimension = argument(given.args, given.kwargs, 1, "dim", None)
    if type(dimension) is not int or not excuse.dim():
        return
    got, expected = dense(value.got).double(), dense(value.expected).double()
    right = expected.sum(dimension, keepdim=True)
    rounding = right * (precision.eps / 2) + expected.shape[dimension] * precision.smallest
    off = (got.sum(dimension, keepdim=True) - right).abs()
    excuse.masked_fill_((off > precision.limits.peak * rounding).to(excuse.device), 0)
