"""The only place that assigns into torch: every change is recorded with its reason and can be undone exactly."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable

_MISSING = object()


@dataclass(frozen=True)
class Patch:
    """One attribute that was given another value."""

    owner: Any  # a module or class
    name: str
    original: Any  # as it stands in the owner's own dictionary, or a marker for "was not there"
    why: str

    @property
    def target(self) -> str:
        owner = getattr(self.owner, "__qualname__", None) or self.owner.__name__
        module = getattr(self.owner, "__module__", None)
        return ".".join(filter(None, (module, owner, self.name)))


class Patches:
    """Changes to torch, in the order in which they were made."""

    def __init__(self) -> None:
        self.applied: list[Patch] = []
        self._undo_calls: list[Callable[[], object]] = []
        self._after_undo: list[Callable[[], None]] = []

    def assign(self, owner: Any, name: str, new: Any, why: str) -> Any:
        """Sets `owner.name` to `new` and returns the original, or None where there was none."""
        original = vars(owner).get(name, _MISSING)
        self.applied.append(Patch(owner, name, original, why))
        _set(owner, name, new)
        return None if original is _MISSING else original

    def on_undo(self, undo: Callable[[], object]) -> None:
        """For a change that is not an attribute (a registration): how to take it back."""
        self._undo_calls.append(undo)

    def after_undo(self, finish: Callable[[], None]) -> None:
        """What is left to be done when every attribute is back."""
        self._after_undo.append(finish)

    def undo(self) -> None:
        """Puts every original object back, newest change first."""
        while self._undo_calls:
            self._undo_calls.pop()()
        while self.applied:
            patch = self.applied.pop()
            if patch.original is _MISSING:
                _delete(patch.owner, patch.name)
            else:
                _set(patch.owner, patch.name, patch.original)
        while self._after_undo:
            self._after_undo.pop()()


def _set(owner: Any, name: str, value: Any) -> None:
    with _writable(owner):
        setattr(owner, name, value)


def _delete(owner: Any, name: str) -> None:
    with _writable(owner):
        delattr(owner, name)


# torch.device is a C type that Python refuses to change. The refusal is one bit of its flags, lifted for the length of
# an assignment; the interpreter then updates the type's slots as for any class.
_FLAGS_OFFSET = 168  # of tp_flags in a type object, 64-bit CPython
_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE, which Python 3.9 wants to see set instead
_OLD_PYTHON = sys.version_info < (3, 10)


def _flags(owner: type) -> ctypes.c_ulong:
    return ctypes.c_ulong.from_address(id(owner) + _FLAGS_OFFSET)


def _is_locked(owner: Any) -> bool:
    if not isinstance(owner, type):
        return False
    return not owner.__flags__ & _HEAP_TYPE if _OLD_PYTHON else bool(owner.__flags__ & _IMMUTABLE)


@contextmanager
def _writable(owner: Any) -> Iterator[None]:
    if not _is_locked(owner):
        yield
        return
    flags = _flags(owner)
    before = owner.__flags__
    if flags.value != before:
        raise TypeError(f"{owner} cannot be changed in this Python: its flags are not where they should be")
    bit = _HEAP_TYPE if _OLD_PYTHON else _IMMUTABLE
    flags.value = before ^ bit
    try:
        yield
    finally:
        flags.value ^= bit
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
