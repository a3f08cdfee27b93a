"""tf32: what the program allows, and products that see only ten bits of their factors, as on matrix units."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# a tensor that says so may be another vendor's (ditorch)
_HAS_CUDA = bool(getattr(torch._C, "_cuda_getDeviceCount", int)())

# ---- is it allowed? --------------------------------------------------------------------------------------------------


def in_products() -> bool:
    """Whether the program lets products of float32 be computed with fewer bits: tf32, or what vendors call otherwise.

    PyTorch's switches are CUDA's. The one for products is off unless the program sets it, and vendors heed it. The one
    for convolutions is on from the beginning, which says nothing of another vendor's chip unless the first is set. Some
    vendors have switches of their own.
    """
    return any(map(_allows_tf32, (torch.backends.cuda.matmul, *_switches_of_vendor("matmul"))))


def in_convolutions() -> bool:
    """In recurrent layers, too, which come from the same library."""
    cudnn: Any = torch.backends.cudnn
    of_cuda = (cudnn, *(getattr(cudnn, part) for part in ("conv", "rnn") if hasattr(cudnn, part)))
    if _HAS_CUDA or _allows_tf32(torch.backends.cuda.matmul):
        return any(map(_allows_tf32, of_cuda))
    return any(map(_allows_tf32, _switches_of_vendor("conv")))


@functools.lru_cache(maxsize=2)
def _switches_of_vendor(part: str) -> tuple[Any, ...]:
    """Such as torch.npu.matmul with `allow_hf32`, or torch.backends.mlu.matmul with `allow_tf32`."""
    name = getattr(torch._C, "_get_privateuse1_backend_name", lambda: "")()
    homes = (getattr(torch, name, None), getattr(torch.backends, name, None))
    return tuple(getattr(home, part) for home in homes if home is not None and hasattr(home, part))


def _allows_tf32(switches: Any) -> bool:
    precision = getattr(switches, "fp32_precision", "none")  # torch 2.9
    if precision in ("ieee", "tf32"):
        return bool(precision == "tf32")
    try:
        return bool(getattr(switches, "allow_tf32", False) or getattr(switches, "allow_hf32", False))
    except RuntimeError:  # set in the new way, and for some ops only
        return True


# ---- a run with it ---------------------------------------------------------------------------------------------------


class Products(TorchDispatchMode):
    """In this block products and convolutions cut their factors off, wherever they are inside of a call.

    Some units round instead: their errors are smaller, and have no direction.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        factors = _FACTORS.get(func._schema.name)
        if factors is not None:
            args = tuple(_cut(value) if place in factors else value for place, value in enumerate(args))
        return func(*args, **(kwargs or {}))


def _cut(value: Any) -> Any:
    """The first ten bits of float32; float64 stands for it where a run is in higher precision."""
    if isinstance(value, (list, tuple)):
        return [_cut(one) for one in value]
    if isinstance(value, Tensor) and value.dtype in (torch.complex64, torch.complex128):
        return torch.view_as_complex(_cut(torch.view_as_real(value.resolve_conj())))
    if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.float64):
        return value
    bits = value.float().contiguous().view(torch.int32) & ~0x1FFF
    return torch.where(value.isfinite(), bits.view(torch.float32).to(value.dtype), value)


# where the factors stand among the arguments
_FACTORS = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::vdot", "aten::_grouped_mm"), (0, 1)),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm", "aten::addbmm", "aten::addmv", "aten::addr"), (1, 2)),
    **dict.fromkeys(("aten::convolution", "aten::convolution_overrideable"), (0, 1)),
    **dict.fromkeys(("aten::convolution_backward", "aten::convolution_backward_overrideable"), (0, 1, 2)),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (0, 1, 2),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": (0, 1, 2, 3),
    **dict.fromkeys(
        (
            "aten::_scaled_dot_product_fused_attention_overrideable",
            "aten::_scaled_dot_product_efficient_attention",
            "aten::_scaled_dot_product_flash_attention",
            "aten::_scaled_dot_product_cudnn_attention",
        ),
        (0, 1, 2),
    ),
    **dict.fromkeys(
        (
            "aten::_scaled_dot_product_fused_attention_overrideable_backward",
            "aten::_scaled_dot_product_efficient_attention_backward",
            "aten::_scaled_dot_product_flash_attention_backward",
            "aten::_scaled_dot_product_cudnn_attention_backward",
        ),
        (0, 1, 2, 3),
    ),
    "aten::_euclidean_dist": (0, 1),
    "aten::mkldnn_rnn_layer": (0, 1, 2),
    "aten::_cudnn_rnn": (0, 1),
}
