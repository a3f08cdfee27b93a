"""The demo's story: the same small model trained on the CPU, on the accelerator, and with one of its kernels broken."""

from __future__ import annotations

from ditorch.demo.gpt import GPT
from ditorch.demo.training import Run, batches, train

__all__ = ["GPT", "Run", "batches", "train"]
