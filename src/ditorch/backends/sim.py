"""The simulated accelerator, for machines that have none."""

from __future__ import annotations

import torch

from ditorch import sim
from ditorch.backend import Backend
from ditorch.settings import SIM_TRITON


class SimulatedBackend(Backend):
    def unavailable(self) -> str | None:
        return None  # what can go wrong is said by start(), in full

    def start(self) -> None:
        sim.start()
        torch.ops.ditorch_sim.obey_cuda_visible_devices(True)

    def interprets_triton(self) -> bool:
        return SIM_TRITON.get() == "interpret"


SIM = SimulatedBackend(name="sim", title="simulated accelerator", device_type="sim", collectives="simccl")
