"""What a call was given and gave, in words, without holding a tensor: shapes, strides, dtypes and plain values.

It is noted at every call and read later, so noting makes tuples only, and each distinct one is put into words once.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

Signature = Any  # hashable: a plain value, or a tuple whose first part says what it is
_LIST, _DICT, _SLICE = "[", "{", ":"
_NOTHING_NAMED = ("kwargs", (_DICT,))
_LONGEST_LIST = 8  # an optimizer's call has hundreds of tensors
_LONGEST_TEXT = 60
_MOST_TEXTS = 10_000
_texts: dict[Signature, str] = {}


def of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """Notes the arguments of a call."""
    named = ("kwargs", of(kwargs)) if kwargs else _NOTHING_NAMED
    return (_DICT, ("args", (_LIST, *map(of, args))), named)


def of(value: Any) -> Signature:
    """Notes one value, or a nest of them."""
    kind = type(value)
    if kind is Tensor or kind is Parameter:
        return (value.dtype, value.shape, _strides(value), value.device, value.requires_grad)
    if value is None or kind is int or kind is str:
        return value
    if kind is bool or kind is float:
        return (kind, value)  # equal to some int, but written differently
    return _of_others(value)


def _strides(tensor: Tensor) -> tuple[int, ...] | None:
    try:
        return tensor.stride()
    except RuntimeError:  # sparse
        return None


def _of_others(value: Any) -> Signature:
    if isinstance(value, Tensor):
        return (value.dtype, value.shape, _strides(value), value.device, value.requires_grad)
    if isinstance(value, (list, tuple)):
        shown = [of(part) for part in value[:_LONGEST_LIST]]
        return (_LIST, *shown) if len(value) <= _LONGEST_LIST else (_LIST, *shown, f"… {len(value)} in all")
    if isinstance(value, dict):
        return (_DICT, *((str(key), of(part)) for key, part in value.items()))
    if isinstance(value, slice):
        return (_SLICE, of(value.start), of(value.stop), of(value.step))
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


def text(signature: Signature) -> str:
    """In JSON; nothing at all for None."""
    if signature is None:
        return ""
    known = _texts.get(signature)
    if known is None:
        if len(_texts) >= _MOST_TEXTS:
            _texts.clear()
        known = _texts[signature] = json.dumps(_as_json(signature), ensure_ascii=False)
    return known


def _as_json(signature: Signature) -> Any:
    if not isinstance(signature, tuple):
        return signature
    kind, *parts = signature
    if isinstance(kind, torch.dtype):
        shape, strides, device, requires_grad = parts
        return {
            "shape": list(shape),
            "stride": strides,
            "dtype": str(kind).partition(".")[2],
            "device": str(device),
            "requires_grad": requires_grad,
        }
    if kind == _LIST:
        return [_as_json(part) for part in parts]
    if kind == _DICT:
        return {key: _as_json(part) for key, part in parts}
    if kind == _SLICE:
        return ":".join("" if part is None else str(_as_json(part)) for part in parts)
    value = parts[0]
    return value if math.isfinite(value) else str(value)  # JSON has no word for infinity
