"""DTensors: what this rank has of one, and where that begins in the whole."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, arrived; a plain tensor as it is."""
    own = getattr(tensor, "_local_tensor", tensor)
    wait = getattr(own, "trigger_wait", None)
    if wait is None:
        return own if isinstance(own, Tensor) else tensor
    arrived = wait()
    return arrived if isinstance(arrived, Tensor) else own.elem  # type: ignore[union-attr]


def placed(tensor: Tensor) -> dict[str, Any]:
    """The shape of the whole, where this rank's part begins, and how it lies on the mesh; nothing of other tensors."""
    if not hasattr(tensor, "_local_tensor") or not hasattr(tensor, "placements"):
        return {}
    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    whole = list(tensor.shape)
    return {"whole": whole, "start": _start(whole, mesh, placements), "placements": [str(one) for one in placements]}


def _start(whole: list[int], mesh: Any, placements: Any) -> list[int]:
    """Each Shard of the mesh's dimensions cuts what those before it have left, as torch.chunk does."""
    start, length = [0] * len(whole), list(whole)
    coordinate = mesh.get_coordinate() or [0] * mesh.ndim
    for at, placement in enumerate(placements):
        if placement.is_shard():
            dimension, count = placement.dim, mesh.size(at)
            chunk = -(-length[dimension] // count)
            begin = min(chunk * coordinate[at], length[dimension])
            start[dimension] += begin
            length[dimension] = min(chunk, length[dimension] - begin)
    return start
