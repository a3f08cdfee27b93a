"""A backend of another package. A real chip needs no class: its facts and `modules=("torch_toy",)` are enough."""

from __future__ import annotations

from ditorch import sim
from ditorch.backend import Backend


class ToyBackend(Backend):
    def unavailable(self) -> str | None:
        return None  # the simulated accelerator is always there

    def start(self) -> None:
        sim.start("toy", collectives="toyccl")


TOY = ToyBackend(name="toy", title="toy accelerator", device_type="toy", collectives="toyccl")
