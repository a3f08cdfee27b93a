"""A large call whose elements, or rows, have nothing to do with each other: compared piece by piece.

The reference in float64 takes eight times the memory of a bfloat16 result, and there are several runs. Here only one
piece of each is there at a time. Most calls are as good as the CPU in the same dtype, which sums over all pieces can
tell. Of all others each piece is judged in full, as the call of its own that it could be, until one is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Callable, NamedTuple

import torch
from torch import Tensor

from op_tools.autocompare.judging import judge
from op_tools.autocompare.judging.error_statistics import Found
from op_tools.autocompare.judging.limits import LARGE_ELEMENTS, Precision, Tolerance, Tolerances
from op_tools.autocompare.judging.measures import EQUAL, SumsAndMaxima, dense, same_bits, unravel
from op_tools.autocompare.judging.verdict import (
    MeasuredErrors,
    Nearness,
    Row,
    Verdict,
    by_tolerance,
    error_info,
    look_at,
    place_of,
    together,
)
from op_tools.autocompare.observed import CannotCompare, ObservedCall, Value
from op_tools.autocompare.reference.runs import Reference, References
from op_tools.autocompare.reference.ways import Dtypes
from op_tools.core.gradients import Gradients
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.ops.names import normalized

PIECE_ELEMENTS = 2**22  # a multiple of what the sums take at once


class Split(NamedTuple):
    """How the tensors of a call are cut: end to end, or along their first dimension."""

    shape: torch.Size  # of the result
    is_flat: bool
    step: int  # elements or rows

    def starts(self) -> range:
        return range(0, self.shape.numel() if self.is_flat else self.shape[0], self.step)

    def cuts(self, tensor: Tensor) -> bool:
        """Whether this tensor is cut; others are there as a whole for every piece."""
        if self.is_flat:
            return tensor.shape == self.shape
        return tensor.dim() == len(self.shape) and tensor.shape[0] == self.shape[0]

    def place(self, start: int, index: tuple[int, ...]) -> tuple[int, ...]:
        """Where an element of the piece that begins at `start` is in the whole."""
        return unravel(start + index[0], self.shape) if self.is_flat else (start + index[0], *index[1:])

    def piece(self, tensor: Tensor, start: int) -> Tensor:
        if not self.cuts(tensor):
            return tensor
        whole = tensor.detach().reshape(-1) if self.is_flat else tensor.detach()
        return whole[start : start + self.step].requires_grad_(tensor.requires_grad)


def split_of(call: ObservedCall, for_gradients: bool = False) -> Split | None:
    """How a large call on the host can be cut; None for all others."""
    result, tensors = call.result, call.given.tensors
    if not isinstance(result, Tensor) or result.numel() < LARGE_ELEMENTS or call.changed:
        return None
    if not call.given.are_flat or not all(_is_plain(tensor) for tensor in (result, *tensors)):
        return None
    if not result.is_floating_point():
        return None
    split = _split_by_element(call, result) or _split_by_row(call, result)
    if split is None or not any(split.cuts(tensor) for tensor in tensors):
        return None
    # the gradient of what was broadcast is a sum over all pieces
    if for_gradients and any(tensor.requires_grad and not split.cuts(tensor) for tensor in tensors):
        return None
    return split


def _is_plain(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_complex()


def _split_by_element(call: ObservedCall, result: Tensor) -> Split | None:
    if not catalogue.has(call.name, Trait.ELEMENTWISE):
        return None
    others = [tensor for tensor in call.given.tensors if tensor.shape != result.shape]
    if all(tensor.dim() == 0 for tensor in others):
        return Split(result.shape, True, PIECE_ELEMENTS)
    return _by_row(result) if all(_is_broadcast(tensor, result) for tensor in others) else None


def _is_broadcast(tensor: Tensor, result: Tensor) -> bool:
    """Along the first dimension, or not at all."""
    return tensor.dim() < result.dim() or tensor.shape[0] in (1, result.shape[0])


def _split_by_row(call: ObservedCall, result: Tensor) -> Split | None:
    """A softmax or a norm along other dimensions than the first one."""
    given, base = call.given, normalized(call.name).base
    if result.dim() < 2 or given.tensors[0].shape != result.shape:
        return None
    if base in _ALONG_DIMENSION:
        dimension = given.args[1] if len(given.args) > 1 else given.kwargs.get("dim")
        is_apart = type(dimension) is int and dimension % result.dim() != 0
    elif base in _ALONG_SHAPE:
        shape = given.args[1] if len(given.args) > 1 else given.kwargs.get("normalized_shape", result.shape)
        is_apart = isinstance(shape, (list, tuple)) and len(shape) < result.dim()
    else:
        return None
    return _by_row(result) if is_apart else None


_ALONG_DIMENSION = ("softmax", "log_softmax", "softmin")
_ALONG_SHAPE = ("layer_norm", "rms_norm")


def _by_row(result: Tensor) -> Split:
    return Split(result.shape, False, max(1, PIECE_ELEMENTS * result.shape[0] // result.numel()))


# ---- the comparison --------------------------------------------------------------------------------------------------


class InPieces(NamedTuple):
    """What came out for a call in pieces."""

    rows: list[Row]
    casts: Dtypes


def forward(call: ObservedCall, references: References, tolerances: Tolerances) -> InPieces | None:
    """Inputs, which the call must have left alone, and the output. None: it is to be compared as a whole."""
    split = split_of(call)
    if split is None:
        return None

    def pieces() -> Iterator[Piece]:
        for start in split.starts():
            piece = _piece(call, split, start)
            reference = references.of(piece)
            yield Piece(start, piece.values(reference), reference)

    return _compared(call.name, split, pieces, tolerances)


def backward(
    call: ObservedCall, gradients: Gradients, references: References, tolerances: Tolerances
) -> InPieces | None:
    """The gradients that flowed out of the call's inputs. None: they are to be compared as a whole."""
    split = split_of(call, for_gradients=True)
    if split is None or any(one is not None and not split.cuts(one) for one in (*gradients.inputs, *gradients.outputs)):
        return None

    def pieces() -> Iterator[Piece]:
        for start in split.starts():
            piece = _piece(call, split, start)
            arrived, flowed = (
                [None if one is None else split.piece(one, start) for one in some]
                for some in (gradients.outputs, gradients.inputs)
            )
            reference = references.of(piece, arrived)
            yield Piece(start, piece.gradient_values(reference, Gradients(flowed, arrived)), reference)

    return _compared(call.name, split, pieces, tolerances)


class Piece(NamedTuple):
    """A piece of a call beside its reference."""

    start: int
    values: list[Value]
    reference: Reference


def _compared(
    name: str, split: Split, pieces: Callable[[], Iterator[Piece]], tolerances: Tolerances
) -> InPieces | None:
    try:
        merged = _Merged(name, tolerances)
        if all(merged.add(piece.values, piece.reference) for piece in pieces()) and (found := merged.outcome()):
            return found
        judged = _Judged(name, split, tolerances)
        return judged.outcome() if all(map(judged.add, pieces())) else None
    except CannotCompare:
        return None


def _piece(call: ObservedCall, split: Split, start: int) -> ObservedCall:
    def cut(tensor: Tensor) -> Tensor:
        return split.piece(tensor, start)

    kept = None if call.kept is None else call.kept.mapped(cut)
    return replace(call, given=call.given.mapped(cut), kept=kept, result=cut(call.result))


class _Merged:
    """The values of a call, summed up over its pieces."""

    def __init__(self, name: str, tolerances: Tolerances) -> None:
        self._name = name
        self._tolerances = tolerances
        self._casts: Dtypes = {}
        self._rows: dict[str, Row | _Numbers] = {}

    def add(self, values: Sequence[Value], reference: Reference) -> bool:
        """One more piece; False where it is not right beyond doubt."""
        self._casts = reference.casts
        for value in values:
            if value.is_unchanged:
                (row,) = judge.rows_of([value], reference, self._tolerances)
                if row.is_wrong:
                    return False
                self._rows[value.name] = row
                continue
            if value.name not in self._rows:
                self._rows[value.name] = _Numbers(self._tolerances.for_dtype(self._name, value.got.dtype))
            numbers = self._rows[value.name]
            if not isinstance(numbers, _Numbers) or not numbers.add(value, reference):
                return False
        return True

    def outcome(self) -> InPieces | None:
        rows = []
        for name, found in self._rows.items():
            row = found.row(name) if isinstance(found, _Numbers) else found
            if row is None:
                return None
            rows.append(row)
        return InPieces(rows, self._casts) if rows else None


class _Numbers:
    """One floating-point value, summed up over its pieces."""

    def __init__(self, tolerance: Tolerance) -> None:
        self._tolerance = tolerance
        self._info = ""
        self._nearness: Nearness | None = None
        self._sums = SumsAndMaxima()
        self._is_same = True

    def add(self, value: Value, reference: Reference) -> bool:
        if not all(isinstance(one, Tensor) for one in (value.got, value.expected, value.same)):
            return False
        if not value.got.shape == value.expected.shape == value.same.shape:
            return False
        got, expected, same = dense(value.got), dense(value.expected), dense(value.same)
        precision = reference.precision(got, same, value.part.role)
        self._info = error_info(got.dtype, expected.dtype)
        self._is_same = self._is_same and same_bits(got, same)
        if self._nearness is None:
            self._nearness = Nearness(precision)
        if not self._nearness.add(got, same):
            return False
        self._sums.add(got, expected, same, precision, self._tolerance)
        return True

    def row(self, name: str) -> Row | None:
        """None where it is not right beyond doubt."""
        if self._nearness is None or not (self._is_same or self._nearness.is_enough()):
            return None
        measures = self._sums.measures(self._tolerance)
        if measures is None:
            return None
        judged = by_tolerance(Verdict(True, "", measures), self._tolerance)
        return Row(name, judged, *self._tolerance, self._info) if judged.right else None


# ---- what is not right beyond doubt ----------------------------------------------------------------------------------


class _Judged:
    """The values of a call. Each piece is judged in full, until one is wrong; of the rest only the numbers count."""

    def __init__(self, name: str, split: Split, tolerances: Tolerances) -> None:
        self._name = name
        self._split = split
        self._tolerances = tolerances
        self._casts: Dtypes = {}
        self._found: dict[str, Row | _Pieces] = {}

    def add(self, piece: Piece) -> bool:
        """One more piece. False where it cannot be told in pieces what is wrong: an input that was changed."""
        self._casts = piece.reference.casts
        for value in piece.values:
            found = self._found.get(value.name)
            if found is None and _is_number(value):
                found = _Pieces(self._split, self._tolerances.for_dtype(self._name, value.got.dtype))
            if isinstance(found, _Pieces):
                found.add(piece.start, value, piece.reference, self._tolerances)
            else:
                (found,) = judge.rows_of([value], piece.reference, self._tolerances)
                if found.is_wrong:
                    return False
            self._found[value.name] = found
        return True

    def outcome(self) -> InPieces | None:
        rows = [found.row() if isinstance(found, _Pieces) else found for found in self._found.values()]
        return InPieces(rows, self._casts) if rows else None


def _is_number(value: Value) -> bool:
    if value.is_unchanged or not isinstance(value.got, Tensor) or not isinstance(value.expected, Tensor):
        return False
    return value.got.is_floating_point() and value.got.shape == value.expected.shape


class _Pieces:
    """One floating-point value in pieces."""

    def __init__(self, split: Split, tolerance: Tolerance) -> None:
        self._split = split
        self._tolerance = tolerance
        self._worst: Row | None = None
        self._precision: Precision | None = None
        self._found: Found | None = None
        self._has_same = True
        self._count = 0
        self._bad = 0.0  # elements
        self._first: tuple[int, ...] | None = None
        self._place = "no single place"

    def add(self, start: int, value: Value, reference: Reference, tolerances: Tolerances) -> None:
        got, expected, same = dense(value.got), dense(value.expected), None
        if isinstance(value.same, Tensor):
            same = dense(value.same)
        precision = self._precision = reference.precision(value.got, value.same, value.part.role)
        self._has_same = self._has_same and same is not None
        look = look_at(got, expected, same, precision, self._tolerance)
        if self._worst is None or not self._worst.is_wrong:
            (row,) = judge.rows_of([value], reference, tolerances)
            if self._worst is None or row.is_wrong:
                self._worst = row
            measures = EQUAL if row.verdict is None else row.verdict.measures
            look = look._replace(first=measures.first_bad, share=measures.bad_share)
        if self._first is None and look.first is not None:
            self._first = self._split.place(start, look.first)
            self._place = place_of(got, expected, look.first, self._first)
        self._found = look.found if self._found is None else self._found.and_more(look.found)
        self._bad += look.share * got.numel()
        self._count += got.numel()

    def row(self) -> Row:
        """Of the whole."""
        row, found, precision = self._worst, self._found, self._precision
        assert row is not None
        assert found is not None
        assert precision is not None
        if row.verdict is None:
            return row
        look = MeasuredErrors(found, self._first, self._bad / max(self._count, 1))
        judged = together(row.verdict, look, self._place, self._count, precision, self._tolerance, self._has_same)
        return replace(row, verdict=judged)
