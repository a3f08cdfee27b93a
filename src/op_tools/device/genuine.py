"""Whether a device that says "cuda" is CUDA's or ROCm's, and no other accelerator under that name (ditorch)."""

from __future__ import annotations

from functools import cache

import torch


@cache
def is_genuine(device: torch.device) -> bool:
    """Asked of a device that is in use: it makes a tensor there."""
    if device.type != "cuda":
        return False
    keys_of = getattr(torch._C, "_dispatch_keys", None)
    if keys_of is None:
        return torch.version.cuda is not None or torch.version.hip is not None
    return bool(keys_of(torch.empty(0, device=device)).has(torch._C.DispatchKey.CUDA))
