"""What torch.autocast is doing, and what it does on accelerators: torch's policies for CUDA, by the names of ops."""

from __future__ import annotations

from typing import Any, Callable

import torch

from op_tools.ops.kinds import words
from op_tools.values import trees

_BY_DEVICE = hasattr(torch, "get_autocast_dtype")  # torch 2.4

# These run in autocast's low precision …
_LOW = words(
    """_convolution addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d conv_transpose3d convolution einsum gru gru_cell linear linalg_multi_dot linalg_vecdot lstm
    lstm_cell matmul __matmul__ __rmatmul__ mm multi_dot multi_head_attention_forward mv prelu rnn_relu rnn_relu_cell
    rnn_tanh rnn_tanh_cell scaled_dot_product_attention vecdot"""
)
# … and these in float32.
_FULL = words(
    """__pow__ __rpow__ acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity
    cross_entropy cumprod cumsum dist erfinv exp expm1 frobenius_norm group_norm hinge_embedding_loss huber_loss kl_div
    l1_loss layer_norm linalg_matrix_norm linalg_vector_norm log log10 log1p log2 log_softmax logsumexp
    margin_ranking_loss matrix_norm mse_loss multi_margin_loss multilabel_margin_loss nll_loss nll_loss2d norm
    normalize nuclear_norm pdist poisson_nll_loss pow prod reciprocal renorm rms_norm rsqrt sinh smooth_l1_loss
    soft_margin_loss softmax softmin softplus sum tan triplet_margin_loss vector_norm"""
)


# autocast touches tensors of these dtypes
ELIGIBLE = (torch.float32, torch.float16, torch.bfloat16)

is_any_enabled: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def active_dtype(device_type: str) -> torch.dtype | None:
    """The low precision of the autocast that is on for this device; None where none is."""
    if not is_any_enabled():
        return None
    if _BY_DEVICE:
        return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None
    if device_type == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def active_device_type(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The kind of device that a call runs on, if autocast is on for it."""
    if not is_any_enabled():
        return None
    for tensor in trees.tensors((args, kwargs)):
        device_type = tensor.device.type
        return device_type if active_dtype(device_type) is not None else None
    return None


def chosen_dtype(short_name: str, device_type: str) -> torch.dtype | None:
    """The dtype that autocast gives an op; None where it leaves the choice to the arguments, or is off."""
    active = active_dtype(device_type)
    return None if active is None else dtype_by_policy(short_name, active)


def dtype_by_policy(short_name: str, active: torch.dtype) -> torch.dtype | None:
    """The same, where autocast is on with this low precision."""
    return active if short_name in _LOW else torch.float32 if short_name in _FULL else None
