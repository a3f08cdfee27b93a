"""Training steps as a user counts them, and what ran before the first and after the last of them.

A step's number changes when an optimizer has stepped, so what a program runs after its last step (an evaluation, a
checkpoint) has a number as well, and so has what it runs before its own first call of op_tools.step(). Training steps
are those from the first backward pass to the last. Where no op with a backward was recorded, what the process told
when it ended decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from op_tools.compare_runs.calls import Call

BEFORE, AFTER, WITHOUT = "before the first step", "after the last step", "without a training step"


@dataclass
class OutsideStep:
    """What has a step's number and is no training step."""

    when: str
    step: int
    rank: int
    calls: int


class Counting:
    """The steps of one process of a run, or of two runs that have them both."""

    def __init__(self) -> None:
        self._calls: dict[int, int] = {}
        self._with_backward: list[int] = []

    def add(self, step: int, *runs: list[Call]) -> None:
        """A step is a training step where all runs train in it."""
        self._calls[step] = min(sum(not call.site.is_outside for call in calls) for calls in runs)
        if all(any(call.backwards for call in calls) for calls in runs):
            self._with_backward.append(step)

    def training(self, finished: int | None) -> range:
        """`finished`: the number of steps that ended, by the record of the process; None where it is not known."""
        if self._with_backward:
            return range(self._with_backward[0], self._with_backward[-1] + 1)
        last = max(self._calls, default=-1)
        return range(last + 1 if finished is None else min(finished, last + 1))

    def steps(self, training: range) -> int:
        return sum(step in training for step in self._calls)

    def outside(self, training: range, rank: int) -> Iterator[OutsideStep]:
        for step, calls in self._calls.items():
            if step not in training:
                yield OutsideStep(when(step, training), step, rank, calls)

    def only_here(self, where: str, finished: int | None) -> Iterator[str]:
        """In words, of steps that the other run lacks."""
        training = self.training(finished)
        for first, last in _ranges(step for step in self._calls if step in training):
            words = f"step {first} is" if first == last else f"steps {first} to {last} are"
            yield f"{words} only in {where}"
        for one in self.outside(training, 0):
            yield f"what ran {one.when} ({one.step}) is only in {where}"


def when(step: int, training: range) -> str:
    if not training:
        return WITHOUT
    return BEFORE if step < training[0] else AFTER


def _ranges(steps: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of each row of steps that follow each other."""
    first = last = None
    for step in steps:
        if first is None or last is None or step != last + 1:
            if first is not None and last is not None:
                yield first, last
            first = step
        last = step
    if first is not None and last is not None:
        yield first, last
