"""A part of a call, run on the CPU: a slice (slices.py), some members of lists (lists.py), rows picked from a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Union

import torch
from torch import Tensor

from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.identities.lists import Members
from op_tools.autocompare.identities.projections import some
from op_tools.autocompare.identities.proof import Proof, Sample
from op_tools.autocompare.identities.slices import MAX_SLICE, Slice, slice_of
from op_tools.autocompare.observed import ObservedCall, hollow
from op_tools.core.gradients import Gradients
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.ops.names import normalized
from op_tools.values import trees

_MAX_ELEMENTS = 4096
STRETCH = 2**14  # elements of one long row

Piece = Union[Slice, Members]


def piece_of(name: str, given: Arguments, result: Any = None) -> Piece | None:
    """Of a call by element, or with dimensions apart; None for others. Before it runs there is no result."""
    return slice_of(name, given, result) or Members.find(name, given)


class Piecewise:
    """One call whose elements, or slices, have nothing to do with each other. `before`: of one that works in place."""

    def __init__(self, call: ObservedCall, piece: Piece, before: Arguments | None = None) -> None:
        self._piece = piece
        made: dict[int, Tensor] = {}
        given = before or piece.arguments(call.given, made)
        kept = None
        if call.changed:  # it returns one of its arguments
            made = {}
            kept = piece.arguments(call.kept or call.given, made)
        result = piece.results(call.result, made)
        self._call = replace(call, given=given, kept=kept, result=result, given_on_device=None)
        self._covered = [piece.covers(tensor) for tensor in call.given.tensors]

    @classmethod
    def of(cls, call: ObservedCall) -> Piecewise | None:
        is_known = (not call.changed or call.kept is not None) and not call.shared
        if not is_known or not isinstance(call.result, (Tensor, list, tuple, type(None))):
            return None
        if normalized(call.name).base == "where" and not isinstance(call.result, Tensor):
            return None  # of a condition alone: the places where it holds
        piece = piece_of(call.name, call.given, call.result)
        return None if piece is None else cls(call, piece)

    def forward(self) -> Iterator[Proof]:
        yield Sample(self._call)

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        arrived = [None if one is None else self._piece.of_result(one) for one in gradients.outputs]
        if any((one is None) != (part is None) for one, part in zip(gradients.outputs, arrived)):
            return
        flowed = [
            None if one is None or not is_covered else self._piece.of(one).clone()
            for one, is_covered in zip(gradients.inputs, self._covered)
        ]
        if any(one is not None for one in flowed):
            arrived = [None if one is None else one.clone() for one in arrived]
            yield Sample(self._call.for_backward(), Gradients(flowed, arrived))

    def tensors(self) -> list[Tensor]:
        return []  # it has copies


class InPlace:
    """A call in pieces that will work in place: what its piece is before."""

    def __init__(self, piece: Piece, live: Arguments) -> None:
        self._piece = piece
        self._given = piece.arguments(live, {})

    @classmethod
    def of(cls, name: str, live: Arguments) -> InPlace | None:
        """Before the call."""
        piece = piece_of(name, live)
        return None if piece is None else cls(piece, live)

    def after(self, seen: ObservedCall) -> Piecewise | None:
        """`seen`: the call with its arguments as they are now, and what it has returned. None where these lie in the
        same memory: each piece has one of its own."""
        return None if seen.shared else Piecewise(seen, self._piece, self._given)


class WithoutGradients:
    """A part of a call whose results have no gradients."""

    def __init__(self, call: ObservedCall) -> None:
        self._call = call

    def forward(self) -> Iterator[Proof]:
        yield Sample(self._call)

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        return iter(())

    def tensors(self) -> list[Tensor]:
        return []  # it has copies


class PickedRows:
    """Rows picked from a table: embedding and index_select along the first dimension."""

    def __init__(self, call: ObservedCall, table: Tensor, picked: Tensor, result: Tensor) -> None:
        self._call = call
        self._table, self._picked, self._result = table.detach(), picked.detach(), result.detach()

    @classmethod
    def of(cls, call: ObservedCall) -> PickedRows | None:
        args, kwargs, base = call.given.args, call.given.kwargs, normalized(call.name).base
        if call.changed or not isinstance(call.result, Tensor) or not call.result.numel():
            return None
        if base == "embedding" and len(args) >= 2 and kwargs.get("max_norm") is None:
            table, picked = args[:2] if _is_table(args[0]) else args[1::-1]
        elif base == "index_select" and len(args) == 3 and args[1] == 0:
            table, _, picked = args
        else:
            return None
        fits = isinstance(table, Tensor) and isinstance(picked, Tensor) and table.dim() == 2
        return cls(call, table, picked, call.result) if fits else None

    def forward(self) -> Iterator[Proof]:
        """The values themselves, by another kernel: that of indexing."""
        flat = self._picked.reshape(-1)
        count = min(flat.numel(), max(1, _MAX_ELEMENTS // self._table.shape[1]))
        start = some(count, flat.numel())
        rows = flat[start : start + count]
        table = self._table[rows]
        numbers = torch.arange(count, device="cpu").to(rows.device)
        args: tuple[Any, ...] = (table, 0, numbers)
        if normalized(self._call.name).base == "embedding":
            args = (table, numbers) if _is_table(self._call.given.args[0]) else (numbers, table)
        got = self._result.reshape(-1, self._table.shape[1])[start : start + count].clone()  # the program may change it
        yield Sample(replace(self._call, given=Arguments(args, {}), kept=None, result=got))

    def backward(self, gradients: Gradients) -> Iterator[Proof]:
        """Some columns of the table's gradient, for which no numbers of the table are needed."""
        arrived, got = gradients.outputs[0], next((one for one in gradients.inputs if one is not None), None)
        rows, width = self._table.shape
        count = min(width, max(1, _MAX_ELEMENTS // rows))
        if arrived is None or got is None or got.layout is not torch.strided:
            return
        if rows * count + self._picked.numel() * (count + 1) > MAX_SLICE:
            return
        start = some(count, width)
        table = hollow(torch.Size((rows, count)), self._table.dtype, "cpu", True)
        given = self._call.given.mapped(lambda one: table if one.is_floating_point() else self._picked.clone())
        cut = arrived.detach()[..., start : start + count].clone()
        result = hollow(cut.shape, cut.dtype, "cpu", True)
        flowed = [None if one is None else one.detach()[:, start : start + count].clone() for one in gradients.inputs]
        yield Sample(replace(self._call, given=given, kept=None, result=result), Gradients(flowed, [cut]))

    def tensors(self) -> list[Tensor]:
        return [self._picked]


def _is_table(value: Any) -> bool:
    """torch.nn.functional.embedding has the numbers of the rows first, aten the table."""
    return isinstance(value, Tensor) and value.is_floating_point()


def host_copy(sample: Sample, copies: Iterator[Tensor]) -> Sample:
    """The same sample with its tensors, in the order of `tensors_of`, on the host."""
    call, made = sample.call, {}
    device = next((tensor.device for tensor in tensors_of(sample) if not tensor.is_cpu), None)
    for tensor in tensors_of(sample):
        made[id(tensor)] = next(copies).requires_grad_(tensor.requires_grad)

    def moved(tensor: Tensor) -> Tensor:
        return made.get(id(tensor), tensor)

    given = call.given.with_tensors([moved(tensor) for tensor in call.given.tensors])
    kept = None if call.kept is None else call.kept.with_tensors([moved(tensor) for tensor in call.kept.tensors])
    copied = replace(call, given=given, kept=kept, result=trees.map_tensors(moved, call.result), device=device)
    if sample.gradients is None:
        return Sample(copied)
    inputs, outputs = (
        [None if one is None else moved(one) for one in some_of]
        for some_of in (sample.gradients.inputs, sample.gradients.outputs)
    )
    return Sample(copied, Gradients(inputs, outputs))


def tensors_of(sample: Sample) -> list[Tensor]:
    """Each once. Those of a call that waits for its gradients have no result that is worth a copy."""
    call, gradients = sample.call, sample.gradients
    found = [*call.given.tensors, *([] if call.kept is None else call.kept.tensors)]
    if gradients is None or catalogue.has(call.name, Trait.DROPOUT | Trait.CHOICE):
        found += trees.tensors(call.result)
    if gradients is not None:
        found += [one for one in (*gradients.inputs, *gradients.outputs) if one is not None]
    return list({id(tensor): tensor for tensor in found}.values())
