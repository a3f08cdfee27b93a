"""Genuine CUDA, and what is compatible with it (AMD, Kunlunxin, Iluvatar, MetaX, Hygon): nothing is changed there."""

from __future__ import annotations

import torch

from ditorch.backend import Backend


class CUDABackend(Backend):
    def why_no_devices(self) -> str:
        built = torch.version.cuda or torch.version.hip
        return super().why_no_devices() if built else "this PyTorch is built without CUDA"


CUDA = CUDABackend(
    name="cuda",
    title="CUDA",
    device_type="cuda",
    collectives="nccl",
    visible_devices="CUDA_VISIBLE_DEVICES",
    commands=("nvidia-smi", "rocm-smi", "ixsmi", "mx-smi", "hy-smi", "xpu-smi"),
)
