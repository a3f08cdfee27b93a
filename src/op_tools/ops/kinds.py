"""Ops that need care where a call is run elsewhere, as data: views, ops that only move data."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable

import torch

from op_tools.ops.selection import Selection
from op_tools.output import messages


def words(text: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(text.split())


# They look at the same memory in another way, always.
VIEWS = words(
    """__iter__ _conj _neg_view adjoint alias align_to as_strided atleast_1d atleast_2d atleast_3d broadcast_tensors
    broadcast_to chunk conj detach diagonal dsplit expand expand_as hsplit imag lift_fresh mH mT meshgrid moveaxis
    movedim narrow permute positive real refine_names rename select slice split split_with_sizes squeeze swapaxes
    swapdims t tensor_split transpose unbind unflatten unfold unsafe_chunk unsafe_split unsafe_split_with_sizes
    unsqueeze view view_as view_as_complex view_as_real vsplit indices values _indices _values crow_indices col_indices
    ccol_indices row_indices"""
)
# The same memory, or the tensor itself, if it can be; else a copy, or the same numbers in another dtype.
PERHAPS_VIEWS = words(
    """__getitem__ as_tensor asarray bfloat16 bool byte cdouble cfloat chalf char coalesce contiguous double flatten
    float half int long ravel reshape reshape_as resolve_conj resolve_neg short to type_as"""
)
# They change what a tensor is like and not what is in it, bring it to where the user wants it, take memory, or answer a
# question about the device.
NO_ARITHMETIC = words(
    """as_strided_ detach_ resize_ resize_as_ swapaxes_ swapdims_ squeeze_ t_ transpose_ unsqueeze_ set_ requires_grad_
    cpu cuda xpu hpu ipu mtia pin_memory numpy
    empty empty_like empty_permuted empty_strided new_empty new_empty_strided
    _debug_has_internal_overlap _fused_sdp_choice _has_compatible_shallow_copy_type _nnz _use_cudnn_ctc_loss
    const_data_ptr cudnn_is_acceptable is_coalesced is_set_to qscheme"""
)
# They put numbers into other places and compute none; a cast there and back would only cost time. Where the gradient is
# a sum (index_select, gather, repeat), the user can name the op to have that sum in another dtype.
MOVERS = words(
    """__setitem__ _foreach_copy_ alias_copy argwhere as_strided_copy as_strided_scatter block_diag cartesian_prod cat
    channel_shuffle clone column_stack combinations concat concatenate constant_pad_nd copy_ detach_copy diag diag_embed
    diagflat diagonal_copy diagonal_scatter dstack expand_copy fftshift flip fliplr flipud gather hstack ifftshift
    index_copy index_copy_ index_fill index_fill_ index_select item masked_fill masked_fill_ masked_scatter
    masked_scatter_ masked_select narrow_copy native_channel_shuffle nonzero nonzero_static pad permute_copy
    pixel_shuffle pixel_unshuffle repeat repeat_interleave roll rot90 row_stack select_copy select_scatter slice_copy
    slice_scatter split_copy split_with_sizes_copy squeeze_copy stack t_copy take take_along_dim tile tolist
    transpose_copy tril tril_ triu triu_ unbind_copy unfold_copy unsqueeze_copy view_as_complex_copy view_as_real_copy
    view_copy vstack where"""
)
# Their numbers come from elsewhere: of a tensor they want only the shape, the dtype and the device, or none at all.
FACTORIES = words(
    """_foreach_zero_ bernoulli_ cauchy_ exponential_ fill_ full_like geometric_ log_normal_ new_full new_ones
    new_tensor new_zeros normal_ ones_like rand_like randint_like randn_like random_ uniform_ zero_ zeros_like"""
)
CONSTRUCTORS = words(
    """arange bartlett_window blackman_window eye full hamming_window hann_window kaiser_window linspace logspace ones
    rand randint randn randperm scalar_tensor tensor tril_indices triu_indices zeros"""
)
# What is in their first argument does not matter.
OVERWRITES = FACTORIES - {"bernoulli_", "_foreach_zero_"} | {"copy_"}

# Results that are on the CPU wherever the arguments are: the second one of each.
SECOND_RESULT_ON_CPU = words("_pack_padded_sequence _pad_packed_sequence")

# They write into these arguments without counting that up, and no schema says so; all but the last only where the
# argument at position 5 (training, or the momentum) is set. By full name, or by the last part of it.
_MEAN_AND_VARIANCE = ((3, "running_mean"), (4, "running_var"))
_WRITE_SILENTLY: dict[str, tuple[tuple[int, str], ...]] = {
    "torch.nn.functional.batch_norm": ((1, "running_mean"), (2, "running_var")),
    "batch_norm": _MEAN_AND_VARIANCE,
    "native_batch_norm": _MEAN_AND_VARIANCE,
    "_native_batch_norm_legit": _MEAN_AND_VARIANCE,
    "_batch_norm_impl_index": _MEAN_AND_VARIANCE,
    "cudnn_batch_norm": _MEAN_AND_VARIANCE,
    "miopen_batch_norm": _MEAN_AND_VARIANCE,
    "batch_norm_gather_stats": _MEAN_AND_VARIANCE,
    "batch_norm_gather_stats_with_counts": _MEAN_AND_VARIANCE,
    "batch_norm_update_stats": ((1, "running_mean"), (2, "running_var")),
}
_NOWHERE = 1_000_000  # the position of an argument that is given by name only


def short_name(name: str) -> str:
    """The last part of a full name, for torch's own ops: `view` of torch.Tensor.view and of aten.view.default."""
    if name.startswith("aten."):
        return name.split(".")[1]
    return name.rpartition(".")[2] if name.startswith("torch.") else ""


def may_write_silently(name: str, func: Any) -> bool:
    """Whether an op writes into arguments without counting up their versions, at least at times."""
    short = short_name(name)
    return (
        name in _WRITE_SILENTLY
        or short in _WRITE_SILENTLY
        or isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))
        or short.startswith(("_fused_", "_amp_"))
    )


def silently_written(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an op may write into without counting up their versions."""
    is_registered = isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))
    places, only_in_training = silent_places(name, func if is_registered else None)
    if not places or (only_in_training and not (args[5] if len(args) > 5 else kwargs.get("training", False))):
        return []
    return [
        kwargs[key] if key in kwargs else args[position]
        for position, key in places
        if key in kwargs or position < len(args)
    ]


@lru_cache(maxsize=10_000)
def silent_places(name: str, registered: Any) -> tuple[tuple[tuple[int, str], ...], bool]:
    """Where the arguments are that an op with this name writes into silently, and whether in training only."""
    places = _WRITE_SILENTLY.get(name) or _WRITE_SILENTLY.get(short_name(name))
    if places is not None:
        return places, "update_stats" not in name
    return _written_places(short_name(name) if registered is None else registered), False


@lru_cache(maxsize=4096)
def _written_places(op: Any) -> tuple[tuple[int, str], ...]:
    """Positions and names of what an op writes into, as its schemas have them."""
    if isinstance(op, torch._ops.OpOverload):
        schemas = [op._schema]
    elif isinstance(op, torch._ops.OpOverloadPacket):
        schemas = [getattr(op, overload)._schema for overload in op.overloads()]
    elif op.startswith("_"):  # _foreach_, fused optimizers, GradScaler's kernels
        schemas = torch._C._jit_get_schemas_for_operator(f"aten::{op}")
    else:
        return ()  # torch's public ops count
    return tuple(
        {
            (_NOWHERE if argument.kwarg_only else position, argument.name)
            for schema in schemas
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        }
    )


class Narrowed(Selection):
    """A selection without the ops that a tool leaves alone; a user who named one is told why."""

    def __init__(self, chosen: Selection, tool: str, leaves_alone: Callable[[str, bool], str | None]) -> None:
        self._chosen = chosen
        self._tool = tool
        self._leaves_alone = leaves_alone

    def __contains__(self, name: str) -> bool:
        if name not in self._chosen:
            return False
        spelt_out = self._chosen.spells_out(name)
        reason = self._leaves_alone(short_name(name), spelt_out)
        if reason is not None and spelt_out:
            messages.say_once("alone", self._tool, name, text=f"{self._tool} leaves {name} alone: {reason}")
        return reason is None

    def names(self, name: str) -> bool:
        return self._chosen.names(name)

    def spells_out(self, name: str) -> bool:
        return self._chosen.spells_out(name)

    def unmatched(self) -> list[str]:
        return self._chosen.unmatched()
