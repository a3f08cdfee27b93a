"""The number of the training step: counted at the end of each optimizer step, unless the program calls op_tools.step().

A step that GradScaler leaves out because of an Inf is a step of the program all the same.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch

from ditorch_shared.optimizer_hooks import OptimizerHooks
from ditorch_shared.steps import Steps
from op_tools.core import dynamo, graphs

StepListener = Callable[[int], None]


STEPS = Steps()


class OptimizerSteps:
    """Tells `listener` the number of each step that begins because an optimizer's step has ended.

    `before` is called when an optimizer is about to change parameters. `hooks`: those that are there already.
    """

    def __init__(self, listener: StepListener, before: Callable[[], None], hooks: OptimizerHooks | None = None) -> None:
        self._listener = listener
        self._before = before
        self._hooks = hooks or OptimizerHooks(self._steps, self._stepped)
        self._hooks.before, self._hooks.after = self._steps, self._stepped
        scaler: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
        self._scaler: Any = next(kind for kind in scaler.__mro__ if "step" in vars(kind))
        self._scaler_step = self._scaler.step
        self._scaler.step = self._counted(self._scaler_step)

    def close(self) -> None:
        """Nothing is counted any more, and torch is as it was."""
        self._hooks.remove()
        self._scaler.step = self._scaler_step

    def _steps(self, optimizer: Any) -> None:
        if not graphs.is_capturing():
            self._before()

    def _stepped(self, optimizer: Any) -> None:
        if graphs.is_capturing():  # nothing has run yet, and no tool may touch the device now
            return
        number = STEPS.optimizer_stepped(optimizer)
        if number is not None:
            self._listener(number)

    def _counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        @dynamo.hidden
        def counted(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = STEPS.ended_by_optimizers
            STEPS.scale = getattr(scaler, "_scale", None)
            try:
                result = step(scaler, optimizer, *args, **kwargs)
                if STEPS.ended_by_optimizers == before:  # an Inf: the optimizer was not asked
                    STEPS.is_left_out = True
                    self._stepped(optimizer)
                return result
            finally:
                STEPS.scale, STEPS.is_left_out = None, False

        return counted
