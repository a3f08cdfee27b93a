"""What is noted of the tensors of every call: a key of all that their description tells, and where they lie.

Asked for at every call, so in C++ where that is there (native/csrc/notes.h), with the same answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable, Optional

from torch import Tensor

from op_tools import native

Noted = tuple[Any, list[Tensor], Optional[bytes]]  # the key, the tensors, the addresses of their elements


def noter() -> Callable[[Any, dict[str, Any]], Noted]:
    """The fastest `note` that there is."""
    in_native: Callable[[Any, dict[str, Any]], Noted | None] | None = getattr(native.library(), "note", None)
    if in_native is None:
        return note

    def fast(args: Any, kwargs: dict[str, Any]) -> Noted:
        return in_native(args, kwargs) or note(args, kwargs)

    return fast


def note(args: Any, kwargs: dict[str, Any]) -> Noted:
    """Notes the tensors among the arguments, and in the key all that their description tells."""
    key: list[Any] = []
    tensors: list[Tensor] = []
    _note(args, tensors, key)
    if kwargs:
        _note((kwargs,), tensors, key)
    return tuple(key), tensors, None


def _note(values: Iterable[Any], tensors: list[Tensor], key: list[Any]) -> None:
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
            key.append((value.dtype, value.shape, value.device, value.requires_grad))
        elif isinstance(value, (list, tuple)):
            key.append(len(value))
            _note(value, tensors, key)
        elif isinstance(value, dict):
            key.append(tuple(value))
            _note(value.values(), tensors, key)
        else:
            key.append(None)
