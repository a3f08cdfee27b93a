"""torch.cuda.comm: tensors to and from several devices, by copying. Complex numbers come out as pairs, as in torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._utils import _handle_complex as with_pairs

from ditorch.redirect.cuda.target import Target


def names(target: Target) -> dict[str, Any]:
    def devices_of(devices: Iterable[Any] | None) -> list[torch.device]:
        return [target.device(device) for device in (range(target.count()) if devices is None else devices)]

    def place(destination: Any) -> torch.device:
        if destination == -1 or str(destination) == "cpu":  # how gather asks for the host
            return torch.device("cpu")
        return target.device(destination)

    def broadcast(
        tensor: torch.Tensor, devices: Iterable[Any] | None = None, *, out: Sequence[torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, ...]:
        tensor = with_pairs(tensor)
        if out is not None:
            return tuple(copy.copy_(tensor) for copy in out)
        return tuple(tensor.to(device) for device in devices_of(devices))

    def broadcast_coalesced(
        tensors: Sequence[torch.Tensor], devices: Iterable[Any], buffer_size: int = 10485760
    ) -> list[list[torch.Tensor]]:
        return [[with_pairs(tensor).to(device) for tensor in tensors] for device in devices_of(devices)]

    def reduce_add(inputs: Sequence[torch.Tensor], destination: Any = None) -> torch.Tensor:
        device = target.device(destination)
        total = inputs[0].to(device, copy=True)
        for tensor in inputs[1:]:
            total += tensor.to(device)
        return total

    def reduce_add_coalesced(
        inputs: Iterable[Iterable[torch.Tensor]], destination: Any = None, buffer_size: int = 10485760
    ) -> tuple[torch.Tensor, ...]:
        return tuple(reduce_add(tensors, destination) for tensors in zip(*inputs))

    def scatter(
        tensor: torch.Tensor,
        devices: Iterable[Any] | None = None,
        chunk_sizes: Sequence[int] | None = None,
        dim: int = 0,
        streams: Any = None,
        *,
        out: Sequence[torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        tensor = with_pairs(tensor)
        if out is not None:
            pieces = tensor.split([piece.size(dim) for piece in out], dim)
            return tuple(place.copy_(piece) for place, piece in zip(out, pieces))
        to = devices_of(devices)
        chunks = tensor.chunk(len(to), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)
        return tuple(chunk.to(device) for chunk, device in zip(chunks, to))

    def gather(
        tensors: Iterable[torch.Tensor], dim: int = 0, destination: Any = None, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        device = place(destination) if out is None else out.device
        return torch.cat([with_pairs(tensor).to(device) for tensor in tensors], dim, out=out)

    return {
        "broadcast": broadcast,
        "broadcast_coalesced": broadcast_coalesced,
        "reduce_add": reduce_add,
        "reduce_add_coalesced": reduce_add_coalesced,
        "scatter": scatter,
        "gather": gather,
    }
