"""The device's part of a step: a few numbers of each tensor, computed behind the work that makes it.

Activations gather until there are some, or until one is about to be changed in place. Numbers stay on the device
until the step ends; then all of them come to the host in one copy, without a wait.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from op_tools.core.modes import dispatch_modes, with_modes_aside
from op_tools.device import moments
from op_tools.device.queues import OUT_OF_MEMORY, Batch, stream_number
from op_tools.values.tensors import TENSORS, version_of

MAX_GATHERED = 64  # tensors
MAX_GATHERED_BYTES = 2**26  # beyond what the program holds itself
MAX_LOOKS = 50_000  # in a step: a program that never steps an optimizer must not fill the memory

_functorch: Any = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)


class Label(NamedTuple):
    kind: str  # activations, gradients, …
    module: str
    elements: int
    is_replicated: bool = False


class Looks(Batch):
    """At tensors that one stream makes in one step."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._gathered: list[tuple[Label, Tensor, int | None]] = []
        self._bytes = 0
        self._last: tuple[int, int, int | None] | None = None  # where it lies, how long and which version it is
        self._rows: list[tuple[str, Tensor, list[Label]]] = []  # with the kind, where all are of one
        self.changed = 0  # tensors that were changed before they were looked at
        self.out_of_memory = 0

    def add(self, label: Label, tensor: Tensor) -> None:
        version = version_of(tensor)
        if self._last == (tensor.data_ptr(), tensor.numel(), version):
            return  # a container gives what its last module gave
        self._last = (tensor.data_ptr(), tensor.numel(), version)
        self._gathered.append((label, tensor, version))
        self._bytes += tensor.nbytes
        if len(self._gathered) >= MAX_GATHERED or self._bytes >= MAX_GATHERED_BYTES:
            self.compute()

    def compute(self) -> None:
        """Has the device look at what has been gathered."""
        gathered, self._gathered, self._bytes = self._gathered, [], 0
        intact = [(label, tensor) for label, tensor, version in gathered if version_of(tensor) == version]
        self.changed += len(gathered) - len(intact)
        self.compute_now("", intact)

    def compute_now(self, kind: str, looks: list[tuple[Label, Tensor]]) -> None:
        if not looks:
            return
        try:
            rows, order = with_modes_aside(self._look_at, [tensor for _, tensor in looks])
        except OUT_OF_MEMORY:
            self.out_of_memory += len(looks)
            return
        self._rows.append((kind, rows, [looks[number][0] for number in order]))

    def _look_at(self, tensors: list[Tensor]) -> tuple[Tensor, list[int]]:
        with self._enter_stream(), torch.inference_mode(False), torch.no_grad(), torch._C._DisableAutocast():
            return moments.look(tensors)

    def forget(self, kind: str) -> None:
        """What was computed at once of this kind is no longer wanted."""
        self._rows = [row for row in self._rows if row[0] != kind]

    def look(self) -> list[Tensor]:
        self.compute()
        return [torch.cat([rows for _, rows, _ in self._rows])] if self._rows else []

    def labels(self) -> list[Label]:
        """In the order of the numbers."""
        return [label for _, _, labels in self._rows for label in labels]


class StepLooks:
    """All that is looked at in one step, by device and stream."""

    def __init__(self) -> None:
        self._batches: dict[tuple[torch.device, int], Looks] = {}
        self._lock = threading.RLock()
        self._added = 0
        self.left_out: set[str] = set()  # kinds of tensors that cannot be looked at

    def gather(self, label: Label, tensor: Tensor) -> None:
        """To be looked at soon. Without its graph, which must not live longer than the program wants."""
        self._added += 1
        if self._added <= MAX_LOOKS:
            alias = with_modes_aside(tensor.detach) if dispatch_modes() else tensor.detach()
            with self._lock:
                self._batch(tensor.device).add(label, alias)

    def compute(self) -> None:
        """Looks at what has been gathered, before it is changed."""
        with self._lock:
            for batch in self._batches.values():
                batch.compute()

    def compute_now(self, kind: str, looks: Iterable[tuple[Label, Tensor]]) -> None:
        by_device: dict[torch.device, list[tuple[Label, Tensor]]] = {}
        for label, tensor in looks:
            by_device.setdefault(tensor.device, []).append((label, tensor))
        with self._lock:
            for device, some in by_device.items():
                self._batch(device).compute_now(kind, some)

    def forget(self, kind: str) -> None:
        with self._lock:
            for batch in self._batches.values():
                batch.forget(kind)

    def launch(self) -> list[Looks]:
        with self._lock:
            batches = list(self._batches.values())
            for batch in batches:
                batch.launch()
            return batches

    def local(self, tensor: Any) -> Tensor | None:
        """This rank's part of a tensor, as it can be looked at; None where it cannot."""
        if type(tensor) in TENSORS and moments.can_be_looked_at(tensor) and tensor.untyped_storage().nbytes():
            return tensor  # type: ignore[no-any-return]
        return with_modes_aside(self._unwrapped, tensor)  # type: ignore[no-any-return]

    def _unwrapped(self, tensor: Any) -> Tensor | None:
        with contextlib.suppress(Exception):  # a tensor of a third party may refuse anything
            if hasattr(tensor, "to_local"):
                tensor = tensor.to_local()
            if hasattr(tensor, "wait") and type(tensor) not in TENSORS:  # a collective that is under way
                tensor = tensor.wait()
            if tensor.layout is torch.sparse_coo:
                tensor = tensor._values()
            tensor = tensor.detach()
            if tensor.is_complex():
                tensor = torch.view_as_real(tensor.resolve_conj())
            if type(tensor) in TENSORS and moments.can_be_looked_at(tensor) and tensor.untyped_storage().nbytes():
                return tensor  # type: ignore[no-any-return]
            if not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
                return None
        self.left_out.add(f"{type(tensor).__name__} of {getattr(tensor, 'dtype', 'unknown dtype')}")
        return None

    def _batch(self, device: torch.device) -> Looks:
        key = (device, stream_number(device))
        if key not in self._batches:
            self._batches[key] = Looks(device)
        return self._batches[key]


def is_transformed() -> bool:
    """Whether tensors stand for others: under vmap and the like."""
    return _functorch() is not None
