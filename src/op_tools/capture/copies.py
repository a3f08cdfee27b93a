"""Copies of tensors that wait to be written, used again for calls that see the same tensors, as an optimizer's do."""

from __future__ import annotations

import struct
import threading
import weakref
from collections.abc import Mapping
from typing import Optional

from torch import Tensor

from op_tools.capture.repeats import Repeats
from op_tools.core.call import OpCall
from op_tools.device.host_copies import HostStorage, HostTensor

_LINE = struct.Struct("<4q")  # see notes.py
# a copy, with its bytes apart: they are gone when they are written
_Kept = tuple[HostTensor, Optional["weakref.ref[HostStorage]"]]


class RecentCopies:
    """Of tensors that repeats.py knows to be unchanged."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._repeats = Repeats()
        self._kept: list[list[_Kept]] = []  # each time that some were taken

    def of(self, call: OpCall) -> _CopiesOfCall:
        """For the tensors of this call."""
        return _CopiesOfCall(self, call)

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


class _CopiesOfCall:
    """See snapshot.Copies."""

    __slots__ = ("_all", "_call")

    def __init__(self, all: RecentCopies, call: OpCall) -> None:
        self._all = all
        self._call = call

    def find(self, tensors: list[Tensor]) -> Mapping[int, HostTensor]:
        return self._all.find(self._call, tensors)

    def remember(self, tensors: list[Tensor], hosts: list[HostTensor]) -> None:
        self._all.remember(self._call, tensors, hosts)


def _without_bytes(host: HostTensor) -> _Kept:
    copy = host.copy()
    copy.storage = None
    return copy, None if host.storage is None else weakref.ref(host.storage)
