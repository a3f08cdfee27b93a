"""Calls whose gradients have not come yet, as many as there is memory for."""

from __future__ import annotations

import math
import threading

import torch

from op_tools.autocompare.observed import ObservedCall
from op_tools.autocompare.reference.runs import Reference
from op_tools.output import messages
from op_tools.values.tensors import versions_of

# times the bytes of a call: about what a run of it in float64 takes, with what it keeps for its gradients
_GRAPH_TO_CALL_BYTES = 8
_MAX_GRAPH_SHARE = 1 / 2  # of the limit
_MAX_GRAPH_SHARE_OF_DEVICE = 1 / 4  # of what is free at first


class PendingCalls:
    """Calls that wait for their gradients, up to so many bytes of host memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._max_graph_bytes: float | None = None
        self._used = 0
        self._lock = threading.Lock()

    def add(self, call: ObservedCall, reference: Reference | None) -> PendingCall | None:
        """None where there is no room: the call's gradients will not be compared.

        A run in higher precision takes more: it is cached while memory allows, otherwise recomputed.
        """
        size = call.bytes()
        with self._lock:
            if reference is not None:
                if self._max_graph_bytes is None:
                    self._max_graph_bytes = self._room_for_graphs(call)
                if self._used + _GRAPH_TO_CALL_BYTES * size <= self._max_graph_bytes:
                    size *= _GRAPH_TO_CALL_BYTES
                    reference.observed = call  # it holds no more of the call than this
                else:
                    reference = None
            if self._used + size > self._limit:
                messages.complain_once(
                    "autocompare",
                    "memory",
                    text=f"OpAutoCompare: {self._used:,} bytes of inputs wait for gradients; until some have come, "
                    "those of further calls are not compared (OP_AUTOCOMPARE_MEMORY, or memory=, sets the limit)",
                )
                return None
            self._used += size
        return PendingCall(call, reference, size, self)

    def _room_for_graphs(self, call: ObservedCall) -> float:
        device = next((tensor.device for tensor in call.given.tensors if not tensor.is_cpu), None)
        on_device = math.inf if device is None else free_memory(device) * _MAX_GRAPH_SHARE_OF_DEVICE
        return min(self._limit * _MAX_GRAPH_SHARE, on_device)

    def free(self, size: int) -> None:
        with self._lock:
            self._used -= size


class PendingCall:
    """One call that waits; its memory is free when the gradients have come, or never will."""

    __slots__ = ("_call", "_calls", "_size", "_versions", "reference")

    def __init__(self, call: ObservedCall, reference: Reference | None, size: int, calls: PendingCalls) -> None:
        self._call: ObservedCall | None = call
        self.reference = reference
        self._size = size
        self._calls = calls
        self._versions = versions_of(call.given.tensors)

    def taken(self) -> ObservedCall | None:
        """None where it was taken already, or where the program has changed an argument meanwhile."""
        call, self._call, self.reference = self._call, None, None
        self._calls.free(self._size)
        self._size = 0
        if call is None or self._versions != versions_of(call.given.tensors):
            return None
        return call

    def __del__(self) -> None:
        if self._size:
            self._calls.free(self._size)


def free_memory(device: torch.device) -> float:
    """Bytes; infinite where the device does not tell."""
    try:
        return float(getattr(torch, device.type).mem_get_info(device)[0])
    except Exception:  # noqa: BLE001  not every backend tells, and each fails in its own way
        return math.inf
