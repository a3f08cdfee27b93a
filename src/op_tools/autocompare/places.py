"""Where tensors lie. It is asked of every value that is compared, so in C++ where that is there."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from op_tools import native
from op_tools.values.tensors import is_dense

# elements, bytes of both, the address of each, and whether both are in order; addresses of 0 where elements of one
# index do not lie at one place in both, or nowhere
Beside = tuple[int, int, int, int, bool]


def choose_way() -> None:
    """With the C++ helper or without; asked when the tool starts."""
    global beside, _bytes_taken
    helper: Any = native.library()
    beside = _beside if helper is None else helper.beside
    _bytes_taken = _bytes_in_python if helper is None else helper.bytes_taken


def bytes_taken(tensors: list[Tensor]) -> int:
    """The memory that they lie in, each piece once."""
    known = _bytes_taken(tensors)
    return _bytes_in_python(tensors) if known is None else known


def _bytes_in_python(tensors: list[Tensor]) -> int:
    storages = [tensor.untyped_storage() for tensor in tensors if tensor.layout is torch.strided]  # others do not tell
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def _beside(got: Tensor, expected: Tensor) -> Beside | None:
    if got.shape != expected.shape or got.device != expected.device or not (_is_plain(got) and _is_plain(expected)):
        return None
    size = got.numel()
    are_in_order = got.is_contiguous() and expected.is_contiguous()
    lie_alike = are_in_order or (got.stride() == expected.stride() and is_dense(got))
    if not lie_alike or size == 0 or got._is_zerotensor() or expected._is_zerotensor():
        return size, got.nbytes + expected.nbytes, 0, 0, are_in_order
    return size, got.nbytes + expected.nbytes, got.data_ptr(), expected.data_ptr(), are_in_order


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.dtype.is_complex and not tensor.is_neg()


# how two tensors lie beside each other; None where a first look cannot compare them
beside: Callable[[Tensor, Tensor], Beside | None] = _beside
_bytes_taken: Callable[[list[Tensor]], int | None] = _bytes_in_python
