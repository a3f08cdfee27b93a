"""Ops on lists, as optimizers have them: a part of a few tensors of each list, of the same ones in all lists."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.identities.projections import some
from op_tools.autocompare.identities.slices import MAX_SLICE, Slice, is_by_element, slice_by_element
from op_tools.ops.names import normalized
from op_tools.values import trees

_MAX_MEMBERS = 4
_Parts = dict[int, "Slice | None"]  # by their number; None: the tensor as a whole


class Members:
    """A few numbers of the lists, the first and the last more often than others; no gradients flow through them."""

    picks_from_lists = True

    def __init__(self, length: int, parts: _Parts) -> None:
        self._length = length
        self._parts = parts

    @classmethod
    def find(cls, name: str, given: Arguments) -> Members | None:
        lists = [value for value in given.args if isinstance(value, (list, tuple)) and value]
        length = len(lists[0]) if lists else 0
        if not lists or not isinstance(lists[0][0], Tensor):
            return None
        picked = {some(1, length) for _ in range(_MAX_MEMBERS)}
        if is_by_element(name, given):
            together = [value for value in _values(given) if isinstance(value, (list, tuple)) and len(value) == length]
            slices = {number: _slice_of([value[number] for value in together]) for number in picked}
            return cls(length, {**slices}) if all(slices.values()) else None
        if not normalized(name).form.startswith("_foreach_") or any(len(value) != length for value in lists):
            return None
        tensors = [value for value in lists if all(isinstance(one, Tensor) for one in value)]
        small = [number for number in picked if sum(value[number].numel() for value in tensors) <= MAX_SLICE]
        return cls(length, dict.fromkeys(small)) if small else None

    def covers(self, tensor: Tensor) -> bool:
        return False

    def of_result(self, tensor: Tensor) -> Tensor | None:
        return None

    def of(self, tensor: Tensor) -> Tensor:
        return tensor

    def arguments(self, given: Arguments, made: dict[int, Tensor]) -> Arguments:
        """Copies; `made` has each by the tensor that it was made from."""
        kwargs = {name: self.results(value, made) for name, value in given.kwargs.items()}
        return Arguments(tuple(self.results(value, made) for value in given.args), kwargs)

    def results(self, result: Any, made: dict[int, Tensor]) -> Any:
        """Copies, each once."""
        if isinstance(result, (list, tuple)) and len(result) == self._length:
            return [_copy(result[number], part, made) for number, part in self._parts.items()]
        return _copy(result, None, made)


def _copy(value: Any, part: Slice | None, made: dict[int, Tensor]) -> Any:
    def copy(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            piece = tensor.detach() if part is None else part.of(tensor)
            made[id(tensor)] = piece.clone()
        return made[id(tensor)]

    return trees.map_tensors(copy, value)


def _slice_of(members: list[Any]) -> Slice | None:
    """What is taken of the tensors with one number."""
    tensors = [one for one in members if isinstance(one, Tensor)]
    return slice_by_element(tensors[0].shape, tensors) if tensors and tensors[0].numel() else None


def _values(given: Arguments) -> list[Any]:
    return [*given.args, *given.kwargs.values()]
