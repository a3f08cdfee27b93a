"""Which calls a step takes, where it does not take all of them.

Where the memory for calls that wait for gradients does not suffice, a step takes what there is room for, the next one
those that were left out, until every call of a step has been compared, forward and backward. Then all begin again.
Once it is known what the calls of a step are given, a step takes no more than a tenth of it: so the device as
reference makes a step a few times as long, and not twenty times. Proofs by identities need no memory: of a large
program the first step takes all calls, each later one a fortieth of them. A call is known by its op and by how many
calls of that op came before it in the step, so that a step with a call more or less does not upset the count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container

from op_tools.core.call import OpCall
from op_tools.values.tensors import tensors_in

_MAX_SHARE = 1 / 10  # of the bytes that the calls of a step are given
_MAX_SHARE_PROVEN = 1 / 40  # of the calls of a step
_MIN_BYTES = 2**26  # of a step, for proofs to take turns: small programs are proven as a whole in each step
_Key = tuple[str, int]  # the op, and how many calls of it came before in the step


class Turns:
    """Knows the calls of a step, and those that have been compared. Any thread may ask.

    `are_needed`: there was no room for all of them. `rotates`: a large step needs them once all have been compared.
    """

    def __init__(self, first_step: int = 0, rotates: bool = False) -> None:
        self._first_step = first_step
        self._rotates = rotates
        self._step: int | None = None
        self._counts: Counter[str] = Counter()
        self._keys: dict[int, _Key] = {}  # of the calls of this step, by their numbers
        self._known: set[_Key] = set()
        self._compared: set[_Key] = set()  # in this round
        self._covered: set[_Key] = set()  # in any
        self._too_large: set[_Key] = set()  # with no other call beside them there is no room for their gradients
        self._leaves_some = False  # this step
        self._steps = 0  # of this round
        self._share = _MAX_SHARE_PROVEN if rotates else _MAX_SHARE
        self._size = self._size_taken = 0  # of this step's calls: bytes, or their number where these need not be known
        self._max_size = math.inf  # that a step takes, once it is known what one has
        self.are_needed = False
        self.rounds = 0  # in which every call was compared
        self._steps_taken: list[int] = []  # the first and the last
        self.is_over = False  # later steps are not compared

    def takes(self, call: OpCall) -> bool:
        """Whether it is this call's turn."""
        if call.step < self._first_step:
            return True
        if call.step != self._step:
            self._begin(call.step)
        key = (call.name, self._counts[call.name])
        self._counts[call.name] += 1
        size = 1 if self._rotates and self.are_needed else _bytes_of(call)
        self._size += size
        if self.are_needed:
            if key in self._compared:
                return False
            if self._size_taken and self._size_taken + size > self._max_size:  # one is taken, however large
                self._known.add(key)
                self._leaves_some = True
                return False
        self._keys[call.id] = key
        self._size_taken += size
        self._steps_taken = [*self._steps_taken[:1], call.step]
        return True

    def done(self, call: OpCall, is_whole: bool) -> None:
        """A call that was taken. `is_whole`: its gradients will be compared, too."""
        key = self._keys.get(call.id)
        if key is None:
            return
        self._known.add(key)
        if is_whole:
            self._compared.add(key)
            self._covered.add(key)
            return
        self.are_needed = True
        if len(self._keys) == 1:
            self._compared.add(key)
            self._too_large.add(key)
        else:
            self._leaves_some = True

    def step_began(self, step: int) -> None:
        if step != self._step:
            self._begin(step)

    def _begin(self, step: int) -> None:
        if self._step is not None and self._known:
            self._steps += 1
            if not self._leaves_some:  # calls that do not come in every step must not hold up the others
                self.rounds += 1
                self._steps = 0
                self._compared.clear()
                self.are_needed |= self._rotates and self._size > _MIN_BYTES
        of_step = sum(self._counts.values()) if self._rotates else self._size
        self._max_size = self._share * of_step if of_step else math.inf
        self._size = self._size_taken = 0
        self._leaves_some = False
        self._step = step
        self._counts.clear()
        self._keys.clear()

    def text(self) -> str:
        """How far it has come; nothing where there was room for all."""
        known, covered = len(self._known), len(self._covered)
        if self.is_over and known == covered:
            first, last = self._steps_taken[0], self._steps_taken[-1]
            steps = f"in step {first}" if first == last else f"in steps {first} to {last}"
            return f"coverage: all {known:,} calls of a step, {steps}; later steps were not compared"
        if not self.are_needed:
            return "" if self._known else "coverage: in turns from the next step on"
        if known == covered:
            return f"coverage: all {known:,} calls of a step, in turns"
        share = f"{covered:,} of {known:,} calls of a step ({covered / max(1, known):.0%})"
        too_large = len(self._too_large - self._covered)
        if known == covered + too_large:
            larger = f"the gradients of {too_large:,} need more memory than there may be"
            return f"coverage: {share}, in turns; {larger} (OP_AUTOCOMPARE_MEMORY, or memory=)"
        in_one_step = min(covered / max(1, self._steps + 1), self._share * known)
        left = math.ceil((known - covered - too_large) / max(1, in_one_step))
        steps = f"{left} more step{'s' if left > 1 else ''} would cover the rest"
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
        self._turns.is_over = bool(self._turns.rounds)
        return not self._turns.is_over and (self._steps is None or step in self._steps)
