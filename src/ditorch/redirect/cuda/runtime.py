"""torch.cuda.cudart(): the functions of the CUDA runtime that programs call, as far as they can do no harm."""

from __future__ import annotations

import enum
from typing import Any, Callable

from ditorch.redirect.cuda.refusal import refused
from ditorch.redirect.cuda.target import Target


class Outcome(enum.IntEnum):
    success = 0


class Runtime:
    """In the place of the CUDA runtime: marks for its profiler go nowhere, and memory is pinned as it is anyway."""

    cudaError = Outcome  # noqa: N815 - the names here are CUDA's

    def __init__(self, target: Target, memory_info: Callable[[Any], tuple[int, int]]) -> None:
        self._target = target
        self._memory_info = memory_info

    def cudaProfilerStart(self) -> Outcome:  # noqa: N802
        return Outcome.success

    def cudaProfilerStop(self) -> Outcome:  # noqa: N802
        return Outcome.success

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> Outcome:  # noqa: N802
        return Outcome.success

    def cudaHostUnregister(self, pointer: int) -> Outcome:  # noqa: N802
        return Outcome.success

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:  # noqa: N802
        return self._memory_info(device)

    def cudaGetErrorString(self, error: int) -> str:  # noqa: N802
        return "no error" if error == Outcome.success else f"error code {int(error)}"

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cuda"):
            raise AttributeError(f"torch.cuda.cudart() has no attribute {name!r}")
        return refused(self._target, f"cudart().{name}", None, "the CUDA runtime library")


def names(target: Target, memory_info: Callable[[Any], tuple[int, int]]) -> dict[str, Any]:
    runtime = Runtime(target, memory_info)
    own = target.own("cudart")

    def cudart() -> Any:
        return own() if own else runtime

    return {"cudart": cudart}
