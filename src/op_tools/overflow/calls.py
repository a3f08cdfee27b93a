"""One op call from when it ran until it is judged: what it was given and made, and what is known of that."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from operator import is_
from typing import Any

from torch import Tensor

from op_tools.core.call import OpCall
from op_tools.overflow.finite import can_be_checked
from op_tools.overflow.intent import Intent
from op_tools.overflow.known import KnownList
from op_tools.values import trees
from op_tools.values.tensors import tensors_in, version_of


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
    is_silent = False  # and nobody counted that
    gradients: tuple[list[Any], list[Any], list[Any]] | None = None  # of outputs, of inputs, and what is new of these
    flow: Flow | None = None
    inputs: Any = None  # as they were, with their versions, where they are to be saved
    versions: Sequence[int | None] = ()  # of its input tensors
    size = 0  # of these, in bytes
    together: KnownList | None = None  # what was known of a list that it changed
    _references: list[Any] | None = None
    start = stop = 0  # its tensors in a batch
    # when it is judged
    made = 0.0
    made_versions: list[int | None] = []  # noqa: RUF012  replaced, never changed
    given = 0.0
    is_fresh = False  # no call is known to have made what it was given

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
        """Holds no tensor on the device any longer. What somebody else holds can still be found."""
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
