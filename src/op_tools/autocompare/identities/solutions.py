"""Solutions of systems of equations, and inverses: A (X s) against B s, for signs s.

A healthy solver leaves about as much as rounding its matrix would, however far off its solution is: the matrix and what
solves it say how much. The CPU computes a slice, too, where there is one, and its gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare.identities.projections import Residual, projected, signs, squared, wide
from op_tools.autocompare.identities.proof import Facts, Measured, Proof
from op_tools.autocompare.identities.samples import Piecewise
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients
from op_tools.ops.distributions import argument
from op_tools.ops.names import normalized

_INVERSES = ("linalg.inv", "inverse")
# Exchanges of rows let a matrix grow on the way, by little in practice: as so much more variance.
_GROWTH = 16.0


class Solution:
    """One call: matrices, and what they were solved for; None for the inverse."""

    def __init__(self, call: ObservedCall, matrices: Tensor, side: Tensor | None, result: Tensor) -> None:
        self._facts = Facts(call)
        self._solved: tuple[Tensor, Tensor | None, Tensor] | None = matrices, side, result
        self._is_triangular = self._facts.base == "linalg.solve_triangular"
        self._piece = Piecewise.of(call)

    @classmethod
    def of(cls, call: ObservedCall) -> Solution | None:
        args, kwargs, result, base = call.given.args, call.given.kwargs, call.result, normalized(call.name).base
        if call.changed or not isinstance(result, Tensor) or not result.is_floating_point() or not result.numel():
            return None
        if base in _INVERSES:
            matrices, side = argument(args, kwargs, 0, "A", None), None
        elif base in ("linalg.solve", "linalg.solve_triangular") and kwargs.get("left", True):
            matrices, side = argument(args, kwargs, 0, "A", None), argument(args, kwargs, 1, "B", None)
            if not isinstance(side, Tensor) or side.shape != result.shape:
                return None
            side = side.detach()
        else:
            return None
        if not isinstance(matrices, Tensor) or matrices.dim() != result.dim() or matrices.layout is not torch.strided:
            return None
        if matrices.shape[:-1] != result.shape[:-1]:  # repeated
            return None
        matrices = matrices.detach()
        if base == "linalg.solve_triangular":
            matrices = _triangles(matrices, kwargs)
        return cls(call, matrices, side, result.detach())

    def forward(self) -> Iterator[Proof]:
        solved, self._solved = self._solved, None
        rounding = None if solved is None else self._facts.rounding(solved[2])
        if solved is None or rounding is None:
            return
        matrices, side, result = solved
        size, count = matrices.shape[-1], result.shape[-1]
        columns = signs(count, result.device)
        mixed = projected(result, columns)
        wanted = wide(columns).expand(mixed.shape) if side is None else projected(side, columns)
        got = projected(matrices, mixed)
        # of each row: the squares of all its terms, which rounding moves by as many roundings as there are rows
        squares = projected(wide(matrices).square(), squared(result).unsqueeze(-1))
        if not self._is_triangular:  # rows were exchanged, and added to each other
            squares = _GROWTH * squares.amax(-2, keepdim=True).expand(squares.shape)
        variance = size * (rounding.result**2 * squares.squeeze(-1) + count * rounding.smallest**2)
        variance = variance + rounding.result**2 * wanted.square().sum(-1)
        yield Measured.by(self._facts.output_name, result, Residual(got, wanted, variance, 1e9))
        if self._piece is not None:
            yield from self._piece.forward()

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        return iter(()) if self._piece is None else self._piece.backward(gradients)

    def tensors(self) -> list[Tensor]:
        return []  # a piece has copies


def _triangles(matrices: Tensor, kwargs: dict[str, Any]) -> Tensor:
    """The half that is looked at."""
    kept = matrices.triu() if kwargs.get("upper") else matrices.tril()
    if kwargs.get("unitriangular"):
        kept.diagonal(dim1=-2, dim2=-1).fill_(1)
    return kept
