"""torch.distributed._symmetric_memory: memory that devices read from each other, refused where there is none."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Callable, NoReturn

import torch

from ditorch.backend import Backend
from ditorch.errors import MissingOnBackendError
from ditorch.redirect.patch import Patches
from ditorch_shared.imports import after_import

_MODULE = "torch.distributed._symmetric_memory"
_NAMES = ("empty", "rendezvous", "get_symm_mem_workspace", "get_mem_pool", "set_backend")
_libraries: list[torch.library.Library] = []


def apply(patches: Patches, backend: Backend) -> None:
    def wrap(module: ModuleType) -> None:
        for name in _NAMES:
            if hasattr(module, name):
                wrapper = _refusing(getattr(module, name), name, backend)
                patches.assign(module, name, wrapper, "its own error does not say what to do")
        refuse_operators()  # the module has defined more

    def refuse_operators() -> None:
        if backend.device_type != "cpu":
            patches.on_undo(_refuse_operators(backend))

    refuse_operators()
    patches.on_undo(after_import(_MODULE, wrap))


def _refuse_operators(backend: Backend) -> Callable[[], None]:
    """Gives the operators that have no kernel for the accelerator one that says why. Returns how to take them away."""
    every: list[str] = getattr(torch._C, "_dispatch_get_all_op_names", list)()
    has_kernel = getattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda name, key: True)
    key = getattr(torch._C, "_dispatch_key_for_device", lambda device_type: "PrivateUse1")(backend.device_type)
    library = torch.library.Library("symm_mem", "IMPL")
    for name in every:
        if name.startswith("symm_mem::") and not has_kernel(name, key):
            library.impl(name, functools.partial(_refuse, f"torch.ops.{name.replace('::', '.')}", backend), key)
    _libraries.append(library)  # whoever drops it drops the kernels

    def remove() -> None:
        _libraries.remove(library)
        library._destroy()

    return remove


def _refuse(name: str, backend: Backend, *args: Any, **kwargs: Any) -> NoReturn:
    raise _refusal(name, backend)


def _refusal(name: str, backend: Backend) -> MissingOnBackendError:
    return MissingOnBackendError(
        f"{name}: {backend.name} ({backend.title}) has no symmetric memory, in which devices read each other's "
        "tensors. Use ordinary collectives; switch asynchronous tensor parallelism off."
    )


def _refusing(original: Callable[..., Any], name: str, backend: Backend) -> Callable[..., Any]:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except RuntimeError as error:
            if "SymmetricMemory" not in str(error):
                raise
            raise _refusal(f"{_MODULE}.{name}", backend) from error

    return function
