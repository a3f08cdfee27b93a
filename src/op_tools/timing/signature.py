"""Serializes a call's arguments and results to JSON: shapes, strides, dtypes and plain values.

Asked for at every call, and calls are alike: each distinct one is serialized once. Only that text is kept, because many
small objects that live until backward set off the garbage collector.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

Note = Any  # hashable: a plain value, or a tuple whose first part says what it is
_LIST, _DICT, _SLICE = "[", "{", ":"
_NOTHING_NAMED: Note = ("kwargs", (_DICT,))
MAX_TENSORS_SHOWN = 2  # of tensors; an optimizer's call has hundreds
MAX_VALUES_SHOWN = 64
MAX_TEXT_LENGTH = 60
MAX_TEXTS = 10_000
_texts: dict[Note, str] = {}


def of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments of a call; long lists are shortened. The C++ helper does the same (native/csrc/signature.h)."""
    named = _NOTHING_NAMED
    if kwargs:
        named = ("kwargs", (_DICT, *zip(kwargs, map(_noted_briefly, kwargs.values()))))
    return _in_words((_DICT, ("args", (_LIST, *map(_noted_briefly, args))), named))


def of(value: Any) -> str:
    """One value, or a list of them; a long one is shortened."""
    return _in_words(_noted_briefly(value))


def _noted_briefly(value: Any) -> Note:
    kind = type(value)
    if kind is Tensor or kind is Parameter:
        try:
            return (value.dtype, value.shape, value.stride())
        except RuntimeError:
            return _noted_tensor(value)[:3]
    if isinstance(value, (list, tuple)):
        longest = MAX_TENSORS_SHOWN if value and isinstance(value[0], Tensor) else MAX_VALUES_SHOWN
        parts = map(_noted_briefly, value[:longest])
        return (_LIST, *parts) if len(value) <= longest else (_LIST, *parts, f"… {len(value)} in all")
    return _noted(value)


def _noted(value: Any) -> Note:
    kind = type(value)
    if kind is Tensor or kind is Parameter:
        return _noted_tensor(value)
    if value is None or kind is int or kind is str:
        return value
    if kind is bool or kind is float:
        return (kind, value)  # equal to some int, but written differently
    if isinstance(value, (list, tuple)):
        return (_LIST, *map(_noted, value))
    return _noted_rarely(value)


def _noted_tensor(tensor: Tensor) -> tuple[Any, ...]:
    try:
        return (tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.requires_grad)
    except RuntimeError:  # a compressed sparse tensor has no strides, a nested one no shape either
        shape = None if tensor.is_nested else tensor.shape
        return (tensor.dtype, shape, None, tensor.device, tensor.requires_grad)


def _noted_rarely(value: Any) -> Note:
    if isinstance(value, Tensor):
        return _noted_tensor(value)
    if isinstance(value, dict):
        return (_DICT, *((str(key), _noted(part)) for key, part in value.items()))
    if isinstance(value, slice):
        return (_SLICE, _noted(value.start), _noted(value.stop), _noted(value.step))
    text = str(value)
    return text if len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 1] + "…"


def _in_words(note: Note) -> str:
    text = _texts.get(note)
    if text is None:
        if len(_texts) >= MAX_TEXTS:
            _texts.clear()
        text = _texts[note] = json.dumps(_as_json(note), ensure_ascii=False)
    return text


def _as_json(note: Note) -> Any:
    if not isinstance(note, tuple):
        return note
    kind, *parts = note
    if isinstance(kind, torch.dtype):
        shape, strides, *more = parts
        words = {"shape": shape, "stride": strides, "dtype": str(kind).partition(".")[2]}
        return {**words, "device": str(more[0]), "requires_grad": more[1]} if more else words
    if kind == _LIST:
        return [_as_json(part) for part in parts]
    if kind == _DICT:
        return {key: _as_json(part) for key, part in parts}
    if kind == _SLICE:
        return ":".join("" if part is None else str(_as_json(part)) for part in parts)
    value = parts[0]
    return value if math.isfinite(value) else str(value)  # JSON has no word for infinity
