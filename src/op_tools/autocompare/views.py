"""Ops that hand out the memory of their input, and gradients that are the memory of what arrived.

No number needs to be read: it is enough that they look at it as the same call does without memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.reference import runs
from op_tools.autocompare.reference.ways import Way
from op_tools.values.tensors import addresses_of, tensors_in

_MAX_KNOWN_CALLS = 10_000
_known: dict[Any, Any] = {}  # a call without its numbers: how its results look at memory; None where that is unknown
_WITHOUT_MEMORY = Way("meta", {}, "meta")

_View = tuple[Any, ...]


def hands_out_memory(given: Arguments, result: Any) -> bool:
    """True where every result looks into the memory of an argument."""
    memory = addresses_of(given.tensors)
    results = tensors_in((result,))
    return bool(results) and all(
        tensor.layout is torch.strided and tensor.untyped_storage().data_ptr() in memory for tensor in results
    )


def looks_alike(function: Callable[..., Any], given: Arguments, result: Any) -> bool:
    """True where results look into memory as those of the same call without memory do."""
    expected = _remembered(_key_of_call(function, given), lambda: _views_of(function, given))
    return expected is not None and expected == [_view_of(tensor) for tensor in tensors_in((result,))]


def hands_back_memory(
    function: Callable[..., Any],
    given: Arguments,
    grad_outputs: Sequence[Tensor | None],
    grad_inputs: Sequence[Tensor | None],
) -> bool:
    """True where the only gradient of a call is what arrived, looked at as that of the same call without memory."""
    flowed = [gradient for gradient in grad_inputs if gradient is not None]
    if len(grad_outputs) != 1 or grad_outputs[0] is None or len(flowed) != 1:
        return False
    arrived, gradient = grad_outputs[0], flowed[0]
    if not (_has_memory(arrived) and _has_memory(gradient)):
        return False
    if arrived.untyped_storage().data_ptr() != gradient.untyped_storage().data_ptr():
        return False
    key = (*_key_of_call(function, given), _key_of(arrived))
    expected = _remembered(key, lambda: _gradient_view(function, given, arrived))
    return expected is not None and expected == _view_of(gradient)


def _has_memory(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor._is_zerotensor() and tensor.numel() > 0


# ---- the same call without memory ------------------------------------------------------------------------------------


def _remembered(key: Any, find: Callable[[], Any]) -> Any:
    found = _known.get(key, _known)
    if found is _known:
        try:
            found = find()
        except Exception:  # noqa: BLE001  no such call without memory: there are other ways to compare
            found = None
        if len(_known) >= _MAX_KNOWN_CALLS:
            _known.clear()
        _known[key] = found
    return found


def _views_of(function: Callable[..., Any], given: Arguments) -> list[_View]:
    again = runs.run(function, given.mapped(_without_memory), _WITHOUT_MEMORY)
    return [_view_of(tensor) for tensor in tensors_in((again.result,))]


def _gradient_view(function: Callable[..., Any], given: Arguments, arrived: Tensor) -> _View | None:
    again = runs.run(function, given.mapped(_without_memory), _WITHOUT_MEMORY, graph=True)
    arrived = _without_memory(arrived)
    (gradient,) = [one for one in again.gradients([arrived]) if one is not None]
    is_same_memory = gradient.untyped_storage()._cdata == arrived.untyped_storage()._cdata
    return _view_of(gradient) if is_same_memory else None


def _without_memory(tensor: Tensor) -> Tensor:
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    memory = torch.empty(size, dtype=tensor.dtype, device="meta")
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).requires_grad_(
        tensor.requires_grad
    )


def _key_of_call(function: Callable[..., Any], given: Arguments) -> tuple[Any, ...]:
    return function, _key_of(given.args), _key_of(tuple(given.kwargs.items())) if given.kwargs else None


def _key_of(value: Any) -> Any:
    kind = type(value)
    if kind in _SIMPLE:
        return kind, value
    if isinstance(value, Tensor):
        return (*_view_of(value), value.untyped_storage().nbytes(), value.requires_grad)
    if isinstance(value, (list, tuple)):
        return (kind, *[_key_of(part) for part in value])
    return str(value)  # a slice; a dictionary


_SIMPLE = frozenset((type(None), int, bool, str, torch.dtype, torch.device))


def _view_of(tensor: Tensor) -> _View:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()
