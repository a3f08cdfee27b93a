"""What the tools ask of the tensors of a call, one or many: optimizers call ops on lists of some hundred."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Callable, Union

import torch
from torch import Tensor
from torch.nn import Parameter

from op_tools import native, trees

TENSORS = frozenset((Tensor, Parameter))
FEW = 3  # tensors, for which it is quicker to ask them one by one

# for `map`
dtype_of: Callable[[Tensor], torch.dtype] = attrgetter("dtype")
device_of: Callable[[Tensor], torch.device] = attrgetter("device")
layout_of: Callable[[Tensor], torch.layout] = attrgetter("layout")
size_of: Callable[[Tensor], int] = attrgetter("nbytes")
is_contiguous: Callable[[Tensor], bool] = Tensor.is_contiguous
requires_grad: Callable[[Tensor], bool] = attrgetter("requires_grad")
storage_of: Callable[[Tensor], torch.UntypedStorage] = Tensor.untyped_storage
bytes_of: Callable[[torch.UntypedStorage], int] = torch.UntypedStorage.nbytes
_version: Callable[[Tensor], int] = attrgetter("_version")


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
_state_of: Callable[[Any], State | None] | None = None  # the C++ helper's


def choose_way() -> None:
    """With the C++ helper or without; asked when the tool starts."""
    global _state_of
    helper = native.library()
    _state_of = None if helper is None else helper.state_of


def state_of(tensors: Sequence[Any]) -> State | None:
    """The versions, bytes and dtype of tensors of one device and dtype; None where they have to be asked one by one."""
    return None if _state_of is None or len(tensors) <= FEW else _state_of(tensors)


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
    """Goes up whenever the tensor is changed in place; None for inference tensors, where nobody counts."""
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
