"""How far a result lies from what is expected: the measures that tables and CSV show, and exact comparisons."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from op_tools.autocompare.judging.limits import Precision, Tolerance

_BLOCK_ON_DEVICE = 2**24  # elements that are looked at together; a device is better asked seldom
_EXPONENT = 0x7FF0000000000000  # of a float64
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Measures(NamedTuple):
    """How far a result lies from what is expected."""

    allclose: bool
    max_abs_diff: float
    max_relative_diff: float
    cosine: float
    max_ulp: float = 0.0
    mean_ulp: float = 0.0
    rmse_ratio: float = 0.0  # of the device's errors to those of the CPU in the same dtype; NaN where these are unknown
    bad_share: float = 0.0
    first_bad: tuple[int, ...] | None = None
    nonfinite: int = 0  # elements that are NaN or Inf on one side only


EQUAL = Measures(True, 0.0, 0.0, 1.0)


def measured(
    got: Tensor, expected: Tensor, same: Tensor, precision: Precision, tolerance: Tolerance
) -> Measures | None:
    """Of a result that is as good as `same`, that of the CPU in the same dtype. None where NaN or Inf are in the way.

    All are real, detached, and not empty.
    """
    found = SumsAndMaxima()
    found.add(got, expected, same, precision, tolerance)
    return found.measures(tolerance)


class SumsAndMaxima:
    """What `measured` rests on, of one piece of a result after the other."""

    def __init__(self) -> None:
        self._count = 0
        self._found = [0.0] * 6 + [-math.inf] * 4

    def add(self, got: Tensor, expected: Tensor, same: Tensor, precision: Precision, tolerance: Tolerance) -> None:
        """One more piece."""
        found, size = self._found, block_size(got)
        parts = got.reshape(-1), expected.reshape(-1), same.reshape(-1)
        for mine, right, theirs in zip(*(part.split(size) for part in parts)):
            block = _sums_and_maxima(mine, right, theirs, precision, tolerance).tolist()
            found[:6] = map(sum, zip(found[:6], block[:6]))
            # NaN, which max() may lose, is in a sum as well
            found[6:] = map(max, zip(found[6:], block[6:]))
        self._count += got.numel()

    def measures(self, tolerance: Tolerance) -> Measures | None:
        """Of all pieces together."""
        if not math.isfinite(sum(self._found)):
            return None
        ulps, got, product, expected, errors, usual, max_abs, max_relative, max_ulp, excess = self._found
        return Measures(
            allclose=excess <= tolerance.atol,
            max_abs_diff=max_abs,
            max_relative_diff=or_infinite(max_relative),
            cosine=cosine(product, got, expected),
            max_ulp=max_ulp,
            mean_ulp=ulps / self._count,
            rmse_ratio=ratio(errors, usual),
        )


def _sums_and_maxima(got: Tensor, expected: Tensor, same: Tensor, precision: Precision, tolerance: Tolerance) -> Tensor:
    got, expected = got.double(), expected.double()
    error, usual = got - expected, same.double() - expected
    distance, magnitude = error.abs(), expected.abs()
    ulps = distance / half_ulp(magnitude, precision)
    pairs = [(got, got), (got, expected), (expected, expected), (error, error), (usual, usual)]
    relative = distance / magnitude.clamp_min(1e-300)
    excess = torch.sub(distance, magnitude, alpha=tolerance.rtol).max()
    return torch.stack([ulps.sum() / 2, *dots(pairs), distance.max(), relative.max(), ulps.max() / 2, excess])


def half_ulp(magnitude: Tensor, precision: Precision) -> Tensor:
    """Half a unit in the last place of each of these absolute values, which are float64."""
    power_of_two = (magnitude.view(torch.int64) & _EXPONENT).view(torch.float64)
    return (power_of_two * (precision.eps / 2)).clamp_min_(precision.smallest)


def block_size(tensor: Tensor) -> int:
    """Elements that are looked at together: what fits into the caches, and gives every thread something to do."""
    return min(2**20, 2**15 * max(2, torch.get_num_threads())) if tensor.is_cpu else _BLOCK_ON_DEVICE


def dots(pairs: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    return [torch.dot(left.reshape(-1), right.reshape(-1)) for left, right in pairs]


def or_infinite(value: float) -> float:
    """A relative difference from zero."""
    return value if value < 1e200 else math.inf


def cosine(product: float, left: float, right: float) -> float:
    if left == 0 and right == 0:
        return 1.0
    length = math.sqrt(left) * math.sqrt(right)
    return product / length if length and math.isfinite(length) else math.nan if length else 0.0


def ratio(left: float, right: float) -> float:
    return math.sqrt(left / right) if right else (math.inf if left else 1.0)


# ---- exactly ---------------------------------------------------------------------------------------------------------


def same_bits(left: Tensor, right: Tensor) -> bool:
    """True where two tensors of one dtype hold exactly the same: also the same NaN, and zeros of the same sign.

    A conjugate turns the sign of its zeros when it is made: of complex numbers zeros are alike.
    """
    if left.shape != right.shape or left.dtype is not right.dtype:
        return False
    if left.layout != torch.strided or right.layout != torch.strided:
        left, right = dense(left), dense(right)
    if left.is_complex():
        return not bool(differing(as_real(left), as_real(right)).any())
    integers = _INTEGERS.get(left.element_size())
    if integers is None:
        return torch.equal(left, right)
    return torch.equal(left.view(integers), right.view(integers))


def differing(got: Tensor, expected: Tensor) -> Tensor:
    """Where two tensors of the same shape differ. NaN equals NaN."""
    differs = got != expected.to(got.dtype)
    if got.is_floating_point() or got.is_complex():
        differs &= ~(got.isnan() & expected.isnan())
    return differs


def dense(tensor: Tensor) -> Tensor:
    """Its plain numbers: neither sparse nor a conjugate to be."""
    plain = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    return plain.resolve_conj().resolve_neg()


def as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def unravel(position: int, shape: torch.Size) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        position, rest = divmod(position, size)
        index.append(rest)
    return tuple(reversed(index))
