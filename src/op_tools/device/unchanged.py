"""Tensors that are in the version in which they were last seen. In C++ where that is there (native/csrc/notes.h)."""

from __future__ import annotations

import struct
import weakref

from torch import Tensor

from op_tools import native
from op_tools.values.tensors import version_of

# Which tensors of a call are known, by their numbers; and for each of them four integers: its number, and what was said
# when it was remembered: description, forward_id, number of the tensor.
Found = tuple[tuple[int, ...], bytes]
ORIGIN = struct.Struct("<4q")


class UnchangedTensors:
    """Of tensors, and what was said about them when they were last seen."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], int, tuple[int, int, int]]] = {}

    def forget(self) -> None:
        self._known.clear()

    def find(self, tensors: list[Tensor]) -> Found | None:
        """Those that are what they were."""
        numbers, lines = [], []
        for number, tensor in enumerate(tensors):
            known = self._known.get(id(tensor))
            if known is not None and known[0]() is tensor and known[1] == version_of(tensor):
                numbers.append(number)
                lines.append(ORIGIN.pack(number, *known[2]))
        return (tuple(numbers), b"".join(lines)) if numbers else None

    def remember(
        self, tensors: list[Tensor], found: Found | None, description: int, forward_id: int, changed: int
    ) -> None:
        """Notes the origin of all these tensors, but for the first ones that are about to be changed."""
        origins = {number: origin for number, *origin in ORIGIN.iter_unpack(found[1])} if found is not None else {}
        for number, tensor in enumerate(tensors):
            origin = tuple(origins.get(number, (description, forward_id, number)))
            version = version_of(tensor)
            if version is not None:
                self._known[id(tensor)] = (weakref.ref(tensor), version, origin)
        for tensor in tensors[:changed]:
            self._known.pop(id(tensor), None)


def unchanged_tensors() -> UnchangedTensors:
    """The fastest that there is."""
    fastest: type[UnchangedTensors] = getattr(native.library(), "UnchangedTensors", UnchangedTensors)
    return fastest()
