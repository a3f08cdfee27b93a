"""Tensors for other libraries: DLPack and NumPy are told the truth about where a tensor lies, in words of CUDA."""

from __future__ import annotations

from typing import Any

import torch

from ditorch.backend import Backend
from ditorch.redirect.patch import Patches
from ditorch.settings import SHOW_DEVICE_AS_CUDA

_EXTERNAL = 12  # DLPack's number for devices that it does not know: what every outside device of PyTorch is to it
_DLPACK_NUMBERS = {"xpu": 14, "mps": 8}


def apply(patches: Patches, backend: Backend) -> None:
    if backend.device_type == "cpu":
        return  # a CPU tensor lies where it says
    _dlpack(patches, backend)
    _array_interface(patches, backend)
    if SHOW_DEVICE_AS_CUDA.get():
        _numpy(patches, backend)


def _dlpack(patches: Patches, backend: Backend) -> None:
    original = torch.Tensor.__dlpack_device__

    def dlpack_device(self: torch.Tensor) -> Any:
        """What the capsule itself says; that it were CUDA's would lead other libraries to wrong addresses."""
        from torch.utils.dlpack import DLDeviceType

        if self.device.type != backend.device_type:
            return original(self)
        number = _DLPACK_NUMBERS.get(backend.device_type, _EXTERNAL)
        return DLDeviceType(number), self.device.index or 0

    patches.assign(torch.Tensor, "__dlpack_device__", dlpack_device, "the memory is not CUDA's")


def _array_interface(patches: Patches, backend: Backend) -> None:
    original = vars(torch.Tensor)["__cuda_array_interface__"]

    def array_interface(self: torch.Tensor) -> Any:
        """Refused as for a CPU tensor, so that hasattr() says no: whoever asks would use the address on a CUDA GPU."""
        if self.device.type == backend.device_type:
            raise AttributeError(
                f"Can't get __cuda_array_interface__ on {backend.name} ({backend.title}): its memory is not CUDA's. "
                "Use tensor.cpu() to copy it to host memory, or torch.from_dlpack."
            )
        return original.__get__(self)

    why = "the memory is not CUDA's"
    patches.assign(torch.Tensor, "__cuda_array_interface__", property(array_interface), why)


def _numpy(patches: Patches, backend: Backend) -> None:
    original = torch.Tensor.numpy

    def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
        try:
            return original(self, force=force)
        except TypeError as error:
            raise TypeError(str(error).replace(f"{backend.device_type}:", "cuda:", 1)) from None

    numpy.__qualname__, numpy.__doc__, numpy.__module__ = original.__qualname__, original.__doc__, "torch"
    patches.assign(torch.Tensor, "numpy", numpy, "its error names the device as the program does")
