"""OpAutoCompare: runs every op call again elsewhere, in higher precision, and says which ones the device gets wrong."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from collections.abc import Container, Iterable
from types import TracebackType
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from op_tools import settings
from op_tools.autocompare import lists, places, report, views
from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.compare import Comparer
from op_tools.autocompare.examine import Examiner, Outcome
from op_tools.autocompare.judging.tolerance import Tolerances
from op_tools.autocompare.prefilter import screen
from op_tools.autocompare.prefilter.later import Later
from op_tools.autocompare.reference import rerun
from op_tools.autocompare.reference.pair import Pair
from op_tools.autocompare.seen import Seen
from op_tools.autocompare.underway import Underway
from op_tools.autocompare.waiting import Memory, Waiting
from op_tools.autocompare.workers.pool import Kept, Workers
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.core.session import stop_everything
from op_tools.core.tool import Tool
from op_tools.device import host_copies
from op_tools.errors import DifferenceFound, SettingError
from op_tools.ops import catalogue
from op_tools.ops.cast_tables import read_cast_tables
from op_tools.ops.catalogue import Trait
from op_tools.output import messages, paths
from op_tools.output.csv_files import CsvFile
from op_tools.values.tensors import requires_grad, tensors_in

_MOST_KNOWN = 200_000  # distinct calls that are remembered
_SLACK = 4.0  # where only the device itself is asked, and nobody confirms what it finds
_LONGEST_LIST = 8  # an optimizer's lists of tensors: the first and the last tell enough


class OpAutoCompare(Tool[Optional[Underway], Any]):
    """Compares inputs, outputs and gradients of every op call with those of a reference.

    `reference`: "cpu", "device" (the same device in higher precision) or "device,cpu" (the CPU confirms). `once`: each
    distinct call once. `every`: only every N-th step. `worker`: this many processes compare while training goes on.
    `memory`: bytes of host memory for calls that wait. `fail`: `stop` raises DifferenceFound if something is wrong.
    """

    hook = "OpAutoCompareHook"
    prefix = "OP_AUTOCOMPARE"
    feature = "autocompare"
    watches_gradients = True
    runs_again = True

    def __init__(
        self,
        *,
        reference: str | None = None,
        once: bool | None = None,
        every: int | None = None,
        worker: int | None = None,
        memory: int | None = None,
        fail: bool | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self._options = (reference, once, every, worker, memory, fail)
        self.summary = report.Summary()

    # -- start and stop -----------------------------------------------------------------------------------------------

    def started(self) -> None:
        given_reference, once, every, worker, memory, fail = self._options
        self._reference = settings.AUTOCOMPARE_REFERENCE.get() if given_reference is None else given_reference
        self._once = settings.AUTOCOMPARE_ONCE.get() if once is None else once
        self._fail = settings.AUTOCOMPARE_FAIL.get() if fail is None else fail
        limit = settings.AUTOCOMPARE_MEMORY.get() if memory is None else memory
        every = settings.AUTOCOMPARE_EVERY.get() if every is None else every
        if self._reference not in ("cpu", "device", "device,cpu"):
            raise SettingError(f"reference={self._reference!r} cannot be used: it is cpu, device or device,cpu")
        count = settings.AUTOCOMPARE_WORKER.get() if worker is None else worker
        for name, number, least in (("every", every, 1), ("worker", count, 0), ("memory", limit, 1)):
            if not isinstance(number, int) or number < least:
                raise SettingError(f"{name}={number!r} cannot be used: it is a whole number, {least} or more")
        if every > 1:
            self.steps = _Every(every, self.steps)
        self._on_device = self._reference != "cpu"
        if count and self._on_device:
            raise SettingError("worker processes compare with the CPU: worker= needs reference='cpu'")
        places.choose_way()
        self._examiner = self._make_examiner()
        # every call is shown with the reference's tensors at 2
        self._takes_lists_together = not count and self.verbose < 2
        is_deferred = not count and self.verbose < 2
        self._later = Later(self._comparer, self._examiner, self._take) if is_deferred else None
        self._csv = CsvFile(paths.autocompare_csv(self.out), report.CSV, settings.MAX_CACHE_SIZE.get())
        self._memory = Memory(limit)
        self._known: set[Any] = set()
        self._in_place: set[str] = set()
        self.summary = report.Summary()
        rerun.silence()
        self._workers = Workers(count, self.verbose, self.out, limit, self._take) if count else None
        if self._fail:
            atexit.register(self._fail_at_exit)

    def _make_examiner(self) -> Examiner:
        tolerances, cast_table = Tolerances(), read_cast_tables().cast_table
        self._comparer = Comparer(tolerances, cast_table)
        on_cpu = Examiner(self._comparer, self.verbose, self.out)
        if not self._on_device:
            return on_cpu
        confirms = self._reference == "device,cpu"
        self._comparer = Comparer(tolerances, cast_table, True, 1.0 if confirms else _SLACK)
        return Examiner(self._comparer, self.verbose, self.out, "reference", on_cpu if confirms else None)

    def stopped(self) -> None:
        atexit.unregister(self._fail_at_exit)
        if self._workers is not None:
            self._workers.close()
        if self._later is not None:
            self._later.finish()
        self._csv.close()
        if self.verbose >= 1:
            messages.say(self.summary.text())
            if self._csv.written:
                messages.say(f"{self._csv.path} saved")
        found = self.summary.ranked()
        if self._fail and found:
            raise DifferenceFound(f"{self.summary.wrong_calls:,} op calls are wrong, the worst: {found[0]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        except DifferenceFound:
            if error is None:
                raise  # else the user's own error goes first

    def _fail_at_exit(self) -> None:
        """A program that ends without `stop` ends with exit code 1. Python would swallow an exception here."""
        try:
            self.stop()
        except DifferenceFound as error:
            messages.complain(str(error))
            stop_everything()
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    # -- one call -----------------------------------------------------------------------------------------------------

    def before(self, call: OpCall) -> Underway | None:
        if self._once and self._is_known(call):
            return None
        name = call.name
        if catalogue.has(name, Trait.EMPTY):
            return None
        state = Underway(call)
        if self._on_device:
            if name in self._in_place or state.works_in_place:
                if self._later is not None:
                    self._later.will_change(state.live.tensors)
                state.given = (state.joined() if self._later is not None else None) or state.live.mapped(_clone)
        elif not catalogue.has(name, Trait.VIEW):
            together = state.joined() if self._takes_lists_together and "_foreach_" in name else None
            state.given = (together or state.live).copied()
            if self._later is not None and screen.is_quick(state.live.tensors):
                with contextlib.suppress(screen.OUT_OF_MEMORY):  # then the host does it alone, here and below
                    state.before = together or state.live.mapped(_clone)
        return state

    def after(self, call: OpCall, state: Underway | None) -> Any:
        if state is None:
            return None
        wants_gradients = torch.is_grad_enabled() and _requires_gradient(call.result)
        if state.is_view(call):
            return self._after_view(call, state, wants_gradients)
        if self._on_device:
            return self._after_on_device(call, state, wants_gradients)
        return self._after_with_copies(call, state, wants_gradients)

    def _after_view(self, call: OpCall, state: Underway, wants_gradients: bool) -> Any:
        seen = state.seen(call, state.live, _device_of(call))
        self._take(call, self._examiner.view(call, seen))
        seen.given = state.live.mapped(self._hollow)
        return self._kept(seen, None, wants_gradients)

    def _after_on_device(self, call: OpCall, state: Underway, wants_gradients: bool) -> Any:
        given = state.given
        if given is None:
            given = (state.joined() if self._later is not None and "_foreach_" in call.name else None) or state.live
        seen = state.seen(call, given, "")
        if seen.changed and state.given is None:
            self._in_place.add(call.name)  # the next time its inputs are copied
            return None
        seen.kept = state.live if seen.changed else None
        if isinstance(given, lists.Joined):
            return self._compare_lists(call, seen)
        pair = None
        if self._later is None:
            self._take(call, self._examiner.forward(call, seen))
        else:
            pair = self._later.forward(call, seen, wants_gradients and not seen.depends_on_layout())
        return self._kept(seen, pair, wants_gradients)

    def _after_with_copies(self, call: OpCall, state: Underway, wants_gradients: bool) -> Any:
        """The reference is on the host. Where the device looks first, it has copies of its own."""
        given = state.live.copied() if state.given is None else state.given
        seen = state.seen(call, given, _device_of(call))
        if isinstance(given, lists.Joined):
            return self._compare_lists(call, seen)
        if self._later is not None and state.before is not None:
            with contextlib.suppress(screen.OUT_OF_MEMORY):
                # copies, on the device: nobody changes them before they are looked at
                seen.kept, seen.result = _together(call, _cloned)
                pair = self._later.forward(call, seen, wants_gradients and not seen.depends_on_layout())
                return self._kept(seen, pair, wants_gradients)
        seen.kept, seen.result = _together(call, host_copies.host_copy)
        if self._workers is not None:
            handed_over = self._workers.forward(call, seen, wants_gradients)
            if handed_over is not False:
                return handed_over
        outcome = self._examiner.forward(call, seen, wants_gradients)
        pair, outcome.comparison.pair = outcome.comparison.pair, None
        self._take(call, outcome)
        return self._kept(seen, pair, wants_gradients)

    def _kept(self, seen: Seen, pair: Pair | None, wants_gradients: bool) -> Waiting | None:
        """What waits for the gradients of a call."""
        if not wants_gradients or seen.depends_on_layout():
            return None
        return self._memory.keep(seen.for_backward(), pair)

    def _compare_lists(self, call: OpCall, seen: Seen) -> None:
        """An optimizer's op on lists, each of them as one tensor; only if that is wrong, tensor by tensor."""
        flat = seen.flat()
        if flat is None:
            whole = seen.with_lists(Arguments(call.args, call.kwargs))
            self._take(call, self._examiner.forward(call, whole if self._on_device else whole.on_host()))
        elif self._later is not None and (self._on_device or flat.is_elsewhere()):
            self._later.lists(call, flat)
        else:
            flat = flat.on_host()
            comparison = self._comparer.forward(flat)
            is_clear = not comparison.is_wrong and not comparison.failure
            again = self._examiner.forward
            self._take(call, Outcome(comparison) if is_clear else again(call.without_tensors(), flat.whole()))

    def flowed(self, call: OpCall, state: Any, gradients: Gradients) -> None:
        if isinstance(state, Kept):
            state.compare(call, *host_copies.host_copy((gradients.outputs, gradients.inputs)))
            return
        pair = state.pair
        seen = state.taken()
        if seen is None:
            return  # a second pass over the same graph
        outputs, inputs = gradients.outputs, gradients.inputs
        is_shown = self.verbose >= 2  # beside its reference
        if not is_shown and catalogue.has(seen.name, Trait.VIEW) and seen.hands_back_memory(outputs, inputs):
            self._take(call, Outcome(self._comparer.same_gradient(seen, inputs)))
            return
        if self._later is not None and self._on_device:
            self._later.backward(call, seen, pair, outputs, inputs)
            return
        if self._later is not None and screen.is_quick([gradient for gradient in outputs if gradient is not None]):
            with contextlib.suppress(screen.OUT_OF_MEMORY):
                self._later.backward(call, seen, pair, *_cloned((outputs, inputs)))
                return
        if not self._on_device:
            outputs, inputs = host_copies.host_copy((outputs, inputs))
        self._take(call, self._examiner.backward(call, seen, outputs, inputs, gradients, pair))

    def _hollow(self, tensor: Tensor) -> Tensor:
        return views.hollow(tensor, tensor.device if self._on_device else "cpu")

    def _is_known(self, call: OpCall) -> bool:
        kwargs = call.kwargs
        key = (call.name, call.where.line(), _shapes(call.args), _shapes(kwargs.values()) if kwargs else None)
        if key in self._known:
            return True
        if len(self._known) < _MOST_KNOWN:
            self._known.add(key)
        return False

    def _take(self, call: OpCall, outcome: Outcome) -> None:
        """Counts, writes and shows what came out."""
        comparison = outcome.comparison
        self.summary.add(call, comparison)
        rows = comparison.rows
        if rows:
            self._csv.add_lines(report.csv_lines(call, rows).encode(), len(rows))
        if comparison.failure:
            messages.complain_once(
                "not compared", call.name, text=f"OpAutoCompare could not compare {call.name}: {comparison.failure}"
            )
        if outcome.text:
            saved = "".join(f"{path} saved\n" for path in outcome.saved)
            messages.say(outcome.text + saved)


class _Every:
    """Every N-th of the steps that were asked for."""

    def __init__(self, number: int, steps: Container[int] | None) -> None:
        self._number = number
        self._steps = steps

    def __contains__(self, step: object) -> bool:
        is_turn = isinstance(step, int) and step % self._number == 0
        return is_turn and (self._steps is None or step in self._steps)


def _requires_gradient(result: Any) -> bool:
    return result.requires_grad if isinstance(result, Tensor) else any(map(requires_grad, tensors_in((result,))))


def _device_of(call: OpCall) -> str:
    for tensor in tensors_in((call.result,)):
        if not tensor.is_cpu:
            return str(tensor.device)
    return ""


def _clone(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _cloned(value: Any) -> Any:
    """Everything in it; a tensor that comes twice has one copy."""
    return Arguments((value,), {}).mapped(_clone).args[0]


def _together(call: OpCall, copy: Callable[[Any], Any]) -> tuple[Arguments, Any]:
    """Copies of the arguments and the result of a call: what it returns may be one of its arguments."""
    args, kwargs, result = copy((call.args, call.kwargs, call.result))
    return Arguments(args, kwargs), result


def _shapes(values: Iterable[Any]) -> tuple[Any, ...]:
    """Shapes, strides and dtypes of the tensors among them."""
    found: list[Any] = []
    for value in values:
        kind = type(value)
        if kind is int or kind is float or value is None:
            continue
        if isinstance(value, Tensor):
            found.append((value.dtype, value.shape, value.stride() if value.layout is _STRIDED else None))
        elif (kind is list or kind is tuple) and value:
            shown = value if len(value) <= _LONGEST_LIST else value[:: len(value) - 1]
            found.append((len(value), _shapes(shown)))
    return tuple(found)


_STRIDED = torch.strided
