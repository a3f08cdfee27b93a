"""The reference is computed on the device itself, in higher precision. Its results are checked there, later.

Only what a call changes in place is copied before. A kernel that is wrong in every dtype would agree with itself: so
calls are also proven by identities (by_identities.py), a few of each place as far as a budget allows, and what a proof
doubts the CPU computes.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

from torch import Tensor

from op_tools.autocompare.by_identities import Proofs
from op_tools.autocompare.clones import clone
from op_tools.autocompare.examiner import Examiner
from op_tools.autocompare.foreach_lists import Joined
from op_tools.autocompare.identities.whole import OfView
from op_tools.autocompare.judging.comparer import Comparison
from op_tools.autocompare.report import Outcome
from op_tools.autocompare.strategy import (
    CallInProgress,
    Deliver,
    Pending,
    PendingCall,
    PendingProof,
    Strategy,
    wants_gradients,
)
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.ops import catalogue

# A proof takes about as long as eight comparisons, so that proofs add about a quarter to them.
_COMPARISONS_PER_PROOF = 32
_FREE_PROOFS = 32  # so that short programs have some
_MAX_CALLS_IN_STEP = 10_000  # where a program has no steps
_Place = tuple[str, str, int]  # the op, the line that calls it, and how many dimensions it gets: x.sum(1).sum(0)


class _Proven(Enum):
    """What has become of a place."""

    YES = "proven"
    NOT_YET = "its turn has not come"
    NO_IDENTITY = "no identity is known"


class ProofBudget:
    """Which calls are proven, too. Forward and backward count as one each.

    Each place has its turn once before any has its second. Turns begin in step 1, 2, 4, 8 …, or later while the budget
    is short: a kernel that is wrong in every dtype is always wrong.
    """

    def __init__(self, is_limited: bool) -> None:
        self._is_limited = is_limited
        self._compared = self._proofs = 0
        self._step: int | None = None
        self._calls = 0  # in this step
        self._steps = self._turn_began = 1
        self._is_short = False  # in this step
        self._had_turn: set[_Place] = set()
        self._places: dict[_Place, _Proven] = {}

    def takes(self, call: OpCall) -> bool:
        """Whether it is to be proven; a call that was compared."""
        if call.step != self._step or self._calls >= _MAX_CALLS_IN_STEP:
            self._begin(call.step)
        self._calls += 1
        self._compared += 1
        place = _place_of(call)
        if place in self._had_turn:
            return False
        self._places.setdefault(place, _Proven.NOT_YET)
        if self._is_limited and self._compared <= (self._proofs - _FREE_PROOFS) * _COMPARISONS_PER_PROOF:
            self._is_short = True
            return False
        self._had_turn.add(place)
        return True

    def took(self, call: OpCall, proofs: int) -> None:
        """What came of it: so many proofs, with that of gradients which will flow; 0 where no identity is known."""
        self._proofs += proofs
        place = _place_of(call)
        if proofs or self._places[place] is not _Proven.YES:
            self._places[place] = _Proven.YES if proofs else _Proven.NO_IDENTITY

    def flowed(self) -> None:
        """Gradients that were compared."""
        self._compared += 1

    def _begin(self, step: int) -> None:
        if self._step is not None:
            self._steps += 1
            if not self._is_short and self._steps >= 2 * self._turn_began:
                self._turn_began = self._steps
                self._had_turn.clear()
        self._step, self._calls, self._is_short = step, 0, False

    def coverage(self) -> str:
        """How many places were proven; nothing where none was compared."""
        found = Counter(self._places.values())
        if not found:
            return ""
        left = [f"{found[one]:,}: {one.value}" for one in (_Proven.NO_IDENTITY, _Proven.NOT_YET) if found[one]]
        reasons = f" ({', '.join(left)})" if left else ""
        return f"proven by identities, too: {found[_Proven.YES]:,} of {len(self._places):,} places{reasons}"


def _place_of(call: OpCall) -> _Place:
    first = call.args[0] if call.args else None
    return call.name, call.where.line(), first.dim() if isinstance(first, Tensor) else 0


class OnDevice(Strategy):
    """Compares calls with the same device in higher precision. `proves_all`: each place, in the first step already."""

    on_device = True

    def __init__(
        self, examiner: Examiner, deliver: Deliver, memory: int, on_cpu: Examiner, proves_all: bool = False
    ) -> None:
        super().__init__(examiner, deliver, memory)
        self._proofs = Proofs(on_cpu, deliver, only_wrong=True)
        self._budget = ProofBudget(is_limited=not proves_all)
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
            return self._proven_view(call, self._after_view(call, state))
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
            if self._budget.takes(call):
                self._budget.took(call, self._proofs.forward(call, seen.with_lists(state.live)) is not None)
            return None
        keeps, reference = wants_gradients(call), None
        if self._deferred is None:
            self._deliver(call, self._examiner.forward(call, seen))
        else:
            reference = self._deferred.forward(call, seen, keeps and not seen.depends_on_layout())
        provable = None
        if self._budget.takes(call):
            provable = self._proofs.forward(call, seen)
            self._budget.took(call, 0 if provable is None else 1 + keeps)
        pending = self._keep(seen, reference) if keeps else None
        if pending is not None and provable is not None:
            pending.proof = PendingProof(seen, provable)
        return pending

    def _proven_view(self, call: OpCall, pending: PendingCall | None) -> PendingCall | None:
        """A view, whose gradient will be proven, too, if it is its turn."""
        provable = None if pending is None else OfView.of(pending.seen())
        if pending is not None and provable is not None and self._budget.takes(call):
            self._budget.took(call, 1)
            pending.proof = PendingProof(pending.seen(), provable)
        return pending

    def flowed(self, call: OpCall, state: Pending, gradients: Gradients) -> None:
        assert isinstance(state, PendingCall)
        reference, proof, seen = state.reference, state.proof, state.taken()
        if seen is None or self._is_same_gradient(call, seen, gradients):
            return  # None: a second pass over the same graph
        self._budget.flowed()
        if proof is not None and proof.takes():
            self._proofs.backward(call, seen, proof.provable, gradients)
        if self._deferred is not None:
            self._deferred.backward(call, seen, reference, gradients)
        else:
            self._deliver(call, self._examiner.backward(call, seen, gradients, gradients, reference))

    def coverage_of_proofs(self) -> str:
        return self._budget.coverage()

    def parameters_will_change(self) -> None:
        self._proofs.finish()
        super().parameters_will_change()

    def close(self) -> None:
        self._proofs.finish()
        super().close()
