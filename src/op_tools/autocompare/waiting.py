"""Calls that wait for their gradients, as many as there is memory for."""

from __future__ import annotations

import math
import threading

import torch

from op_tools.autocompare.reference.pair import Pair
from op_tools.autocompare.seen import Seen
from op_tools.output import messages
from op_tools.values.tensors import versions_of

_GRAPH = 8  # times the bytes of a call: about what a run of it in float64 takes, with what it keeps for its gradients


class Memory:
    """Calls that wait for their gradients, up to so many bytes of host memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._graphs: float | None = None
        self._used = 0
        self._lock = threading.Lock()

    def keep(self, seen: Seen, pair: Pair | None) -> Waiting | None:
        """None where there is no room: the call's gradients will not be compared.

        A run in higher precision takes more: it is kept as long as there is plenty of room, and made again where not.
        """
        size = seen.bytes()
        with self._lock:
            if pair is not None and self._used + _GRAPH * size <= self._room_for_graphs(seen):
                size *= _GRAPH
                pair.wait_with(seen)
            else:
                pair = None
            if self._used + size > self._limit:
                messages.complain_once(
                    "autocompare",
                    "memory",
                    text=f"OpAutoCompare: {self._used:,} bytes of inputs wait for gradients; until some have come, "
                    "those of further calls are not compared (OP_AUTOCOMPARE_MEMORY, or memory=, sets the limit)",
                )
                return None
            self._used += size
        return Waiting(seen, pair, size, self)

    def _room_for_graphs(self, seen: Seen) -> float:
        """Half of what may be used, and on a device no more than a quarter of what is free at first."""
        if self._graphs is None:
            device = next((tensor.device for tensor in seen.given.tensors if not tensor.is_cpu), None)
            self._graphs = min(self._limit / 2, math.inf if device is None else free_memory(device) / 4)
        return self._graphs

    def free(self, size: int) -> None:
        with self._lock:
            self._used -= size


def free_memory(device: torch.device) -> float:
    """Bytes; infinite where the device does not tell."""
    try:
        return float(getattr(torch, device.type).mem_get_info(device)[0])
    except Exception:  # noqa: BLE001  not every backend tells, and each fails in its own way
        return math.inf


class Waiting:
    """One call that waits; its memory is free when the gradients have come, or never will."""

    __slots__ = ("_memory", "_seen", "_size", "_versions", "pair")

    def __init__(self, seen: Seen, pair: Pair | None, size: int, memory: Memory) -> None:
        self._seen: Seen | None = seen
        self.pair = pair
        self._size = size
        self._memory = memory
        self._versions = versions_of(seen.given.tensors)

    def taken(self) -> Seen | None:
        """None where it was taken already, or where the program has changed an argument meanwhile."""
        seen, self._seen, self.pair = self._seen, None, None
        self._memory.free(self._size)
        self._size = 0
        if seen is None or self._versions != versions_of(seen.given.tensors):
            return None
        return seen

    def __del__(self) -> None:
        if self._size:
            self._memory.free(self._size)
