"""Moore Threads GPUs, by torch_musa."""

from __future__ import annotations

from ditorch.backend import Backend

MTHREADS = Backend(
    name="mthreads",
    title="Moore Threads MUSA",
    device_type="musa",
    modules=("torch_musa",),
    collectives="mccl",
    visible_devices="MUSA_VISIBLE_DEVICES",
    commands=("mthreads-gmi",),
    migrations=("torchada",),  # the vendor's, in a package of its own
    quirks=("loading a checkpoint saved on cuda raises unless map_location is given",),
)
