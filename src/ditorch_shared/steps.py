"""Steps: counts training steps, in a process with tools and in one that waits for `ditorch attach`.

Where a program has several optimizers (a GAN), only the one that stepped first counts, so that a round is one step.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

MAX_STEPS_OF_ANOTHER = 20  # without one of the leading optimizer: the program has gone on to another one


class Steps:
    """Counts training steps. `current` is the one that is running; the first is 0."""

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

    def go_on_from(self, other: Steps) -> None:
        """Takes over what has been counted elsewhere, unless the program itself counts."""
        with self._lock:
            if not self.are_counted_by_program:
                self.current, self.ended_by_optimizers = other.current, other.ended_by_optimizers
                self._lead, self._others, self.optimizers = other._lead, other._others, other.optimizers

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
