"""Names that are no ops at all: they compute nothing on the accelerator, or are the frame around what does."""

from __future__ import annotations

import re

_OF_TENSORS = """
    _clear_non_serializable_cached_data _is_view _reduce_ex_internal _typed_storage backward data_ptr dense_dim
    dim dim_order element_size get_device has_names is_complex is_conj is_contiguous is_distributed is_floating_point
    is_inference is_neg is_pinned is_shared is_signed module_load ndimension nelement numel pin_memory record_stream
    register_hook register_post_accumulate_grad_hook requires_grad_ retain_grad set_ share_memory_ size sparse_dim
    storage storage_offset storage_type stride type untyped_storage __array__ __cuda_array_interface__ __deepcopy__
    __dir__ __dlpack__ __dlpack_device__ __format__ __hash__ __len__ __reduce__ __reduce_ex__ __repr__ __setstate__
    __torch_dispatch__"""
_OF_TORCH = """
    _has_compatible_shallow_copy_type _make_dual _unpack_dual autograd.backward autograd.grad broadcast_shapes can_cast
    device get_default_device get_default_dtype get_device is_complex is_conj is_distributed is_floating_point
    is_inference is_neg is_nonzero is_same_size is_signed is_storage is_tensor is_vulkan_available numel
    promote_types result_type set_default_device typename"""
# These methods and functions; property reads, `torch.Tensor.grad.__set__`; profiler marks; what torch keeps to itself;
# the autograd.Function around a compiled graph, whose ops are seen.
NO_OPS = re.compile(
    rf"torch\.Tensor\.({'|'.join(_OF_TENSORS.split())})|torch\.({'|'.join(map(re.escape, _OF_TORCH.split()))})"
    r"|.*\.__(get|set|delete)__|profiler\..*|torch\._C\.(?!_nn|_linalg|_fft|_special).*"
    r"|torch\._functorch\..*CompiledFunction(Backward)?\.apply"
)
