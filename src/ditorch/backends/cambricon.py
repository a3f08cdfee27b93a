"""Cambricon MLUs, by torch_mlu."""

from __future__ import annotations

from ditorch.backend import Backend

CAMBRICON = Backend(
    name="cambricon",
    title="Cambricon MLU",
    device_type="mlu",
    modules=("torch_mlu",),
    collectives="cncl",
    visible_devices="MLU_VISIBLE_DEVICES",
    commands=("cnmon",),
    lacks_reductions=("AVG",),  # "Cannot use ReduceOp.AVG with CNCL"
    migrations=("torch_mlu.utils.gpu_migration", "torch_mlu.utils.model_transfer"),  # the second is older
    quirks=("float64 is computed in float32",),
)
