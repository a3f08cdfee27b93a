"""Intel Gaudi, by habana_frameworks.torch."""

from __future__ import annotations

from ditorch.backend import Backend

HABANA = Backend(
    name="habana",
    title="Intel Gaudi",
    device_type="hpu",
    modules=("habana_frameworks.torch",),
    collectives="hccl",  # the same word as Ascend's, another library
    visible_devices="HABANA_VISIBLE_MODULES",
    commands=("hl-smi",),
    migrations=("habana_frameworks.torch.gpu_migration",),
    migration_switch="PT_HPU_GPU_MIGRATION=1",
    quirks=("in lazy mode (PT_HPU_LAZY_MODE=1) an error shows up later than the op that made it",),
)
