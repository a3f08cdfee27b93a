"""What a test could leave behind in the process: patches, modes, hooks, environment, threads, defaults, faults."""

from __future__ import annotations

import importlib
import operator
import os
import threading
import types
from typing import Any

import torch
import torch._dynamo  # patches torch when it is imported: before the first snapshot
import torch.distributed
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ditorch.sim import faults

# Where this project patches, or could.
_PATCHABLE = (
    torch,
    torch.Tensor,
    torch.amp,
    torch.autograd,
    torch.autograd.function._SingleLevelFunction,
    torch.cuda,
    torch.cuda.amp,
    torch.distributed,
    torch.nn.Module,
    torch.nn.functional,
    torch.optim.Optimizer,
    torch.serialization,
    torch.sparse,
    torch.storage.UntypedStorage,
    torch.autograd.profiler.profile,
    torch.nn.parallel.comm,
    *([torch.accelerator] if hasattr(torch, "accelerator") else []),  # 2.6 and newer
)

# What torch.compile itself leaves behind when it is first used.
_LEFT_BY_DYNAMO = ("Module.__init__", "Module.__setstate__", "tqdm_monitor")


def _attributes() -> dict[str, dict[str, Any]]:
    """Every attribute of what could be patched. Thousands, at every test: copied here, looked at if need be."""
    return {owner.__name__: dict(vars(owner)) for owner in _PATCHABLE}


def _replaced(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> dict[str, tuple[Any, Any]]:
    """Attributes that are no longer the same object. Submodules are left out: importing one adds it to its parent."""
    found = {}
    for owner, old in before.items():
        new = after[owner]
        if len(old) == len(new) and all(map(operator.is_, old.values(), new.values())):
            continue
        for name, value in old.items():
            is_module = issubclass(type(value), types.ModuleType)  # isinstance asks the value, and some warn then
            if new.get(name, found) is not value and not is_module and f"{owner}.{name}" not in _LEFT_BY_DYNAMO:
                found[f"attribute {owner}.{name}"] = (value, new.get(name))
    return found


def _hooks() -> dict[str, int]:
    return {
        f"{owner.__name__}.{name}": len(value)
        for owner in map(importlib.import_module, ("torch.nn.modules.module", "torch.optim.optimizer"))
        for name, value in vars(owner).items()
        if name.startswith("_global") and isinstance(value, dict)
    }


def _threads() -> set[str]:
    """Python's threads; PyTorch's own, which Python only knows by sight, live as long as the process.

    So do the threads that read from Inductor's compile workers, which torch 2.4 starts with its first compilation.
    """
    names = {t.name for t in threading.enumerate() if not isinstance(t, threading._DummyThread) and not _inductors(t)}
    return names.difference(_LEFT_BY_DYNAMO)


def _inductors(thread: threading.Thread) -> bool:
    module = getattr(getattr(thread, "_target", None), "__module__", None) or ""
    return module.startswith("torch._inductor")


def _device_type() -> str:
    accelerator = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    return accelerator.type if accelerator is not None else os.environ.get("DITORCH_TEST_DEVICE", "sim")


def _default_device() -> torch.device:
    try:
        return torch.get_default_device()
    except AttributeError:  # torch 2.4, when it was set back to None
        return torch.device("cpu")


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs between two snapshots, each with what it was and what it is."""
    found = _replaced(before["attributes"], after["attributes"])
    plain = (key for key in before if key != "attributes")
    return {**found, **{key: (before[key], after[key]) for key in plain if before[key] != after.get(key)}}


def snapshot() -> dict[str, Any]:
    """The state of the process, to be compared with a later one."""
    # pytest names the running test in this variable
    # libraries that are imported on first use set KMP_… for good
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_CURRENT", "KMP_"))}
    state: dict[str, Any] = {"attributes": _attributes()}
    state.update({f"hooks {name}": value for name, value in _hooks().items()})
    state.update({f"environment {name}": value for name, value in environment.items()})
    state["environment"] = set(environment)
    state["threads"] = _threads()
    state["function modes"] = len(_get_current_function_mode_stack())
    state["dispatch modes"] = len(_get_current_dispatch_mode_stack())
    state["default dtype"] = torch.get_default_dtype()
    state["default device"] = _default_device()
    state["gradients"] = torch.is_grad_enabled()
    state["autocast"] = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled(_device_type())
    state["deterministic"] = torch.are_deterministic_algorithms_enabled()
    device = getattr(torch, _device_type())
    state["device"] = device.current_device(), device.current_stream()
    state["memory limit"] = device.mem_get_info()[1]
    state["faults"] = faults.active()
    state["folder"] = os.getcwd()
    return state
