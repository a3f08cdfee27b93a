"""Enflame GCUs, by torch_gcu."""

from __future__ import annotations

from ditorch.backend import Backend

ENFLAME = Backend(
    name="enflame",
    title="Enflame GCU",
    device_type="gcu",
    modules=("torch_gcu",),
    collectives="eccl",
    visible_devices="TOPS_VISIBLE_DEVICES",
    commands=("efsmi",),
    lacks_dtypes=("float64",),
    migrations=("torch_gcu.transfer_to_gcu",),
    quirks=("int64 is emulated",),
)
