"""The simulated accelerator, for machines that have none."""

from __future__ import annotations

import os

from ditorch import sim
from ditorch.backend import Backend


class SimulatedBackend(Backend):
    def unavailable(self) -> str | None:
        return None  # what can go wrong is said by start(), in full

    def start(self) -> None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible:  # as many devices as the program was given
            os.environ.setdefault("DITORCH_SIM_DEVICES", str(len(visible.split(","))))
        sim.start()


SIM = SimulatedBackend(name="sim", title="simulated accelerator", device_type="sim", collectives="simccl")
