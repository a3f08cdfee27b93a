"""What all ways of comparing have in common: a call from before it runs until after, views, and pending gradients.

A strategy says where the reference of a call is computed and when it is looked at: on the host (on_host.py), on the
device itself (on_device.py), in other processes (in_workers.py). OpAutoCompare chooses one when it starts.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Callable, Union

import torch
from torch import Tensor

from op_tools.autocompare import foreach_lists, views
from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.checkpointed import CheckpointedCall
from op_tools.autocompare.examiner import Examiner
from op_tools.autocompare.identities.proof import Provable
from op_tools.autocompare.judging.comparer import Comparison
from op_tools.autocompare.observed import ObservedCall, hollow_like
from op_tools.autocompare.prefilter.deferred import DeferredComparisons, free_memory
from op_tools.autocompare.reference import tf32
from op_tools.autocompare.reference.runs import Reference
from op_tools.autocompare.report import Outcome
from op_tools.autocompare.shared_memory import NONE, regions_of
from op_tools.autocompare.workers.pool import KeptByWorker
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.device import generators
from op_tools.ops import autocast_policy, catalogue
from op_tools.ops.catalogue import Trait
from op_tools.ops.names import normalized, works_in_place
from op_tools.ops.silent_writes import REGISTERED, silent_places, silently_written
from op_tools.output import messages
from op_tools.values.tensors import requires_grad, tensors_in, versions_of

# times the bytes of a call: about what a run of it in float64 takes, with what it keeps for its gradients
_GRAPH_TO_CALL_BYTES = 8
_MAX_GRAPH_SHARE = 1 / 2  # of the limit
_MAX_GRAPH_SHARE_OF_DEVICE = 1 / 4  # of what is free at first

Deliver = Callable[[OpCall, Outcome], None]
Pending = Union["PendingCall", "PendingProof", KeptByWorker]  # a call that waits for its gradients


class CallInProgress:
    """State that cannot be recovered after the op ran: copies of what it may change, versions, autocast, tf32."""

    __slots__ = (
        "_is_recorded", "_is_tf32", "_name", "_policy", "_versions", "before", "checkpointed", "generators", "given",
        "live", "works_in_place",
    )  # fmt: skip

    def __init__(self, call: OpCall) -> None:
        name = self._name = call.name
        self._is_recorded = call.is_recorded
        self.checkpointed: CheckpointedCall | None = None
        self.live = Arguments(call.args, call.kwargs)
        self.given: Arguments | None = None  # copies that the reference is given
        self.before: Arguments | None = None  # copies on the device, where those are elsewhere and the device looks
        tensors, kwargs = self.live.tensors, call.kwargs
        self.works_in_place = (
            _is_called_in_place(name)
            or (bool(kwargs) and ("out" in kwargs or bool(kwargs.get("inplace"))))
            or (_may_write(name, call.func) and bool(silently_written(name, call.func, call.args, kwargs)))
        )
        # whether it has changed something need not be found out where it is known
        self._versions = [] if self.works_in_place else versions_of(tensors)
        if None in self._versions:  # inference tensors
            self.works_in_place = _is_told_to_work_in_place(call)
        active = None if call.autocast is None else call.autocast.dtype
        self._policy = (active, None if active is None else _chosen(name, active))
        self._is_tf32 = catalogue.has(name, catalogue.WITH_PRODUCTS) and _is_tf32(name, tensors)
        # whether an op that is in the catalogue draws random numbers is known
        self.generators = self._states_of(call) if catalogue.of(name) is None else None

    def has_drawn(self, call: OpCall) -> bool:
        """After the call: whether it has drawn random numbers from these generators."""
        return self.generators is not None and not generators.are_equal(self.generators, self._states_of(call))

    def _states_of(self, call: OpCall) -> generators.States:
        return generators.states_of((*self.live.tensors, *call.args, *call.kwargs.values()))

    def joined(self) -> foreach_lists.Joined | None:
        """The arguments of an optimizer's op on lists, as one tensor for each list; None for other calls."""
        if not catalogue.has(self._name, Trait.POINTWISE | Trait.EXACT) or self._is_recorded:
            return None
        with torch.no_grad():
            return foreach_lists.joined(self.live)

    def is_view(self, call: OpCall) -> bool:
        """After the call: true where it has only looked at its input's memory in another way, and rightly so."""
        if not catalogue.has(self._name, Trait.VIEW) or self.works_in_place or self._has_changed():
            return False
        return views.hands_out_memory(self.live, call.result) and views.looks_alike(call.func, self.live, call.result)

    def observed(self, call: OpCall, given: Arguments, device: torch.device | None) -> ObservedCall:
        """After the call. `device`: where its tensors are, if those given are copies."""
        # there are ops that write without counting, known ones and perhaps unknown ones
        changed = self.works_in_place or catalogue.of(self._name) is None or self._has_changed()
        regions = regions_of(self.live) if changed else NONE
        facts = (*self._policy, self._is_tf32, changed, regions, device, self.before)
        return ObservedCall(call.name, call.func, given, None, call.result, *facts)

    def _has_changed(self) -> bool:
        return versions_of(self.live.tensors) != self._versions


class Strategy:
    """Base of the strategies. Outcomes go to `deliver`, at once or later."""

    on_device = False  # where the reference is

    def __init__(self, examiner: Examiner, deliver: Deliver, memory: int, defers: bool = True) -> None:
        self._examiner = examiner
        self._comparer = examiner.comparer
        self._deliver = deliver
        self._pending = PendingCalls(memory)
        self.gradients_left_out = 0  # calls whose gradients are not compared, for lack of memory
        # at 2 every call is shown with the reference's tensors
        self._deferred = DeferredComparisons(examiner, deliver) if defers and examiner.verbose < 2 else None

    def before(self, call: OpCall) -> CallInProgress:
        """Before the call runs."""
        raise NotImplementedError

    def after(self, call: OpCall, state: CallInProgress) -> Pending | None:
        """When it has run. What is returned is handed to `flowed` when gradients flow."""
        raise NotImplementedError

    def flowed(self, call: OpCall, state: Pending, gradients: Gradients) -> None:
        """In backward, with the gradients at the call's edge."""
        raise NotImplementedError

    def stopped_inside(self, call: OpCall, state: CallInProgress, first: Pending) -> Pending | None:
        """Checkpointing ends a second pass once it has the last tensor that autograd needs, inside of a call.

        What waits for the call's gradients then; `first`: what did since its first pass.
        """
        if catalogue.has(call.name, Trait.VIEW):
            return first  # its gradient depends on no values
        if not isinstance(first, PendingCall):
            self._deliver(call, Outcome(Comparison(skipped="checkpointing has ended its second pass inside of it")))
            return None
        return first.with_arguments(state.given or (state.live if self.on_device else state.live.copied()))

    def parameters_will_change(self) -> None:
        """Decides what waits and may have to look at parameters again."""
        if self._deferred is not None and self.on_device:
            self._deferred.finish()

    def close(self) -> None:
        """Decides everything that waits."""
        if self._deferred is not None:
            self._deferred.finish()

    def coverage_of_proofs(self) -> str:
        """How many places were proven beside their comparison; nothing where none is."""
        return ""

    # ---- for the strategies ------------------------------------------------------------------------------------------

    def _after_view(self, call: OpCall, state: CallInProgress) -> PendingCall | None:
        """A call that has only looked at its input's memory in another way."""
        seen = state.observed(call, state.live, device_of(call))
        self._deliver(call, self._examiner.view(call, seen))
        if not wants_gradients(call):
            return None
        seen.given = state.live.mapped(lambda tensor: hollow_like(tensor, tensor.device if self.on_device else "cpu"))
        return self._keep(seen, None)

    def _keep(self, seen: ObservedCall, reference: Reference | None) -> PendingCall | None:
        """What waits for the gradients of a call."""
        if seen.depends_on_layout():
            return None
        kept = seen.for_backward()
        pending = self._pending.add(kept, kept.bytes(are_copies=not self.on_device), reference)
        self.gradients_left_out = self._pending.left_out
        return pending

    def _compare_lists(self, call: OpCall, seen: ObservedCall) -> None:
        """An optimizer's op on lists, each of them as one tensor; only if that is wrong, tensor by tensor."""
        flat = seen.flat()
        if flat is None:
            whole = seen.with_lists(Arguments(call.args, call.kwargs))
            self._deliver(call, self._examiner.forward(call, whole if self.on_device else whole.on_host()))
        elif self._deferred is not None and (self.on_device or flat.given_on_device is not None):
            self._deferred.lists(call, flat)
        else:
            flat = flat.on_host()
            comparison = self._comparer.forward(flat)
            is_clear = not comparison.is_wrong and not comparison.failure
            again = self._examiner.forward
            self._deliver(call, Outcome(comparison) if is_clear else again(call.without_tensors(), flat.whole()))

    def _is_same_gradient(self, call: OpCall, seen: ObservedCall, gradients: Gradients) -> bool:
        """Whether the gradient of a view is what arrived, looked at as it should be; it is delivered then."""
        if self._examiner.verbose >= 2 or not catalogue.has(seen.name, Trait.VIEW):
            return False
        if not views.hands_back_memory(seen.function, seen.given, gradients.outputs, gradients.inputs):
            return False
        self._deliver(call, Outcome(self._comparer.same_gradient(seen, gradients)))
        return True


# ---- calls that wait for their gradients -----------------------------------------------------------------------------


class PendingCalls:
    """Calls that wait for their gradients, up to so many bytes of host memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._max_graph_bytes: float | None = None
        self._used = 0
        self._lock = threading.Lock()
        self.left_out = 0  # calls for which there was no room

    def add(self, call: ObservedCall, size: int, reference: Reference | None) -> PendingCall | None:
        """`size`: the bytes of the call. None where there is no room: the call's gradients will not be compared.

        A run in higher precision takes more: it is cached while memory allows, otherwise recomputed.
        """
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
                self.left_out += 1
                messages.complain_once(
                    "autocompare",
                    "memory",
                    text=f"OpAutoCompare: {self._used:,} bytes of inputs wait for gradients: the calls of a step are "
                    "compared in turns, others in each step (OP_AUTOCOMPARE_MEMORY, or memory=, sets the limit)",
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

    __slots__ = ("_call", "_calls", "_size", "_versions", "proof", "reference")

    def __init__(self, call: ObservedCall, reference: Reference | None, size: int, calls: PendingCalls) -> None:
        self._call: ObservedCall | None = call
        self.reference = reference
        self.proof: PendingProof | None = None  # its gradients will be proven as well
        self._size = size
        self._calls = calls
        self._versions = versions_of(call.given.tensors)

    def seen(self) -> ObservedCall:
        """Before it is taken."""
        assert self._call is not None
        return self._call

    def taken(self) -> ObservedCall | None:
        """None where it was taken already, or where the program has changed an argument meanwhile."""
        call, self._call, self.reference, self.proof = self._call, None, None, None
        self._calls.free(self._size)
        self._size = 0
        if call is None or self._versions != versions_of(call.given.tensors):
            return None
        return call

    def with_arguments(self, given: Arguments) -> PendingCall | None:
        """The same call, in place of this one, for which it is taken that it was given these."""
        call, size = self._call, self._size
        self.taken()
        return None if call is None else self._calls.add(replace(call, given=given), size, None)

    def __del__(self) -> None:
        if self._size:
            self._calls.free(self._size)


class PendingProof:
    """One call that waits, to be proven by what its gradients must be. Autograd keeps most of its tensors anyway."""

    __slots__ = ("_is_taken", "_versions", "provable", "seen")

    def __init__(self, seen: ObservedCall, provable: Provable) -> None:
        self._is_taken = False
        self.seen = seen
        self.provable = provable
        self._versions = versions_of(provable.tensors())

    def takes(self) -> bool:
        """Whether this is the first pass over the graph, and the program has left its tensors alone."""
        is_first, self._is_taken = not self._is_taken, True
        return is_first and self._versions == versions_of(self.provable.tensors())


# ---- asked of every call ---------------------------------------------------------------------------------------------


def wants_gradients(call: OpCall) -> bool:
    """Whether gradients may flow through what the call has returned."""
    if not call.is_recorded:
        return False
    result = call.result
    return result.requires_grad if isinstance(result, Tensor) else any(map(requires_grad, tensors_in((result,))))


def device_of(call: OpCall) -> torch.device | None:
    """Where its results are, if not on the host."""
    result = call.result
    for tensor in [result] if isinstance(result, Tensor) else tensors_in((result,)):
        if not tensor.is_cpu:
            return tensor.device
    return None


def _may_write(name: str, func: Any) -> bool:
    """Whether the op writes into arguments without counting up their versions, at least at times."""
    return bool(silent_places(name, func if isinstance(func, REGISTERED) else None)[0])


@functools.lru_cache(maxsize=10_000)
def _is_called_in_place(name: str) -> bool:
    return works_in_place(normalized(name).form or name)


def _is_told_to_work_in_place(call: OpCall) -> bool:
    """By an argument that is not named, as modules do: `elu(x, 1.0, True)`."""
    place = _place_of_inplace(call.func)
    return place is not None and place < len(call.args) and bool(call.args[place])


@functools.lru_cache(maxsize=10_000)
def _place_of_inplace(func: Any) -> int | None:
    try:
        names = list(inspect.signature(func).parameters)
    except (TypeError, ValueError):  # written in C++
        return None
    return names.index("inplace") if "inplace" in names else None


@functools.lru_cache(maxsize=10_000)
def _chosen(name: str, active: torch.dtype) -> torch.dtype | None:
    """The dtype that autocast gives this op."""
    return autocast_policy.dtype_by_policy(name, active)


_CUT_TO_TF32 = (torch.float32, torch.complex64)


def _is_tf32(name: str, tensors: Iterable[Tensor]) -> bool:
    """True where the device may take tf32 for this call, or what its vendor has in place of it (HF32 …)."""
    cut = (*_CUT_TO_TF32, torch.float16) if "attention" in name else _CUT_TO_TF32  # which has products in float32
    if not any(tensor.dtype in cut and not tensor.is_cpu for tensor in tensors):
        return False
    if catalogue.has(name, Trait.MATRIX | Trait.MULTIPLIES) and tf32.in_products():
        return True
    return catalogue.has(name, Trait.CONVOLUTION) and tf32.in_convolutions()
