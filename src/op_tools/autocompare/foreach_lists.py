"""Ops on lists of tensors, as optimizers call them: each list as one flat tensor, which is much quicker to compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare.arguments import Arguments, is_long_list
from op_tools.values.tensors import device_of, layout_of


class Joined(Arguments):
    """The arguments of an op that works on lists of tensors, element by element: each list is one flat tensor here."""

    __slots__ = ("_labels", "_lists")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], lists: list[Any], labels: list[str]) -> None:
        super().__init__(args, kwargs)
        self._leaves = [value[0] if isinstance(value, list) else value for value in args]
        self._lists = lists  # what each argument was
        self._labels = labels

    def long_lists(self) -> list[range]:
        return []  # each is one tensor

    def labels(self, role: str) -> list[str]:
        return [f"{role}{label}" for label in self._labels]

    def copied(self) -> Joined:
        copy = super().copied()
        return Joined(copy.args, copy.kwargs, self._lists, self._labels)

    def now(self) -> Joined:
        """The same lists as they are now. Their versions do not tell: on CUDA, torch._foreach_lerp_ counts nothing."""
        flat: dict[int, Tensor] = {}
        args = [
            [_flattened(plain, flat)] if isinstance(value, list) and isinstance(value[0], Tensor) else value
            for value, plain in zip(self.args, self._lists)
        ]
        return Joined(tuple(args), self.kwargs, self._lists, self._labels)

    def returns(self, result: Any) -> Any:
        """What the call returned, in the same manner: nothing where it is one of its lists; None if unknown."""
        if result is None or any(result is plain for plain in self._lists):
            return []
        if not is_long_list(result) or not result[0].is_floating_point():
            return None
        if any(isinstance(plain, (list, tuple)) and result[0] is plain[0] for plain in self._lists):
            return []
        return [torch._utils._flatten_dense_tensors(tuple(result))]

    def apart(self) -> Arguments:
        """With the lists that they were."""
        parts = [
            value if plain is value else apart(value[0], plain) if isinstance(value[0], Tensor) else plain
            for value, plain in zip(self.args, self._lists)
        ]
        return Arguments(tuple(parts), self.kwargs)


def apart(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """A flat tensor cut into pieces like these."""
    return list(torch._utils._unflatten_dense_tensors(flat, tuple(like)))


def joined(given: Arguments) -> Joined | None:
    """None where the lists cannot be taken as one tensor each: other shapes side by side, or numbers that differ."""
    if any(isinstance(value, (list, tuple, Tensor)) for value in given.kwargs.values()):
        return None
    parts: list[Any] = []
    labels: list[str] = []
    sizes: list[int] | None = None
    count = 0
    flat: dict[int, Tensor] = {}
    for value in given.args:
        if not isinstance(value, (list, tuple)):
            parts.append(value)
            labels.append(f"[{count}]")
            count += 1
            continue
        if not value or (sizes is not None and len(value) != len(sizes)):
            return None
        if isinstance(value[0], Tensor):
            if not is_long_list(value) or not _is_flat(value):
                return None
            found = list(map(Tensor.numel, value))
            if sizes is not None and found != sizes:
                return None
            sizes = found
            parts.append([_flattened(value, flat)])
        elif any(number != value[0] for number in value):
            return None
        else:
            parts.append([value[0]])
        labels.append(f"[{count}..{count + len(value) - 1}]")
        count += len(value)
    return None if sizes is None else Joined(tuple(parts), given.kwargs, list(given.args), labels)


def _flattened(tensors: Sequence[Tensor], known: dict[int, Tensor]) -> Tensor:
    """As one tensor; a list that is given twice is one tensor, too."""
    if id(tensors) not in known:
        known[id(tensors)] = torch._utils._flatten_dense_tensors(tuple(tensors))
    return known[id(tensors)]


def _is_flat(tensors: Sequence[Tensor]) -> bool:
    is_one_kind = len(set(map(layout_of, tensors))) == len(set(map(device_of, tensors))) == 1
    return is_one_kind and tensors[0].layout is torch.strided and tensors[0].is_floating_point()
