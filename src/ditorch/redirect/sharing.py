"""Device tensors in other processes, as torch.multiprocessing sends CUDA's: by a handle of their memory.

PyTorch's own reduction of CUDA tensors does the work; what it asks of CUDA, to share a storage and to open one, is
answered here. Where the accelerator's memory can be shared (its module has `_share_storage`), both processes see one
memory. Where it cannot, a tensor in a queue is a copy, which is said once, and `share_memory_()` is an error.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from multiprocessing import resource_sharer, util
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from ditorch.backend import Backend
from ditorch.errors import MissingOnBackendError
from ditorch.redirect.patch import Patches

_WHY = "tensors are sent to other processes as CUDA's are"


class MemoryHandle(bytes):
    """Names a piece of shared memory. Who unpickles one imports ditorch, and so has the device."""

    def __reduce__(self) -> Any:
        return MemoryHandle, (bytes(self),)


def apply(patches: Patches, backend: Backend) -> None:
    if backend.device_type == "cpu" or _sends_by_itself():
        return
    sharing = _Sharing(backend)
    original = torch.UntypedStorage.is_shared

    def is_shared(self: torch.UntypedStorage) -> bool:
        return self.device.type == backend.device_type or original(self)

    storage = torch.UntypedStorage
    patches.assign(storage, "_share_cuda_", sharing.share, _WHY)
    patches.assign(storage, "_new_shared_cuda", staticmethod(sharing.open), _WHY)
    for name in ("_release_ipc_counter_cuda", "_release_ipc_counter"):  # of the C class, of the Python class
        patches.assign(storage, name, staticmethod(sharing.release), _WHY)
    patches.assign(storage, "is_shared", is_shared, "device memory always is, to PyTorch")
    if not sharing.shares_memory:
        patches.assign(storage, "share_memory_", _refusing(backend, storage.share_memory_), "it cannot be done")
    _register(patches, backend)


def _sends_by_itself() -> bool:
    """Whether the vendor's package has its own way of sending tensors."""
    return ForkingPickler._extra_reducers.get(torch.Tensor) is not reductions.reduce_tensor  # type: ignore[attr-defined]


class _Sharing:
    """Storages of the device as memory that processes share: it is the host's, under a name."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        module = backend.device_module()
        self._host_of = getattr(module, "_share_storage", None)
        self._follow = getattr(module, "_follow_storage", None)
        self._adopt = getattr(module, "_adopt_storage", None)
        self._told = False

    @property
    def shares_memory(self) -> bool:
        return self._host_of is not None

    # a function, not a method: it becomes a method of storages
    @property
    def share(self) -> Any:
        def _share_cuda_(storage: torch.UntypedStorage) -> tuple[Any, ...]:
            if not storage.is_cuda:
                raise RuntimeError(f"_share_cuda_: only available on CUDA, and this storage is on {storage.device}")
            index = storage.device.index or 0
            if storage.nbytes() == 0:
                return (index, None, 0, 0, b"", 0, b"", False)
            host = self._shareable(storage)
            manager, name, size = host._share_filename_cpu_()
            host._shared_incref()  # for the receiver, which may open it after it is gone here
            if self._follow and not self._follow(storage):
                host = None  # somebody else's memory, of which this was a copy
            handle = MemoryHandle(b"\n".join((manager, name)))
            return (index, handle, size, 0, handle, 0, b"", False)

        return _share_cuda_

    def _shareable(self, storage: torch.UntypedStorage) -> Any:
        if self._host_of:
            return self._host_of(storage)
        if not self._told:
            self._told = True
            print(
                f"ditorch: the memory of {self._backend.name} is not shared between processes: tensors are sent as "
                "copies, and what one process writes the others do not see",
                file=sys.stderr,
            )
        return storage.cpu()

    def open(self, device: int, handle: MemoryHandle, size: int, *_: Any) -> torch.UntypedStorage:
        _answer_before_the_end(os.getpid())
        host = _opened(handle, size)
        if self._adopt:
            opened: torch.UntypedStorage = self._adopt(host, device)
            return opened
        copy = torch.UntypedStorage(size, device=torch.device(self._backend.device_type, device))
        return copy.copy_(host, False)

    @staticmethod
    def release(handle: MemoryHandle, _offset: int, device: Any = None) -> None:
        """For a tensor whose storage this process has already: takes back the sender's count."""
        if handle:
            _opened(handle, 0)


def _opened(handle: bytes, size: int) -> torch.UntypedStorage:
    manager, _, name = bytes(handle).partition(b"\n")
    host: Any = torch.UntypedStorage._new_shared_filename_cpu(manager, name, size)
    opened: torch.UntypedStorage = host._shared_decref()
    return opened


_SECONDS_TO_FETCH = 5.0


@functools.cache  # once in a process; a forked one has lost what its parent registered
def _answer_before_the_end(_process: int) -> None:
    """Lets others fetch what this process has sent in answer: a CPU tensor can only be fetched while its sender lives.

    Processes with CUDA memory are slow to end, and programs rely on it.
    """

    def wait() -> None:
        until = time.monotonic() + _SECONDS_TO_FETCH
        for thread in threading.enumerate():
            if thread.name == "QueueFeederThread":
                thread.join(max(0.0, until - time.monotonic()))
        waiting = getattr(resource_sharer._resource_sharer, "_cache", ())  # type: ignore[attr-defined]
        while waiting and time.monotonic() < until:
            time.sleep(0.01)

    # after 10, where queues are told to end, and before 0, where the socket by which others fetch goes
    util.Finalize(None, wait, exitpriority=1)


def _refusing(backend: Backend, original: Any) -> Any:
    def share_memory_(self: torch.UntypedStorage, *args: Any, **options: Any) -> torch.UntypedStorage:
        if self.device.type != backend.device_type:
            shared: torch.UntypedStorage = original(self, *args, **options)
            return shared
        raise MissingOnBackendError(
            f"share_memory_() on {backend.name} ({backend.title}): its memory cannot be shared between processes. "
            "Share a copy in host memory (tensor.cpu().share_memory_()), or send tensors through a queue, as copies."
        )

    return share_memory_


def _register(patches: Patches, backend: Backend) -> None:
    """Events, and tensors where `device.type` does not say cuda, by which PyTorch's own function would go."""
    reducers: Any = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    before = dict(reducers)

    def reduce_tensor(tensor: torch.Tensor) -> Any:
        if tensor.device.type != backend.device_type or tensor.layout is not torch.strided or tensor.is_nested:
            return reductions.reduce_tensor(tensor)
        return _reduced(tensor)

    if torch.device(backend.device_type).type != "cuda":
        for kind in (torch.Tensor, torch.nn.Parameter):
            ForkingPickler.register(kind, reduce_tensor)
    if hasattr(torch, "Event"):
        ForkingPickler.register(torch.Event, _reduce_event)

    def undo() -> None:
        reducers.clear()
        reducers.update(before)

    patches.on_undo(undo)


def _reduce_event(event: Any) -> Any:
    return _rebuild_event, (event.device, event.ipc_handle())


def _rebuild_event(device: torch.device, handle: bytes) -> Any:
    return torch.cuda.Event.from_ipc_handle(device, handle)


def _reduced(tensor: torch.Tensor) -> Any:
    if tensor.requires_grad and not tensor.is_leaf:
        reductions.reduce_tensor(tensor)  # says that it cannot be sent
    torch.utils.hooks.warn_if_has_hooks(tensor)
    device, handle, size, offset, *others = tensor.untyped_storage()._share_cuda_()
    arguments = (type(tensor), tensor.size(), tensor.stride(), tensor.storage_offset(), torch.storage.TypedStorage)
    memory = (tensor.dtype, device, handle, size, offset, tensor.requires_grad)
    return reductions.rebuild_cuda_tensor, (*arguments, *memory, *others)
