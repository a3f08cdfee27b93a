"""Copies of tensors that wait to be written, used again for calls that see the same tensors, as an optimizer's do."""

from __future__ import annotations

import struct
import threading
import weakref
from typing import Optional

from torch import Tensor

from op_tools.capture.repeats import Repeats
from op_tools.core.call import OpCall
from op_tools.storage.snapshot import HostStorage, HostTensor

_LINE = struct.Struct("<4q")  # see notes.py
# a copy, with its bytes apart: they are gone when they are written
_Kept = tuple[HostTensor, Optional["weakref.ref[HostStorage]"]]


class RecentCopies:
    """Of tensors that repeats.py knows to be unchanged; see snapshot.Copies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._repeats = Repeats()
        self._kept: list[list[_Kept]] = []  # each time that some were taken

    def find(self, call: OpCall, tensors: list[Tensor]) -> dict[int, HostTensor]:
        with self._lock:
            found = self._repeats.find(call, tensors)
            if self._repeats.is_empty:
                self._kept.clear()
            copies = {}
            for number, time, _, position in _LINE.iter_unpack(b"" if found is None else found[1]):
                host, reference = self._kept[time][position]
                storage = None if reference is None else reference()
                if storage is not None:
                    copies[number] = host.copy()
                    copies[number].storage = storage
            return copies

    def remember(self, call: OpCall, tensors: list[Tensor], hosts: list[HostTensor]) -> None:
        with self._lock:
            self._repeats.remember(call, tensors, None, len(self._kept))
            if not self._repeats.is_empty:
                self._kept.append([_without_bytes(host) for host in hosts])


def _without_bytes(host: HostTensor) -> _Kept:
    copy = host.copy()
    copy.storage = None
    return copy, None if host.storage is None else weakref.ref(host.storage)
