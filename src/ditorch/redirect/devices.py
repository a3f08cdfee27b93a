"""What torch.device, tensors and modules say and do about "cuda"."""

from __future__ import annotations

from typing import Any

import torch

from ditorch.backend import Backend
from ditorch.redirect.names import cuda_name, shown
from ditorch.redirect.patch import Patches
from ditorch.settings import SHOW_DEVICE_AS_CUDA
from ditorch_shared.imports import after_import


def apply(patches: Patches, backend: Backend) -> None:
    _forget_modules()
    patches.after_undo(_forget_modules)
    _methods(patches, backend.device_type)
    if backend.device_type == "cpu":
        return  # a CPU tensor that said "cuda" could not be told from one that is meant to be on the CPU
    _is_cuda(patches, backend.device_type)
    if SHOW_DEVICE_AS_CUDA.get():
        _show_as_cuda(patches, backend.device_type)


def _forget_modules() -> None:
    """torch.get_device_module keeps its answers, and they follow what a device says of its type."""
    forget = getattr(getattr(torch, "get_device_module", None), "cache_clear", None)  # older releases keep none
    if forget is not None:
        forget()


def _methods(patches: Patches, device_type: str) -> None:
    def target(device: Any) -> Any:
        if device_type == "cpu" or device is None:
            return torch.device(device_type)
        where = torch.device(device_type, device) if isinstance(device, int) else torch.device(device)
        if where.type not in ("cuda", device_type):
            raise RuntimeError(f"cuda() takes a cuda device, not {where}: use to({str(where)!r}).")
        return where

    def cuda(
        self: torch.Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> torch.Tensor:
        """Returns a copy of this tensor on the accelerator."""
        return self.to(target(device), non_blocking=non_blocking, memory_format=memory_format)

    def storage_cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
        """Returns a copy of this storage on the accelerator."""
        where = target(device)
        return self if self.device == where else _moved(self, where, non_blocking)

    patches.assign(torch.Tensor, "cuda", cuda, "copies to the accelerator")
    patches.assign(torch.UntypedStorage, "cuda", storage_cuda, "copies to the accelerator")


def _moved(storage: Any, device: torch.device, non_blocking: bool) -> Any:
    moved = torch.UntypedStorage(storage.size(), device=device)
    return moved.copy_(storage, non_blocking)


def _is_cuda(patches: Patches, device_type: str) -> None:
    base = torch.Tensor.__base__  # the C class: its attributes cost a third of a Python property's
    own = vars(base).get(f"is_{device_type}")
    if own is not None:
        is_cuda = property(own.__get__)
    else:
        is_cpu, is_meta = vars(base)["is_cpu"].__get__, vars(base)["is_meta"].__get__
        is_cuda = property(lambda self: not (is_cpu(self) or is_meta(self)))
    patches.assign(torch.Tensor, "is_cuda", is_cuda, "programs ask it to find out whether they are on the accelerator")
    storage_is_cuda = property(lambda self: self.device.type == device_type)
    patches.assign(torch.UntypedStorage, "is_cuda", storage_is_cuda, "as for tensors")


def _show_as_cuda(patches: Patches, device_type: str) -> None:
    get_type = vars(torch.device)["type"].__get__
    as_text, as_code = torch.device.__str__, torch.device.__repr__
    name = cuda_name(device_type)

    def type_shown(self: torch.device) -> str:
        real: str = get_type(self)
        return name if real == device_type else real

    def text(self: torch.device) -> str:
        return shown(as_text(self), device_type)

    def code(self: torch.device) -> str:
        return as_code(self).replace(f"type='{device_type}'", "type='cuda'")

    def reduce(self: torch.device) -> Any:
        """A saved device is a CUDA device: it can be read here, on CUDA, and where there is neither."""
        where = shown(get_type(self), device_type)
        return torch.device, (where,) if self.index is None else (where, self.index)

    why = "the program was written for cuda, and compares and prints this"
    patches.assign(torch.device, "type", property(type_shown), why)
    patches.assign(torch.device, "__str__", text, why)
    patches.assign(torch.device, "__repr__", code, why)
    patches.assign(torch.device, "__reduce__", reduce, "what is saved here can be loaded elsewhere")
    after_import("torch._dynamo.utils", lambda module: _tell_dynamo(patches, module, type(name)))


def _tell_dynamo(patches: Patches, module: Any, name_type: type) -> None:
    """torch.compile takes our kind of string for a constant."""
    known = module.common_constant_types
    known.add(name_type)
    patches.on_undo(lambda: known.discard(name_type))
