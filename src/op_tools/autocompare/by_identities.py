"""No reference: results are proven by what must hold of them (identities/), on the device, with a pass over the data.

What a proof doubts is computed again by the CPU in full, which has the last word. Small calls it computes in any case.
Ops and gradients without a known identity are listed at the end as not compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.autocompare import clones
from op_tools.autocompare.examiner import Examiner
from op_tools.autocompare.identities.attention import Attention
from op_tools.autocompare.identities.convolutions import Convolution
from op_tools.autocompare.identities.draws import stretch_of_draws
from op_tools.autocompare.identities.einsum import Einsum
from op_tools.autocompare.identities.extremes import Extreme
from op_tools.autocompare.identities.losses import DifferenceLoss, PickedLoss
from op_tools.autocompare.identities.products import Product
from op_tools.autocompare.identities.proof import Measured, Proof, Provable, Sample
from op_tools.autocompare.identities.rows import Norm, Softmax
from op_tools.autocompare.identities.samples import InPlace, PickedRows, Piecewise, host_copy, tensors_of
from op_tools.autocompare.identities.solutions import Solution
from op_tools.autocompare.identities.sums import ClassLoss, Sum
from op_tools.autocompare.identities.totals import stretch_of_totals
from op_tools.autocompare.identities.whole import MAX_TENSORS_WITHOUT_SAMPLE, OfView, Whole, is_small
from op_tools.autocompare.judging.comparer import Comparison
from op_tools.autocompare.judging.limits import PROOF_LIMITS, GivenTolerance
from op_tools.autocompare.judging.verdict import RIGHT, Row
from op_tools.autocompare.observed import ObservedCall, copied, hollow_like
from op_tools.autocompare.prefilter.deferred import CallWindow, DeferredCall, DeferredCalls
from op_tools.autocompare.reference import graph_thread
from op_tools.autocompare.report import Outcome
from op_tools.autocompare.strategy import (
    CallInProgress,
    Deliver,
    Pending,
    PendingCall,
    PendingProof,
    Strategy,
    wants_gradients,
)  # fmt: skip
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.device import host_copies
from op_tools.ops import catalogue
from op_tools.values.tensors import tensors_in

_MAX_CALLS = 64  # in a window
_UNKNOWN = "no identity is known"
_UNKNOWN_GRADIENTS = "no identity is known for some of its gradients"

_FIND: tuple[Callable[[ObservedCall], Any], ...] = (
    Product.of, Einsum.of, Extreme.of, Solution.of, Piecewise.of, Norm.of, Softmax.of, Attention.of, Convolution.of,
    Sum.of, ClassLoss.of, PickedRows.of, DifferenceLoss.of, PickedLoss.of, stretch_of_draws, stretch_of_totals,
)  # fmt: skip


def provable_of(call: ObservedCall) -> Provable | None:
    """None where no identity is known for this call."""
    found: Provable | None = next(filter(None, (find(call) for find in _FIND)), None)
    return found


def _provable(call: ObservedCall) -> Provable | None:
    """Also of a small call, which needs no identity."""
    return Whole.of(call) or provable_of(call) or Whole.of(call, MAX_TENSORS_WITHOUT_SAMPLE)


class _Proving(DeferredCall):
    """A call whose proofs are on their way. `again`: the CPU computes it in full; None where the samples tell all."""

    __slots__ = ("proofs",)

    def __init__(
        self, call: OpCall, proofs: list[Proof], again: Callable[[], Outcome] | None, tensors: list[Tensor]
    ) -> None:
        super().__init__(call, again, tensors)
        self.proofs = proofs


class _ProofWindow(CallWindow[_Proving]):
    """Calls whose numbers are read together."""

    def look(self) -> Sequence[Tensor]:
        proofs = [proof for record in self.records for proof in record.proofs]
        measured = [proof.numbers for proof in proofs if isinstance(proof, Measured)]
        copies = [tensor for proof in proofs if isinstance(proof, Sample) for tensor in tensors_of(proof)]
        return [*([torch.stack(measured)] if measured else []), *copies]


class Proofs(DeferredCalls[_ProofWindow]):
    """Proves calls and their gradients, later and together. `only_wrong`: what is proven is not reported."""

    def __init__(self, examiner: Examiner, deliver: Deliver, only_wrong: bool = False) -> None:
        super().__init__()
        self._examiner = examiner
        self._deliver = deliver
        self._only_wrong = only_wrong

    def forward(self, call: OpCall, seen: ObservedCall, in_place: InPlace | None = None) -> Provable | None:
        """None where there is no identity for this call. `in_place`: of one that has changed its arguments."""
        with _undisturbed():
            provable = in_place.after(seen) if in_place is not None else _provable(seen)
            if provable is None:
                return None
            proofs = list(provable.forward())
        if not proofs:
            return None
        self._add(self._pending(call, proofs, seen, None))
        return provable

    def backward(self, call: OpCall, seen: ObservedCall, provable: Provable, gradients: Gradients) -> None:
        with _undisturbed():
            proofs = list(provable.backward(gradients))
        if not self._only_wrong and sum(map(_gradients_in, proofs)) < _count(gradients):
            self._deliver(call, Outcome(Comparison(skipped=_UNKNOWN_GRADIENTS)))
        if proofs:
            self._add(self._pending(call, proofs, seen, gradients))

    def _pending(self, call: OpCall, proofs: list[Proof], seen: ObservedCall, gradients: Gradients | None) -> _Proving:
        if all(isinstance(proof, Sample) for proof in proofs):
            return _Proving(call.without_tensors(), proofs, None, [])
        if gradients is None:
            tensors = [*seen.given.tensors, *tensors_in((seen.result,))]
            return _Proving(call, proofs, lambda: self._examiner.forward(call, seen.on_host()), tensors)
        tensors = [*seen.given.tensors, *[one for one in (*gradients.inputs, *gradients.outputs) if one is not None]]
        return _Proving(call, proofs, lambda: self._examined_gradients(call, seen, gradients), tensors)

    def _examined_gradients(self, call: OpCall, seen: ObservedCall, gradients: Gradients) -> Outcome:
        copies = copied(gradients, host_copies.copies_of)
        return self._examiner.backward(call, seen.on_host(), copies, gradients)

    def _add(self, record: _Proving) -> None:
        device = _device_of(record.proofs)
        with self._windows.lock:
            window = self._windows.current
            if window is None or not window.suits(device):
                self._windows.launch()
                window = self._windows.current = _ProofWindow(device)
            window.records.append(record)
            if len(window.records) < _MAX_CALLS:
                return
            self._windows.launch()
        self._windows.read(wait=False)

    def _answer(self, window: _ProofWindow) -> None:
        found = window.numbers()
        if found is None:
            failure = Comparison(failure="the device's memory did not suffice")
            outcomes: list[Outcome | None] = [Outcome(failure) for _ in window.records]
        else:
            outcomes = graph_thread.run_there(lambda: self._outcomes(window.records, found))
        for record, outcome in zip(window.records, outcomes):
            outcome = record.in_full() if outcome is None else outcome
            outcome.is_second = self._only_wrong
            if outcome.comparison.is_wrong or outcome.comparison.failure or not self._only_wrong:
                self._deliver(record.call, outcome)

    def _outcomes(self, records: Sequence[_Proving], found: Sequence[Tensor]) -> list[Outcome | None]:
        """None where the CPU must compute it in full."""
        copies = iter(found)
        has_measured = any(isinstance(proof, Measured) for record in records for proof in record.proofs)
        numbers = iter(next(copies).tolist() if has_measured else ())
        return [self._outcome(record, numbers, copies) for record in records]

    def _outcome(self, record: _Proving, numbers: Iterator[list[float]], copies: Iterator[Tensor]) -> Outcome | None:
        """Of one record. What belongs to it is taken from the numbers and copies in any case."""
        tolerances, rows, is_doubtful = self._examiner.comparer.tolerances, [], False
        judged: Outcome | None = None
        for proof in record.proofs:
            if isinstance(proof, Sample):
                judged = self._judged(record.call, host_copy(proof, copies))
                rows += judged.comparison.rows
            else:
                is_doubtful |= not all(value <= limit for value, limit in zip(next(numbers), PROOF_LIMITS))
                tolerance = tolerances.for_dtype(record.call.name, proof.dtype)
                # of how far single elements are off, which the user's own tolerance is about, a proof tells nothing
                is_doubtful |= isinstance(tolerance, GivenTolerance) and not self._only_wrong
                rows.append(Row(proof.name, RIGHT, *tolerance))
        if judged is not None and record.again is None:
            return judged
        return None if is_doubtful else Outcome(Comparison(rows))

    def _judged(self, call: OpCall, sample: Sample) -> Outcome:
        if sample.gradients is None:
            return self._examiner.forward(call, sample.call)
        return self._examiner.backward(call, sample.call, sample.gradients)


def _count(gradients: Gradients) -> int:
    return sum(one is not None for one in gradients.inputs)


def _gradients_in(proof: Proof) -> int:
    """How many gradients it is a proof of."""
    return _count(proof.gradients) if isinstance(proof, Sample) and proof.gradients is not None else 1


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """The arithmetic of a proof is not the program's: no graph, no autocast."""
    with torch.inference_mode(False), torch.no_grad(), torch._C._DisableAutocast():
        yield


def _device_of(proofs: Sequence[Proof]) -> torch.device:
    first = proofs[0]
    if isinstance(first, Measured):
        return first.numbers.device
    tensors = tensors_of(first)
    return next((tensor.device for tensor in tensors if not tensor.is_cpu), torch.device("cpu"))


class _InProgress(CallInProgress):
    """`in_place`: a piece of what the call will change."""

    __slots__ = ("in_place",)

    def __init__(self, call: OpCall) -> None:
        super().__init__(call)
        self.in_place: InPlace | None = None
        may_change = self.works_in_place or catalogue.of(call.name) is None
        with _undisturbed():
            if may_change and is_small(self.live.tensors):
                self.given = self.live.mapped(clones.as_it_lies)
            elif self.works_in_place:
                self.in_place = InPlace.of(call.name, self.live)


def _for_backward(seen: ObservedCall, provable: Provable) -> ObservedCall:
    """What is kept of a call: where its gradients do not depend on its numbers, their shapes are enough."""
    if not provable.tensors():
        given = seen.given.mapped(lambda tensor: hollow_like(tensor, tensor.device))
        seen = replace(seen, given=given)
    return seen.for_backward()


class ByIdentities(Strategy):
    """Proves calls on the device, without a reference."""

    on_device = True

    def __init__(self, examiner: Examiner, deliver: Deliver, memory: int) -> None:
        super().__init__(examiner, deliver, memory, defers=False)
        self._proofs = Proofs(examiner, deliver)

    def before(self, call: OpCall) -> CallInProgress:
        state = _InProgress(call)
        if state.works_in_place:
            self._proofs.will_change(state.live.tensors)
        return state

    def after(self, call: OpCall, state: CallInProgress) -> Pending | None:
        assert isinstance(state, _InProgress)
        if state.is_view(call):
            return self._after_view(call, state)
        seen = state.observed(call, state.given or state.live, None)
        seen.kept = state.given and state.live
        provable = self._proofs.forward(call, seen, state.in_place)
        if provable is None:
            self._deliver(call, Outcome(Comparison(skipped=_UNKNOWN)))
            return None
        return PendingProof(_for_backward(seen, provable), provable) if wants_gradients(call) else None

    def flowed(self, call: OpCall, state: Pending, gradients: Gradients) -> None:
        if isinstance(state, PendingCall):
            self._flowed_through_view(call, state, gradients)
            return
        assert isinstance(state, PendingProof)
        if state.takes():
            self._proofs.backward(call, state.seen, state.provable, gradients)

    def _flowed_through_view(self, call: OpCall, state: PendingCall, gradients: Gradients) -> None:
        seen = state.taken()
        if seen is None or self._is_same_gradient(call, seen, gradients):
            return
        provable = OfView.of(seen)
        if provable is None:
            self._deliver(call, Outcome(Comparison(skipped=_UNKNOWN_GRADIENTS)))
        else:
            self._proofs.backward(call, seen, provable, gradients)

    def parameters_will_change(self) -> None:
        self._proofs.finish()

    def close(self) -> None:
        self._proofs.finish()
