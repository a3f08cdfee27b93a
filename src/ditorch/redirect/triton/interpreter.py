"""Triton's interpreter on the device: kernels get the device's memory itself, and are launched on our word.

Left alone it copies every storage to the host and back, which loses what a kernel reaches by addresses in a tensor.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Callable

import torch

from ditorch.backend import Backend
from ditorch.errors import MissingOnBackendError
from ditorch.redirect.patch import Patches
from ditorch_shared.imports import after_import

_SCALARS = "_ditorch_scalars"
_WHY = "Triton's kernels run in its interpreter, on the device's memory"


def on_device_memory(patches: Patches, untraced: Untraced, module: ModuleType, backend: Backend) -> None:
    """For triton.runtime.interpreter."""
    host_alias: Callable[[torch.Tensor], torch.Tensor] = backend.device_module()._host_alias
    # Triton 3.0 makes a `run` for each function
    owner, name = (module.InterpretedFunction, "run")
    if not hasattr(owner, name):
        owner, name = (module.GridExecutor, "__call__")
    original = getattr(owner, name)

    def to_host(argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            return host_alias(argument.detach()) if argument.device.type == backend.device_type else argument
        if isinstance(argument, tuple):
            items = [to_host(item) for item in argument]
            return type(argument)(*items) if hasattr(argument, "_fields") else type(argument)(items)
        if isinstance(getattr(argument, "base", None), torch.Tensor):  # a tensor descriptor, or one of another dtype
            argument = copy.copy(argument)
            argument.base = to_host(argument.base)
        return argument

    def launch(self: Any, *args: Any, **options: Any) -> Any:
        if torch.cuda.is_current_stream_capturing():
            raise MissingOnBackendError(
                f"The Triton kernel {self.fn.__name__} cannot be captured in a CUDA graph on {backend.name} "
                f"({backend.title}), where it runs in Triton's interpreter. Launch it outside the graph."
            )
        host = {name: to_host(value) for name, value in options.items()}
        return original(self, *map(to_host, args), **host)

    untraced.assign(owner, name, launch)
    _float_arguments(patches, module)
    _loop_variables(patches, module)
    _loop_bounds(patches, module)
    if hasattr(module.GridExecutor, "_restore_args_dev"):
        patches.assign(module.GridExecutor, "_restore_args_dev", lambda *_: None, "there was no copy to bring back")


def _float_arguments(patches: Patches, module: ModuleType) -> None:
    """A float is a float32 scalar to a compiled kernel, with a scalar's methods; the interpreter leaves it as it is."""
    original = getattr(module, "_implicit_cvt", None)
    if original is None:
        return

    def _implicit_cvt(argument: Any) -> Any:
        if not isinstance(argument, float):
            return original(argument)
        import numpy
        from triton.language import core

        handle = module.TensorHandle(numpy.array([argument], dtype=numpy.float32), core.float32)
        return core.tensor(handle, core.float32)

    patches.assign(module, "_implicit_cvt", _implicit_cvt, "a kernel's scalars are scalars of Triton's")


def _loop_variables(patches: Patches, module: ModuleType) -> None:
    """The same for what a loop counts with, which is a Python number in the interpreter."""
    transformer = getattr(module, "ASTTransformer", None)
    if transformer is None or not hasattr(module, "_implicit_cvt"):
        return

    def scalars(numbers: Iterable[Any]) -> Iterator[Any]:
        return map(module._implicit_cvt, numbers)

    def visit_For(self: Any, node: ast.For) -> ast.For:  # noqa: N802 - the name is ast's
        self.generic_visit(node)
        call = node.iter
        if isinstance(call, ast.Call) and getattr(call.func, "id", getattr(call.func, "attr", "")) == "range":
            node.iter = ast.Call(func=ast.Name(id=_SCALARS, ctx=ast.Load()), args=[call], keywords=[])
        return node

    patches.assign(module, _SCALARS, scalars, "kernels find it among their global names")
    patches.assign(transformer, "visit_For", visit_For, "a loop's variable is a scalar of Triton's")


def _loop_bounds(patches: Patches, module: ModuleType) -> None:
    """And its bounds: Triton 3.6 takes a scalar, an array of one element, for a number, which NumPy 2.4 refuses."""
    original = getattr(module, "_patch_lang_tensor", None)
    if original is None:
        return

    def _patch_lang_tensor(tensor: Any, *scope: Any) -> None:
        original(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    patches.assign(module, "_patch_lang_tensor", _patch_lang_tensor, "a loaded scalar may bound a loop")


class Untraced:
    """Methods that torch.compile calls as they are: it would follow the interpreter into NumPy."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._assigned: list[tuple[type, str, Callable[..., Any]]] = []
        self._disable: Callable[..., Any] | None = None
        # from the start: dynamo imports triton, and is not ready then
        patches.on_undo(after_import("torch._dynamo", self._dynamo_is_there))

    def assign(self, owner: type, name: str, function: Callable[..., Any]) -> None:
        self._patches.assign(owner, name, self._disable(function) if self._disable else function, _WHY)
        self._assigned.append((owner, name, function))

    def _dynamo_is_there(self, dynamo: ModuleType) -> None:
        self._disable = dynamo.disable
        for owner, name, function in self._assigned:
            self._patches.assign(owner, name, dynamo.disable(function), "torch.compile calls it as it is")


def drive(patches: Patches, module: ModuleType) -> None:
    """For triton.runtime.driver: what programs ask about the device."""
    module.driver.set_active(Driver())
    patches.on_undo(lambda: module.driver.set_active(None))


class Driver:
    """In the place of Triton's driver for a GPU: says what torch.cuda says, and can load no compiled kernel."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(get_device_properties=_properties)
        self.get_device_capability = torch.cuda.get_device_capability
        self.get_current_device = torch.cuda.current_device
        self.set_current_device = torch.cuda.set_device

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_stream(self, device: Any = None) -> int:
        return int(torch.cuda.current_stream(device).cuda_stream)

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        major, minor = torch.cuda.get_device_capability()
        return GPUTarget("cuda", 10 * major + minor, torch.cuda.get_device_properties().warp_size)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    def get_device_interface(self) -> ModuleType:
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        """For autotuning, which takes the first configuration: the interpreter's time says nothing about a GPU's."""

        def benchmark(_kernel: Any, quantiles: Any = None, **_: Any) -> Any:
            return [0.0] * len(quantiles) if quantiles else 0.0

        return benchmark

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.int, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()


def _properties(device: int) -> dict[str, int]:
    said: Any = torch.cuda.get_device_properties(device)
    return {
        "max_shared_mem": said.shared_memory_per_block_optin,
        "max_num_regs": said.regs_per_multiprocessor,
        "multiprocessor_count": said.multi_processor_count,
        "warpSize": said.warp_size,
        "sm_clock_rate": said.clock_rate,
        "mem_clock_rate": said.memory_clock_rate,
        "mem_bus_width": said.memory_bus_width,
    }


def convert(patches: Patches, untraced: Untraced) -> None:
    """For a triton imported before ditorch: what was made to be compiled is interpreted all the same."""
    from triton.runtime import interpreter, jit

    def interpreted(kernel: Any) -> Any:
        known = vars(kernel)  # and no dictionary of kernels: their hash is that of all they refer to
        if "_interpreted" not in known:
            known["_interpreted"] = interpreter.InterpretedFunction(kernel.fn)
        return known["_interpreted"]

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return interpreted(self).run(*args, grid=grid, warmup=warmup, **options)

    def call(self: Any, *args: Any, **options: Any) -> Any:
        return interpreted(self)(*args, **options)

    untraced.assign(jit.JITFunction, "run", run)
    patches.assign(jit.JITFunction, "__call__", call, _WHY)
