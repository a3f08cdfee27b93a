"""Triton, where a program has it: NVIDIA's back end is not taken for the accelerator, and has_triton() tells the truth.

On a chip, Triton's kernels run by the vendor's own back end, if the installed triton has one. On the simulated
accelerator they run by Triton's own interpreter (`TRITON_INTERPRET`), on the device's memory: slowly, and rightly.
Nothing here imports triton: what is done to it is done when the program imports it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any, Callable

from torch.utils import _triton as torch_triton

from ditorch.backend import Backend
from ditorch.redirect.patch import Patches
from ditorch_shared.imports import after_import

_VARIABLE = "TRITON_INTERPRET"


def apply(patches: Patches, backend: Backend) -> None:
    if importlib.util.find_spec("triton") is None:
        return
    interprets = backend.interprets_triton() and os.environ.get(_VARIABLE, "1") == "1"
    if interprets:
        _interpret(patches, backend)
    _watch(patches, "triton.backends.nvidia.driver", lambda module: _without_nvidia(patches, module))
    _tell_truth(patches, interprets)


def _watch(patches: Patches, name: str, action: Callable[[Any], None]) -> None:
    patches.on_undo(after_import(name, action))


def _interpret(patches: Patches, backend: Backend) -> None:
    from ditorch.redirect.triton import bfloat16, interpreter, libdevice

    if _VARIABLE not in os.environ:  # read by Triton when it is imported, and when a kernel is defined
        os.environ[_VARIABLE] = "1"
        patches.on_undo(lambda: os.environ.pop(_VARIABLE, None))
    untraced = interpreter.Untraced(patches)

    def on_interpreter(module: Any) -> None:
        interpreter.on_device_memory(patches, untraced, module, backend)
        bfloat16.compute_rightly(patches, module)

    _watch(patches, "triton.runtime.interpreter", on_interpreter)
    _watch(patches, "triton.runtime.driver", lambda module: interpreter.drive(patches, module))
    for name in ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice"):
        _watch(patches, name, lambda module: libdevice.in_numpy(patches, module))
    if "triton" in sys.modules:  # its kernels, and those defined so far, were made to be compiled
        interpreter.convert(patches, untraced)


def _without_nvidia(patches: Patches, module: Any) -> None:
    """NVIDIA's driver finds itself active wherever torch.cuda is available."""
    driver = getattr(module, "CudaDriver", None)
    if driver is not None:
        patches.assign(driver, "is_active", staticmethod(lambda: False), "torch.cuda is not CUDA's")


def _tell_truth(patches: Patches, interprets: bool) -> None:
    """has_triton() asks whether torch.cuda is there, and that is no longer the question."""
    original = torch_triton.has_triton

    def has_triton(*_: Any, **__: Any) -> bool:  # torch 2.15 asks for the CPU apart, which changes nothing here
        """Whether Triton's kernels run here: in the interpreter, or by a back end for this accelerator."""
        if not torch_triton.has_triton_package():
            return False
        if interprets:
            return True
        from triton.backends import backends

        return any(backend.driver.is_active() for backend in backends.values())

    for module in list(sys.modules.values()):
        if vars(module).get("has_triton") is original:
            patches.assign(module, "has_triton", has_triton, "torch.cuda is not CUDA's")
