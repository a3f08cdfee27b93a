"""Calls under checkpointing, which run twice: autograd takes the gradients of what the second pass was given.

Mostly that is what the first one was given. A forward pass that changes what it reads, such as spectral norm's vectors
or a running average, gives its second pass other values: so a call's gradients are compared with the reference of its
last pass. A call is known by its op, its line and how many like it came before in its checkpointed region.
"""

from __future__ import annotations

import inspect
import weakref
from collections import Counter
from typing import Any, Callable

from torch.utils import checkpoint

from op_tools.core.call import OpCall

_Frame: Any = getattr(checkpoint, "_CheckpointFrame", None)  # a region between its two passes


class CheckpointedCall:
    """One call of a checkpointed region. `begun`: of a pass that has not come to its end, what it was given."""

    __slots__ = ("begun", "kept")

    def __init__(self) -> None:
        self.kept: Any = None  # what waits for its gradients, from its last pass
        self.begun: Any = None


_Place = tuple[str, str]  # the op and the line that calls it


class _Region:
    """The calls of one checkpointed region, in order, and how far its second pass has come."""

    def __init__(self) -> None:
        self._calls: dict[_Place, list[CheckpointedCall]] = {}
        self._hook: Callable[[], Any] = lambda: None  # a weak reference: each second pass has another
        self._counts: Counter[_Place] = Counter()

    def first_pass(self, place: _Place) -> CheckpointedCall:
        made = CheckpointedCall()
        self._calls.setdefault(place, []).append(made)
        return made

    def second_pass(self, place: _Place, hook: Any) -> CheckpointedCall | None:
        if self._hook() is not hook:
            self._hook = weakref.ref(hook)
            self._counts.clear()
        known, number = self._calls.get(place, ()), self._counts[place]
        self._counts[place] += 1
        return known[number] if number < len(known) else None


class CheckpointedCalls:
    """Finds a call's first pass in its second one."""

    def __init__(self) -> None:
        self._regions: weakref.WeakKeyDictionary[Any, _Region] = weakref.WeakKeyDictionary()

    def find(self, call: OpCall, pack: Any) -> CheckpointedCall | None:
        """`pack`: of the hooks on top. None for a call outside of checkpointing, or whose first pass is not known."""
        if _Frame is None or not call.is_recorded:
            return None
        frame, is_second = _region_of(pack)
        if frame is None:
            return None
        region = self._regions.get(frame)
        if region is None:
            if is_second:
                return None  # the tool was not on in its first pass
            region = self._regions[frame] = _Region()
        place = call.name, call.where.line()
        return region.second_pass(place, pack) if is_second else region.first_pass(place)


def _region_of(pack: Any) -> tuple[Any, bool]:
    """The region whose tensors this hook keeps, and whether this is its second pass."""
    for cell in getattr(inspect.unwrap(pack), "__closure__", None) or ():
        held = cell.cell_contents
        is_second = isinstance(held, weakref.ref)
        frame = held() if is_second else held
        if isinstance(frame, _Frame):
            return frame, is_second
    return None, False
