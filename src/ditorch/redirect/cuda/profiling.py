"""Marks for NVIDIA's profilers go nowhere, and PyTorch's own profiler does not look for CUDA's events."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ditorch.redirect.cuda.target import Target
from ditorch.redirect.patch import Patches


def nvtx() -> dict[str, Any]:
    def range_push(msg: str) -> int:
        return 0

    def range_pop() -> int:
        return 0

    def range_start(msg: str) -> int:
        return 0

    def range_end(range_id: int) -> None:
        pass

    def _device_range_start(msg: str, stream: int = 0) -> object:
        return 0

    def _device_range_end(range_handle: object, stream: int = 0) -> None:
        pass

    def mark(msg: str) -> None:
        pass

    @contextlib.contextmanager
    def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        yield

    return {
        "range_push": range_push,
        "range_pop": range_pop,
        "range_start": range_start,
        "range_end": range_end,
        "_device_range_start": _device_range_start,
        "_device_range_end": _device_range_end,
        "mark": mark,
        "range": range,
    }


def profiler() -> dict[str, Any]:
    def init(output_file: str, flags: Any = None, output_mode: str = "key_value") -> None:
        pass

    def start() -> None:
        pass

    def stop() -> None:
        pass

    @contextlib.contextmanager
    def profile() -> Iterator[None]:
        yield

    return {"init": init, "start": start, "stop": stop, "profile": profile}


def patch_profiler(patches: Patches, target: Target) -> None:
    """torch.profiler with ProfilerActivity.CUDA sees the device if it can be seen, and the host's work always.

    It believes torch.cuda.is_available(), and would complain at every op that CUDA's events are missing.
    """
    profile: Any = torch.autograd.profiler.profile
    emit_nvtx: Any = torch.autograd.profiler.emit_nvtx
    profile_init, emit_init = profile.__init__, emit_nvtx.__init__

    def init(self: Any, enabled: bool = True, **options: Any) -> None:
        if options.pop("use_cuda", False) or options.get("use_device") == "cuda":
            options["use_device"] = _profiled_device(target)
        profile_init(self, enabled, **options)

    def without_nvtx(self: Any, enabled: bool = True, record_shapes: bool = False) -> None:
        emit_init(self, False, record_shapes)

    patches.assign(profile, "__init__", init, "CUDA's events are not there to be recorded")
    patches.assign(emit_nvtx, "__init__", without_nvtx, "there is no NVTX to emit to")


def _profiled_device(target: Target) -> str | None:
    """The name under which PyTorch's profiler records the device's events, or None if it cannot."""
    activity = "XPU" if target.type == "xpu" else "PrivateUse1"
    autograd: Any = torch.autograd
    recorded = {kind.name for kind in autograd._supported_activities()}
    return target.type if activity in recorded and not target.is_host else None
