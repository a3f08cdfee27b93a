"""CUDA graphs: the device's own, which vendors name after it (NPUGraph, MUSAGraph, MLUGraph, XPUGraph, …)."""

from __future__ import annotations

import inspect
from typing import Any, Callable

import torch

from ditorch.redirect.cuda.refusal import error
from ditorch.redirect.cuda.target import Target, constant_for_compile
from ditorch.redirect.cuda.tools import forward
from ditorch.redirect.patch import Patches


def own_graph(target: Target) -> Any:
    """The device's class of graphs, or None."""
    return target.own("CUDAGraph") or target.own(f"{target.type.upper()}Graph")


def names(target: Target) -> dict[str, Any]:
    """What the names of CUDA graphs become; nothing where the device has none: they are refused then."""
    own = own_graph(target)
    if own is None:
        return {}
    made: dict[str, Any] = {"CUDAGraph": _graph_class(target, own)}
    if target.own("graph"):
        made["graph"] = _capture_class(target.own("graph"))
    for name in ("graph_pool_handle", "is_current_stream_capturing"):
        if target.own(name):
            made[name] = forward(target.own(name))
    if "is_current_stream_capturing" in made:
        constant_for_compile(made["is_current_stream_capturing"])
    # PyTorch's own is made of the names above
    made["make_graphed_callables"] = forward(target.own("make_graphed_callables")) or torch.cuda.make_graphed_callables
    return made


def _graph_class(target: Target, own: Any) -> type:
    if _takes(own, "keep_graph"):
        return type("CUDAGraph", (own,), {"__module__": __name__, "__doc__": own.__doc__})

    class CUDAGraph(own):  # type: ignore[misc]
        def __new__(cls, keep_graph: bool = False) -> Any:
            if keep_graph:
                raise error(target, "CUDAGraph(keep_graph=True)", "graphs that can be changed after their capture")
            return super().__new__(cls)

        def __init__(self, keep_graph: bool = False) -> None:
            super().__init__()

    return CUDAGraph


def _capture_class(own: Any) -> type:
    class graph(own):  # type: ignore[misc]
        def __init__(
            self,
            cuda_graph: Any,
            pool: Any = None,
            stream: Any = None,
            capture_error_mode: str = "global",
            **others: Any,
        ) -> None:
            wanted = {"pool": pool, "stream": stream, **others}  # those that say nothing, not every device knows
            if capture_error_mode != "global":
                wanted["capture_error_mode"] = capture_error_mode
            super().__init__(cuda_graph, **{name: value for name, value in wanted.items() if value})

    return graph


def _takes(own: Any, name: str) -> bool:
    try:
        return name in inspect.signature(own).parameters
    except ValueError:  # a class of C++ that does not tell
        return False


def patch_users(patches: Patches, target: Target) -> None:
    """What in PyTorch uses graphs, and asks CUDA and XPU only."""
    if own_graph(target) is None:
        return
    if target.backend.name == "sim" and hasattr(getattr(torch, "accelerator", None), "empty_host_cache"):
        why = "torch.accelerator.Graph empties a cache of pinned memory, which ends the process where there is none"
        patches.assign(torch.accelerator, "empty_host_cache", _nothing_to_empty, why)
    # one that keeps its step count on the host must not be captured
    optimizer = torch.optim.Optimizer
    for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
        if name in vars(optimizer):
            patches.assign(optimizer, name, _health_check(), "a capture on the device counts as one on CUDA")


def _nothing_to_empty() -> None:
    """Pinned memory is not cached."""


def _health_check() -> Callable[[Any], None]:
    def check(self: Any) -> None:
        if torch.compiler.is_compiling() or all(group.get("capturable", False) for group in self.param_groups):
            return
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"Attempting CUDA graph capture of step() for an instance of {type(self).__name__} but param_groups' "
                "capturable is False."
            )

    return check
