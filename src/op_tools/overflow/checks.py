"""Looks at what op calls make: many tensors at once, on the device, answers read when they have come.

Calls are gathered in a window. When it is full, or an op is about to change something in place, the device looks at all
that they have made. A call that has made NaN or Inf is a suspect, unless it was given some that are known already: then
the device looks at its inputs, in the same way, and only then is it judged. So a healthy run costs one look at each
result, and calls are judged in the order in which they ran.

Until then the calls are held with their tensors, up to a limit of bytes.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Callable

import torch
from torch import Tensor

from op_tools.device.queues import Deferred
from op_tools.overflow.calls import CheckedCall, Window, is_made, there, worse
from op_tools.overflow.finite import CHECKED, all_can_be_checked, can_be_checked, is_intact
from op_tools.overflow.intent import written_down
from op_tools.overflow.known import MAX_TENSORS, KnownList, KnownLists, KnownTensors
from op_tools.overflow.spread import Spread
from op_tools.values import trees
from op_tools.values.tensors import MAX_ASKED_SINGLY, size_of, state_of, versions_of

_MAX_UNREAD_WINDOWS = 64


class Checks:
    """Not for several threads at once: the tool has a lock. `seen` is called for every call, where it is given."""

    def __init__(
        self,
        judge: Callable[[CheckedCall], None],
        seen: Callable[[CheckedCall], None] | None,
        spread: Spread,
        max_calls: int,
        patient: bool,
    ) -> None:
        self._judge = judge
        self._seen = seen
        self._spread = spread  # of those that have NaN or infinities
        self._max_calls = max_calls  # in a window
        self._patient = patient  # waits for each window's answers: nothing is gone or changed by then
        self._windows: Deferred[Window] = Deferred(self._answer, _MAX_UNREAD_WINDOWS)
        self._bad = KnownTensors()  # tensors that hold NaN or infinities
        self._written = KnownTensors()  # tensors that were changed in place, and looked at since
        self._written_lists = KnownLists()
        self._written_silently: dict[int, int] = {}  # id of a tensor: the last call that did it

    # -- at each call -------------------------------------------------------------------------------------------------

    def add(self, checked: CheckedCall, made: Sequence[Tensor], backward: bool = False) -> None:
        """A call that has run, and what it made."""
        window, size = None, 0  # of what it made: its inputs were made by calls before it, or others hold them
        state = state_of(made)
        if state is None and len(made) > MAX_ASKED_SINGLY and all_can_be_checked(made):
            state = versions_of(made), sum(map(size_of, made)), made[0].dtype
        if state is not None and state[2] in CHECKED:
            window = self._window_for(made[0].device, backward)
            checked.start = len(window.tensors)
            window.add_all(made, state[0])
            size += state[1]
        else:
            for tensor in made:
                if not can_be_checked(tensor):
                    continue
                if window is None:
                    window = self._window_for(tensor.device, backward)
                    checked.start = len(window.tensors)
                elif tensor.device != window.device:
                    continue
                window.add(tensor)
                size += tensor.nbytes
        if window is None:
            if self._seen is not None:
                self._seen(checked)
            return
        checked.stop = len(window.tensors)
        window.calls.append(checked)
        window.bytes += size
        if checked.changed:
            versions = state[0] if state is not None and made is checked.changed else versions_of(checked.changed)
            self._has_changed(checked, versions, window)
        if len(window.calls) >= self._max_calls or window.bytes > window.max_bytes:
            self.flush()

    def will_change(self, targets: list[Tensor], matters: bool) -> KnownList | None:
        """Before a call changes tensors: what it could reach is looked at, and what they hold, if that `matters`.

        What is known of them together comes back.
        """
        state = state_of(targets)
        versions = versions_of(targets) if state is None else state[0]
        together = self._written_lists.get(targets, versions) if len(targets) > MAX_ASKED_SINGLY else None
        if together is not None:
            if self._patient or together.can_be_reached():
                self.flush()
            return together
        reaches = self._patient  # an input of a call that is yet to be judged
        unknown = targets
        if not self._written.has_none_of(targets):
            unknown = []
            for tensor, version in zip(targets, versions):
                known = self._written.get(tensor, version)
                if known is None:
                    unknown.append(tensor)
                elif known.can_be_reached():
                    reaches = True
        if state is None or state[2] not in CHECKED:
            unknown = [tensor for tensor in unknown if can_be_checked(tensor)]
        if matters and unknown:
            self._look_before_change(unknown)
        if reaches or unknown:
            self.flush()
        return None

    def _look_before_change(self, tensors: list[Tensor]) -> None:
        """What was made in this window is looked at anyway."""
        current = self._windows.current
        made = set() if current is None else set(map(id, current.tensors))
        for tensor in tensors:
            if id(tensor) not in made:
                window = self._window_for(tensor.device, False)
                window.before.append((len(window.tensors), weakref.ref(tensor)))
                window.add(tensor)

    def flush(self) -> None:
        """Sends what has been gathered to the device, and judges what has come back."""
        window, self._windows.current = self._windows.current, None
        if window is not None:
            self._launch(window)
        self.read(wait=self._patient)

    def read(self, wait: bool) -> None:
        """Goes through the calls whose answers are there; `wait`: through all."""
        self._windows.read(wait)

    def _has_changed(self, checked: CheckedCall, versions: list[int | None], window: Window) -> None:
        if len(versions) > MAX_ASKED_SINGLY and not checked.is_silent:
            self._written_lists.put(checked.changed, versions, window, checked.together)
            return
        for tensor, version in zip(checked.changed, versions):
            self._written.put(tensor, version, window)
            if checked.is_silent:
                if len(self._written_silently) >= MAX_TENSORS:
                    self._written_silently.clear()
                self._written_silently[id(tensor)] = checked.call.id

    def _window_for(self, device: torch.device, backward: bool) -> Window:
        window = self._windows.current
        if window is not None:
            # gradients that are summed up in place next time must have been looked at by then
            if window.backward is backward and window.suits(device):
                return window
            self.flush()
        window = self._windows.current = Window(device, backward)
        return window

    def _launch(self, window: Window) -> None:
        self._windows.launch(window)
        held = 0
        for one in self._windows.unread:
            held += one.bytes if one.holds else 0
        for one in self._windows.unread:
            if held <= window.max_bytes or self._patient:
                return
            if one.holds:
                held -= one.bytes
                one.let_go()

    # -- what has come back -------------------------------------------------------------------------------------------

    def _answer(self, window: Window) -> None:
        try:
            is_finite = window.read()
            if window.is_second:
                for checked in window.calls:
                    self._resolve(checked, window)
            elif not is_finite or self._seen is not None:
                self._go_through(window)
            elif self._bad.tensors:
                for checked in window.calls:
                    if checked.is_silent:
                        self._is_good_again(checked)
        finally:
            window.calls = []  # what is known of changed tensors refers to the window, for as long as these live

    def _go_through(self, window: Window) -> None:
        for index, reference in window.before:
            tensor = reference()
            if tensor is not None and not math.isfinite(window.value(index)):
                self._bad.put(tensor, window.versions[index], value=window.value(index))
        suspects = []
        for checked in window.calls:
            if self._seen is not None:
                self._seen(checked)
            if self._is_suspect(checked, window):
                suspects.append(checked)
            elif not math.isfinite(checked.made):
                self._spread.carried(checked)
        if suspects:
            self._look_at_inputs(suspects, window.device)

    def _is_suspect(self, checked: CheckedCall, window: Window) -> bool:
        """True where a call has made NaN or Inf, and was given none that is known of."""
        values = [window.value(index) for index in range(checked.start, checked.stop)]
        for value in values:
            checked.made = worse(checked.made, value)
        if math.isfinite(checked.made):
            if checked.is_silent:
                self._is_good_again(checked)
            return False
        self._spread.reached(checked)
        checked.given = self._known_given(checked)
        checked.made_versions = window.versions[checked.start : checked.stop]
        for tensor, value, version in zip(checked.results(), values, checked.made_versions):
            if tensor is not None and not math.isfinite(value):
                self._bad.put(tensor, version, value=value)
        if checked.gradients is None and checked.flow is not None:
            checked.flow.worst = checked.made
        return is_made(checked.made, checked.given)

    def _known_given(self, checked: CheckedCall) -> float:
        if checked.gradients is not None:
            return 0.0 if checked.flow is None else checked.flow.worst
        given = 0.0
        if not checked.intent.brings_data:
            given = written_down(value for _, value in trees.arguments(checked.call.args, checked.call.kwargs))
        if self._bad.tensors:
            for tensor, version in checked.given_tensors():
                known = self._bad.get(tensor, version)
                given = given if known is None else worse(given, known.value)
        return given

    def _look_at_inputs(self, suspects: list[CheckedCall], device: torch.device) -> None:
        window = Window(device, False, is_second=True)
        window.calls = suspects
        for checked in suspects:
            checked.start = len(window.tensors)
            for tensor, version in checked.given_tensors():
                if can_be_checked(tensor) and tensor.device == device and self._is_as_given(tensor, version, checked):
                    window.add(tensor)
            checked.stop = len(window.tensors)
        self._launch(window)

    def _is_as_given(self, tensor: Tensor, version: int | None, checked: CheckedCall) -> bool:
        is_silent = self._written_silently.get(id(tensor), 0) >= checked.call.id
        return not is_silent and is_intact(tensor, version)

    def _resolve(self, checked: CheckedCall, window: Window) -> None:
        """Everything is known of a suspect now."""
        found = 0.0
        for index in range(checked.start, checked.stop):
            found = worse(found, window.value(index))
        if not checked.is_silent:
            checked.given = worse(checked.given, self._known_given(checked))
        checked.is_fresh = not math.isfinite(found) and is_made(found, checked.given)
        checked.given = worse(checked.given, found)
        self._judge(checked)

    def _is_good_again(self, checked: CheckedCall) -> None:
        for one in checked.changed:
            self._bad.forget(there(one))
