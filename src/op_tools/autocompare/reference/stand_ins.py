"""What runs in place of a kernel that lacks the reference's dtype: other functions that give the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.autocompare.reference import fake_quantization
from op_tools.ops.names import normalized
from op_tools.values import trees

Function = Callable[..., Any]
_LACKS_INTEGERS = re.compile(r"not implemented for '(Byte|Char|Short|Int|Long|Bool)'")


def instead_of(name: str, function: Function, error: BaseException) -> Iterator[Function]:
    """Functions to be tried where the op with this name has ended with an error."""
    if normalized(name).base in ("_grouped_mm", "grouped_mm"):
        yield _grouped_products
    levels = fake_quantization.written_out(name)
    if levels is not None:
        yield levels
    if _LACKS_INTEGERS.search(str(error)):
        yield _with_floats(function)


def _with_floats(function: Function) -> Function:
    """The CPU counts whole numbers only as floats (histc)."""

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = trees.map_tensors(_as_float, (args, kwargs))
        return function(*args, **kwargs)

    return run


def _as_float(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_floating_point() or tensor.is_complex() else tensor.double()


def _grouped_products(
    left: Tensor,
    right: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Products of groups, one by one: fused kernels have no float64. `offs`: where each group ends, in the rows of the
    left factor, in the columns of the right one, or in what is summed over."""
    if bias is not None:
        raise NotImplementedError("a bias")
    if offs is None:
        return torch.bmm(left, right)
    ends = offs.tolist()
    groups = [slice(start, end) for start, end in zip((0, *ends), ends)]
    if left.dim() == 2 and right.dim() == 2:
        return torch.stack([left[:, group] @ right[group] for group in groups])
    if left.dim() == 2:
        made, rest = [left[group] @ right[number] for number, group in enumerate(groups)], left.shape[0] - ends[-1]
        return torch.cat([*made, left.new_zeros(rest, right.shape[-1])])
    made, rest = [left[number] @ right[:, group] for number, group in enumerate(groups)], right.shape[1] - ends[-1]
    return torch.cat([*made, left.new_zeros(left.shape[1], rest)], 1)
