"""OpOverflowCheck: names the first op that makes NaN or Inf out of finite inputs, forward or backward.

    OpOverflowCheck: torch.exp made Inf out of finite inputs, forward, step 12
    torch.exp    forward_id: 8311    blocks.3.gate
    model.py:41 forward: return torch.exp(x) * y
    +-------------------+----------+---+----------+---------+-----+-----+-----------+
    |       name        |  shape   | … |   min    |   max   | nan | inf | first_bad |
    …

An infinity that the user wrote (a mask filled with -inf) is intent, and an op that only carries on what it was given
has made nothing. NaN out of infinities is found, and so is NaN that comes in with the data.

The device looks at the tensors of many calls at once, and its answers are read when they have come. So it is not waited
for, and what is found is told some calls later. Until then the tensors are held, up to a hundredth of the device's
memory; of larger ones, what is still there can be shown. The actions `stop` and `dump` wait for each lot of answers, so
that nothing has changed by then, and `dump` holds inputs until backward.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any, Union

import torch
from torch import Tensor

from op_tools import settings
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.core.modes import with_modes_aside
from op_tools.core.tool import Tool
from op_tools.device import failure
from op_tools.errors import OverflowFound, StopTraining
from op_tools.output import messages, paths, tables
from op_tools.output.results import Results
from op_tools.overflow import dump, spread
from op_tools.overflow.calls import CheckedCall, Flow, is_made, made_by, worse
from op_tools.overflow.checks import Checks
from op_tools.overflow.findings import COLUMNS, Finding, FindingCounts, Tensors, finding
from op_tools.overflow.intent import Intent
from op_tools.values import trees
from op_tools.values.tensors import (
    aliases_of,
    requires_grad,
    tensors_in,
    version_of,
    versions_of,
)

_MAX_CALLS = 64  # whose results are looked at together
_MAX_SHOWN = 10  # calls with their tables; the others are counted

_CAME_IN = "was given NaN that no op made"
_FROM_OUTSIDE = "it was in the data, in a parameter, or in memory that nobody had written to"
_FROM_BETWEEN = "it arose where gradients are summed up, in an op that is not watched, or was given to backward"


class OpOverflowCheck(Tool[Union[Intent, CheckedCall], Flow]):
    """Finds the first NaN or Inf, forward or backward.

    `action`: what it does beside reporting: continue, stop (raise OverflowFound) or dump (save the op's inputs), as
    OP_OVERFLOW_CHECK_ACTION does.
    """

    hook = "OpOverflowCheckHook"
    prefix = "OP_OVERFLOW_CHECK"
    feature = "overflow_check"
    watches_gradients = True

    def __init__(self, *, action: str | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._wanted_action = action
        self._lock = threading.Lock()  # autograd has threads of its own
        self._reset()

    def _reset(self) -> None:
        self._action = "continue"
        self._intents: dict[str, Intent] = {}
        self._faults, self._came_in = FindingCounts(), FindingCounts()
        self._calls = 0
        self._shown_in: set[int] = set()  # steps
        self._has_raised = False
        self._is_stopping = False

    @property
    def found(self) -> list[Finding]:
        """The first call of each kind that made NaN or Inf, in the order in which they ran."""
        return list(self._faults.first.values())

    def collected(self) -> Results:
        """What made NaN or Inf, in the order in which they ran; then what was given some that no op had made."""
        rows = [*self._faults.rows(), *self._came_in.rows()]
        wrong = sum(self._faults.calls.values())
        return Results("OpOverflowCheck", COLUMNS, rows, self._calls, files=self._spread.files(), wrong_calls=wrong)

    def started(self) -> None:
        self._reset()
        self._action = settings.argument("action", self._wanted_action, settings.OVERFLOW_ACTION)
        self._spread = spread.Spread(paths.overflow_csv(self.out), settings.MAX_CACHE_SIZE.get())
        if self.verbose == 2:
            self._checks = Checks(self._judge, self._show_call, self._spread, 1, patient=True)
        else:
            is_patient = self._action != "continue"
            self._checks = Checks(self._judge, None, self._spread, _MAX_CALLS, patient=is_patient)

    def stopped(self) -> None:
        self._is_stopping = True
        self._settle(wait=True)
        self._spread.close()
        self._sum_up()
        # not in place of an error that is on its way, nor at exit, where it would be lost
        is_free = sys.exc_info()[0] is None and threading.main_thread().is_alive()
        if self._action == "stop" and self.found and is_free and not self._has_raised:
            raise OverflowFound(f"OpOverflowCheck: {self.found[0]}")

    def step_began(self, step: int) -> None:
        if self._action == "stop":  # the others have time until the window is full
            self._settle(wait=True)

    def _settle(self, wait: bool) -> None:
        """Between calls, where the core does not stand between us and the user's modes and program."""
        try:
            with_modes_aside(self._flush_and_read, wait)
        except StopTraining:
            raise
        except Exception as error:  # noqa: BLE001  a defect of ours must not end training
            if not failure.is_noticed(error):
                text = f"OpOverflowCheck could not read its answers: {error!r}"
                messages.complain_once("settle", self.hook, text=text)

    def _flush_and_read(self, wait: bool) -> None:
        with self._lock:
            self._checks.flush()
            self._checks.read(wait)

    # -- forward ------------------------------------------------------------------------------------------------------

    def before(self, call: OpCall) -> Intent | CheckedCall:
        intent = self._intents.get(call.name)
        if intent is not None and intent.is_plain and "out" not in call.kwargs and self._action != "dump":
            return intent
        with self._lock:
            return self._before_change(call, intent)

    def _before_change(self, call: OpCall, intent: Intent | None) -> CheckedCall:
        """What a call that may change its inputs is given is noted, and looked at, before it runs."""
        if intent is None:
            # which tensors it will change is not known yet
            self._checks.flush()
            intent = self._intents[call.name] = Intent(call.name, call.func)
        elif intent.reads_back:
            self._checks.flush()
        checked = CheckedCall(call, intent)
        _note_inputs(checked)
        targets, silent = intent.targets(call)
        if self._action == "dump":
            checked.inputs = dump.kept(checked, targets)
        if targets:
            checked.changed, checked.is_silent = tuple(targets), silent
            matters = not intent.overwrites and "out" not in call.kwargs
            checked.together = self._checks.will_change(targets, matters)
        return checked

    def after(self, call: OpCall, state: Intent | CheckedCall) -> Flow | None:
        result = call.result
        checked: CheckedCall | None
        if isinstance(state, Intent):
            intent, checked = state, None
            for value in call.args:
                if value is result:
                    return None  # it did nothing
        else:
            checked, intent = state, state.intent
            if intent.is_strange:
                self._learn(checked)
        if intent.is_view and _are_views(call):
            is_over = intent.is_reshape or not _requires_grad(result)
            return None if is_over else Flow(intent, None if checked is None else checked.inputs)
        if checked is None:
            checked = CheckedCall(call, intent)
            _note_inputs(checked)
        with self._lock:
            self._calls += 1
            if not intent.result_is_unknown:
                is_one = type(result) is Tensor
                results = (result,) if is_one else tensors_in((result,))
                if result.requires_grad if is_one else any(map(requires_grad, results)):
                    checked.flow = Flow(intent, checked.inputs)
                self._checks.add(checked, made_by(results, checked.changed) if checked.changed else results)
            if intent.reads_back:
                self._checks.read(wait=False)
        return checked.flow

    def _learn(self, checked: CheckedCall) -> None:
        """Sees what a function of others has changed."""
        call = checked.call
        tensors = tensors_in((*call.args, call.kwargs))
        changed = [one for one, version in zip(tensors, checked.versions) if version_of(one) != version]
        if changed and not checked.changed:
            checked.changed = tuple(changed)
            checked.intent.learn(call, changed)

    # -- backward, in autograd's threads ------------------------------------------------------------------------------

    def flowed(self, call: OpCall, state: Flow, gradients: Gradients) -> None:
        left, made = aliases_of(gradients.inputs, gradients.outputs)
        checked = CheckedCall(call, state.intent)
        checked.gradients, checked.flow, checked.inputs = (gradients.outputs, left, made), state, state.inputs
        state.inputs = None  # a loss that the program keeps would keep them all
        with self._lock:
            self._checks.add(checked, made, backward=True)

    # -- judgement ----------------------------------------------------------------------------------------------------

    def _judge(self, checked: CheckedCall) -> None:
        """Says of a call that has made NaN or Inf where that comes from, now that it is known what it was given."""
        made, given = checked.made, checked.given
        host = _on_host(checked.call) if checked.gradients is None else 0.0
        if is_made(made, worse(given, host)) and not checked.intent.brings_data:
            self._fault(checked)
        elif checked.gradients is not None:
            if checked.is_fresh:
                kind = "NaN" if math.isnan(given) else "Inf"
                self._note(checked, _CAME_IN.replace("NaN", f"gradients with {kind}"), _FROM_BETWEEN)
            else:
                self._spread.carried(checked)
        elif (
            math.isnan(host) or (math.isnan(given) and checked.is_fresh) or (math.isnan(made) and math.isfinite(given))
        ):
            self._note(checked, _CAME_IN, _FROM_OUTSIDE)
        else:
            self._spread.carried(checked)

    def _note(self, checked: CheckedCall, what: str, remark: str) -> None:
        """NaN that no op made. After a fault it is what became of that."""
        if self._faults.first:
            self._spread.carried(checked)
            return
        self._spread.began(checked, what, spread.CAME_IN)
        if not self._came_in.first:
            self._show(checked, what, f": {remark}")
        self._came_in.add(finding(checked, what))

    def _fault(self, checked: CheckedCall) -> None:
        source = "gradients" if checked.gradients is not None else "inputs"
        source = "infinities" if math.isinf(checked.given) else f"finite {source}"
        what = f"made {'NaN' if math.isnan(checked.made) else 'Inf'} out of {source}"
        self._spread.began(checked, what, spread.MADE)
        step = checked.call.step
        if step not in self._shown_in and len(self._shown_in) < _MAX_SHOWN:
            self._shown_in.add(step)
            self._show(checked, what, "")
            if self._action == "dump":
                saved = dump.save(checked, self.out)
                if saved is not None and self.verbose >= 1:
                    messages.say(f"OpOverflowCheck: inputs saved to {paths.shown(saved.path())}")
        one = finding(checked, what)
        self._faults.add(one)
        if self._action == "stop" and not self._is_stopping:
            self._has_raised = True
            raise OverflowFound(f"OpOverflowCheck: {one}")

    # -- output -------------------------------------------------------------------------------------------------------

    def _show(self, checked: CheckedCall, what: str, remark: str) -> None:
        if self.verbose < 1:
            return
        one = finding(checked, what)
        text = f"OpOverflowCheck: {one.name} {what}, {one.phase}, step {one.step}{remark}"
        if self.verbose == 1:  # else the call has been shown
            text = f"\n\n\n{text}\n{tables.heading(checked.call)}\n{Tensors(checked).table()}\n"
        messages.say(text)

    def _show_call(self, checked: CheckedCall) -> None:
        messages.say(f"\n\n\n{tables.heading(checked.call)}\n{Tensors(checked).table()}\n")

    def _sum_up(self) -> None:
        if self.verbose < 1 or not self._calls:
            return
        if not self._faults.first:
            messages.say(f"OpOverflowCheck: none of {self._calls} calls made NaN or Inf")
        else:
            number = sum(self._faults.calls.values())
            calls = "1 call" if number == 1 else f"{number} calls"
            messages.say(f"OpOverflowCheck: {calls} made NaN or Inf\n{self._faults.table()}")
        if self._came_in.first:
            messages.say(f"OpOverflowCheck: NaN or Inf that no op made\n{self._came_in.table()}")


def _on_host(call: OpCall) -> float:
    """NaN or infinity in tensors that are on the CPU."""
    worst = 0.0
    for tensor in trees.tensors((call.args, call.kwargs)):
        if tensor.is_cpu and (tensor.is_floating_point() or tensor.is_complex()) and tensor.layout is torch.strided:
            numbers = tensor.detach()
            worst = worse(worst, math.nan if numbers.isnan().any() else math.inf if numbers.isinf().any() else 0.0)
    return worst


def _requires_grad(result: Any) -> bool:
    return any(map(requires_grad, tensors_in((result,))))


def _are_views(call: OpCall) -> bool:
    """True where the results look at the memory of the first argument, and nothing was computed."""
    base, result = call.args[0] if call.args else None, call.result
    if not isinstance(base, Tensor):
        return False
    root = base if base._base is None else base._base
    if type(result) is Tensor:
        return result._base is root or result is base
    results = tensors_in((result,))
    return bool(results) and all(one._base is root or one is base for one in results)


def _note_inputs(checked: CheckedCall) -> None:
    call = checked.call
    checked.versions = versions_of(tensors_in((*call.args, *call.kwargs.values()) if call.kwargs else call.args))
