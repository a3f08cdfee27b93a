"""What a file of statistics says once of a place in the program: the op, its line, and its tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from op_tools.capture.outside import Given
from op_tools.capture.placements import local, placed
from op_tools.core.call import OpCall
from op_tools.device.staging import staged_as
from op_tools.values import trees


def description(
    call: OpCall | Given, part: str, args: tuple[Any, ...], kwargs: dict[str, Any], in_backward: bool
) -> dict[str, Any]:
    if part == "gradients":
        inputs, outputs = args
        tensors = _described("grad_inputs", trees.arguments(tuple(inputs), {}))
        tensors += _described("grad_outputs", trees.arguments(tuple(outputs), {}))
    else:
        tensors = _described(part, trees.results(args[0]) if part == "output" else trees.arguments(args, kwargs))
    described = {"op": call.name, "source": call.where.line(), "module": call.where.module, "tensors": tensors}
    return {**described, "recomputed": True} if in_backward else described


def _described(part: str, places: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    tensors = [(place, value) for place, value in places if isinstance(value, Tensor)]
    return [_tensor_described(part, place.strip(), tensor) for place, tensor in tensors]


def _tensor_described(part: str, place: str, tensor: Tensor) -> dict[str, Any]:
    own = local(tensor)
    described = {
        "part": part,
        "place": place,
        "shape": list(own.shape),
        "dtype": str(own.dtype).partition(".")[2],
        "device": str(own.device),
        "requires_grad": tensor.requires_grad,
        **placed(tensor),
    }
    if staged_as(own) is None:
        described["note"] = f"there are no statistics of {tensor.layout} tensors of {tensor.dtype}"
    return described
