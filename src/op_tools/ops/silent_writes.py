"""Arguments that an op writes into without counting up their versions: autograd and who looks at versions miss it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from op_tools.ops.names import normalized

REGISTERED = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
# They write into these arguments without counting that up, and no schema says so; all but the last only where the
# argument at position 5 (training, or the momentum) is set. By full name, or by OpName.form.
SILENT_WRITES: dict[str, tuple[tuple[int, str], ...]] = {
    **dict.fromkeys(
        (
            "batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_impl_index", "cudnn_batch_norm",
            "miopen_batch_norm", "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts",
        ),
        ((3, "running_mean"), (4, "running_var")),
    ),
    "torch.nn.functional.batch_norm": ((1, "running_mean"), (2, "running_var")),
    "batch_norm_update_stats": ((1, "running_mean"), (2, "running_var")),
}  # fmt: skip
_BY_NAME_ONLY = 1_000_000  # the position of an argument that cannot be given by position


@lru_cache(maxsize=10_000)
def may_write_silently(name: str, is_registered: bool) -> bool:
    """Whether an op writes into arguments without counting up their versions, at least at times.

    `is_registered`: its function is one of REGISTERED, whose schemas say more.
    """
    form = normalized(name).form
    return name in SILENT_WRITES or form in SILENT_WRITES or is_registered or form.startswith(("_fused_", "_amp_"))


def silently_written(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an op may write into without counting up their versions."""
    is_registered = isinstance(func, REGISTERED)
    places, only_in_training = silent_places(name, func if is_registered else None)
    if not places or (only_in_training and not (args[5] if len(args) > 5 else kwargs.get("training", False))):
        return []
    return [
        kwargs[key] if key in kwargs else args[position]
        for position, key in places
        if key in kwargs or position < len(args)
    ]


@lru_cache(maxsize=10_000)
def silent_places(name: str, registered: Any) -> tuple[tuple[tuple[int, str], ...], bool]:
    """Where the arguments are that an op with this name writes into silently, and whether in training only."""
    places = SILENT_WRITES.get(name) or SILENT_WRITES.get(normalized(name).form)
    if places is not None:
        return places, "update_stats" not in name
    return _written_places(normalized(name).form if registered is None else registered), False


@lru_cache(maxsize=4096)
def _written_places(op: Any) -> tuple[tuple[int, str], ...]:
    """Positions and names of what an op writes into, as its schemas have them."""
    if isinstance(op, torch._ops.OpOverload):
        schemas = [op._schema]
    elif isinstance(op, torch._ops.OpOverloadPacket):
        schemas = [getattr(op, overload)._schema for overload in op.overloads()]
    elif op.startswith("_"):  # _foreach_, fused optimizers, GradScaler's kernels
        schemas = torch._C._jit_get_schemas_for_operator(f"aten::{op}")
    else:
        return ()  # torch's public ops count
    return tuple(
        {
            (_BY_NAME_ONLY if argument.kwarg_only else position, argument.name)
            for schema in schemas
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        }
    )
