"""Reductions that the accelerator's collectives lack are made of sums: ReduceOp.AVG, and NCCL's own PREMUL_SUM."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, Callable

import torch

from ditorch.backend import Backend
from ditorch.redirect.patch import Patches
from ditorch.redirect.works import finished

# The arguments of each collective that hold what is reduced, and that receive the result.
ARGUMENTS = {
    "all_reduce": ("tensor", "tensor"),
    "reduce": ("tensor", "tensor"),
    "reduce_scatter_tensor": ("input", "output"),
    "reduce_scatter_single": ("input", "output"),  # its new name
    "reduce_scatter": ("input_list", "output"),
}


def apply(patches: Patches, backend: Backend) -> None:
    from torch.distributed import distributed_c10d

    averages = "AVG" not in backend.lacks_reductions
    for name, (source, result) in ARGUMENTS.items():
        if not hasattr(distributed_c10d, name):
            continue
        original = getattr(distributed_c10d, name)
        if name == "reduce_scatter":
            original = _of_whole_sums(original)
        wrapper = _summing(original, source, result, averages)
        for owner in (torch.distributed, distributed_c10d):
            patches.assign(owner, name, wrapper, "the accelerator's collectives cannot do all that NCCL can")


def _summing(original: Callable[..., Any], source: str, result: str, averages: bool) -> Callable[..., Any]:
    signature = inspect.signature(original)
    operations = torch.distributed.ReduceOp

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        operation, group = given.arguments["op"], given.arguments["group"]
        is_average = operation == operations.AVG and not (averages and _has_fractions(given.arguments[result]))
        if not is_average and operation != operations.PREMUL_SUM:
            return original(*args, **kwargs)
        given.arguments["op"] = operations.SUM
        count = torch.distributed.get_world_size(group)
        if not receives(given.arguments, group):
            # what is given stays as it is
            factor = 1 if is_average else operation.__getstate__()[1]
            given.arguments[source] = _scaled(given.arguments[source], factor, in_place=False)
            return original(*given.args, **given.kwargs)
        if is_average and not is_put_off(group):
            work = original(*given.args, **given.kwargs)
            return finished(work, partial(_divide, given.arguments[result], count), given.arguments[result])
        factor = 1 / count if is_average else operation.__getstate__()[1]
        given.arguments[source] = _scaled(given.arguments[source], factor, in_place=source == result)
        return original(*given.args, **given.kwargs)

    return collective


def _of_whole_sums(reduce_scatter: Callable[..., Any]) -> Callable[..., Any]:
    """Where the collectives cannot scatter a list (Gloo in torch 2.4), each process takes its part of the sum."""
    signature = inspect.signature(reduce_scatter)

    @functools.wraps(reduce_scatter)
    def collective(*args: Any, **kwargs: Any) -> Any:
        try:
            return reduce_scatter(*args, **kwargs)
        except RuntimeError as error:
            if "does not support reduce_scatter" not in str(error):
                raise
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        parts, output, group = (given.arguments[name] for name in ("input_list", "output", "group"))
        whole = torch.cat([part.reshape(-1) for part in parts])
        own = whole.split([part.numel() for part in parts])[torch.distributed.get_rank(group)].view_as(output)
        work = torch.distributed.all_reduce(whole, given.arguments["op"], group, given.arguments["async_op"])
        return finished(work, partial(output.copy_, own), output)

    return collective


def receives(arguments: Mapping[str, Any], group: Any) -> bool:
    """Whether the result comes to this process; `reduce` brings it to one alone."""
    if "dst" not in arguments:
        return True
    here = torch.distributed.get_rank(group)
    if arguments.get("group_dst") is not None:  # torch 2.6 and newer
        return bool(here == arguments["group_dst"])
    root = 0 if arguments["dst"] is None else arguments["dst"]
    return bool(torch.distributed.get_rank() == root)


def _has_fractions(tensor: torch.Tensor) -> bool:
    """Whether the average is an average everywhere; of whole numbers, only NCCL makes one, which is whole, too."""
    return tensor.is_floating_point() or tensor.is_complex()


def _divide(tensor: torch.Tensor, count: int) -> None:
    tensor.div_(count, rounding_mode=None if _has_fractions(tensor) else "trunc")


def is_put_off(group: Any) -> bool:
    """Whether the collective runs later, at the end of a _coalescing_manager: there is no result to divide yet."""
    from torch.distributed import distributed_c10d

    return (group or distributed_c10d._get_default_group()) in distributed_c10d._world.pg_coalesce_state


def _scaled(tensors: Any, factor: Any, in_place: bool) -> Any:
    if isinstance(tensors, (list, tuple)):
        return [tensor * factor for tensor in tensors]
    return tensors.mul_(factor) if in_place else tensors * factor
