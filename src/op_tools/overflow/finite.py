"""Whether tensors are finite: many at once, found on the device, and read back when the device has long done it.

For each tensor the device finds the largest absolute value, which is NaN where one element is NaN, and infinite where
one is. That takes one kernel of our own for a whole batch on CUDA (reductions/largest.py), few where the device has
some for lists of tensors, else one for each tensor. Nothing is written to the tensors, and nobody waits for the device
until `read`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.device import largest
from op_tools.device.clock import Clock, clock_of, stream_id
from op_tools.values.tensors import (
    bytes_of,
    device_of,
    dtype_of,
    is_contiguous,
    is_dense,
    layout_of,
    size_of,
    state_of,
    storage_of,
    versions_of,
)

_PLAIN = frozenset((torch.float32, torch.float16, torch.bfloat16, torch.float64))
_FLOAT8 = frozenset(getattr(torch, name) for name in dir(torch) if name.startswith("float8_e"))
_COMPLEX = frozenset((torch.complex64, torch.complex128, torch.complex32))
CHECKED = _PLAIN | _FLOAT8 | _COMPLEX  # dtypes that have NaN or infinities
_STRIDED = {torch.strided}
_NOTHING = contextlib.nullcontext()


class Batch:
    """Tensors of one stream that are checked together."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.tensors: list[Tensor] = []
        self.versions: list[int | None] = []
        self.launched = False
        self.values: list[float] = []  # in the order of the tensors; filled in by `read` where not all are finite
        self._clock: Clock | None = clock_of(device)
        self._stream: Any = None if self._clock is None else self._clock.current_stream()
        self._current_key = _key_function(device)
        self._key = self._current_key()
        self._event: Any = None
        self._found: Tensor | None = None  # on its way to the host
        self._order: Sequence[int] = ()  # of the tensors in what was found
        self._width = 1  # numbers for each of them

    def suits(self, device: torch.device) -> bool:
        """True where a tensor that the current stream of `device` makes can be added."""
        return self._key == self._current_key() and self.device == device

    def add(self, tensor: Tensor) -> None:
        """Takes in a tensor that can be checked, in the state that it has now. It is held until `launch`."""
        self.tensors.append(tensor)
        try:
            self.versions.append(tensor._version)
        except RuntimeError:  # an inference tensor
            self.versions.append(None)

    def add_all(self, tensors: Sequence[Tensor], versions: Sequence[int | None]) -> None:
        """Takes in many."""
        self.versions += versions
        self.tensors += tensors

    def launch(self) -> None:
        """Lets the device find the values, behind the work that makes the tensors. They are let go."""
        self.launched = True
        try:
            # backward and optimizers have it off already, and asking costs less
            with torch.no_grad() if torch.is_grad_enabled() else _NOTHING, self._on_its_stream():
                self._launch()
        except BaseException:  # swallows nothing: whatever went wrong, there is nothing to be read
            self._found = None
            raise
        finally:
            self.tensors = []

    def is_ready(self) -> bool:
        """Whether `read` need not wait. Where the device has no events to ask, nobody knows."""
        return self._event is None or bool(self._event.query())

    def read(self) -> bool:
        """Fetches the values, waiting if need be. True where all are finite, or nothing could be found out."""
        found, self._found = self._found, None
        if found is None:
            return True
        if self._event is not None and self._clock is not None:
            self._event.synchronize()
            self._clock.give_back(self._event)
        numbers: list[float] = found.tolist()
        if math.isfinite(sum(numbers)):
            return True
        self.values = [0.0] * len(self.versions)
        for start, index in zip(range(0, len(numbers), self._width), self._order):
            self.values[index] = _largest(numbers[start : start + self._width])
        return all(map(math.isfinite, self.values))  # a sum of huge numbers is infinite, too

    def value(self, index: int) -> float:
        """The largest absolute value of a tensor, NaN or infinity; 0 where it is only known to be finite."""
        return self.values[index] if self.values else 0.0

    def _launch(self) -> None:
        found: list[Tensor] = []
        for dtype, indices in self._by_dtype().items():
            tensors = self.tensors
            if len(indices) < len(tensors):
                tensors = [tensors[index] for index in indices]
            plain = tensors if dtype in _PLAIN else [_as_plain(one) for one in tensors]
            found.append(_find_largest(self.device, plain))
            self._order = [*self._order, *indices] if self._order else indices
        if not found:
            return
        together = found[0] if len(found) == 1 else torch.cat([one.double() for one in found])
        self._width = len(together) // len(self._order)
        if self._clock is None:
            self._found = together  # without events, a copy that is on its way could be read too early
        else:
            self._found = together.to("cpu", non_blocking=True)
            self._event = self._clock.record(self._stream)

    def _by_dtype(self) -> dict[torch.dtype, Sequence[int]]:
        """Which tensors are still as they were added."""
        tensors = self.tensors
        state = state_of(tensors)
        if state is not None and state[0] == self.versions:
            return {state[2]: range(len(tensors))}
        dtypes = set(map(dtype_of, tensors))
        intact: Sequence[int] = range(len(tensors))
        if versions_of(tensors) != self.versions or not all(map(bytes_of, map(storage_of, tensors))):
            intact = [index for index in intact if is_intact(tensors[index], self.versions[index])]
        if len(dtypes) == 1:
            return {dtypes.pop(): intact} if intact else {}
        by_dtype: dict[torch.dtype, list[int]] = {dtype: [] for dtype in dtypes}
        for index in intact:
            by_dtype[tensors[index].dtype].append(index)
        return {dtype: indices for dtype, indices in by_dtype.items() if indices}

    def _on_its_stream(self) -> contextlib.AbstractContextManager[Any]:
        if self._stream is None or self._key == self._current_key():
            return _NOTHING
        module: Any = getattr(torch, self.device.type)
        stream: contextlib.AbstractContextManager[Any] = module.stream(self._stream)
        return stream


def _key_function(device: torch.device) -> Callable[[], int]:
    """What tells the device's current stream from its others."""
    function = _key_functions.get(device)
    if function is None:
        function = _key_functions[device] = _make_key_function(device)
    return function


_key_functions: dict[torch.device, Callable[[], int]] = {}


def _make_key_function(device: torch.device) -> Callable[[], int]:
    raw: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if device.type == "cuda" and raw is not None:
        with contextlib.suppress(RuntimeError):  # what calls itself cuda may be another device
            raw(device.index or 0)
            return functools.partial(raw, device.index or 0)  # without making an object
    clock = clock_of(device)
    return (lambda: 0) if clock is None else (lambda: stream_id(clock.current_stream()))


def all_can_be_checked(tensors: Sequence[Tensor]) -> bool:
    """Whether many tensors can be checked, and on one device; where not, they are asked one by one."""
    devices = set(map(device_of, tensors))
    return (
        len(devices) == 1
        and devices.pop().type != "cpu"
        and CHECKED.issuperset(map(dtype_of, tensors))
        and set(map(layout_of, tensors)) == _STRIDED
        and all(map(size_of, tensors))
    )


def can_be_checked(tensor: Tensor) -> bool:
    """False for whole numbers, empty and sparse tensors, and those on the CPU."""
    return tensor.dtype in CHECKED and not tensor.is_cpu and tensor.layout is torch.strided and tensor.nbytes > 0


def is_intact(tensor: Tensor, version: int | None) -> bool:
    """False where somebody has changed it since, or has freed its memory, as sharded training does."""
    if version is not None and tensor._version != version:
        return False
    return tensor.layout is not torch.strided or tensor.untyped_storage().nbytes() > 0 or tensor.numel() == 0


def _as_plain(tensor: Tensor) -> Tensor:
    """In a dtype that reductions know."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.float()


def _largest(values: list[float]) -> float:
    """Of the lowest and the highest value, or of one; `max` alone may lose a NaN."""
    return math.nan if any(map(math.isnan, values)) else max(map(abs, values))


# -- ways to find the largest absolute value: one or two numbers for each tensor ---------------------------------------

Finder = Callable[[list[Tensor]], Tensor]
_finders: dict[torch.device, Finder] = {}


def by_lists(tensors: list[Tensor]) -> Tensor:
    """Two kernels for some hundred tensors. One with gaps or overlaps would make it one kernel for each."""
    if all(map(is_contiguous, tensors)):
        return torch.stack(torch._foreach_norm(tensors, math.inf))
    dense = [is_dense(tensor) for tensor in tensors]
    together = list(itertools.compress(tensors, dense))
    norms = iter(torch._foreach_norm(together, math.inf) if together else ())
    return torch.stack(
        [
            next(norms) if lies_together else torch.linalg.vector_norm(tensor, math.inf)
            for tensor, lies_together in zip(tensors, dense)
        ]
    )


def by_range(tensors: list[Tensor]) -> Tensor:
    """A kernel for each tensor that finds the lowest and the highest value."""
    return torch.stack([value for tensor in tensors for value in torch.aminmax(tensor)])


def by_question(tensors: list[Tensor]) -> Tensor:
    """Slow, and for devices whose minimum and maximum overlook NaN."""
    return torch.stack(
        [
            torch.where(tensor.isnan().any(), math.nan, torch.where(tensor.isinf().any(), math.inf, 0.0)).float()
            for tensor in tensors
        ]
    )


def _find_largest(device: torch.device, tensors: list[Tensor]) -> Tensor:
    find = _finders.get(device)
    if find is None:
        find = _finders[device] = _choose(device)
    return find(tensors)


def _choose(device: torch.device) -> Finder:
    """The first way that the device has, and that sees a NaN between numbers."""
    if largest.can_find(device):
        return largest.values
    ways = (by_lists, by_range) if _has_kernel_for_lists(device) else (by_range,)
    samples = [torch.tensor([0.0, bad, 1.0], device=device) for bad in (math.nan, math.inf, -math.inf)]
    for find in ways:
        try:
            values = find(samples).tolist()
        except (RuntimeError, NotImplementedError, AttributeError):
            continue
        width = len(values) // 3
        seen = [_largest(values[start : start + width]) for start in range(0, len(values), width)]
        if math.isnan(seen[0]) and seen[1:] == [math.inf, math.inf]:
            return find
    return by_question


def _has_kernel_for_lists(device: torch.device) -> bool:
    try:
        key = torch._C._dispatch_key_for_device(device.type)
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key("aten::_foreach_norm.Scalar", key))
    except (AttributeError, RuntimeError):  # a torch that does not tell
        return device.type == "cuda"
