"""What is noted of the tensors of every call: a key of all that their description tells, and where they lie.

Asked for at every call, so in C++ where that is there (native/csrc/notes.h), with the same answers. Of a DTensor, which
Python looks at, this rank's part is meant.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterable
from typing import Any, Callable, Optional

from torch import Tensor
from torch.nn import Parameter

from op_tools import native
from op_tools.capture.placements import local

Noted = tuple[Any, list[Tensor], Optional[bytes]]  # the key, the tensors, the addresses of their elements
_PLAIN = {Tensor, Parameter}  # most are, and no DTensors


def noter() -> Callable[[Any, dict[str, Any]], Noted]:
    """The fastest `note` that there is."""
    in_native: Callable[[Any, dict[str, Any]], Noted | None] | None = getattr(native.library(), "note", None)
    if in_native is None:
        return note

    def fast(args: Any, kwargs: dict[str, Any]) -> Noted:
        noted = in_native(args, kwargs)
        if noted is None:
            return note(args, kwargs)
        for one in noted[1]:
            if type(one) not in _PLAIN and local(one) is not one:
                return note(args, kwargs)
        return noted

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
            own = local(value)
            tensors.append(own)
            key.append((own.dtype, own.shape, own.device, value.requires_grad))
            if own is not value:
                key.append((value.shape, str(getattr(value, "placements", ""))))
        elif isinstance(value, (list, tuple)):
            key.append(len(value))
            _note(value, tensors, key)
        elif isinstance(value, dict):
            key.append(tuple(value))
            _note(value.values(), tensors, key)
        else:
            key.append(None)


# ---- tensors that are unchanged since they were noted --------------------------------------------------------------

# Which tensors of a call are known, by their numbers; and for each of them four integers: its number, and the record
# that holds its digest: description, forward_id, number of the tensor.
Found = tuple[tuple[int, ...], bytes]
_LINE = struct.Struct("<4q")


class UnchangedTensors:
    """Of tensors, and where their digests are."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], int, tuple[int, int, int]]] = {}

    def forget(self) -> None:
        self._known.clear()

    def find(self, tensors: list[Tensor]) -> Found | None:
        """Those that are what they were."""
        numbers, lines = [], []
        for number, tensor in enumerate(tensors):
            known = self._known.get(id(tensor))
            if known is not None and known[0]() is tensor and known[1] == tensor._version:
                numbers.append(number)
                lines.append(_LINE.pack(number, *known[2]))
        return (tuple(numbers), b"".join(lines)) if numbers else None

    def remember(
        self, tensors: list[Tensor], found: Found | None, description: int, forward_id: int, changed: int
    ) -> None:
        """Notes where the digests of all these tensors are, but for the first ones that are about to be changed."""
        origins = {number: origin for number, *origin in _LINE.iter_unpack(found[1])} if found is not None else {}
        for number, tensor in enumerate(tensors):
            origin = tuple(origins.get(number, (description, forward_id, number)))
            self._known[id(tensor)] = (weakref.ref(tensor), tensor._version, origin)
        for tensor in tensors[:changed]:
            self._known.pop(id(tensor), None)


def unchanged_tensors() -> UnchangedTensors:
    """The fastest that there is."""
    fastest: type[UnchangedTensors] = getattr(native.library(), "UnchangedTensors", UnchangedTensors)
    return fastest()
