"""Checkpoints: those saved on CUDA load here, and those saved here load on CUDA and on a plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import serialization

from ditorch.backend import Backend
from ditorch.redirect.names import translated
from ditorch.redirect.patch import Patches

_PRIORITY = 5  # asked before torch's own, which begin at 10


def apply(patches: Patches, backend: Backend) -> None:
    device_type = backend.device_type

    def tag(storage: Any) -> str | None:
        """Where a storage says it lived: on CUDA, which every torch can read."""
        device: torch.device = storage.device
        if device_type == "cpu" or device.type != device_type:
            return None
        return "cuda" if device.index is None else f"cuda:{device.index}"

    def restore(storage: Any, location: str) -> Any:
        where = translated(location, device_type)
        return None if where == location else serialization.default_restore_location(storage, where)

    before = list(serialization._package_registry)
    serialization.register_package(_PRIORITY, tag, restore)
    added = next(entry for entry in serialization._package_registry if entry not in before)
    patches.on_undo(lambda: serialization._package_registry.remove(added))
