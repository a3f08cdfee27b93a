"""OpAutoCompare: runs every op call again elsewhere, in higher precision, and says which ones the device gets wrong."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
from collections.abc import Container, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Union

import torch
from torch import Tensor
from torch.autograd import forward_ad

from op_tools import settings
from op_tools.autocompare import report
from op_tools.autocompare.by_identities import ByIdentities
from op_tools.autocompare.checkpointed import CheckpointedCall, CheckpointedCalls
from op_tools.autocompare.examiner import Examiner
from op_tools.autocompare.identities.whole import MAX_TENSORS_WITHOUT_SAMPLE, is_small
from op_tools.autocompare.in_workers import InWorkers
from op_tools.autocompare.judging import random_ops
from op_tools.autocompare.judging.comparer import Comparer, Comparison
from op_tools.autocompare.judging.limits import DEVICE_ALONE_SLACK, Tolerances
from op_tools.autocompare.on_device import OnDevice
from op_tools.autocompare.on_host import OnHost
from op_tools.autocompare.prefilter import first_look
from op_tools.autocompare.reference import graph_thread, runs, shield
from op_tools.autocompare.strategy import CallInProgress, Pending, Strategy, wants_gradients
from op_tools.autocompare.turns import Turns, UntilCovered
from op_tools.autocompare.without_dropout import SecondRun
from op_tools.autocompare.workers.pool import Workers
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.core.guard import told
from op_tools.core.running import stop_everything
from op_tools.core.tool import Tool
from op_tools.device import failure
from op_tools.errors import DifferenceFound, SettingError
from op_tools.ops import catalogue
from op_tools.ops.cast_tables import read_cast_tables
from op_tools.ops.catalogue import Trait
from op_tools.output import messages, paths
from op_tools.output.csv_files import CsvFile
from op_tools.output.results import Results

_REFERENCES = ("cpu", "device", "device,cpu", "identities")
_MAX_KNOWN_CALLS = 200_000  # distinct calls that are remembered
_MAX_COMPARED_LIST = 8  # an optimizer's lists of tensors: the first and the last tell enough


Kept = Union[Pending, SecondRun]  # what waits for the gradients of a call


class OpAutoCompare(Tool[Union[CallInProgress, SecondRun, None], Union[Kept, CheckpointedCall]]):
    """Compares inputs, outputs and gradients of every op call with those of a reference.

    `reference`: "cpu", "device" (the same device in higher precision; the CPU confirms what is wrong), "device,cpu"
    (narrower, and the CPU has the last word) or "identities" (none: what must hold of a result is checked on the
    device). `once`: each distinct call once. `every`: only every N-th step. `worker`: this many processes compare while
    training goes on. `memory`: bytes of host memory for calls that wait: where it does not suffice, each step takes
    other calls. `until_covered`: no longer than until each call of a step has been compared. `fail`: `stop` raises
    DifferenceFound if something is wrong. Their variables are OP_AUTOCOMPARE_REFERENCE, _ONCE, _EVERY, _WORKER,
    _MEMORY, _UNTIL_COVERED and _FAIL.
    """

    feature = "autocompare"
    hook = "OpAutoCompareHook"
    prefix = "OP_AUTOCOMPARE"
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
        until_covered: bool | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self._options = (reference, once, every, worker, memory, fail)
        self._until_covered = until_covered
        self.summary = report.Summary()

    # -- start and stop -----------------------------------------------------------------------------------------------

    def started(self) -> None:
        given_reference, once, every, worker, memory, fail = self._options
        reference = settings.AUTOCOMPARE_REFERENCE.get() if given_reference is None else given_reference
        self._once = settings.argument("once", once, settings.AUTOCOMPARE_ONCE)
        self._fail = settings.argument("fail", fail, settings.AUTOCOMPARE_FAIL)
        limit = settings.AUTOCOMPARE_MEMORY.get() if memory is None else memory
        every = settings.AUTOCOMPARE_EVERY.get() if every is None else every
        if reference not in _REFERENCES:
            raise SettingError(f"reference={reference!r} cannot be used: it is one of {', '.join(_REFERENCES)}")
        count = settings.AUTOCOMPARE_WORKER.get() if worker is None else worker
        for name, number, least in (("every", every, 1), ("worker", count, 0), ("memory", limit, 1)):
            if not isinstance(number, int) or number < least:
                raise SettingError(f"{name}={number!r} cannot be used: it is a whole number, {least} or more")
        if every > 1:
            self.steps = _Every(every, self.steps)
        self._turns: Turns | None = None  # until they are needed
        if settings.argument("until_covered", self._until_covered, settings.AUTOCOMPARE_UNTIL_COVERED):
            self._turns = Turns()
            self.steps = UntilCovered(self._turns, self.steps)
        elif reference == "identities":
            self._turns = Turns(rotates=True)
        if count and reference != "cpu":
            raise SettingError("worker processes compare with the CPU: worker= needs reference='cpu'")
        first_look.choose_way()
        runs.silence()
        most_rows = settings.MAX_CACHE_SIZE.get()
        csv = CsvFile(paths.autocompare_csv(self.out), report.CSV, most_rows)
        self._report = report.Report(csv, most_rows if self.verbose >= 2 else 0)
        self.summary = self._report.summary
        self._known: set[Any] = set()
        self._hides_masks: set[Any] = set()  # kinds of calls whose dropout cannot be seen
        self._checkpointed = CheckpointedCalls()
        self._waits_for_end = False  # of a backward pass
        self._strategy = self._chosen_strategy(reference, count, limit)
        graph_thread.begin()
        if self._fail:
            atexit.register(self._fail_at_exit)

    def _chosen_strategy(self, reference: str, count: int, limit: int) -> Strategy:
        tolerances, cast_table = Tolerances(), read_cast_tables().cast_table
        comparer = Comparer(tolerances, runs.References(cast_table), self.verbose >= 2)
        on_cpu = Examiner(comparer, self.verbose, self.dumps())
        deliver = self.take
        if count:
            workers = Workers(count, self.verbose, self.dumps(), limit, deliver)
            return InWorkers(on_cpu, deliver, limit, workers)
        if reference == "cpu":
            return OnHost(on_cpu, deliver, limit)
        if reference == "identities":
            return ByIdentities(on_cpu, deliver, limit)
        stands_in = reference == "device,cpu"
        references = runs.References(cast_table, True, 1.0 if stands_in else DEVICE_ALONE_SLACK)
        examiner = Examiner(
            Comparer(tolerances, references), self.verbose, self.dumps(), "reference", on_cpu, stands_in
        )
        return OnDevice(examiner, deliver, limit, on_cpu, proves_all=self._once or self._turns is not None)

    def collected(self) -> Results:
        """What is wrong, by op, value and place in the program; the worst first."""
        self.summary.gradients_left_out = self._strategy.gradients_left_out
        return self.summary.results(self._report.files())

    def stopped(self) -> None:
        atexit.unregister(self._fail_at_exit)
        try:
            with failure.tolerated():
                self._strategy.close()
        finally:
            graph_thread.end()
        self.summary.coverage = "" if self._turns is None else self._turns.text()
        self.summary.gradients_left_out = self._strategy.gradients_left_out
        self.summary.coverage_of_proofs = self._strategy.coverage_of_proofs()
        self._report.close(is_shown=self.verbose >= 1)
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

    def dumps(self) -> Path:
        """Where wrong calls are saved."""
        return self.out

    def take(self, call: OpCall, outcome: report.Outcome) -> None:
        """What came out of one call, or of its gradients. In any thread, and perhaps later."""
        self._report.take(call, outcome)

    # -- one call -----------------------------------------------------------------------------------------------------

    def before(self, call: OpCall) -> CallInProgress | SecondRun | None:
        hooks = shield.top_hooks(False)  # of whoever keeps the tensors that autograd saves
        checkpointed = self._checkpointed.find(call, hooks[0]) if hooks else None
        if hooks or getattr(forward_ad, "_current_level", -1) >= 0:
            call.other_gradients = shield.other_gradients(call, hooks)
        is_second = checkpointed is not None and checkpointed.kept is not None  # pass of a call that is compared
        if catalogue.has(call.name, Trait.EMPTY) or not (self._is_wanted(call) or is_second):
            return None
        drops = random_ops.may_be_random(call.name) and random_ops.drops_inside(call.name, call.args, call.kwargs)
        state = SecondRun(call) if drops else self._strategy.before(call)
        state.checkpointed = checkpointed
        if checkpointed is not None and is_second:
            checkpointed.begun = state
        return state

    def _is_wanted(self, call: OpCall) -> bool:
        """Whether it is this call's turn."""
        return not (self._once and self._is_known(call)) and (self._turns is None or self._turns.takes(call))

    def after(self, call: OpCall, state: CallInProgress | SecondRun | None) -> Kept | CheckpointedCall | None:
        self._waits_for_end = False
        if state is None:
            return None
        if isinstance(state, CallInProgress) and state.generators is not None and state.has_drawn(call):
            self.take(call, report.Outcome(Comparison(skipped="random")))
            return None
        left_out = self._strategy.gradients_left_out
        kept = self._after_dropout(call, state) if isinstance(state, SecondRun) else self._strategy.after(call, state)
        is_whole = self._strategy.gradients_left_out == left_out
        if self._turns is not None:
            self._turns.done(call, is_whole)
        elif not is_whole:
            self._turns = Turns(call.step + 1)
        checkpointed = state.checkpointed
        if checkpointed is None:
            return kept
        checkpointed.begun = None
        if kept is None:
            return None
        checkpointed.kept = kept
        return checkpointed

    def _after_dropout(self, call: OpCall, second: SecondRun) -> SecondRun | None:
        in_progress = self._strategy.before(second.call)
        kind = (call.name, _shapes(call.args))
        # a proof knows of no masks
        may_know = not self._strategy.on_device or is_small(in_progress.live.tensors, MAX_TENSORS_WITHOUT_SAMPLE)
        if not second.run(wants_gradients(call), takes_masks=may_know and kind not in self._hides_masks):
            self._hides_masks.add(kind)
            self.summary.drops_inside(call.name)
        second.kept = self._strategy.after(second.call, in_progress)
        return None if second.kept is None else second

    def flowed(self, call: OpCall, state: Kept | CheckpointedCall, gradients: Gradients) -> None:
        kept = self._of_last_pass(call, state) if isinstance(state, CheckpointedCall) else state
        if isinstance(kept, SecondRun):
            self._strategy.flowed(call, kept.kept, kept.gradients(gradients.outputs))
        elif kept is not None:
            self._strategy.flowed(call, kept, gradients)
        if self._strategy.on_device and not self._waits_for_end:
            # autograd makes a gradient the parameter's own, and the next backward pass adds to it, unseen by tools
            self._waits_for_end = True
            decide = functools.partial(told, self, self.parameters_will_change)
            torch.autograd.Variable._execution_engine.queue_callback(decide)

    def _of_last_pass(self, call: OpCall, checkpointed: CheckpointedCall) -> Kept | None:
        begun, checkpointed.begun = checkpointed.begun, None
        kept: Kept | None = checkpointed.kept
        if isinstance(begun, CallInProgress) and kept is not None and not isinstance(kept, SecondRun):
            kept = checkpointed.kept = self._strategy.stopped_inside(call, begun, kept)
        return kept

    def parameters_will_change(self) -> None:
        self._strategy.parameters_will_change()

    def _is_known(self, call: OpCall) -> bool:
        kwargs = call.kwargs
        key = (call.name, call.where.line(), _shapes(call.args), _shapes(kwargs.values()) if kwargs else None)
        if key in self._known:
            return True
        if len(self._known) < _MAX_KNOWN_CALLS:
            self._known.add(key)
        return False


class _Every:
    """Every N-th of the steps that were asked for."""

    def __init__(self, number: int, steps: Container[int] | None) -> None:
        self._number = number
        self._steps = steps

    def __contains__(self, step: object) -> bool:
        is_turn = isinstance(step, int) and step % self._number == 0
        return is_turn and (self._steps is None or step in self._steps)


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
            shown = value if len(value) <= _MAX_COMPARED_LIST else value[:: len(value) - 1]
            found.append((len(value), _shapes(shown)))
    return tuple(found)


_STRIDED = torch.strided
