"""A slice of a call: what it does at some indices of dimensions that it does not work along.

Windows, scans, sorts, reductions along a dimension, moved data, small matrices in a batch, channels of a batch norm:
the CPU computes a few images, rows or channels, other ones at each call, and the ordinary verdict judges them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.identities.projections import some
from op_tools.ops import catalogue
from op_tools.ops.distributions import argument
from op_tools.ops.names import normalized
from op_tools.values import trees

_USUAL_ELEMENTS = 4096
MAX_SLICE = 2**17  # of all tensors of a slice, for a long row or a large image


class _Axes(NamedTuple):
    """How an op works on its first tensor."""

    worked: frozenset[int]  # the dimensions that it works along
    tied: int | None = None  # the dimension that arguments with only one belong to: the channels of a norm
    shares_matrices: bool = False  # others of its tensors are there as a whole at each index


class Slice:
    """Some indices of the dimensions that a call does not work along."""

    picks_from_lists = False

    def __init__(self, shape: torch.Size, axes: _Axes) -> None:
        self._shape, self._axes = shape, axes
        room = _USUAL_ELEMENTS
        for dimension in axes.worked:
            room //= max(1, shape[dimension])
        self._ranges: dict[int, tuple[int, int]] = {}
        for dimension in reversed([one for one in range(len(shape)) if one not in axes.worked]):
            count = max(1, min(shape[dimension], room))
            room //= count
            self._ranges[dimension] = some(count, shape[dimension]), count

    def suits(self, given: Arguments) -> bool:
        """Whether each tensor of the call is cut, or belongs to each slice as a whole."""
        if not self._ranges or not all(map(self._is_cut_or_shared, given.tensors)):
            return False
        return sum(self.of(tensor).numel() for tensor in given.tensors) <= MAX_SLICE

    def _is_cut_or_shared(self, tensor: Tensor) -> bool:
        if tensor.layout is not torch.strided:
            return False
        return self.covers(tensor) or tensor.dim() <= 1 or self._axes.shares_matrices

    def covers(self, tensor: Tensor) -> bool:
        """Whether this tensor is cut."""
        if self._is_tied(tensor):
            return True
        if tensor.dim() != len(self._shape):
            return False
        return all(tensor.shape[dimension] == self._shape[dimension] for dimension in self._ranges)

    def _is_tied(self, tensor: Tensor) -> bool:
        tied = self._axes.tied
        return tied is not None and tensor.dim() == 1 < len(self._shape) and len(tensor) == self._shape[tied]

    def of(self, tensor: Tensor) -> Tensor:
        """Of an argument, or of its gradient: a view."""
        whole = tensor.detach()
        if self._is_tied(tensor) and self._axes.tied is not None:
            return whole.narrow(0, *self._ranges[self._axes.tied])
        if self.covers(tensor):
            for dimension, (start, count) in self._ranges.items():
                whole = whole.narrow(dimension, start, count)
        return whole

    def of_result(self, tensor: Tensor) -> Tensor | None:
        """Of a result, or of what arrived for it; None where it does not have these dimensions."""
        whole = tensor.detach()
        for dimension, (start, count) in self._ranges.items():
            gone = 0 if tensor.dim() == len(self._shape) else sum(one < dimension for one in self._axes.worked)
            place = dimension - gone
            if place >= tensor.dim() or tensor.shape[place] != self._shape[dimension]:
                return None
            whole = whole.narrow(place, start, count)
        return whole

    def arguments(self, given: Arguments, made: dict[int, Tensor]) -> Arguments:
        """Copies; `made` has each by the tensor that it was cut from."""

        def copy(tensor: Tensor) -> Tensor:
            asks = tensor.requires_grad and self.covers(tensor) and tensor.is_floating_point()
            made[id(tensor)] = self.of(tensor).clone().requires_grad_(asks)
            return made[id(tensor)]

        return given.mapped(copy)

    def results(self, result: Any, made: dict[int, Tensor]) -> Any:
        """Copies, but of arguments that are returned. To be asked only where there are slices of all results."""

        def copy(tensor: Tensor) -> Any:
            if id(tensor) in made:
                return made[id(tensor)]
            piece = self.of_result(tensor)
            return None if piece is None else piece.clone().requires_grad_(tensor.requires_grad)

        return trees.map_tensors(copy, result)


class Member:
    """One tensor of each list, as a whole, of an op on lists (torch._foreach_norm …); no gradients flow through it."""

    picks_from_lists = True

    def __init__(self, lists: list[Any]) -> None:
        self._length = len(lists[0])
        self._number = some(1, self._length)
        self.is_small = sum(value[self._number].numel() for value in lists) <= MAX_SLICE

    @classmethod
    def find(cls, name: str, given: Arguments) -> Member | None:
        lists = [value for value in given.args if isinstance(value, (list, tuple)) and value]
        if (
            not normalized(name).form.startswith("_foreach_")
            or not lists
            or any(len(value) != len(lists[0]) for value in lists)
        ):
            return None
        lists = [value for value in lists if all(isinstance(one, Tensor) for one in value)]
        found = cls(lists) if lists else None
        return found if found is not None and found.is_small else None

    def _picked(self, value: Any) -> Any:
        is_list = isinstance(value, (list, tuple)) and len(value) == self._length
        return [value[self._number]] if is_list else value

    def covers(self, tensor: Tensor) -> bool:
        return False

    def of_result(self, tensor: Tensor) -> Tensor | None:
        return None

    def of(self, tensor: Tensor) -> Tensor:
        return tensor

    def arguments(self, given: Arguments, made: dict[int, Tensor]) -> Arguments:
        """Copies; `made` has each by the tensor that it was made from."""
        return Arguments(tuple(self.results(value, made) for value in given.args), given.kwargs)

    def results(self, result: Any, made: dict[int, Tensor]) -> Any:
        """Copies, each once."""

        def copy(tensor: Tensor) -> Tensor:
            return made.setdefault(id(tensor), tensor.detach().clone())

        return trees.map_tensors(copy, self._picked(result))


def slice_of(name: str, given: Arguments, result: Any = None) -> Slice | None:
    """None where the dimensions of this call are not known to be apart. Before it runs there is no result."""
    first = given.tensors[0] if given.tensors else None
    if first is None or not first.numel() or any(isinstance(value, dict) for value in given.args):
        return None
    axes = _axes_of(name, given, first)
    if axes is None:
        return None
    found = Slice(first.shape, axes)
    own = {id(tensor) for tensor in given.tensors}
    results = [tensor for tensor in trees.tensors(result) if id(tensor) not in own]
    is_whole = found.suits(given) and all(found.of_result(tensor) is not None for tensor in results)
    return found if is_whole else None


def _axes_of(name: str, given: Arguments, first: Tensor) -> _Axes | None:
    args, kwargs, base, count = given.args, given.kwargs, normalized(name).base, first.dim()
    last = _last_of(base, given, count)
    if last is not None:
        shares = base.startswith("conv_transpose")
        return _axes(range(count - last, count), shares_matrices=shares) if last < count else None
    if base in ("batch_norm", "instance_norm", "prelu") and count > 1:
        worked: Iterable[int] = {"batch_norm": (0, *range(2, count)), "instance_norm": range(2, count)}.get(base, ())
        return _axes(worked, tied=1)
    if base not in catalogue.WORKS_ALONG:
        return None
    place, label, usual = catalogue.WORKS_ALONG[base]
    along = argument(args, kwargs, place, label, usual)
    along = (along,) if type(along) is int else along
    if not isinstance(along, (tuple, list)) or not along or not all(type(one) is int for one in along):
        return None
    return _axes(one % max(1, count) for one in along)


def _axes(worked: Iterable[int], tied: int | None = None, shares_matrices: bool = False) -> _Axes:
    return _Axes(frozenset(worked), tied, shares_matrices)


def _last_of(base: str, given: Arguments, count: int) -> int | None:
    """How many of the last dimensions the op works along."""
    if base in ("interpolate", "upsample", "upsample_nearest", "upsample_bilinear"):
        return count - 2
    if base in ("grid_sample", "group_norm", "local_response_norm", "channel_shuffle"):
        return count - 1
    if base == "pad":
        amounts = argument(given.args, given.kwargs, 1, "pad", None)
        return len(amounts) // 2 if isinstance(amounts, (tuple, list)) else None
    return catalogue.WORKS_ALONG_LAST.get(base)
