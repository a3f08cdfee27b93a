"""DIPU, DeepLink's layer over several chips, by torch_dipu. It shows its devices as cuda and rewrites torch itself."""

from __future__ import annotations

import os

from ditorch.backend import Backend


class DIPUBackend(Backend):
    def unavailable(self) -> str | None:
        # Its devices then have a name that depends on its release, and torch.cuda is not theirs.
        if os.environ.get("DIPU_MOCK_CUDA", "").lower() == "false":
            return "DIPU_MOCK_CUDA=False takes away the cuda names that ditorch uses"
        return super().unavailable()


DIPU = DIPUBackend(
    name="dipu",
    title="DeepLink DIPU",
    device_type="cuda",
    modules=("torch_dipu",),
    collectives="dicl",
    quirks=("torch_dipu.vendor_type names the chip below",),
)
