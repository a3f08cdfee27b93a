"""What the device may compute with ten bits in place of float32's 23."""

from __future__ import annotations

import torch


def allowed() -> list[str]:
    """Of matmul and convolution, on NVIDIA's devices."""
    if torch.version.cuda is None:
        return []
    try:
        found = {"matmul": torch.backends.cuda.matmul.allow_tf32, "convolution": torch.backends.cudnn.allow_tf32}
    except RuntimeError:  # the program has set them by the names of a later release
        return ["matmul", "convolution"]
    return [name for name, is_allowed in found.items() if is_allowed]
