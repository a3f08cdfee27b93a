"""The reference is computed on the host, from copies of what the call was given.

Where the device is quick to look at results, it has copies of its own and checks them first (prefilter/); the
reference's results are brought to it.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare.clones import clone, clones_of
from op_tools.autocompare.examiner import Examiner
from op_tools.autocompare.foreach_lists import Joined
from op_tools.autocompare.observed import ObservedCall, copied
from op_tools.autocompare.prefilter import screen
from op_tools.autocompare.strategy import (
    CallInProgress,
    Deliver,
    Pending,
    PendingCall,
    Strategy,
    device_of,
    wants_gradients,
)
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.device import host_copies
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait


class OnHost(Strategy):
    """Compares calls with the CPU, in this process."""

    def __init__(self, examiner: Examiner, deliver: Deliver, memory: int, defers: bool = True) -> None:
        super().__init__(examiner, deliver, memory, defers)
        self._is_quick: dict[torch.device, bool] = {}  # whether the device has looked at results before the CPU could

    def before(self, call: OpCall) -> CallInProgress:
        state = CallInProgress(call)
        # a view is known by its memory; `unsqueeze_` is none, and gives its input another shape
        if state.works_in_place or not catalogue.has(call.name, Trait.VIEW):
            together = state.joined() if self._deferred is not None and "_foreach_" in call.name else None
            state.given = (together or state.live).copied()
            if self._device_looks_first(state.live.tensors):
                with contextlib.suppress(screen.OUT_OF_MEMORY):  # then the host does it alone, here and below
                    state.before = together or state.live.mapped(clone)
        return state

    def after(self, call: OpCall, state: CallInProgress) -> Pending | None:
        if state.is_view(call):
            return self._after_view(call, state)
        given = state.live.copied() if state.given is None else state.given
        keeps = wants_gradients(call)
        seen = state.observed(call, given, device_of(call))
        if isinstance(given, Joined):
            self._compare_lists(call, seen)
            return None
        if self._deferred is not None and state.before is not None:
            with contextlib.suppress(screen.OUT_OF_MEMORY):
                # copies, on the device: they stay as they are until they are looked at
                seen.kept, seen.result = state.live.copied_with(call.result, clones_of)
                reference = self._deferred.forward(call, seen, keeps and not seen.depends_on_layout())
                return self._keep(seen, reference) if keeps else None
            seen.given_on_device = None
        seen.kept, seen.result = state.live.copied_with(call.result, host_copies.copies_of)
        return self._compare(call, seen, keeps)

    def _compare(self, call: OpCall, seen: ObservedCall, keeps: bool) -> Pending | None:
        """All of it is on the host."""
        outcome = self._examiner.forward(call, seen, keeps)
        reference, outcome.comparison.reference = outcome.comparison.reference, None
        self._deliver(call, outcome)
        return self._keep(seen, reference) if keeps else None

    def flowed(self, call: OpCall, state: Pending, gradients: Gradients) -> None:
        assert isinstance(state, PendingCall)
        reference, seen = state.reference, state.taken()
        if seen is None or self._is_same_gradient(call, seen, gradients):
            return  # None: a second pass over the same graph
        if self._deferred is not None and self._device_looks_first(gradients.outputs):
            with contextlib.suppress(screen.OUT_OF_MEMORY):
                self._deferred.backward(call, seen, reference, copied(gradients, clones_of))
                return
        copies = copied(gradients, host_copies.copies_of)
        self._deliver(call, self._examiner.backward(call, seen, copies, gradients, reference))

    def _device_looks_first(self, tensors: list[Any]) -> bool:
        """Whether one of these tensors is on a device that is quick enough."""
        if self._deferred is None:
            return False
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                device = tensor.device
                if device not in self._is_quick:
                    self._is_quick[device] = screen.is_quick([tensor])
                if self._is_quick[device]:
                    return True
        return False
