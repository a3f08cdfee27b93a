"""torch.cuda becomes the device: its names are overwritten in place, so that who holds the module sees them, too.

    >>> torch.cuda.get_device_name()
    'Simulated accelerator sim:0'

names.py says what becomes of each name. A name that it does not know, of a newer PyTorch, is the device module's if
that has it, and refused otherwise; nothing public keeps pointing at CUDA. torch.cuda.amp is redirect/amp.py's.
`torch.cuda._is_compiled` stays: torch.compile trusts it to find CUDA's C functions.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from types import FunctionType, ModuleType
from typing import Any

import torch

from ditorch.backend import Backend
from ditorch.errors import MissingOnBackendError
from ditorch.redirect.cuda import (
    comm,
    devices,
    generators,
    graphs,
    memory,
    profiling,
    properties,
    runtime,
    streams,
    tensors,
    tools,
)
from ditorch.redirect.cuda.names import NAMES, table
from ditorch.redirect.cuda.refusal import refused
from ditorch.redirect.cuda.target import Target, constant_for_compile
from ditorch.redirect.patch import Patches

__all__ = ["NAMES", "MissingOnBackendError", "apply", "table"]

_SUBMODULES = (
    *("_utils", "comm", "gds", "graphs", "green_contexts", "jiterator", "memory"),
    *("nccl", "nvtx", "profiler", "random", "sparse", "streams", "tunable"),
)
_KEPT = ("DeferredCudaCallError", "cudaStatus", "AcceleratorError", "OutOfMemoryError")
_OTHER_HOLDERS = ("torch.nn.parallel.comm", "torch.nn.parallel.parallel_apply")
_WHY = "torch.cuda means the device"


def apply(patches: Patches, backend: Backend) -> None:
    """Makes torch.cuda work on the backend's device."""
    target = Target(backend)
    submodules = _import_submodules()
    if target.is_host:
        _keep_accelerator(patches)
    replaced: dict[int, Any] = {}  # by the original's identity
    for name, new in _all_names(target).items():
        _replace(patches, torch.cuda, name, new, replaced)
    for name, module in submodules.items():
        for inner, new in _inner_names(target, name, module).items():
            if inner in vars(module):
                _replace(patches, module, inner, new, replaced)
    _replace_copies(patches, replaced)
    _tell_dynamo(patches, replaced)
    _list_types(patches, replaced)
    tensors.patch_type_names(patches, target)
    streams.patch_handles(patches, target)
    profiling.patch_profiler(patches, target)
    _patch_bindings(patches)
    tools.patch_preferences(patches)
    tools.patch_cudnn(patches)
    graphs.patch_users(patches, target)
    if not streams.has_streams(target):
        patches.assign(torch.Tensor, "record_stream", _record_stream, "the device's only queue needs no record")
    generators.seed_as_asked_before(target)


def _tell_dynamo(patches: Patches, replaced: dict[int, Any]) -> None:
    """Dynamo knows some functions whose results are constants; where it was imported first, by the originals."""
    constants = getattr(sys.modules.get("torch._dynamo.variables.torch"), "constant_fold_functions", None)
    if not isinstance(constants, dict):
        return
    for new in [replaced[id(original)] for original in constants if id(original) in replaced]:
        constants[new] = None
        patches.on_undo(functools.partial(constants.pop, new, None))


def _list_types(patches: Patches, replaced: dict[int, Any]) -> None:
    types = {replaced.get(id(kind), kind) for kind in torch._tensor_classes}
    patches.assign(torch, "_tensor_classes", types, "torch.load and others go through all types")


def _patch_bindings(patches: Patches) -> None:
    """The two C functions that PyTorch's own test classes for CUDA call past torch.cuda."""

    def _cuda_setDevice(device: int) -> None:  # noqa: N802 - PyTorch's name
        torch.cuda.set_device(device)

    def _cuda_setStream(**stream: int) -> None:  # noqa: N802
        torch.cuda._set_stream_by_id(**stream)

    for function in (_cuda_setDevice, _cuda_setStream):
        patches.assign(torch._C, function.__name__, function, "PyTorch's own tests choose device and stream by it")


def _keep_accelerator(patches: Patches) -> None:
    """torch.accelerator, where it means CUDA, asks torch.cuda whether there is any, which would now say yes."""
    if hasattr(torch, "accelerator"):
        available = torch.accelerator.is_available()

        def is_available() -> bool:
            return available

        constant_for_compile(is_available)
        patches.assign(torch.accelerator, "is_available", is_available, "the plain CPU is no accelerator")


def _all_names(target: Target) -> dict[str, Any]:
    """What each name of torch.cuda becomes."""
    of_memory = memory.names(target)
    made = {
        **devices.names(target),
        **streams.names(target),
        **of_memory,
        **runtime.names(target, of_memory["mem_get_info"]),
        **generators.names(target),
        **properties.names(target),
        **tensors.names(target),
        **tools.constants(target),
        **tools.errors(),
        **graphs.names(target),
    }
    there = vars(torch.cuda)
    made = {name: new for name, new in made.items() if name in there or name == "_get_device_properties"}
    for name in {*NAMES, *torch.cuda.__all__}:
        original = there.get(name)
        if name not in made and name not in _KEPT and callable(original):
            made[name] = _own_or_refused(target, name, original)
    return made


def _own_or_refused(target: Target, name: str, original: Any) -> Any:
    own = target.own(name)
    if own is None:
        return refused(target, name, original)
    return own if inspect.isclass(own) else tools.forward(own)


def _inner_names(target: Target, name: str, module: ModuleType) -> dict[str, Any]:
    """What the names of a submodule become, as far as they are not those of torch.cuda."""
    if name == "memory":
        return memory.private_names(target)
    special: dict[str, dict[str, Any]] = {
        "comm": comm.names(target),
        "jiterator": tools.jiterator(target),
        "nccl": tools.nccl(),
        "nvtx": profiling.nvtx(),
        "profiler": profiling.profiler(),
        "sparse": tensors.sparse_names(target),
        "tunable": tools.tunable(),
    }
    return {**tools.refusals(target, name, module), **special.get(name, {})}


def _import_submodules() -> dict[str, ModuleType]:
    found = {}
    for name in _SUBMODULES:
        if importlib.util.find_spec(f"torch.cuda.{name}"):  # older releases have fewer
            found[name] = importlib.import_module(f"torch.cuda.{name}")
    return found


def _replace(patches: Patches, owner: ModuleType, name: str, new: Any, replaced: dict[int, Any]) -> None:
    original = vars(owner).get(name)
    if isinstance(new, (FunctionType, type)) and _made_for_this(new):
        new.__name__ = new.__qualname__ = name
        new.__module__ = getattr(original, "__module__", None) or owner.__name__
        new.__doc__ = new.__doc__ or getattr(original, "__doc__", None)
        if hasattr(original, "__wrapped__") and isinstance(new, FunctionType) and not hasattr(new, "__wrapped__"):
            vars(new)["__wrapped__"] = tools.forward(new)  # torch.compile of 2.15 looks into use_mem_pool for it
    patches.assign(owner, name, new, _WHY)
    if callable(original) and callable(new):
        replaced[id(original)] = new


def _made_for_this(new: Any) -> bool:
    """Whether apply() made the object, so that it can be named after the one it replaces."""
    ours = new.__module__.startswith("ditorch.redirect.cuda")
    return ours and getattr(sys.modules[new.__module__], new.__name__, None) is not new


def _replace_copies(patches: Patches, replaced: dict[int, Any]) -> None:
    """The submodules of torch.cuda, and a few others, hold many of the same objects."""
    for holder, module in list(sys.modules.items()):
        inner = holder.startswith("torch.cuda.") and not holder.startswith("torch.cuda.amp")
        if inner or holder in _OTHER_HOLDERS:
            for name, value in list(vars(module).items()):
                if id(value) in replaced:
                    patches.assign(module, name, replaced[id(value)], _WHY)


def _record_stream(self: torch.Tensor, stream: Any) -> None:
    """Nothing to do: the memory is not used again before the work in the queue is done."""
