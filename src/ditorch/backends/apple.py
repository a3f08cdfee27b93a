"""Apple GPUs, a part of PyTorch."""

from __future__ import annotations

import torch

from ditorch.backend import Backend


class AppleBackend(Backend):
    def has_devices(self) -> bool:
        return torch.backends.mps.is_available()  # torch.mps has no is_available() in older releases

    def why_no_devices(self) -> str:
        built = torch.backends.mps.is_built()
        return "torch.backends.mps.is_available() is False" if built else "this PyTorch is built without mps"


APPLE = AppleBackend(
    name="apple",
    title="Apple GPU",
    device_type="mps",
    lacks_dtypes=("float64",),
    quirks=("one device, without collectives",),
)
