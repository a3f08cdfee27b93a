"""einsum of two tensors as a product: a label belongs to batches, rows, columns or what is added up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from op_tools.autocompare.identities.products import residual_of_product
from op_tools.autocompare.identities.proof import Facts, Measured, Proof, place_of
from op_tools.autocompare.observed import ObservedCall
from op_tools.core.gradients import Gradients
from op_tools.ops.names import normalized


class _Labels(NamedTuple):
    """Those of the two tensors and of the result, and what they are there for."""

    of_left: str
    of_right: str
    of_result: str
    batches: str
    rows: str
    columns: str
    added_up: str

    @classmethod
    def of(cls, equation: str) -> _Labels | None:
        """None where a label comes twice in one tensor, is added up in one of them alone, or stands for several.

        Where nothing is added up it is no matrix product: the terms of its gradients may be rounded one by one.
        """
        inputs, arrow, result = equation.replace(" ", "").partition("->")
        both = inputs.split(",")
        if len(both) != 2 or "." in equation:
            return None
        left, right = both
        if not arrow:
            result = "".join(sorted(one for one in set(left + right) if (left + right).count(one) == 1))
        if any(len(set(one)) != len(one) for one in (left, right, result)):
            return None
        batches = "".join(one for one in result if one in left and one in right)
        rows, columns = (
            "".join(one for one in result if one in own and one not in other)
            for own, other in ((left, right), (right, left))
        )
        added_up = "".join(one for one in left if one in right and one not in result)
        if not added_up or set(batches + rows + columns + added_up) != set(left + right):
            return None
        return cls(left, right, result, batches, rows, columns, added_up)


class Einsum:
    """One call of einsum."""

    def __init__(self, call: ObservedCall, labels: _Labels, left: Tensor, right: Tensor) -> None:
        self._facts = Facts(call)
        self._labels = labels
        self._left, self._right = left.detach(), right.detach()
        self._places = place_of(call, left), place_of(call, right)
        self._sizes = {**dict(zip(labels.of_left, left.shape)), **dict(zip(labels.of_right, right.shape))}
        self._result: Tensor | None = call.result.detach()

    @classmethod
    def of(cls, call: ObservedCall) -> Einsum | None:
        args = call.given.args
        if normalized(call.name).base != "einsum" or not args or not isinstance(args[0], str) or call.changed:
            return None
        tensors = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
        labels = _Labels.of(args[0])
        if labels is None or len(tensors) != 2 or not isinstance(call.result, Tensor) or not call.result.numel():
            return None
        left, right = tensors
        sizes = dict(zip(labels.of_left, left.shape))
        fits = all(sizes.get(one, size) == size for one, size in zip(labels.of_right, right.shape))  # none is broadcast
        is_plain = all(one.layout is torch.strided and one.numel() for one in (left, right))
        adds_up = any(sizes[one] > 1 for one in labels.added_up)  # of one term torch takes no matrix product
        return cls(call, labels, left, right) if fits and is_plain and adds_up else None

    def forward(self) -> Iterator[Proof]:
        result, self._result = self._result, None
        rounding = None if result is None else self._facts.rounding(result)
        if result is not None and rounding is not None:
            left, right = (self._facts.as_computed(one) for one in (self._left, self._right))
            residual = residual_of_product(
                self._of_left(left), self._of_right(right), self._of_result(result), rounding
            )
            yield Measured.by(self._facts.output_name, result, residual)

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        if gradients.outputs[0] is None:
            return
        left, right, arrived = map(self._facts.as_computed, (self._left, self._right, gradients.outputs[0]))
        left, right, arrived = self._of_left(left), self._of_right(right), self._of_result(arrived)
        for place, as_matrix, factors in (
            (self._places[0], self._of_left, (arrived, right.mT)),
            (self._places[1], self._of_right, (left.mT, arrived)),
        ):
            got = gradients.inputs[place] if place >= 0 else None
            rounding = None if got is None else self._facts.rounding(got)
            if got is not None and rounding is not None:
                residual = residual_of_product(*factors, as_matrix(got.detach()), rounding)
                yield Measured.by(self._facts.gradient_names[place], got, residual)

    def tensors(self) -> list[Tensor]:
        return [self._left, self._right]

    # ---- as matrices -------------------------------------------------------------------------------------------------

    def _of_left(self, tensor: Tensor) -> Tensor:
        return self._matrices(tensor, self._labels.of_left, self._labels.rows, self._labels.added_up)

    def _of_right(self, tensor: Tensor) -> Tensor:
        return self._matrices(tensor, self._labels.of_right, self._labels.added_up, self._labels.columns)

    def _of_result(self, tensor: Tensor) -> Tensor:
        return self._matrices(tensor, self._labels.of_result, self._labels.rows, self._labels.columns)

    def _matrices(self, tensor: Tensor, labels: str, rows: str, columns: str) -> Tensor:
        """(batches, rows, columns)"""
        wanted = self._labels.batches, rows, columns
        order = [labels.index(one) for group in wanted for one in group]
        return tensor.permute(order).reshape([self._size(group) for group in wanted])

    def _size(self, labels: Sequence[str]) -> int:
        return math.prod(self._sizes[one] for one in labels)
