"""Tensors that have been looked at, each at one version: what is not changed is not looked at again."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

from torch import Tensor

from op_tools.device.queues import Batch
from op_tools.values.tensors import are_these

MAX_TENSORS = 10_000  # tensors; then those that are gone are swept out
_MAX_LISTS = 1_000  # of tensors that were changed together


class KnownTensor(weakref.ref[Tensor]):
    """A tensor as it was at one version."""

    __slots__ = ("batch", "is_view", "value", "version")
    batch: Batch | None
    is_view: bool
    value: float
    version: int | None

    def can_be_reached(self) -> bool:
        """Whether a change of it now could change what is yet to be looked at: itself, or what it is a view of."""
        return self.is_view or (self.batch is not None and not self.batch.is_launched)


class KnownTensors:
    """Tensors that something is known of, each at one version."""

    def __init__(self) -> None:
        self.tensors: dict[int, KnownTensor] = {}
        self._max_tensors = MAX_TENSORS

    def put(self, tensor: Tensor, version: int | None, batch: Batch | None = None, value: float = 0.0) -> None:
        known = self.tensors.get(id(tensor))
        if known is None or known() is not tensor:
            if len(self.tensors) >= self._max_tensors:
                self.tensors = {key: one for key, one in self.tensors.items() if one() is not None}
                self._max_tensors = max(MAX_TENSORS, 2 * len(self.tensors))
            known = self.tensors[id(tensor)] = KnownTensor(tensor)
            known.is_view = tensor._is_view()
        known.version, known.batch, known.value = version, batch, value

    def get(self, tensor: Tensor, version: int | None) -> KnownTensor | None:
        known = self.tensors.get(id(tensor))
        if known is None or version is None or known.version != version or known() is not tensor:
            return None
        return known

    def has_none_of(self, tensors: Iterable[Tensor]) -> bool:
        """False where something may be known of one of them, at whatever version."""
        return self.tensors.keys().isdisjoint(map(id, tensors))

    def forget(self, tensor: Tensor) -> None:
        self.tensors.pop(id(tensor), None)


class KnownList:
    """Tensors that were changed together, as an optimizer's are, at their versions."""

    __slots__ = ("batch", "has_view", "tensors", "versions")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(map(weakref.ref, tensors))
        self.has_view = any(map(Tensor._is_view, tensors))
        self.versions: list[int | None] = []
        self.batch: Batch | None = None

    def holds(self, tensors: Sequence[Tensor]) -> bool:
        """Whether they are these very tensors."""
        return are_these(self.tensors, tensors)

    def can_be_reached(self) -> bool:
        return self.has_view or (self.batch is not None and not self.batch.is_launched)


class KnownLists:
    """Lists of tensors that were changed in place, and looked at since. The first tensor is the key."""

    def __init__(self) -> None:
        self._lists: dict[int, KnownList] = {}

    def put(
        self, tensors: Sequence[Tensor], versions: list[int | None], batch: Batch, same: KnownList | None = None
    ) -> None:
        """`same`: what `get` gave for these tensors, where it did."""
        known = self._lists.get(id(tensors[0]))
        if known is None or (known is not same and not known.holds(tensors)):
            if len(self._lists) >= _MAX_LISTS:
                self._lists.clear()
            known = self._lists[id(tensors[0])] = KnownList(tensors)
        known.versions, known.batch = versions, batch

    def get(self, tensors: Sequence[Tensor], versions: list[int | None]) -> KnownList | None:
        known = self._lists.get(id(tensors[0]))
        if known is None or known.versions != versions or None in versions or not known.holds(tensors):
            return None
        return known
