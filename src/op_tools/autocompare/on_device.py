"""The reference is computed on the device itself, in higher precision. Its results are checked there, later.

Only what a call changes in place is copied before. A kernel that is wrong in every dtype would agree with itself: so
calls are also proven by identities (by_identities.py), a few of each place, and what a proof doubts the CPU computes.
"""

from __future__ import annotations

from collections import Counter

from op_tools.autocompare.by_identities import Proofs
from op_tools.autocompare.examiner import Examiner
from op_tools.autocompare.foreach_lists import Joined
from op_tools.autocompare.judging.comparer import Comparison
from op_tools.autocompare.report import Outcome
from op_tools.autocompare.strategy import (
    CallInProgress,
    Deliver,
    Pending,
    PendingCall,
    PendingProof,
    Strategy,
    clone,
    wants_gradients,
)
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.ops import catalogue


class OnDevice(Strategy):
    """Compares calls with the same device in higher precision."""

    on_device = True

    def __init__(self, examiner: Examiner, deliver: Deliver, memory: int, on_cpu: Examiner) -> None:
        super().__init__(examiner, deliver, memory)
        self._proofs = Proofs(on_cpu, deliver, only_wrong=True)
        self._times: Counter[tuple[str, str]] = Counter()  # calls of each place
        self._found_in_place: set[str] = set()  # ops that turned out to change their inputs

    def before(self, call: OpCall) -> CallInProgress:
        state = CallInProgress(call)
        may_change = state.works_in_place or catalogue.of(call.name) is None or call.name in self._found_in_place
        if may_change:
            self._proofs.will_change(state.live.tensors)
            if self._deferred is not None:
                self._deferred.will_change(state.live.tensors)
            state.given = (state.joined() if self._deferred is not None else None) or state.live.mapped(clone)
        return state

    def after(self, call: OpCall, state: CallInProgress) -> Pending | None:
        if state.is_view(call):
            return self._after_view(call, state)
        given = state.given
        if given is None:
            joins = self._deferred is not None and "_foreach_" in call.name
            given = (state.joined() if joins else None) or state.live
        seen = state.observed(call, given, None)
        if seen.changed and state.given is None:
            self._found_in_place.add(call.name)
            self._deliver(call, Outcome(Comparison(failure="it has changed its inputs; from now on they are copied")))
            return None
        seen.kept = state.live if seen.changed else None
        if isinstance(given, Joined):
            self._compare_lists(call, seen)
            return None
        keeps, reference = wants_gradients(call), None
        if self._deferred is None:
            self._deliver(call, self._examiner.forward(call, seen))
        else:
            reference = self._deferred.forward(call, seen, keeps and not seen.depends_on_layout())
        provable = None if seen.changed or not self._is_to_be_proven(call) else self._proofs.forward(call, seen)
        pending = self._keep(seen, reference) if keeps else None
        if pending is not None and provable is not None:
            pending.proof = PendingProof(seen, provable)
        return pending

    def _is_to_be_proven(self, call: OpCall) -> bool:
        """The first, second, fourth, eighth … call of a place: a kernel that is wrong in every dtype is so always."""
        place = (call.name, call.where.line())
        self._times[place] += 1
        return self._times[place] & (self._times[place] - 1) == 0

    def flowed(self, call: OpCall, state: Pending, gradients: Gradients) -> None:
        assert isinstance(state, PendingCall)
        reference, proof, seen = state.reference, state.proof, state.taken()
        if seen is None or self._is_same_gradient(call, seen, gradients):
            return  # None: a second pass over the same graph
        if proof is not None and proof.is_intact():
            self._proofs.backward(call, seen, proof.provable, gradients)
        if self._deferred is not None:
            self._deferred.backward(call, seen, reference, gradients)
        else:
            self._deliver(call, self._examiner.backward(call, seen, gradients, gradients, reference))

    def parameters_will_change(self) -> None:
        self._proofs.finish()
        super().parameters_will_change()

    def close(self) -> None:
        self._proofs.finish()
        super().close()
