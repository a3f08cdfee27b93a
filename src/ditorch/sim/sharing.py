"""The device's memory and events in several processes: device memory is host memory, and that can be shared."""

from __future__ import annotations

import struct
from typing import Any

import torch

_HANDLE_BYTES = 64  # as many as CUDA's


def share_storage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """The host's storage behind a device's, to be moved into shared memory; `follow_storage` has to be called then."""
    return host_alias(_bytes_of(storage)).untyped_storage()


def follow_storage(storage: torch.UntypedStorage) -> bool:
    """Tells the device's storage that its memory has moved. False: the memory is not the device's own, and has not."""
    return bool(torch.ops.ditorch_sim.follow_host(_bytes_of(storage)))


def adopt_storage(host: torch.UntypedStorage, index: int) -> torch.UntypedStorage:
    """A device's storage on the host's memory, without a copy."""
    return torch.ops.ditorch_sim.adopt_host(_bytes_of(host), index).untyped_storage()  # type: ignore[no-any-return]


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def host_alias(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor on the memory of a device tensor."""
    return torch.ops.ditorch_sim.host_alias(tensor)  # type: ignore[no-any-return]


def event_handle(event: Any) -> bytes:
    """What another process needs to wait for an event: its time on the clock, which all processes read alike."""
    if not event.event_id:
        event.record()  # as on CUDA, an event that was never recorded is nothing to wait for
    time = torch.ops.ditorch_sim.event_time(event.event_id)
    return struct.pack("<q", time).ljust(_HANDLE_BYTES, b"\0")


def event_from_handle(event: torch.Event, handle: bytes) -> torch.Event:
    """Makes a new event the one that another process recorded."""
    event.record()
    torch.ops.ditorch_sim.set_event_time(event.event_id, *struct.unpack_from("<q", handle))
    return event
