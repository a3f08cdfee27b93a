"""Collectives that add up 16-bit tensors in float32 and round once, where DITORCH_FLOAT32_COLLECTIVES names them.

It tells whether a loss goes wrong in the accelerator's own sums of float16 or bfloat16, and works around it. It costs
twice the traffic and a copy. It reaches what is called as torch.distributed.all_reduce and so on, by programs and FSDP;
DistributedDataParallel and DTensor call C++ instead.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Collection
from typing import Any, Callable

import torch

from ditorch.redirect.patch import Patches
from ditorch.redirect.reductions import ARGUMENTS, is_put_off, receives
from ditorch.redirect.works import finished

_NARROW = (torch.float16, torch.bfloat16)


def applied(collectives: Collection[str]) -> Patches:
    """Widens the reductions with these names; `reduce_scatter` means all of its forms."""
    patches = Patches()
    if not torch.distributed.is_available():
        return patches
    from torch.distributed import distributed_c10d

    for name, (source, result) in ARGUMENTS.items():
        family = "reduce_scatter" if name.startswith("reduce_scatter") else name
        if family in collectives and hasattr(distributed_c10d, name):
            wrapper = _widened(getattr(distributed_c10d, name), source, result)
            for owner in (torch.distributed, distributed_c10d):
                patches.assign(owner, name, wrapper, "DITORCH_FLOAT32_COLLECTIVES asks for it")
    if "all_reduce" in collectives:
        _tell_of_data_parallel(patches)
    return patches


def _widened(original: Callable[..., Any], source: str, result: str) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        arguments = given.arguments
        target = arguments[result]
        if not _is_narrow(target) or not _rounds(arguments["op"]):
            return original(*args, **kwargs)
        if is_put_off(arguments["group"]):
            warnings.warn(
                f"{original.__name__} inside a _coalescing_manager stays in {target.dtype}: "
                "DITORCH_FLOAT32_COLLECTIVES cannot widen what runs later",
                stacklevel=2,
            )
            return original(*args, **kwargs)
        arguments[source] = wide = _wide(arguments[source])
        if source != result:
            arguments[result] = wide = torch.empty_like(target, dtype=torch.float32)
        is_receiver = receives(arguments, arguments["group"])

        def round_once() -> None:
            if is_receiver:
                target.copy_(wide)

        return finished(original(*given.args, **given.kwargs), round_once, target)

    return collective


def _is_narrow(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.dtype in _NARROW


def _rounds(operation: Any) -> bool:
    """Whether the dtype matters: the largest of some values is one of them."""
    operations = torch.distributed.ReduceOp
    return any(operation == one for one in (operations.SUM, operations.AVG, operations.PRODUCT, operations.PREMUL_SUM))


def _wide(tensors: Any) -> Any:
    return [tensor.float() for tensor in tensors] if isinstance(tensors, (list, tuple)) else tensors.float()


def _tell_of_data_parallel(patches: Patches) -> None:
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if any(_is_narrow(parameter) for parameter in self.parameters()):
            warnings.warn(
                "DITORCH_FLOAT32_COLLECTIVES does not reach the gradients of DistributedDataParallel, which are "
                "reduced in C++: give it a hook that widens them (model.register_comm_hook), or use FSDP",
                stacklevel=2,
            )

    patches.assign(DistributedDataParallel, "__init__", init, "its gradients are not reduced in float32: said once")
