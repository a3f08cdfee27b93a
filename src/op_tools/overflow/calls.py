"""Calls from when they ran until they are judged, and the window in which the device looks at what they have made.

For each tensor the device finds the largest absolute value, which is NaN where one element is NaN, and infinite where
one is (finite.py). Nothing is written to the tensors.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from functools import cache
from operator import is_
from typing import Any

import torch
from torch import Tensor

from op_tools.core.call import OpCall
from op_tools.device.queues import Batch
from op_tools.output import messages
from op_tools.overflow.finite import PLAIN, as_plain, can_be_checked, find_largest, is_intact, largest
from op_tools.overflow.intent import Intent
from op_tools.overflow.known import KnownList
from op_tools.values import trees
from op_tools.values.tensors import bytes_of, dtype_of, state_of, storage_of, tensors_in, version_of, versions_of

_SHARE_OF_MEMORY = 1 / 100  # of the device's memory may be held until answers have come
_MIN_BYTES_HELD = 64 * 2**20


def worse(one: float, other: float) -> float:
    """Of the largest absolute values of two tensors: NaN before infinity before numbers."""
    return one if math.isnan(one) else other if math.isnan(other) else max(one, other)


def is_made(made: float, given: float) -> bool:
    """NaN is made where there was none, an infinity where there were only numbers; else they are carried on."""
    return not math.isnan(given) if math.isnan(made) else math.isfinite(given)


class Flow:
    """What is kept of a call until its gradients flow."""

    __slots__ = ("inputs", "intent", "worst")

    def __init__(self, intent: Intent, inputs: Any) -> None:
        self.intent = intent
        self.inputs = inputs  # where they are to be saved
        self.worst = 0.0  # of what it made: NaN or infinity, when that is known


class CheckedCall:
    """One op call, forward or backward, that waits for what the device finds in its tensors."""

    # most calls have nothing of this
    changed: tuple[Any, ...] = ()  # inputs that it changed
    is_silent = False  # without counting up their versions
    gradients: tuple[list[Any], list[Any], list[Any]] | None = None  # of outputs, of inputs, and what is new of these
    flow: Flow | None = None
    inputs: Any = None  # as they were, with their versions, where they are to be saved
    versions: Sequence[int | None] = ()  # of its input tensors
    together: KnownList | None = None  # what was known of a list that it changed
    _references: list[Any] | None = None
    start = stop = 0  # its tensors in a batch
    # when it is judged
    made = 0.0
    made_versions: list[int | None] = []  # noqa: RUF012  replaced, never changed
    given = 0.0
    is_fresh = False  # no call is known to have made what it was given
    order = 0  # among those that made NaN or Inf, or carried it on

    def __init__(self, call: OpCall, intent: Intent) -> None:
        self.call = call
        self.intent = intent

    def results(self) -> list[Tensor | None]:
        """What it made, in the order of the batch; None for what is no longer there."""
        if self._references is not None:
            return [reference() for reference in self._references]
        made = self._made() if self.gradients is None else self.gradients[2]
        checked = [one for one in made if can_be_checked(one)]
        return [one for one in checked if one.device == checked[0].device]

    def _made(self) -> Sequence[Tensor]:
        return made_by(tensors_in((self.call.result,)), self.changed)

    def given_tensors(self) -> Iterator[tuple[Tensor, int | None]]:
        """What it was given, as far as it is there, with the versions that it had."""
        if self.gradients is not None:
            for one in self.gradients[0]:
                tensor = there(one)
                if tensor is not None:
                    yield tensor, version_of(tensor)
            return
        call = self.call
        without: set[int] = set()
        if self.intent.overwrites and call.args:
            without.update(id(there(one)) for _, one in trees.leaves(call.args[0]))
        if "out" in call.kwargs:
            without.update(id(there(one)) for _, one in trees.leaves(call.kwargs["out"]))
        versions = iter(self.versions)
        for _, value in trees.leaves([*call.args, call.kwargs]):
            if isinstance(value, (Tensor, weakref.ref)):
                tensor, version = there(value), next(versions, None)
                if tensor is not None and id(tensor) not in without:
                    yield tensor, version

    def let_go(self) -> None:
        """Holds no tensor on the device any longer. What the program holds can still be found."""
        self._references = [weakref.ref(one) for one in self.results() if one is not None]
        call, self.call = self.call, self.call.without_tensors()
        self.call.args = trees.map_tensors(_reference, call.args)
        self.call.kwargs = trees.map_tensors(_reference, call.kwargs)
        self.call.result = trees.map_tensors(_reference, call.result)
        self.changed = tuple(map(_reference, self.changed))
        self.gradients = trees.map_tensors(_reference, self.gradients)


def _reference(tensor: Tensor) -> Any:
    return tensor if tensor.is_cpu else weakref.ref(tensor)


def there(value: Any) -> Any:
    """A tensor that was let go, or None where it is gone; anything else as it is."""
    return value() if isinstance(value, weakref.ref) else value


def made_by(results: Sequence[Tensor], changed: tuple[Any, ...]) -> Sequence[Tensor]:
    """Results, and inputs that were changed and not returned. `changed` itself, where that is all."""
    if not results or (len(results) == len(changed) and all(map(is_, results, changed))):
        return changed
    returned = set(map(id, results))
    return [*results, *(one for one in changed if id(one) not in returned)]


class Window(Batch):
    """Holds its calls and their tensors until the answers have come, or `let_go`."""

    def __init__(self, device: torch.device, backward: bool, is_second: bool = False) -> None:
        super().__init__(device)
        self.backward = backward
        self.is_second = is_second  # a look at the inputs of suspects
        self.calls: list[CheckedCall] = []
        self.before: list[tuple[int, weakref.ref[Tensor]]] = []  # inputs about to be changed, among the tensors
        self.tensors: list[Tensor] = []
        self.versions: list[int | None] = []
        self.bytes = 0
        self.max_bytes = _max_bytes_held(device)
        self.holds = True
        self._values: list[float] = []  # in the order of the tensors; where not all are finite
        self._order: list[int] = []  # of the tensors in what was found
        self._width = 1  # numbers for each of them

    def add(self, tensor: Tensor) -> None:
        """Takes in a tensor that can be checked, in the state that it has now."""
        self.tensors.append(tensor)
        self.versions.append(version_of(tensor))

    def add_all(self, tensors: Sequence[Tensor], versions: Sequence[int | None]) -> None:
        """Takes in many."""
        self.tensors += tensors
        self.versions += versions

    def look(self) -> list[Tensor]:
        found: list[Tensor] = []
        try:
            for dtype, indices in self._by_dtype().items():
                tensors = self.tensors
                if len(indices) < len(tensors):
                    tensors = [tensors[index] for index in indices]
                found.append(find_largest(tensors if dtype in PLAIN else list(map(as_plain, tensors))))
                self._order += indices
        finally:
            self.tensors = []
        if not found:
            return []
        together = found[0] if len(found) == 1 else torch.cat([one.double() for one in found])
        self._width = len(together) // len(self._order)
        return [together]

    def _by_dtype(self) -> dict[torch.dtype, Sequence[int]]:
        """Which tensors are still as they were added."""
        tensors = self.tensors
        state = state_of(tensors)
        if state is not None and state[0] == self.versions:
            return {state[2]: range(len(tensors))}
        intact: Sequence[int] = range(len(tensors))
        if versions_of(tensors) != self.versions or not all(map(bytes_of, map(storage_of, tensors))):
            intact = [index for index in intact if is_intact(tensors[index], self.versions[index])]
        dtypes = set(map(dtype_of, tensors))
        if len(dtypes) == 1:
            return {dtypes.pop(): intact} if intact else {}
        by_dtype: dict[torch.dtype, list[int]] = {}
        for index in intact:
            by_dtype.setdefault(tensors[index].dtype, []).append(index)
        return dict(by_dtype)

    def read(self) -> bool:
        """Fetches the values, waiting if need be. True where all are finite, or nothing could be found out."""
        found = self.numbers()
        if found is None:
            text = "OpOverflowCheck: the device's memory is full; some calls could not be checked"
            messages.complain_once("overflow", "memory", text=text)
        if not found:
            return True
        numbers: list[float] = found[0].tolist()
        if math.isfinite(sum(numbers)):
            return True
        self._values = [0.0] * len(self.versions)
        for start, index in zip(range(0, len(numbers), self._width), self._order):
            self._values[index] = largest(numbers[start : start + self._width])
        return all(map(math.isfinite, self._values))  # a sum of huge numbers is infinite, too

    def value(self, index: int) -> float:
        """The largest absolute value of a tensor, NaN or infinity; 0 where it is only known to be finite."""
        return self._values[index] if self._values else 0.0

    def let_go(self) -> None:
        """Holds no tensors any longer; what the program holds can still be found."""
        self.holds = False
        for call in self.calls:
            call.let_go()


@cache
def _max_bytes_held(device: torch.device) -> int:
    try:
        module: Any = getattr(torch, device.type)
        memory = int(module.get_device_properties(device).total_memory)
    except Exception:  # noqa: BLE001  a backend may not tell, and may say so in any way
        memory = 0
    return max(int(memory * _SHARE_OF_MEMORY), _MIN_BYTES_HELD)
