"""Largest and least numbers, and their places: one of the numbers is what came out, and none lies beyond it.

Comparisons tell that of all numbers, with no kernel that searches. Which of equal ones a place names they leave open:
the CPU computes a slice, too, where there is one, and its gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from op_tools.autocompare.identities.projections import NUMBERS, wide
from op_tools.autocompare.identities.proof import Measured, Proof
from op_tools.autocompare.identities.samples import Piecewise
from op_tools.autocompare.observed import ObservedCall, output_names
from op_tools.core.gradients import Gradients
from op_tools.ops.distributions import argument
from op_tools.ops.names import normalized
from op_tools.values import trees

_LARGEST, _LEAST = ("max", "amax", "argmax"), ("min", "amin", "argmin")


class Extreme:
    """One call: rows of what it was given, and what was found in each, as columns of one number."""

    def __init__(self, call: ObservedCall, rows: Tensor, columns: Sequence[Tensor]) -> None:
        base = normalized(call.name).base
        self._is_largest = base in _LARGEST
        self._has_places, self._has_numbers = base.startswith("arg") or len(columns) > 1, not base.startswith("arg")
        self._name = output_names(call.name, len(columns))[0]
        self._searched: tuple[Tensor, Sequence[Tensor]] | None = rows, columns
        self._piece = Piecewise.of(call)

    @classmethod
    def of(cls, call: ObservedCall) -> Extreme | None:
        args, kwargs, base = call.given.args, call.given.kwargs, normalized(call.name).base
        results = [one.detach() for one in trees.tensors(call.result)]
        if base not in (*_LARGEST, *_LEAST) or call.changed or len(call.given.tensors) != 1 or not results:
            return None
        given = call.given.tensors[0].detach()
        if given.is_complex() or given.layout is not torch.strided or not results[0].numel() or not given.numel():
            return None
        dimensions = argument(args, kwargs, 1, "dim", None)
        dimensions = (dimensions,) if type(dimensions) is int else dimensions
        if dimensions is None or dimensions == () or not given.dim():
            dimensions = tuple(range(given.dim()))
        if not all(type(one) is int for one in dimensions):  # a name
            return None
        rows = _rows(given, [one % given.dim() for one in dimensions])
        if any(one.numel() != len(rows) for one in results):
            return None
        return cls(call, rows, [one.reshape(-1, 1) for one in results])

    def forward(self) -> Iterator[Proof]:
        searched, self._searched = self._searched, None
        if searched is None:
            return
        rows, columns = searched
        found, width = columns[0], rows.shape[1]
        is_right = torch.ones(len(rows), 1, dtype=torch.bool, device=rows.device)
        if self._has_places:
            places = columns[-1]
            is_right &= (places >= 0) & (places < width)
            picked = rows.gather(1, places.clamp(0, width - 1))
            found = found if self._has_numbers else picked
            is_right &= _is_same(picked, found)
        else:
            is_right &= _is_same(rows, found).any(1, keepdim=True)
        is_within = rows <= found if self._is_largest else rows >= found  # NaN is not
        is_right &= is_within.all(1, keepdim=True) | (found != found)
        count = wide(~is_right).sum()
        nothing = [torch.zeros_like(count)] * (len(NUMBERS) - 1)
        yield Measured(self._name, columns[0].dtype, torch.stack([*nothing, count]))
        if self._piece is not None:
            yield from self._piece.forward()

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        return iter(()) if self._piece is None else self._piece.backward(gradients)

    def tensors(self) -> list[Tensor]:
        return []  # a piece has copies


def _rows(given: Tensor, dimensions: Sequence[int]) -> Tensor:
    """What is searched together, along the second dimension."""
    kept = [one for one in range(given.dim()) if one not in dimensions]
    return given.permute([*kept, *dimensions]).reshape(math.prod(given.shape[one] for one in kept), -1)


def _is_same(one: Tensor, other: Tensor) -> Tensor:
    """Equal, or none of both a number."""
    return (one == other) | ((one != one) & (other != other))
