"""Calls whose tensors the device looks at together: is everything finite that they have made?

For each tensor the device finds the largest absolute value, which is NaN where one element is NaN, and infinite where
one is (finite.py). Nothing is written to the tensors.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from op_tools.device.deferred import Batch
from op_tools.output import messages
from op_tools.overflow.calls import CheckedCall
from op_tools.overflow.finite import PLAIN, as_plain, find_largest, is_intact, largest
from op_tools.values.tensors import bytes_of, dtype_of, state_of, storage_of, version_of, versions_of

_SHARE_OF_MEMORY = 1 / 100  # of the device's memory may be held until answers have come
_MIN_BYTES_HELD = 64 * 2**20


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
        """Holds no tensors any longer; what somebody else holds can still be found."""
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
