"""What ops are called, and which functions of torch are no ops: they read a property or move no data."""

from __future__ import annotations

import re
from typing import Any

from torch.overrides import resolve_name

# Not worth a look by any tool: they compute nothing on the accelerator, or are the frame around what does.
_NO_ARITHMETIC = frozenset(
    re.split(
        r"\s+",
        """torch.Tensor.__array__ torch.Tensor.__cuda_array_interface__ torch.Tensor.__deepcopy__ torch.Tensor.__dir__
        torch.Tensor.__dlpack__ torch.Tensor.__dlpack_device__ torch.Tensor.__format__ torch.Tensor.__hash__
        torch.Tensor.__len__ torch.Tensor.__reduce__ torch.Tensor.__reduce_ex__ torch.Tensor.__repr__
        torch.Tensor.__setstate__ torch.Tensor._is_view torch.Tensor._reduce_ex_internal torch.Tensor.backward
        torch.Tensor.data_ptr torch.Tensor.dense_dim torch.Tensor.dim torch.Tensor.element_size torch.Tensor.get_device
        torch.Tensor.has_names torch.Tensor.is_complex torch.Tensor.is_conj torch.Tensor.is_contiguous
        torch.Tensor.is_distributed torch.Tensor.is_floating_point torch.Tensor.is_inference torch.Tensor.is_neg
        torch.Tensor.is_pinned torch.Tensor.is_shared torch.Tensor.is_signed torch.Tensor.ndimension
        torch.Tensor.nelement torch.Tensor.numel torch.Tensor.pin_memory torch.Tensor.record_stream
        torch.Tensor.register_hook torch.Tensor.register_post_accumulate_grad_hook torch.Tensor.requires_grad_
        torch.Tensor.retain_grad torch.Tensor.set_ torch.Tensor.share_memory_ torch.Tensor.size torch.Tensor.sparse_dim
        torch.Tensor.storage torch.Tensor.storage_offset torch.Tensor.storage_type torch.Tensor.stride torch.Tensor.type
        torch.Tensor.untyped_storage torch.Tensor._typed_storage torch.Tensor.__torch_dispatch__ torch.Tensor.dim_order
        torch.Tensor.module_load torch.Tensor._clear_non_serializable_cached_data torch.autograd.grad
        torch.autograd.backward torch.is_complex torch.is_conj torch.is_distributed torch.is_floating_point
        torch.is_inference torch.is_neg torch.is_nonzero torch.is_signed torch.is_tensor torch.is_storage torch.numel
        torch.get_device torch.result_type torch.can_cast torch.promote_types torch.broadcast_shapes torch.is_same_size
        torch.is_vulkan_available torch.get_default_dtype torch.typename torch._C._set_grad_enabled
        torch._C._get_tracing_state torch._has_compatible_shallow_copy_type torch.set_default_device
        torch.get_default_device""",
    )
)
# `torch.Tensor.shape.__get__`, `torch.Tensor.grad.__set__`; profiler marks; functions that torch keeps to itself
_NO_ARITHMETIC_PATTERN = re.compile(r".*\.__(get|set|delete)__|profiler\..*|torch\._C\.(?!_nn|_linalg|_fft|_special).*")

# Ops that may bring a tensor from the CPU to the accelerator. All others leave CPU tensors on the CPU.
MOVES = frozenset(
    f"torch.Tensor.{name}"
    for name in ("to", "cuda", "copy_", "type_as", "new_tensor", "new_ones", "new_zeros", "new_full", "new_empty")
)


def op_name(func: Any) -> str:
    """The full name of an op: what torch.overrides.resolve_name says, or module and name of any other function."""
    name = resolve_name(func)
    if name is not None:
        return str(name)
    module = getattr(func, "__module__", None) or ""
    own_name = getattr(func, "__qualname__", None) or getattr(func, "__name__", None) or repr(func)
    if own_name.startswith("_VariableFunctionsClass."):
        own_name = own_name.partition(".")[2]
    return f"{module}.{own_name}" if module else own_name


def is_collective(name: str) -> bool:
    """True for ops that talk to other processes: run twice, or by one process alone, they hang."""
    return name.startswith(("c10d.", "_c10d_functional", "c10d_functional", "_dtensor.", "torch.distributed."))


def is_no_op(name: str) -> bool:
    """True for what no tool looks at: property reads, `backward`, `data_ptr`, `size` and the like."""
    return name in _NO_ARITHMETIC or _NO_ARITHMETIC_PATTERN.fullmatch(name) is not None
