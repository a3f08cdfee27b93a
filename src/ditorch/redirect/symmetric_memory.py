"""torch.distributed._symmetric_memory: memory that devices read from each other, refused where there is none."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Callable

from ditorch.backend import Backend
from ditorch.errors import MissingOnBackendError
from ditorch.imports import after_import
from ditorch.redirect.patch import Patches

_MODULE = "torch.distributed._symmetric_memory"
_NAMES = ("empty", "rendezvous", "get_symm_mem_workspace", "get_mem_pool", "set_backend")


def apply(patches: Patches, backend: Backend) -> None:
    def wrap(module: ModuleType) -> None:
        for name in _NAMES:
            if hasattr(module, name):
                wrapper = _refusing(getattr(module, name), name, backend)
                patches.assign(module, name, wrapper, "its own error does not say what to do")

    patches.on_undo(after_import(_MODULE, wrap))


def _refusing(original: Callable[..., Any], name: str, backend: Backend) -> Callable[..., Any]:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except RuntimeError as error:
            if "SymmetricMemory" not in str(error):
                raise
            raise MissingOnBackendError(
                f"{_MODULE}.{name}: {backend.name} ({backend.title}) has no symmetric memory, in which devices read "
                "each other's tensors. Use ordinary collectives; switch asynchronous tensor parallelism off."
            ) from error

    return function
