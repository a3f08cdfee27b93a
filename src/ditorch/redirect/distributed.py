"""torch.distributed: "nccl" means the accelerator's collectives, and what those lack is made from what they have."""

from __future__ import annotations

import functools
import inspect
import threading
from datetime import timedelta
from typing import Any, Callable

import torch

from ditorch.backend import Backend
from ditorch.redirect.names import translated
from ditorch.redirect.patch import Patches


def apply(patches: Patches, backend: Backend) -> None:
    if not torch.distributed.is_available() or backend.collectives is None:
        return
    _translate_names(patches, backend.device_type, backend.collectives)
    if "AVG" in backend.lacks_reductions:
        _emulate_average(patches)


# ---- names -------------------------------------------------------------------------------------------------------


def _translate_names(patches: Patches, device_type: str, collectives: str) -> None:
    from torch.distributed import distributed_c10d

    def own(name: Any) -> Any:
        """ "nccl" or "cuda:nccl,cpu:gloo" in the accelerator's words."""
        if not isinstance(name, str) or "nccl" not in name.lower():
            return name
        parts = [part.strip().split(":") for part in name.lower().split(",")]
        return ",".join(
            ":".join(collectives if word == "nccl" else translated(word, device_type) for word in part)
            for part in parts
        )

    original_new = distributed_c10d.Backend.__new__
    original_config = distributed_c10d.BackendConfig.__init__

    def new(cls: Any, name: Any) -> Any:
        return original_new(cls, own(name))

    @functools.wraps(original_config)
    def config(self: Any, name: Any) -> None:
        original_config(self, own(name))

    why = '"nccl" is in the program; the accelerator has collectives of its own'
    patches.assign(distributed_c10d.Backend, "__new__", staticmethod(new), why)
    patches.assign(distributed_c10d.BackendConfig, "__init__", config, why)
    for owner in (torch.distributed, distributed_c10d):
        patches.assign(owner, "is_nccl_available", _true(), "programs ask it before they say nccl")


def _true() -> Callable[[], bool]:
    return lambda: True  # a function of its own each time: torch.compile keeps a table of functions by identity


# ---- reductions --------------------------------------------------------------------------------------------------


class DividedWork:
    """A sum under way that becomes an average when it is waited for."""

    def __init__(self, work: Any, result: torch.Tensor, count: int) -> None:
        self._work = work
        self._result = result
        self._count = count
        self._divided = False
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._work.wait(*([timeout] if timeout else []))
        self._divide()
        return True

    def get_future(self) -> Any:
        def divide(done: Any) -> Any:  # runs where the sum was completed, which must not wait for itself
            self._divide()
            return done.value()

        return self._work.get_future().then(divide)

    def _divide(self) -> None:
        with self._lock:
            if not self._divided:
                self._divided = True
                self._result.div_(self._count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


# Which argument of each collective receives the reduction.
_RESULTS = {"all_reduce": "tensor", "reduce_scatter_tensor": "output", "reduce_scatter": "output"}


def _emulate_average(patches: Patches) -> None:
    from torch.distributed import distributed_c10d

    for name, result in _RESULTS.items():
        wrapper = _averaging(getattr(distributed_c10d, name), result)
        for owner in (torch.distributed, distributed_c10d):
            patches.assign(owner, name, wrapper, "the accelerator's collectives have no ReduceOp.AVG")


def _averaging(original: Callable[..., Any], result: str) -> Callable[..., Any]:
    signature = inspect.signature(original)
    operations = torch.distributed.ReduceOp

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        if given.arguments["op"] != operations.AVG:
            return original(*args, **kwargs)
        given.arguments["op"] = operations.SUM
        work = original(*given.args, **given.kwargs)
        tensor: torch.Tensor = given.arguments[result]
        count = torch.distributed.get_world_size(given.arguments["group"])
        if work is not None:
            return DividedWork(work, tensor, count)
        tensor.div_(count)
        return None

    return collective
