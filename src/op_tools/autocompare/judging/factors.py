"""Factors of a matrix, of which several are right: signs and orders are free, but they must give the matrix again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.autocompare.judging.limits import FACTOR_UNITS, real
from op_tools.autocompare.judging.measures import dense
from op_tools.autocompare.observed import ObservedCall
from op_tools.ops.names import normalized
from op_tools.values import trees

_SAME_CHOICE = 1e-3  # of the largest element: another sign is far away, a rounding is not

# what two matrices should be equal: one made of the factors, and what it should be
_Pairs = Iterator["tuple[Tensor, Tensor]"]


def hold(call: ObservedCall) -> bool:
    """False where the factors that came out are none of the matrix that was given; True also where that is unknown."""
    pairs_of = _FACTORS.get(normalized(call.name).base)
    if pairs_of is None:
        return True
    given = dense(call.given.tensors[0]).detach()
    results = [dense(one).detach().cpu() for one in trees.tensors(call.result)]
    exact = torch.complex128 if any(one.is_complex() for one in (given, *results)) else torch.float64
    numbers = [one.to(exact) if one.is_floating_point() or one.is_complex() else one for one in results]
    limit = FACTOR_UNITS * float(torch.finfo(real(given.dtype)).eps) * max(given.shape[-2:])
    try:
        pairs = list(pairs_of(given.cpu().to(exact), numbers, call.given.kwargs))
    except (RuntimeError, ValueError, IndexError):  # a call of another form
        return True
    return all(_is_close(made, wanted, limit) for made, wanted in pairs)


def are_others(call: ObservedCall, expected: Any) -> bool:
    """Whether the device has chosen other factors than those of the reference: then its gradients are others, too."""
    pairs = zip(trees.tensors(call.result), trees.tensors(expected))
    chosen = [(dense(one).detach().cpu(), dense(other).detach().cpu()) for one, other in pairs]
    return not all(
        one.shape == other.shape and bool((one - other).abs().max() <= _SAME_CHOICE * other.abs().max())
        for one, other in chosen
        if one.numel()
    )


def _is_close(made: Tensor, wanted: Tensor, limit: float) -> bool:
    """For each matrix of a batch, beside its size."""
    distance, size = (torch.linalg.matrix_norm(one) for one in (made - wanted, wanted))
    return not bool((distance > limit * size).any())


def _is_unitary(columns: Tensor) -> _Pairs:
    one = torch.eye(columns.shape[-1], dtype=columns.dtype).expand(*columns.shape[:-2], -1, -1)
    yield columns.mH @ columns, one


def _singular_values(given: Tensor, made: list[Tensor], kwargs: dict[str, Any], adjoint: bool = True) -> _Pairs:
    left, sizes, right = made
    right = right if adjoint else right.mH
    count = sizes.shape[-1]
    yield left[..., :count] * sizes[..., None, :] @ right[..., :count, :], given
    yield from _is_unitary(left)
    yield from _is_unitary(right.mH)


def _triangle(given: Tensor, made: list[Tensor], kwargs: dict[str, Any]) -> _Pairs:
    unitary, upper = made
    if not unitary.numel():  # only the triangle was asked for
        yield upper.mH @ upper, given.mH @ given
        return
    yield unitary @ upper, given
    yield upper.triu(), upper
    yield from _is_unitary(unitary)


def _reflections(given: Tensor, made: list[Tensor], kwargs: dict[str, Any]) -> _Pairs:
    vectors, factors = made
    count = factors.shape[-1]
    yield torch.linalg.householder_product(vectors[..., :count], factors) @ vectors.triu()[..., :count, :], given


def _directions(given: Tensor, made: list[Tensor], kwargs: dict[str, Any]) -> _Pairs:
    values, vectors = made
    yield given @ vectors, vectors * values[..., None, :]
    yield vectors.abs().square().sum(-2, keepdim=True), torch.ones_like(values[..., None, :]).abs()


def _symmetric_directions(given: Tensor, made: list[Tensor], kwargs: dict[str, Any]) -> _Pairs:
    values, vectors = made
    half = given.mH if kwargs.get("UPLO", "L") in ("U", "u") else given
    whole = half.tril() + half.tril(-1).mH
    yield vectors * values[..., None, :] @ vectors.mH, whole
    yield from _is_unitary(vectors)


def _packed(given: Tensor, made: list[Tensor], kwargs: dict[str, Any]) -> _Pairs:
    order, lower, upper = torch.lu_unpack(made[0], made[1].int())
    yield order @ lower @ upper, given


def _unpacked(given: Tensor, made: list[Tensor], kwargs: dict[str, Any]) -> _Pairs:
    order, lower, upper = made
    yield order @ lower @ upper, given
    yield lower.tril(), lower
    yield upper.triu(), upper


_FACTORS: dict[str, Callable[[Tensor, list[Tensor], dict[str, Any]], _Pairs]] = {
    "geqrf": _reflections,
    "linalg.eig": _directions,
    "linalg.eigh": _symmetric_directions,
    "linalg.lu": _unpacked,
    "linalg.lu_factor": _packed,
    "linalg.lu_factor_ex": _packed,
    "linalg.qr": _triangle,
    "linalg.svd": _singular_values,
    "lu": _packed,
    "qr": _triangle,
    "svd": lambda given, made, kwargs: _singular_values(given, made, kwargs, adjoint=False),
}
