"""What the tools ask of the tensors of a call, one or many: optimizers call ops on lists of some hundred."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from operator import attrgetter, is_
from typing import Any, Callable, Union

import torch
from torch import Tensor
from torch.nn import Parameter

from op_tools.values import trees

TENSORS = frozenset((Tensor, Parameter))
MAX_ASKED_SINGLY = 3  # tensors, for which it is quicker to ask them one by one

# for `map`
dtype_of: Callable[[Tensor], torch.dtype] = attrgetter("dtype")
device_of: Callable[[Tensor], torch.device] = attrgetter("device")
layout_of: Callable[[Tensor], torch.layout] = attrgetter("layout")
size_of: Callable[[Tensor], int] = attrgetter("nbytes")
is_contiguous: Callable[[Tensor], bool] = Tensor.is_contiguous
is_nested: Callable[[Tensor], bool] = attrgetter("is_nested")
requires_grad: Callable[[Tensor], bool] = attrgetter("requires_grad")
storage_of: Callable[[Tensor], torch.UntypedStorage] = Tensor.untyped_storage
bytes_of: Callable[[torch.UntypedStorage], int] = torch.UntypedStorage.nbytes
_version: Callable[[Tensor], int] = attrgetter("_version")
_tensor_of: Callable[[weakref.ref[Tensor]], Any] = weakref.ref.__call__


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """As trees.tensors, for the shallow nests that most calls have."""
    found: list[Tensor] = []
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            found.append(value)
        elif kind is list or kind is tuple:
            found += value if TENSORS.issuperset(map(type, value)) else tensors_in(value)
        elif isinstance(value, (Tensor, list, tuple, dict)):
            found += trees.tensors(value)
    return found


State = tuple[list[Union[int, None]], int, torch.dtype]
Gradients = list[Union[Tensor, None]]  # None where nothing flowed
_state_of: Callable[[Any], State | None] | None = None  # the C++ helper's


def choose_way(helper: Any) -> None:
    """With the C++ helper, or without (None)."""
    global _state_of
    _state_of = None if helper is None else helper.state_of


def state_of(tensors: Sequence[Any]) -> State | None:
    """The versions, bytes and dtype of tensors of one device and dtype; None where they have to be asked one by one."""
    return None if _state_of is None else _state_of(tensors)


def are_these(references: list[weakref.ref[Tensor]], tensors: Sequence[Tensor]) -> bool:
    """Whether weak references lead to these very tensors."""
    return len(references) == len(tensors) and all(map(is_, map(_tensor_of, references), tensors))


def aliases_of(inputs: Gradients, outputs: Gradients) -> tuple[Gradients, list[Tensor]]:
    """The gradients of inputs, where an alias stands for each that is new; and the new ones.

    Autograd copies a gradient that has another reference, where it could keep it: hence aliases. Those of outputs
    are the new ones where all are only passed on: sums may not have been looked at yet.
    """
    left: Gradients = []
    made: list[Tensor] = []
    for one in inputs:
        if one is not None:
            for other in outputs:
                if one is other:
                    break
            else:
                one = one.detach()
                made.append(one)
        left.append(one)
    return left, made or [one.detach() for one in outputs if one is not None]


def is_dense(tensor: Tensor) -> bool:
    """Whether its elements lie side by side, in whatever order."""
    return tensor.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def with_memory(tensor: Tensor) -> Tensor:
    """Gradients that autograd knows to be zero lie nowhere; for who reads memory, a copy that does."""
    return tensor.clone() if tensor._is_zerotensor() else tensor


def addresses_of(tensors: Iterable[Tensor]) -> set[int]:
    """Where their memory begins."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.layout is torch.strided}


def version_of(tensor: Tensor) -> int | None:
    """Goes up whenever the tensor is changed in place; None for inference tensors, which have no version."""
    try:
        return tensor._version
    except RuntimeError:
        return None


def versions_of(tensors: Sequence[Tensor]) -> list[int | None]:
    """Of each tensor."""
    try:
        return list(map(_version, tensors))
    except RuntimeError:
        return list(map(version_of, tensors))
