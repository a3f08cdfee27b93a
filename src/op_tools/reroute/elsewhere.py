"""The same call elsewhere: stand-ins for its tensors, on another device or in another dtype, and the way back.

A stand-in takes a tensor's place among the arguments. When the op has run, what it wrote into a stand-in is copied into
the tensor itself, with the history that autograd has recorded meanwhile. A result that is a stand-in stands for the
tensor; one that looks into a stand-in's memory becomes the same view of the tensor. All other results are new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.reroute.carry import OPAQUE, layout_of, stretch_of
from op_tools.values import trees

_MANY = 8  # tensors of an optimizer's call, which are copied in one kernel
# copies many tensors on the device in one kernel
copy_together: Callable[[list[Tensor], list[Tensor]], Any] | None = getattr(torch, "_foreach_copy_", None)
_increment_version: Callable[[Tensor], None] | None = getattr(torch.autograd.graph, "increment_version", None)


class StandIns:
    """The stand-ins of one call. They must count their versions: none may be made in inference mode."""

    __slots__ = ("_by_original", "_by_stand_in", "_by_storage", "_nodes", "_versions", "originals", "stand_ins")

    def __init__(self, originals: Sequence[Tensor], stand_ins: Sequence[Tensor]) -> None:
        self.originals = originals
        self.stand_ins = stand_ins
        self._by_original: dict[int, Tensor] | None = None
        self._by_stand_in = dict(zip(map(id, stand_ins), originals))
        self._by_storage: dict[int, list[int]] | None = None
        self._versions = [stand_in._version for stand_in in stand_ins]
        self._nodes = [stand_in.grad_fn for stand_in in stand_ins] if torch.is_grad_enabled() else None

    def replace(self, value: Any) -> Any:
        """The same nested arguments with the stand-ins in them."""
        return trees.map_tensors(self._stand_in_of, value)

    def _stand_in_of(self, tensor: Tensor) -> Tensor:
        if self._by_original is None:
            self._by_original = dict(zip(map(id, self.originals), self.stand_ins))
        return self._by_original.get(id(tensor), tensor)

    def changed(self) -> list[int]:
        """Which stand-ins the op has written to."""
        return [
            place
            for place, (stand_in, version) in enumerate(zip(self.stand_ins, self._versions))
            if stand_in._version != version
        ]

    def write_back(self, silently: Sequence[Any] = ()) -> None:
        """Copies what the op wrote into the originals. `silently`: those that it may write to without counting it."""
        changed = self.changed()
        if changed:
            self._copy_back(changed)
            self._tell_the_others(changed)
        if silently:
            counted = {id(self.stand_ins[place]) for place in changed}
            pairs = [(tensor, self._stand_in_of(tensor)) for tensor in trees.tensors(silently)]
            uncounted = [pair for pair in pairs if pair[0] is not pair[1] and id(pair[1]) not in counted]
            with torch.no_grad():
                write_together([original.data for original, _ in uncounted], [stand_in for _, stand_in in uncounted])

    def _copy_back(self, changed: list[int]) -> None:
        recorded = set()
        if self._nodes is not None:
            # an op that works in no_grad by itself (embedding with max_norm) leaves no trace in the history
            recorded = {place for place in changed if self.stand_ins[place].grad_fn is not self._nodes[place]}
            for place in recorded:
                write_together([self.originals[place]], [self.stand_ins[place]])
        others = [place for place in changed if place not in recorded]
        with torch.no_grad():
            write_together([self.originals[place] for place in others], [self.stand_ins[place] for place in others])

    def _tell_the_others(self, changed: Sequence[int]) -> None:
        """Stand-ins that share memory count their versions apart; autograd must learn that a saved one was changed."""
        if _increment_version is None or self._nodes is None:
            return
        for place in changed:
            for neighbour in self._in_storage(self.stand_ins[place]):
                if neighbour not in changed:
                    _increment_version(self.stand_ins[neighbour])

    def original_of(self, result: Tensor) -> Tensor | None:
        """The original where the result is its stand-in, or the same view of it; None for a result that is new."""
        original = self._by_stand_in.get(id(result))
        if original is not None:
            return original
        if not result._is_view() and not torch.is_inference_mode_enabled():
            return None
        for place in self._in_storage(result):
            view = _same_view(self.originals[place], self.stand_ins[place], result)
            if view is not None:
                return view
        return None

    def _in_storage(self, tensor: Tensor) -> list[int]:
        """Which stand-ins lie in the same storage."""
        if self._by_storage is None:
            self._by_storage = {}
            for place, stand_in in enumerate(self.stand_ins):
                if layout_of(stand_in) is not OPAQUE:
                    self._by_storage.setdefault(stand_in.untyped_storage()._cdata, []).append(place)
        return [] if layout_of(tensor) is OPAQUE else self._by_storage.get(tensor.untyped_storage()._cdata, [])


def write_together(originals: Sequence[Tensor], stand_ins: Sequence[Tensor]) -> None:
    """Copies stand-ins into their originals; many of them on the device in one kernel."""
    if len(originals) > _MANY and copy_together is not None and not stand_ins[0].is_cpu:
        copy_together(list(originals), list(stand_ins))
        return
    for original, stand_in in zip(originals, stand_ins):
        if original.size() != stand_in.size():  # an `out=` that had no room
            original.resize_(stand_in.size()).as_strided_(stand_in.size(), stand_in.stride())
        original.copy_(stand_in, non_blocking=stand_in.is_cpu and stand_in.is_pinned())


def _same_view(original: Tensor, stand_in: Tensor, result: Tensor) -> Tensor | None:
    """What `result` is of `stand_in`, but of `original`; None where that cannot be."""
    begin, end = stretch_of(stand_in)
    first, last = stretch_of(result)
    if result.dtype != stand_in.dtype or stand_in.stride() != original.stride() or first < begin or last > end:
        return None
    source = original if result.requires_grad else original.detach()
    return source.as_strided(result.size(), result.stride(), first - begin + original.storage_offset())
