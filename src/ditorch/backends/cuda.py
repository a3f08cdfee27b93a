"""Genuine CUDA, and what is compatible with it: nothing needs to be changed there."""

from __future__ import annotations

from ditorch.backend import Backend

CUDA = Backend(
    name="cuda",
    title="CUDA",
    device_type="cuda",
    collectives="nccl",
    visible_devices="CUDA_VISIBLE_DEVICES",
    command="nvidia-smi",
)
