"""Where a rounding error is no excuse: at jumps that nothing has been rounded before.

`floor`, comparisons and their like get numbers that are exactly what they are, and compute nothing on the way to their
decision: 3.0 is not a little less than 3. So do the gradients of `relu` and `clamp`, which bend at a given number. A
remainder comes from a division, which is exact for small whole numbers. A zero is exactly what it is, its sign
included, and that alone decides whether `atan2` goes round to the left or to the right.
"""

from __future__ import annotations

import numbers

import torch
from torch import Tensor

from op_tools.autocompare.observed import ObservedCall, Part
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.ops.names import normalized
from op_tools.values import trees

_BY_SIGN = ("atan2", "arctan2")  # of the first argument
_MAX_EXACT_QUOTIENT = 256  # up to here, quotients of whole numbers stay on their side of the next one in every dtype


def withdraw(excuse: Tensor, call: ObservedCall, part: Part) -> None:
    """Takes away what a rounding error would excuse, element by element: allowed distances, or truth values."""
    if part.role == "gradient":
        result = next(trees.tensors(call.result), excuse)
        # what was broadcast has sums for gradients
        if catalogue.has(call.name, Trait.BENDS) and result.shape == excuse.shape and not _has_rounded_number(call):
            excuse.zero_()
    elif catalogue.has(call.name, Trait.DECIDES):
        if not _has_rounded_number(call):
            excuse.zero_()
    elif catalogue.has(call.name, Trait.DIVIDES):
        tensors = [one for one in call.given.tensors if one.is_floating_point()]
        if tensors and all(_is_broadcast(one, excuse) for one in tensors):
            whole = torch.ones_like(excuse, dtype=torch.bool)
            for one in tensors:
                whole &= ((one == one.round()) & (one.abs() < _MAX_EXACT_QUOTIENT)).to(excuse.device)
            others = [one for one in call.given.leaves if isinstance(one, float)]
            if all(one == round(one) and abs(one) < _MAX_EXACT_QUOTIENT for one in others):
                excuse.masked_fill_(whole, 0)
    elif normalized(call.name).base in _BY_SIGN:
        height = call.given.tensors[0]
        if _is_broadcast(height, excuse):
            excuse.masked_fill_((height == 0).to(excuse.device), 0)


def _is_broadcast(tensor: Tensor, to: Tensor) -> bool:
    try:
        return bool(torch.broadcast_shapes(tensor.shape, to.shape) == to.shape)
    except RuntimeError:
        return False


def _has_rounded_number(call: ObservedCall) -> bool:
    """A Python number that the tensors' dtype does not have, or a number of decimals: there is arithmetic."""
    if call.given.kwargs.get("decimals") or (normalized(call.name).base == "round" and len(call.given.args) > 1):
        return True
    dtypes = [one.dtype for one in call.given.tensors if one.is_floating_point()]
    plain = [one for one in call.given.leaves if isinstance(one, numbers.Real) and not isinstance(one, bool)]
    return any(float(torch.tensor(float(one), dtype=dtype)) != float(one) for one in plain for dtype in dtypes)
