"""TrainingWatch: a few numbers of weights, gradients, optimizer state and activations of every step, and alerts.

    with TrainingWatch():
        train()

It watches modules, backward passes and optimizers, no ops. The device computes, the host waits for nothing: what a step
was like is known a little later, in a thread that writes it down and judges it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Callable

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn import Module

from op_tools import settings
from op_tools.core import backward_passes, graphs, module_calls
from op_tools.core.steps import STEPS
from op_tools.core.tool import Numbers, Tool
from op_tools.core.watcher import AnyWatcher
from op_tools.errors import SettingError
from op_tools.output import messages
from op_tools.output.results import Results
from op_tools.output.writer import Writer
from op_tools.values import trees
from op_tools.watch import statistics
from op_tools.watch.alerts import COLUMNS
from op_tools.watch.looks import Label, StepLooks, is_transformed
from op_tools.watch.names import Names
from op_tools.watch.record import WatchRecord
from op_tools.watch.statistics import ACTIVATIONS, FOUND_INF, GRADIENTS, LOSS, SCALE, STATE, UNSCALED_GRADIENTS, WEIGHTS

_Looks = Iterator[tuple[Label, Tensor]]


class TrainingWatch(Tool[None, None]):
    """Keeps a few numbers of every training step by module, and alerts.

    rules     their numbers, where they are to be others: "spike=12,dead=off" (OP_WATCH_RULES)
    against   a run's folder: alerts when the loss parts from that run's (OP_WATCH_AGAINST)
    on_alert  a command that gets each alert as JSON on stdin, or an address for a POST (OP_WATCH_ON_ALERT)
    every     looks at tensors in every N-th step only, at losses in each (OP_WATCH_EVERY)
    to        "tensorboard", "wandb": they get the curves as well (OP_WATCH_TO)
    disk      bytes that the file of a process may have (OP_WATCH_DISK)
    """

    hook = "TrainingWatchHook"
    prefix = "OP_WATCH"

    def __init__(
        self,
        *,
        rules: str | None = None,
        against: str | os.PathLike[str] | None = None,
        on_alert: str | None = None,
        every: int | None = None,
        to: str | None = None,
        disk: int | str | None = None,
        out: str | os.PathLike[str] | None = None,
        steps: Numbers | None = None,
        ranks: Numbers | None = None,
        verbose: int | None = None,
    ) -> None:
        super().__init__(out=out, steps=steps, ranks=ranks, verbose=verbose)
        self._chosen = (rules, against, on_alert, every, to, disk)
        self._record: WatchRecord | None = None
        self._writer: Writer | None = None

    def _start(self) -> None:
        self.join(_Training())

    def _read_settings(self) -> bool:
        """OP_TOOLS_STEPS is for tools that look at ops: this one watches over the whole run."""
        is_wanted_rank = super()._read_settings()
        if self._arguments[3] is None:
            self.steps = None
        return is_wanted_rank

    def started(self) -> None:
        rules, against, on_alert, every, to, disk = self._chosen
        self._every = settings.argument("every", every, settings.WATCH_EVERY)
        self._is_due = STEPS.current % self._every == 0  # this step's tensors are looked at
        self._names = Names()
        self._looks = StepLooks()
        self._seen_gradients: set[int] = set()  # ids of parameters
        self._offset: int | None = None  # steps that the optimizer had made before, in a run that goes on
        self._record = WatchRecord(
            self.out,
            settings.argument("rules", rules, settings.WATCH_RULE_NUMBERS),
            _path("against", against),
            settings.argument("on_alert", on_alert, settings.WATCH_ON_ALERT),
            settings.argument("to", to, settings.WATCH_TO),
            settings.argument("disk", disk, settings.WATCH_DISK),
        )
        self._writer = Writer("TrainingWatch")

    def stopped(self) -> None:
        if self._writer is not None and self._record is not None:
            self._writer.close()
            self._writer = None
            self._record.close()
            if self.verbose >= 1:
                messages.say(self._record.summary())

    def abandon(self) -> None:
        super().abandon()
        self._writer = self._record = None

    def collected(self) -> Results:
        """The alerts; `calls` are steps."""
        record = self._record
        if record is None:
            return Results("TrainingWatch", COLUMNS, (), 0)
        rows, left_alone = record.alerts.rows(), record.not_looked_at()
        return Results(
            "TrainingWatch", COLUMNS, rows, record.steps, left_alone, record.files, alerts=len(record.alerts.all)
        )

    # -- what happens in the program ----------------------------------------------------------------------------------

    def _is_looking(self) -> bool:
        return self._is_due and self.is_awake() and not graphs.is_capturing()

    def module_called(self, module: Module, is_outermost: bool) -> None:
        if is_outermost:
            self._safely(self._names.found, module)
        if self._is_due and "inplace" in module.__dict__ and module.inplace:
            self._safely(self._looks.compute)

    def module_returned(self, module: Module, result: Any) -> None:
        if not self._is_due or not module.training or not self._is_looking():
            return
        if not backward_passes.is_running() and not is_transformed():
            self._safely(self._activation, module, result)

    def backward_begins(self, tensors: Any, gradients: Any) -> None:
        if gradients is None and self.is_awake():
            self._safely(self._loss, tensors)

    def backward_ended(self) -> None:
        if self._is_looking():
            self._safely(self._gradients)

    def parameters_will_change(self) -> None:
        """Gradients that no backward pass of torch's left with the parameters: of their own making, or copies."""
        if self._is_looking():
            looks = [(label._replace(kind=UNSCALED_GRADIENTS), tensor) for label, tensor in self._own_gradients()]
            self._looks.compute_now(UNSCALED_GRADIENTS, looks)

    def step_began(self, step: int) -> None:
        """Called where the step before has ended."""
        if self._is_due:
            self._names.take_over(STEPS.optimizers)
            self._looks.compute_now(WEIGHTS, self._weights())
            self._looks.compute_now(STATE, self._states())
        self._looks.compute_now(SCALE, self._scales())
        self._hand_over(step - 1)
        is_wanted = self._record is not None and self._record.wants_a_look
        self._is_due = step % self._every == 0 or is_wanted

    # -- what is looked at --------------------------------------------------------------------------------------------

    def _activation(self, module: Module, result: Any) -> None:
        if isinstance(module, GraphModule) and not self._names.knows(module):
            return  # of torch.compile's making: the program's own gives the same
        for tensor in trees.tensors(result):
            local = self._looks.local(tensor)
            if local is not None:
                self._looks.gather(Label(ACTIVATIONS, self._names.of(module), local.numel()), local)
                return  # the first one is the module's result, others are its state

    def _loss(self, tensors: Any) -> None:
        for loss in backward_passes.losses_of(tensors):
            self._looks.gather(Label(LOSS, "", 1), loss)

    def _gradients(self) -> None:
        """At the end of the backward pass: nothing has clipped them yet. Of several in a step, the last one has all."""
        self._looks.compute()
        self._looks.forget(GRADIENTS)
        self._seen_gradients.clear()
        self._looks.compute_now(GRADIENTS, list(self._own_gradients()))

    def _own_gradients(self) -> _Looks:
        for one, parameter in self._names.parameters():
            if parameter.grad is not None and id(parameter) not in self._seen_gradients:
                local = self._looks.local(parameter.grad)
                if local is not None:
                    self._seen_gradients.add(id(parameter))
                    yield Label(GRADIENTS, one.module, local.numel()), local

    def _weights(self) -> _Looks:
        for one, parameter in self._names.parameters():
            local = self._looks.local(parameter)
            if local is not None:
                yield Label(WEIGHTS, one.module, local.numel(), one.is_replicated), local

    def _states(self) -> _Looks:
        modules = {id(parameter): one.module for one, parameter in self._names.parameters()}
        for optimizer in list(STEPS.optimizers):
            for parameter, state in list(optimizer.state.items()):
                for name, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, Tensor) and value.numel() > 1:
                        local = self._looks.local(value)
                        if local is not None:
                            yield Label(f"{STATE}{name}", modules.get(id(parameter), ""), local.numel()), local

    def _scales(self) -> _Looks:
        if isinstance(STEPS.scale, Tensor):
            yield Label(SCALE, "", 1), STEPS.scale.detach()
        for optimizer in list(STEPS.optimizers):
            found = getattr(optimizer, "found_inf", None)  # of one that leaves steps out itself
            if isinstance(found, Tensor):
                yield Label(FOUND_INF, "", 1), found.detach()

    # -- on to the host -----------------------------------------------------------------------------------------------

    def _hand_over(self, step: int) -> None:
        looks, self._looks = self._looks, StepLooks()
        self._seen_gradients.clear()
        if self._writer is None or self._record is None:
            return
        if self._offset is None:
            self._offset = _steps_before(step)
        was_left_out = STEPS.is_left_out
        batches = looks.launch()
        facts = {"is_sharded": self._names.is_sharded, "is_compiled": self._names.is_compiled}
        read = partial(statistics.read, step + self._offset, time.time(), was_left_out, batches)
        self._writer.add(partial(self._record.take, read, looks.left_out, facts))

    def _safely(self, function: Callable[..., None], *arguments: Any) -> None:
        """A failure of ours never ends a training run."""
        try:
            with torch._C.DisableTorchFunction():
                function(*arguments)
        except Exception as error:  # noqa: BLE001  whatever it is, training goes on
            text = f"TrainingWatch could not look at something: {messages.in_short(error)}; training goes on"
            messages.complain_once("watch", text=text)


class _Training:
    """What TrainingWatch joins: it hears of modules and backward passes of all threads."""

    def add(self, tool: AnyWatcher) -> None:
        assert isinstance(tool, TrainingWatch)
        graphs.watch(self)
        module_calls.listen(tool)
        backward_passes.listen(tool)

    def remove(self, tool: AnyWatcher) -> None:
        assert isinstance(tool, TrainingWatch)
        backward_passes.leave(tool)
        module_calls.leave(tool)
        graphs.leave(self)

    def step_began(self) -> None:
        """The tool hears of it by itself."""


def _path(name: str, given: str | os.PathLike[str] | None) -> Path | None:
    if given is not None and (not isinstance(given, (str, os.PathLike)) or not os.fspath(given)):
        raise SettingError(f"{name}={given!r} cannot be used: it must be the folder of a run")
    return settings.argument(name, given, settings.WATCH_AGAINST)


def _steps_before(step: int) -> int:
    """Steps that were made before this process began: an optimizer that was loaded tells. No wait: it is on the CPU."""
    for optimizer in list(STEPS.optimizers):
        for state in list(optimizer.state.values())[:1]:
            made = state.get("step") if isinstance(state, dict) else None
            if isinstance(made, Tensor) and (made.device.type != "cpu" or made.numel() != 1):
                continue
            if made is not None:
                return max(0, int(made) - 1 - step)
    return 0
