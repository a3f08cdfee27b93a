"""Where no call is guilty and results are apart: the first result that shows it, and where it came from.

What came in before the first op (weights, data) shows in the first result that is apart by more than rounding. Else
something happened where the runs cannot be compared: random numbers, or calls that only one run has, as of an optimizer
that works tensor by tensor on the CPU and on lists on a chip. Healthy runs part, too, from step to step: an optimizer
may divide rounding by rounding. So there a result counts that is further apart than the root of what was so far.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from op_tools.compare_runs.calls import Call
from op_tools.compare_runs.judging import Event
from op_tools.compare_runs.natures import nature_of

RANDOM, NO_CALL = "random numbers", "no single call: each is within its limit"
_MAX_NAMED = 3
_MAX_OPS = 12  # of an optimizer


class Unpaired:
    """Calls that only one run has; of run B also by step, the last two: what they did shows later."""

    def __init__(self) -> None:
        self.all: Counter[str] = Counter()
        self._ops: tuple[Counter[str], Counter[str]] = (Counter(), Counter())  # of run A, and of run B
        self._steps: list[tuple[int, Counter[str]]] = []

    def add(self, step: int, in_a: Sequence[Call], in_b: Sequence[Call]) -> None:
        of_b = Counter(call.site.op for call in in_b)
        self._steps = [*self._steps[-1:], (step, of_b)]
        self._ops[0].update(call.site.op for call in in_a)
        self._ops[1].update(of_b)
        self.all.update(f"{call.site.op} in {call.site.module or 'no module'}" for call in (*in_a, *in_b))

    def named(self) -> str:
        return ", ".join(f"{words} ({count})" for words, count in self.all.most_common(_MAX_NAMED))

    def words(self) -> str:
        """The ops of both runs."""
        sides = zip(("the first", "the second"), self._ops)
        named = [f"{', '.join(op for op, _ in ops.most_common(_MAX_NAMED))} in {name}" for name, ops in sides if ops]
        return "; ".join(named)

    def of_run_b(self) -> tuple[int, list[str]] | None:
        """The first of those steps, and the ops that it has there."""
        for step, ops in self._steps:
            found = [op for op, _ in ops.most_common() if not nature_of(op).is_no_function][:_MAX_OPS]
            if found:
                return step, found
        return None


class Carried:
    """Of one process of each run. `unit`: of what the device may round to on its own, such as tf32."""

    def __init__(self, unit: float = 0.0) -> None:
        self._unit = unit
        self._level = 0.0  # the largest distance of forward results in earlier steps

    def first(self, events: Sequence[Event], is_from_outside: bool, unpaired: Unpaired) -> tuple[int, str] | None:
        """The event's number, and where it came from: nothing where it is what differs before the first op."""
        if is_from_outside:
            found = (number for number, one in enumerate(events) if one.distance > one.limit * unit(one))
            number = next(found, None)
            return None if number is None else (number, "")
        self._unit = max([self._unit, *map(unit, events)])
        allowed = math.sqrt(max(self._unit, self._level))
        level = self._level
        for number, one in enumerate(events):
            if (
                one.phase == "backward"
                or one.result is None
                or not one.result.kind.is_float
                or nature_of(one.a.site.op).jumps
            ):
                continue
            if one.distance > one.limit * allowed:
                return number, _origin(one, unpaired)
            level = max(level, one.distance)
        self._level = level
        return None


def _origin(event: Event, unpaired: Unpaired) -> str:
    if nature_of(event.a.site.op).is_random:
        return RANDOM
    return f"calls that only one run has ({unpaired.words()})" if unpaired.all else NO_CALL


def unit(event: Event) -> float:
    """The rounding of the coarsest dtype that the event has, in either run."""
    seen = [*event.a.inputs.values(), *event.a.outputs.values(), *event.b.outputs.values()]
    return max((one.kind.unit for one in seen), default=0.0)
