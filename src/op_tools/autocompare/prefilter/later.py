"""Comparisons that are decided later: the device takes a first look, in which most calls are cleared.

Only what is not cleared is examined in full, so the tensors of a call are held until its numbers are back. What a call
is about to change in place is decided before. Where the CPU is the reference, its results are brought to the device:
that has looked at them before the CPU could have read them once.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.autocompare.examiner import Examiner
from op_tools.autocompare.judging.comparer import Comparison
from op_tools.autocompare.judging.verdict import Verdict
from op_tools.autocompare.observed import CannotCompare, ObservedCall, copied
from op_tools.autocompare.prefilter import fused
from op_tools.autocompare.prefilter.first_look import FirstLook, Glances, OnlyInFull
from op_tools.autocompare.prefilter.screen import Screen
from op_tools.autocompare.reference.runs import Reference
from op_tools.autocompare.report import Outcome
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.device import host_copies
from op_tools.device.events import Marker, marker_of
from op_tools.values.tensors import addresses_of, tensors_in, versions_of

_MOST_CALLS = 128  # in a window
_MOST_CALLS_ALONE = 32  # where nothing is won by looking at more of them together
_MOST_BYTES = 2**29  # of results and references in a window
_SHARE = 1 / 32  # of the memory that is free at first; some windows are on their way
_MANY = 16  # tensors of one call
_MOST_UNREAD = 4  # windows whose numbers are on their way

Deliver = Callable[[OpCall, Outcome], None]


class _Record:
    """One call, or its gradients, in a window."""

    __slots__ = ("_versions", "again", "call", "glances", "tensors")

    def __init__(self, call: OpCall, glances: Glances, again: Callable[[], Outcome], tensors: list[Tensor]) -> None:
        self.call = call
        self.glances = glances
        self.again = again  # examines it in full
        self.tensors = tensors  # that it would look at once more
        self._versions = versions_of(tensors)

    def is_intact(self) -> bool:
        return self._versions == versions_of(self.tensors)


class _Window:
    """Calls that are looked at together, on one stream."""

    def __init__(self, device: torch.device, marker: Marker | None) -> None:
        self.device = device
        self.stream_number = None if marker is None else marker.stream()
        self.most_calls = _MOST_CALLS if fused.is_there(device) else _MOST_CALLS_ALONE
        self.records: list[_Record] = []
        self.bytes = 0
        self._memory: set[int] = set()
        self._places_known = 0  # of so many records
        self.screen = Screen(device)
        module: Any = getattr(torch, device.type, None)
        self._module: Any = module if marker is not None and hasattr(module, "stream") else None
        self._stream: Any = None if self._module is None else self._module.current_stream(device)

    def holds_any(self) -> bool:
        """Whether there are tensors that somebody could change."""
        return any(record.tensors for record in self.records)

    def depends_on(self, memory: set[int]) -> bool:
        """Whether tensors of its records lie there."""
        for record in self.records[self._places_known :]:
            self._memory |= addresses_of(record.tensors)
        self._places_known = len(self.records)
        return not memory.isdisjoint(self._memory)

    def launch(self, stream_number: int | None) -> None:
        is_elsewhere = self._module is not None and stream_number != self.stream_number
        with self._module.stream(self._stream) if is_elsewhere else contextlib.nullcontext():
            self.screen.launch()


class Later:
    """Any thread may add: backward has one of its own."""

    def __init__(self, examiner: Examiner, deliver: Deliver) -> None:
        comparer = examiner.comparer
        self._first_look = FirstLook(comparer.references, comparer.tolerances)
        self._on_device = comparer.references.on_device
        self._examiner = examiner
        self._deliver = deliver
        self._lock = threading.RLock()
        self._window: _Window | None = None
        self._unread: deque[_Window] = deque()
        self._most_bytes: dict[torch.device, float] = {}

    def forward(self, call: OpCall, seen: ObservedCall, graph: bool) -> Reference | None:
        """Inputs and outputs of a call. With a `graph`, its run is returned, for the gradients that will come."""
        again = partial(self._examined, call, seen)
        try:
            reference, glances = self._first_look.forward(seen, graph)
        except (CannotCompare, OnlyInFull):  # a full examination says why
            self._deliver(call, again())
            return None
        # one that worked in place was given copies: what it has changed is among those that it kept
        tensors = [*(seen.given if seen.kept is None else seen.kept).tensors, *tensors_in((seen.result,))]
        self._add(_Record(call, glances, again, tensors))
        return reference if graph else None

    def lists(self, call: OpCall, flat: ObservedCall) -> None:
        """A call that has worked on lists of tensors: each list is looked at as one tensor."""
        call = call.without_tensors()
        again = partial(self._examined_lists, call, flat)
        try:
            _, glances = self._first_look.forward(flat, False)
        except (CannotCompare, OnlyInFull):
            self._deliver(call, again())
        else:  # it holds copies, which nobody changes
            self._add(_Record(call, glances, again, []))

    def backward(self, call: OpCall, seen: ObservedCall, reference: Reference | None, gradients: Gradients) -> None:
        """Its gradients, with the run that was kept for them if there is one."""
        arrived = gradients.outputs if self._on_device else host_copies.host_copy(gradients.outputs)
        again = partial(self._examined_gradients, call, seen, gradients)
        try:
            glances = self._first_look.backward(seen, reference, arrived, gradients)
        except (CannotCompare, OnlyInFull):
            self._deliver(call, again())
            return
        tensors = [*seen.given.tensors, *[one for one in (*gradients.outputs, *gradients.inputs) if one is not None]]
        self._add(_Record(call, glances, again, tensors))

    # ---- in full -----------------------------------------------------------------------------------------------------

    def _examined(self, call: OpCall, seen: ObservedCall) -> Outcome:
        return self._examiner.forward(call, seen if self._on_device else seen.on_host())

    def _examined_lists(self, call: OpCall, flat: ObservedCall) -> Outcome:
        return self._examiner.forward(call, (flat if self._on_device else flat.on_host()).whole())

    def _examined_gradients(self, call: OpCall, seen: ObservedCall, gradients: Gradients) -> Outcome:
        copies = gradients if self._on_device else copied(gradients, host_copies.copies_of)
        return self._examiner.backward(call, seen, copies, None if self._on_device else gradients)

    # ---- what waits --------------------------------------------------------------------------------------------------

    def will_change(self, tensors: Sequence[Tensor]) -> None:
        """Before a call changes one of these tensors: what depends on it is decided."""
        with self._lock:
            windows = [*self._unread] if self._window is None else [*self._unread, self._window]
            if not any(window.holds_any() for window in windows):
                return
            if len(tensors) <= _MANY:  # for an optimizer's it would take longer to look
                memory = addresses_of(tensors)
                if not any(window.depends_on(memory) for window in windows):
                    return
        self.finish()

    def finish(self) -> None:
        """Decides everything."""
        with self._lock:
            self._launch()
        self._read(wait=True)

    def _add(self, record: _Record) -> None:
        looks = record.glances.looks
        if not looks:
            self._decide(record, ())
            return
        with self._lock:
            window = self._window_for(looks[0].got.device)
            window.screen.looks += looks
            window.records.append(record)
            for look in looks:
                window.bytes += look.bytes
            if len(window.records) < window.most_calls and window.bytes <= self._most_bytes[window.device]:
                return
            self._launch()
        self._read(wait=False)

    def _window_for(self, device: torch.device) -> _Window:
        window, marker = self._window, marker_of(device)
        number = None if marker is None else marker.stream()
        if window is not None and window.device == device and window.stream_number == number:
            return window
        self._launch()
        if device not in self._most_bytes:
            self._most_bytes[device] = min(_MOST_BYTES, _SHARE * free_memory(device))
        window = self._window = _Window(device, marker)
        return window

    def _launch(self) -> None:
        window, self._window = self._window, None
        if window is not None:
            marker = marker_of(window.device)
            window.launch(None if marker is None else marker.stream())
            self._unread.append(window)

    def _read(self, wait: bool) -> None:
        """Without the lock: a full look runs backward in autograd's thread, which may be waiting to add something."""
        while True:
            with self._lock:
                unread = self._unread
                if not unread or not (wait or len(unread) > _MOST_UNREAD or unread[0].screen.is_ready()):
                    return
                window = unread.popleft()
            verdicts, start = window.screen.read(), 0
            for record in window.records:
                end = start + len(record.glances.looks)
                self._decide(record, verdicts[start:end])
                start = end

    def _decide(self, record: _Record, verdicts: Sequence[Verdict | None]) -> None:
        if record.glances.decide(verdicts):
            outcome = Outcome(Comparison(record.glances.rows))
        elif record.is_intact():
            outcome = record.again()
            if not outcome.comparison.is_wrong:
                self._first_look.lenient.add(record.call.name)
        else:
            outcome = Outcome(Comparison(failure="its tensors were changed before they could be looked at twice"))
        self._deliver(record.call, outcome)


def free_memory(device: torch.device) -> float:
    """Bytes; infinite where the device does not tell."""
    try:
        return float(getattr(torch, device.type).mem_get_info(device)[0])
    except Exception:  # noqa: BLE001  not every backend tells, and each fails in its own way
        return math.inf
