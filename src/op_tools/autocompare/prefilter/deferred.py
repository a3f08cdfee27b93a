"""Deferred comparisons: a cheap check on the device passes most calls.

Only what is not cleared is examined in full, so the tensors of a call are held until its numbers are back. What a call
is about to change in place is decided before. Where the CPU is the reference, its results are brought to the device:
that has looked at them before the CPU could have read them once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import islice
from typing import Any, Callable, Generic, TypeVar

import torch
from torch import Tensor

from op_tools.autocompare.examiner import Examiner
from op_tools.autocompare.judging.comparer import Comparison
from op_tools.autocompare.judging.verdict import Verdict
from op_tools.autocompare.observed import CannotCompare, ObservedCall, copied
from op_tools.autocompare.prefilter import fused, screen
from op_tools.autocompare.prefilter.first_look import FirstLook, Look, OnlyInFull, PendingRows
from op_tools.autocompare.reference.runs import Reference
from op_tools.autocompare.report import Outcome
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.device import host_copies
from op_tools.device.queues import Batch, Deferred
from op_tools.values.tensors import addresses_of, tensors_in, versions_of

_MAX_CALLS = 128  # in a window
_MAX_CALLS_ALONE = 32  # where nothing is won by looking at more of them together
_MAX_BYTES = 2**29  # of results and references in a window
_SHARE_OF_FREE_MEMORY = 1 / 32  # of what is free at first; some windows are on their way
_MAX_TENSORS_SEARCHED = 16  # of one call
_MAX_UNREAD_WINDOWS = 4

Deliver = Callable[[OpCall, Outcome], None]


class DeferredCall:
    """One call, or its gradients, that waits for the device's answer."""

    __slots__ = ("_versions", "again", "call", "tensors")

    def __init__(self, call: OpCall, again: Callable[[], Outcome] | None, tensors: list[Tensor]) -> None:
        self.call = call
        self.again = again  # examines it in full; None where that is never asked for
        self.tensors = tensors  # that it would look at once more
        self._versions = versions_of(tensors)

    def in_full(self) -> Outcome:
        """Where the device's answer does not clear it."""
        if self.again is None or self._versions != versions_of(self.tensors):
            return Outcome(Comparison(failure="its tensors were changed before they could be looked at twice"))
        try:
            return self.again()
        except screen.OUT_OF_MEMORY:
            return Outcome(Comparison(failure="the device's memory did not suffice"))


SomeCall = TypeVar("SomeCall", bound=DeferredCall)


class CallWindow(Batch, Generic[SomeCall]):
    """Calls whose answers are read together."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.records: list[SomeCall] = []
        self._memory: set[int] = set()
        self._places_known = 0  # of so many records

    def holds_any(self) -> bool:
        """Whether there are tensors that the program could change."""
        return any(record.tensors for record in self.records)

    def depends_on(self, memory: set[int]) -> bool:
        """Whether tensors of its records lie there."""
        for record in self.records[self._places_known :]:
            self._memory |= addresses_of(record.tensors)
        self._places_known = len(self.records)
        return not memory.isdisjoint(self._memory)


SomeWindow = TypeVar("SomeWindow", bound="CallWindow[Any]")


class DeferredCalls(Generic[SomeWindow]):
    """Windows of calls. What a call is about to change in place is decided before. Any thread may add."""

    def __init__(self) -> None:
        self._windows: Deferred[SomeWindow] = Deferred(self._answer, _MAX_UNREAD_WINDOWS)

    def will_change(self, tensors: Sequence[Tensor]) -> None:
        """Before a call changes one of these tensors: what depends on it is decided."""
        with self._windows.lock:
            current = self._windows.current
            windows = [*self._windows.unread, *(() if current is None else (current,))]
            if not any(window.holds_any() for window in windows):
                return
            if len(tensors) <= _MAX_TENSORS_SEARCHED:  # for an optimizer's it would take longer to look
                memory = addresses_of(tensors)
                if not any(window.depends_on(memory) for window in windows):
                    return
        self.finish()

    def finish(self) -> None:
        """Decides everything."""
        self._windows.launch()
        self._windows.read(wait=True)

    def _answer(self, window: SomeWindow) -> None:
        """Decides the calls of a window, with the numbers that have come."""
        raise NotImplementedError


class _PendingCall(DeferredCall):
    __slots__ = ("pending_rows",)

    def __init__(
        self, call: OpCall, pending_rows: PendingRows, again: Callable[[], Outcome], tensors: list[Tensor]
    ) -> None:
        super().__init__(call, again, tensors)
        self.pending_rows = pending_rows


@cache
def _max_calls(device: torch.device) -> int:
    return _MAX_CALLS if fused.is_there(device) else _MAX_CALLS_ALONE


class _LookWindow(CallWindow[_PendingCall]):
    """Calls that are looked at together."""

    def __init__(self, device: torch.device, max_bytes: float) -> None:
        super().__init__(device)
        self._looks: list[Look] = []
        self._bytes = 0
        self._max_bytes = max_bytes
        self._max_calls = _max_calls(device)

    def add(self, record: _PendingCall) -> bool:
        """True where it is full now."""
        self.records.append(record)
        for look in record.pending_rows.looks:
            self._looks.append(look)
            self._bytes += look.bytes
        return len(self.records) >= self._max_calls or self._bytes > self._max_bytes

    def look(self) -> Sequence[Tensor]:
        try:
            return [screen.numbers_of(self._looks)]
        finally:
            for look in self._looks:
                look.got = look.expected = look.allowance = None

    def verdicts(self) -> Iterator[Verdict | None]:
        """One for each look: None where it is not cleared."""
        found = self.numbers()
        if found is None:
            return iter([None] * len(self._looks))
        return map(Look.verdict, self._looks, found[0].tolist())


class DeferredComparisons(DeferredCalls[_LookWindow]):
    """Calls beside a reference."""

    def __init__(self, examiner: Examiner, deliver: Deliver) -> None:
        super().__init__()
        comparer = examiner.comparer
        self._first_look = FirstLook(comparer.references, comparer.tolerances)
        self._on_device = comparer.references.on_device
        self._examiner = examiner
        self._deliver = deliver
        self._max_bytes: dict[torch.device, float] = {}

    def forward(self, call: OpCall, seen: ObservedCall, graph: bool) -> Reference | None:
        """Inputs and outputs of a call. With a `graph`, its run is returned, for the gradients that will come."""
        again = partial(self._examined, call, seen)
        try:
            reference, pending_rows = self._first_look.forward(seen, graph)
        except (CannotCompare, OnlyInFull):  # a full examination says why
            self._deliver(call, again())
            return None
        # one that worked in place was given copies: what it has changed is among those that it kept
        tensors = [*(seen.given if seen.kept is None else seen.kept).tensors, *tensors_in((seen.result,))]
        self._add(_PendingCall(call, pending_rows, again, tensors))
        return reference if graph else None

    def lists(self, call: OpCall, flat: ObservedCall) -> None:
        """A call that has worked on lists of tensors: each list is looked at as one tensor."""
        call = call.without_tensors()
        again = partial(self._examined_lists, call, flat)
        try:
            _, pending_rows = self._first_look.forward(flat, False)
        except (CannotCompare, OnlyInFull):
            self._deliver(call, again())
        else:  # it holds copies, which do not change
            self._add(_PendingCall(call, pending_rows, again, []))

    def backward(self, call: OpCall, seen: ObservedCall, reference: Reference | None, gradients: Gradients) -> None:
        """Its gradients, with the run that was kept for them if there is one."""
        arrived = gradients.outputs if self._on_device else host_copies.host_copy(gradients.outputs)
        again = partial(self._examined_gradients, call, seen, gradients)
        try:
            pending_rows = self._first_look.backward(seen, reference, arrived, gradients)
        except (CannotCompare, OnlyInFull):
            self._deliver(call, again())
            return
        tensors = [*seen.given.tensors, *[one for one in (*gradients.outputs, *gradients.inputs) if one is not None]]
        self._add(_PendingCall(call, pending_rows, again, tensors))

    # ---- in full -----------------------------------------------------------------------------------------------------

    def _examined(self, call: OpCall, seen: ObservedCall) -> Outcome:
        return self._examiner.forward(call, seen if self._on_device else seen.on_host())

    def _examined_lists(self, call: OpCall, flat: ObservedCall) -> Outcome:
        return self._examiner.forward(call, (flat if self._on_device else flat.on_host()).whole())

    def _examined_gradients(self, call: OpCall, seen: ObservedCall, gradients: Gradients) -> Outcome:
        copies = gradients if self._on_device else copied(gradients, host_copies.copies_of)
        return self._examiner.backward(call, seen, copies, None if self._on_device else gradients)

    # ---- what waits --------------------------------------------------------------------------------------------------

    def _add(self, record: _PendingCall) -> None:
        looks = record.pending_rows.looks
        if not looks:
            self._decide(record, ())
            return
        with self._windows.lock:
            if not self._window_for(looks[0].got.device).add(record):
                return
            self._windows.launch()
        self._windows.read(wait=False)

    def _window_for(self, device: torch.device) -> _LookWindow:
        window = self._windows.current
        if window is not None and window.suits(device):
            return window
        self._windows.launch()
        if device not in self._max_bytes:
            self._max_bytes[device] = min(_MAX_BYTES, _SHARE_OF_FREE_MEMORY * free_memory(device))
        window = self._windows.current = _LookWindow(device, self._max_bytes[device])
        return window

    def _answer(self, window: _LookWindow) -> None:
        verdicts = window.verdicts()
        for record in window.records:
            self._decide(record, list(islice(verdicts, len(record.pending_rows.looks))))

    def _decide(self, record: _PendingCall, verdicts: Sequence[Verdict | None]) -> None:
        if record.pending_rows.decide(verdicts):
            outcome = Outcome(Comparison(record.pending_rows.rows))
        else:
            outcome = record.in_full()
            if not (outcome.comparison.is_wrong or outcome.comparison.failure):
                self._first_look.lenient.add(record.call.name)
        self._deliver(record.call, outcome)


def free_memory(device: torch.device) -> float:
    """Bytes; infinite where the device does not tell."""
    try:
        return float(getattr(torch, device.type).mem_get_info(device)[0])
    except Exception:  # noqa: BLE001  not every backend tells, and each fails in its own way
        return math.inf
