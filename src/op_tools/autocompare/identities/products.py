"""Matrix products: C x against A (B x), for signs x. One pass over each of the three; gradients are products, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from op_tools.autocompare.identities.projections import Residual, Rounding, projected, signs, squared, sums_of
from op_tools.autocompare.identities.proof import Facts, Measured, Proof, place_of
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients
from op_tools.ops.distributions import argument
from op_tools.ops.names import normalized

_PLAIN = ("matmul", "mm", "bmm", "linalg.matmul", "__matmul__")
_WITH_ADDEND = ("addmm", "baddbmm")
_BASES = (*_PLAIN, *_WITH_ADDEND, "linear", "__rmatmul__")


class _Factors(NamedTuple):
    """alpha · left · right + beta · addend, and where the three stand among the call's tensors."""

    left: Tensor
    right: Tensor
    addend: Tensor | None
    alpha: float
    beta: float
    places: tuple[int, int, int]


class Product:
    """One call of a matrix product."""

    def __init__(self, call: ObservedCall, factors: _Factors) -> None:
        self._facts = Facts(call)
        self._factors = factors
        self._result: Tensor | None = call.result

    @classmethod
    def of(cls, call: ObservedCall) -> Product | None:
        """None where it is another op, or a product that is not proven: of vectors, or with batches broadcast."""
        if normalized(call.name).base not in _BASES or not isinstance(call.result, Tensor) or call.changed:
            return None
        factors = _factors(call)
        if factors is None or min(factors.left.dim(), factors.right.dim()) < 2:
            return None
        left, right = factors.left, factors.right
        if right.dim() > 2 and left.shape[:-2] != right.shape[:-2]:
            return None
        tensors = (left, right, call.result)
        return cls(call, factors) if all(one.layout is torch.strided and one.numel() for one in tensors) else None

    def forward(self) -> Iterator[Proof]:
        factors, facts = self._factors, self._facts
        result, addend = self._result, factors.addend
        # gradients need neither of them
        self._result, self._factors = None, factors._replace(addend=None)
        rounding = None if result is None else facts.rounding(result)
        if result is not None and rounding is not None:
            left, right = facts.as_computed(factors.left), facts.as_computed(factors.right)
            addend = None if addend is None else facts.as_computed(addend)
            residual = residual_of_product(left, right, result.detach(), rounding, factors.alpha, addend, factors.beta)
            yield Measured.by(facts.output_name, result, residual)

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        if gradients.outputs[0] is None:
            return
        facts, factors = self._facts, self._factors
        left, right = facts.as_computed(factors.left), facts.as_computed(factors.right)
        arrived = facts.as_computed(gradients.outputs[0])
        if right.dim() == 2:  # its gradient is a sum over all batches
            left, arrived = _flat(left), _flat(arrived)
        of_left, of_right, of_addend = factors.places
        of_right_factors = (arrived.mT, left) if facts.base == "linear" else (left.mT, arrived)
        yield from self._proof(gradients, of_left, arrived, right.mT, factors.alpha)
        yield from self._proof(gradients, of_right, *of_right_factors, factors.alpha)
        got = gradients.inputs[of_addend] if of_addend >= 0 else None
        if got is not None and got.dim() == 1 and got.shape[0] == arrived.shape[-1]:
            every = torch.ones(1, arrived.numel() // arrived.shape[-1], device=arrived.device)
            yield from self._proof(gradients, of_addend, every, _flat(arrived), factors.beta)

    def _proof(self, gradients: Gradients, place: int, left: Tensor, right: Tensor, alpha: float) -> Iterator[Proof]:
        """That the gradient of one tensor is this product."""
        got = gradients.inputs[place] if place >= 0 else None
        rounding = None if got is None else self._facts.rounding(got)
        if got is None or rounding is None:
            return
        result = got.detach()
        if result.dim() != left.dim():
            result = result.reshape(*left.shape[:-1], right.shape[-1])
        yield Measured.by(
            self._facts.gradient_names[place], got, residual_of_product(left, right, result, rounding, alpha)
        )

    def tensors(self) -> list[Tensor]:
        return [self._factors.left, self._factors.right]


def _factors(call: ObservedCall) -> _Factors | None:
    args, kwargs, base = call.given.args, call.given.kwargs, normalized(call.name).base
    if base in _WITH_ADDEND:
        addend, left, right = (argument(args, kwargs, place, name, None) for place, name in _names(base))
        alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
        if len(args) > 3 or not all(isinstance(one, Tensor) for one in (addend, left, right)):
            return None
        places = _places(call, left, right, addend)
        return _Factors(left, right, addend if beta else None, float(alpha), float(beta), places)
    if base == "linear":
        left, right, bias = (
            argument(args, kwargs, 0, "input", None),
            argument(args, kwargs, 1, "weight", None),
            argument(args, kwargs, 2, "bias", None),
        )
        if not isinstance(left, Tensor) or not isinstance(right, Tensor) or right.dim() != 2:
            return None
        return _Factors(left, right.mT, bias, 1.0, 1.0, _places(call, left, right, bias))
    values = [*args, *(kwargs[name] for name in ("input", "mat2", "other") if name in kwargs)]
    if len(values) < 2 or not all(isinstance(one, Tensor) for one in values[:2]):
        return None
    left, right = (values[1], values[0]) if base == "__rmatmul__" else (values[0], values[1])
    return _Factors(left, right, None, 1.0, 1.0, _places(call, left, right, None))


def _names(base: str) -> tuple[tuple[int, str], ...]:
    prefix = "batch" if base == "baddbmm" else "mat"
    return (0, "input"), (1, f"{prefix}1"), (2, f"{prefix}2")


def _places(call: ObservedCall, *tensors: Any) -> tuple[int, int, int]:
    first, second, third = (place_of(call, tensor) for tensor in tensors)
    return first, second, third


def residual_of_product(
    left: Tensor,
    right: Tensor,
    result: Tensor,
    rounding: Rounding,
    alpha: float = 1.0,
    addend: Tensor | None = None,
    beta: float = 1.0,
) -> Residual:
    """Of alpha · left · right + beta · addend = result."""
    if right.dim() == 2 and left.dim() > 2:
        left, result = _flat(left), _flat(result)
        addend = addend if addend is None or addend.dim() < 2 else _flat(addend)
    columns = signs(right.shape[-1], right.device)
    of_right, of_result = sums_of(right, columns), sums_of(result, columns)
    wanted, parts = sums_of(left, *of_right)
    if alpha != 1:
        wanted, parts = alpha * wanted, alpha**2 * parts
    size, terms = of_result.squares, left.shape[-1]
    if addend is not None:
        wanted = wanted + beta * projected(addend.expand(result.shape[-addend.dim() :]), columns)
        parts = parts + beta**2 * squared(addend)
    variance = rounding.of_values(size, result.shape[-1]) + rounding.of_sums(terms, size, parts)
    return Residual(of_result.projections, wanted, variance, rounding.of_slope(terms))


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])
