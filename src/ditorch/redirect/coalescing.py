"""torch.distributed._coalescing_manager where the collectives cannot be sent off together: they run one by one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ditorch.redirect.patch import Patches


def apply(patches: Patches) -> None:
    from torch.distributed import distributed_c10d

    wrapper = _one_by_one(distributed_c10d._coalescing_manager)
    for owner in (torch.distributed, distributed_c10d):
        patches.assign(owner, "_coalescing_manager", wrapper, "only NCCL sends collectives off together")


def _one_by_one(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def manager(group: Any = None, device: Any = None, async_ops: bool = False) -> Any:
        if device is None or _can_coalesce(group, torch.device(device)):
            return original(group, device, async_ops)
        return _collecting(async_ops)

    return manager


def _can_coalesce(group: Any, device: torch.device) -> bool:
    group = group or torch.distributed.distributed_c10d._get_default_group()
    # Releases before 2.7 do not say; one by one is right everywhere.
    return bool(getattr(group._get_backend(device), "supports_coalescing", False))


@contextlib.contextmanager
def _collecting(async_ops: bool) -> Iterator[Any]:
    """What is started inside is done when the block ends, or when what the block is bound to has been waited for."""
    together = torch.distributed.distributed_c10d._CoalescingManager()
    with _Collector() as collector:
        yield together
    for work in collector.works:
        together.append(work)
    if not async_ops:
        together.wait()


class _Collector(TorchDispatchMode):
    """Keeps the work of every collective: inside the manager, programs throw it away."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.works: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function.namespace == "c10d":
            self.works.extend(_works(result))
        return result


def _works(result: Any) -> Iterator[Any]:
    unbox = torch.distributed.Work.unbox
    for item in result if isinstance(result, (tuple, list)) else [result]:
        if isinstance(item, torch.ScriptObject):
            yield unbox(item)
