"""Whether the program allows products of float32 to be computed with fewer bits: tf32, and what vendors call otherwise.

PyTorch's switches are CUDA's. Other vendors have switches of their own beside them, where those are known by their
names. CUDA's switch for products is off unless the program sets it, and vendors heed it; the one for convolutions is on
from the beginning, which says nothing about another vendor's chip unless the program has set the first.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

# a tensor that says so may be another vendor's (ditorch)
_HAS_CUDA = bool(getattr(torch._C, "_cuda_getDeviceCount", int)())


def in_products() -> bool:
    return any(map(_is_allowed, (torch.backends.cuda.matmul, *_of_vendor("matmul"))))


def in_convolutions() -> bool:
    """In recurrent layers, too, which come from the same library."""
    cudnn: Any = torch.backends.cudnn
    of_cuda = (cudnn, *(getattr(cudnn, part) for part in ("conv", "rnn") if hasattr(cudnn, part)))
    if _HAS_CUDA or _is_allowed(torch.backends.cuda.matmul):
        return any(map(_is_allowed, of_cuda))
    return any(map(_is_allowed, _of_vendor("conv")))


@functools.lru_cache(maxsize=2)
def _of_vendor(part: str) -> tuple[Any, ...]:
    """Such as torch.npu.matmul with `allow_hf32`, or torch.backends.mlu.matmul with `allow_tf32`."""
    name = getattr(torch._C, "_get_privateuse1_backend_name", lambda: "")()
    homes = (getattr(torch, name, None), getattr(torch.backends, name, None))
    return tuple(getattr(home, part) for home in homes if home is not None and hasattr(home, part))


def _is_allowed(switches: Any) -> bool:
    precision = getattr(switches, "fp32_precision", "none")  # torch 2.9
    if precision in ("ieee", "tf32"):
        return bool(precision == "tf32")
    try:
        return bool(getattr(switches, "allow_tf32", False) or getattr(switches, "allow_hf32", False))
    except RuntimeError:  # set in the new way, and for some ops only
        return True
