"""Intel GPUs: part of PyTorch since 2.4, by intel_extension_for_pytorch before."""

from __future__ import annotations

import importlib
import importlib.util

import torch

from ditorch.backend import Backend


class IntelBackend(Backend):
    def start(self) -> None:
        extension = "intel_extension_for_pytorch"
        if not hasattr(torch, "xpu") and importlib.util.find_spec(extension) is not None:
            importlib.import_module(extension)


INTEL = IntelBackend(
    name="intel",
    title="Intel GPU",
    device_type="xpu",
    collectives="xccl",
    visible_devices="ZE_AFFINITY_MASK",
    commands=("xpu-smi discovery",),
    lacks_reductions=("AVG",),  # oneCCL has it for some connections only
    quirks=("Arc GPUs have no float64",),
)
