"""The number of the training step: counted at the end of each optimizer step, unless the program calls op_tools.step().

Where a program has several optimizers (a GAN), only the one that stepped first counts, so that a round is one step. A
step that GradScaler leaves out because of an Inf is a step of the program all the same.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import Any, Callable

import torch
from torch.optim import optimizer as optim

from op_tools.core import dynamo, graphs

MAX_STEPS_OF_ANOTHER = 20  # without one of the leading optimizer: the program has gone on to another one
_register_hook: Callable[..., Any] | None = getattr(optim, "register_optimizer_step_post_hook", None)
_register_pre_hook: Callable[..., Any] | None = getattr(optim, "register_optimizer_step_pre_hook", None)
Listener = Callable[[int], None]


class Steps:
    """Counts training steps, for the whole process. `current` is the one that is running; the first is 0."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.forget()

    def forget(self) -> None:
        """Begins anew; the tests do."""
        self.current = 0
        self.are_counted_by_program = False
        self.ended_by_optimizers = 0  # whichever optimizer
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()  # that have stepped
        self.scale: Any = None  # GradScaler's, while it has an optimizer step
        self.is_left_out = False  # GradScaler leaves this step out
        self._lead: weakref.ref[Any] | None = None
        self._others: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def advance(self) -> int:
        """The program says that a step begins. From now on its calls are what counts."""
        with self._lock:
            # what optimizers have ended by its first call was its first step
            self.current = self.current + 1 if self.are_counted_by_program else 1
            self.are_counted_by_program = True
            return self.current

    def optimizer_stepped(self, optimizer: Any) -> int | None:
        """An optimizer's step has ended. The number of the step that begins; None where this ends no training step."""
        with self._lock:
            self.ended_by_optimizers += 1
            self.optimizers.add(optimizer)
            if self.are_counted_by_program or not self._leads(optimizer):
                return None
            self.current += 1
            return self.current

    def _leads(self, optimizer: Any) -> bool:
        if self._lead is not None and self._lead() not in (None, optimizer):
            self._others[optimizer] = steps = self._others.get(optimizer, 0) + 1
            if steps <= MAX_STEPS_OF_ANOTHER:
                return False
        self._lead = weakref.ref(optimizer)
        self._others.clear()
        return True

    def described(self) -> str:
        """How far the program got, and who said so."""
        if self.are_counted_by_program:
            return f"the last one was {self.current}, counted by op_tools.step()"
        if self.ended_by_optimizers:
            return f"the last one was {self.current}, counted at the end of each optimizer step"
        return "none was counted: no optimizer stepped, and the program did not call op_tools.step()"


STEPS = Steps()


class OptimizerSteps:
    """Tells `listener` the number of each step that begins because an optimizer's step has ended.

    `before` is called when an optimizer is about to change parameters.
    """

    def __init__(self, listener: Listener, before: Callable[[], None]) -> None:
        self._listener = listener
        self._before = before
        hooks = ((_register_hook, self._stepped), (_register_pre_hook, self._steps))
        self._hooks = [register(_hidden_hook(method)) for register, method in hooks if register is not None]
        scaler: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
        self._scaler: Any = next(kind for kind in scaler.__mro__ if "step" in vars(kind))
        self._scaler_step = self._scaler.step
        self._scaler.step = self._counted(self._scaler_step)

    def close(self) -> None:
        """Nothing is counted any more, and torch is as it was."""
        for hook in self._hooks:
            hook.remove()
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


def _hidden_hook(stepped: Callable[[Any], None]) -> Callable[..., None]:
    @dynamo.hidden
    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not dynamo.is_tracing():  # a compiled step is not counted: tracing this would break its graph
            stepped(optimizer)

    return hook
