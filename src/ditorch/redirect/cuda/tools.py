"""What needs a library of NVIDIA's, and what is a constant elsewhere."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

import torch

from ditorch.redirect.cuda.refusal import refused
from ditorch.redirect.cuda.target import Target
from ditorch.redirect.patch import Patches

# What is refused in a submodule, and what it would need.
_NEEDS = {
    "gds": "NVIDIA's GPUDirect Storage",
    "jiterator": "NVIDIA's run-time compiler",
    "nccl": "NCCL; use torch.distributed",
    "tunable": "CUDA's tunable operators",
}


def nccl() -> dict[str, Any]:
    def is_available(tensors: Any) -> bool:
        return False

    def version() -> tuple[int, int, int]:
        return (2, 10, 0)  # the first that reduces bfloat16, which is what programs ask for

    return {"is_available": is_available, "version": version}


def tunable() -> dict[str, Any]:
    names = ("is_enabled", "tuning_is_enabled", "record_untuned_is_enabled")
    return {name: _constant(False) for name in names}


def jiterator(target: Target) -> dict[str, Any]:
    """Kernels can be made, as PyTorch's list of operators (op_db) does at import; calling one is refused."""
    kernel = refused(target, "jiterator", None, _NEEDS["jiterator"])

    def create(code_string: str, *_: Any, **__: Any) -> Any:
        return forward(kernel)

    return {name: forward(create) for name in ("_create_jit_fn", "_create_multi_output_jit_fn")}


def patch_preferences(patches: Patches) -> None:
    """torch.backends.cuda.preferred_linalg_library("magma") and its kin: CUDA takes others where one cannot do it."""
    for kind in ("linalg", "blas"):
        setter, getter = f"_set_{kind}_preferred_backend", f"_get_{kind}_preferred_backend"
        if hasattr(torch._C, setter) and hasattr(torch._C, getter):
            choose, chosen = _preference(getattr(torch._C, setter), getattr(torch._C, getter))
            patches.assign(torch._C, setter, choose, "a preference for a library that is not there does no harm")
            patches.assign(torch._C, getter, chosen, "a preference is told as it was given")


def _preference(choose_own: Callable[[Any], None], own: Callable[[], Any]) -> tuple[Any, Any]:
    missing: list[Any] = []  # what was chosen last, if torch was built without it

    def choose(library: Any) -> None:
        missing.clear()
        try:
            choose_own(library)
        except RuntimeError:
            missing.append(library)

    def chosen() -> Any:
        return missing[0] if missing else own()

    return choose, chosen


def patch_cudnn(patches: Patches) -> None:
    """torch.backends.cudnn.is_acceptable, which warns in a build without CUDA and says yes in one with it."""
    cudnn: Any = torch.backends.cudnn
    patches.assign(cudnn.m, "CUDNN_TENSOR_DTYPES", frozenset(), "cuDNN takes no tensor of another device")


def refusals(target: Target, name: str, module: ModuleType) -> dict[str, Any]:
    """Everything that a submodule defines, refused."""
    if name not in _NEEDS:
        return {}
    return {
        inner: refused(target, f"{name}.{inner}", value, _NEEDS[name])
        for inner, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__ and not inner.startswith("__")
    }


def constants(target: Target) -> dict[str, Any]:
    """What is constant in torch.cuda itself, unless the device's module knows better."""
    values = {
        "get_arch_list": [],
        "get_gencode_flags": "",
        "get_sync_debug_mode": 0,
        "set_sync_debug_mode": None,
        "is_current_stream_capturing": False,
    }
    functions = {name: forward(target.own(name)) or _constant(value) for name, value in values.items()}
    return {**functions, "has_half": True, "has_magma": False}


def _constant(value: Any) -> Callable[..., Any]:
    def constant(*_: Any, **__: Any) -> Any:
        return list(value) if isinstance(value, list) else value

    return constant


def forward(own: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """The device's own function as an object of its own: PyTorch wants one object under one name."""
    if own is None:
        return None

    def forward(*args: Any, **options: Any) -> Any:
        return own(*args, **options)

    return forward


def errors() -> dict[str, Any]:
    class CudaError(RuntimeError):
        def __init__(self, code: int) -> None:
            super().__init__(f"error code {code}")

    def check_error(res: int) -> None:
        if res != 0:
            raise CudaError(res)

    return {"CudaError": CudaError, "check_error": check_error}
