"""Tecorigin SDAA, by torch_sdaa."""

from __future__ import annotations

from ditorch.backend import Backend

TECORIGIN = Backend(
    name="tecorigin",
    title="Tecorigin SDAA",
    device_type="sdaa",
    modules=("torch_sdaa",),
    collectives="tccl",
    visible_devices="SDAA_VISIBLE_DEVICES",
    commands=("teco-smi",),
    migrations=("torch_sdaa.utils.cuda_migrate",),
    migration_switch="TORCH_SDAA_AUTOLOAD=cuda_migrate",
    quirks=("convolutions compute in float16 unless told otherwise",),
)
