"""Biren GPUs, by torch_supa (formerly torch_br)."""

from __future__ import annotations

from ditorch.backend import Backend

BIREN = Backend(
    name="biren",
    title="Biren SUPA",
    device_type="supa",
    modules=("torch_supa", "torch_br"),
    collectives="bccl",
    visible_devices="SUPA_VISIBLE_DEVICES",
    commands=("brsmi",),
    lacks_dtypes=("float64",),
    # Where PyTorch loads torch_supa by itself (2.5 and newer), it loads the first of these, too.
    migrations=("torch_supa.contrib.transfer_to_supa", "torch_br.contrib.transfer_to_supa"),
)
