"""Which calls a step takes, where the memory for calls that wait for gradients does not suffice for all of them.

A step takes what there is room for, the next one those that were left out, until every call of a step has been
compared, forward and backward. Then all begin again. Once it is known what the calls of a step are given, a step takes
no more than a tenth of it: so the device as reference makes a step a few times as long, and not twenty times. A call is
known by its op and by how many calls of that op came before it in the step, so that a step with a call more or less
does not upset the count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container

from op_tools.core.call import OpCall
from op_tools.values.tensors import tensors_in

_MAX_SHARE = 1 / 10  # of the bytes that the calls of a step are given
_Key = tuple[str, int]  # the op, and how many calls of it came before in the step


class Turns:
    """Knows the calls of a step, and those that have been compared. Any thread may ask."""

    def __init__(self, first_step: int = 0) -> None:
        self._first_step = first_step
        self._step: int | None = None
        self._counts: Counter[str] = Counter()
        self._keys: dict[int, _Key] = {}  # of the calls of this step, by their numbers
        self._known: set[_Key] = set()
        self._compared: set[_Key] = set()
        self._steps = 0  # of this round
        self._bytes = self._bytes_taken = 0  # of this step's calls
        self._max_bytes = math.inf  # that a step takes, once it is known what one has
        self.are_needed = False  # there was no room for all
        self.rounds = 0  # in which every call was compared

    def takes(self, call: OpCall) -> bool:
        """Whether it is this call's turn."""
        if call.step < self._first_step:
            return True
        if call.step != self._step:
            self._begin(call.step)
        key = (call.name, self._counts[call.name])
        self._counts[call.name] += 1
        self._keys[call.id] = key
        size = _bytes_of(call)
        self._bytes += size
        if self.are_needed and (
            key in self._compared or self._bytes_taken + size > self._max_bytes + self._first(size)
        ):
            return False
        self._bytes_taken += size
        return True

    def _first(self, size: int) -> int:
        """A step takes one call, however large."""
        return 0 if self._bytes_taken else size

    def done(self, call: OpCall, is_whole: bool) -> None:
        """A call that was taken. `is_whole`: its gradients will be compared, too."""
        key = self._keys.get(call.id)
        if key is None:
            return
        self._known.add(key)
        if is_whole:
            self._compared.add(key)
        else:
            self.are_needed = True

    def step_began(self, step: int) -> None:
        if step != self._step:
            self._begin(step)

    def _begin(self, step: int) -> None:
        if self._step is not None and self._known:
            self._steps += 1
            if self._known <= self._compared:
                self.rounds += 1
                self._steps = 0
                self._compared.clear()
        self._max_bytes = _MAX_SHARE * self._bytes if self._bytes else math.inf
        self._bytes = self._bytes_taken = 0
        self._step = step
        self._counts.clear()
        self._keys.clear()

    def text(self) -> str:
        """How far it has come; nothing where there was room for all."""
        if not self.are_needed:
            return "" if self._known else "coverage: in turns from the next step on"
        known, compared = len(self._known), len(self._compared & self._known)
        if self.rounds or known == compared:
            return f"coverage: all {known:,} calls of a step, in turns"
        in_one_step = min(compared / max(1, self._steps + 1), _MAX_SHARE * known)
        left = math.ceil((known - compared) / max(1, in_one_step))
        steps = f"{left} more step{'s' if left > 1 else ''} would cover the rest"
        share = f"{compared:,} of {known:,} calls of a step ({compared / max(1, known):.0%})"
        return f"coverage: {share}, in turns; {steps}"


def _bytes_of(call: OpCall) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in((call.args, call.kwargs)))


class UntilCovered:
    """The steps that are asked for, until every call has been compared."""

    def __init__(self, turns: Turns, steps: Container[int] | None) -> None:
        self._turns = turns
        self._steps = steps

    def __contains__(self, step: object) -> bool:
        if isinstance(step, int):
            self._turns.step_began(step)
        return not self._turns.rounds and (self._steps is None or step in self._steps)
