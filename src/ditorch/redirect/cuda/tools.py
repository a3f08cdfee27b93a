"""What needs a library of NVIDIA's, and what is a constant elsewhere."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

from ditorch.redirect.cuda.refusal import refused
from ditorch.redirect.cuda.target import Target

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
