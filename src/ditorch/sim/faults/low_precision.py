"""Kernels of low precision inside: sums that are rounded after every few products, factors cut off to tf32."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from ditorch.sim.faults.call import KernelCall

Round = Callable[[Tensor], Tensor]


def accumulate(call: KernelCall) -> Any:
    """Runs the call with its sums kept in `call.value`."""
    with call.undisturbed():
        given = call.arguments()
        out = given.pop("out", None)
        tensors = [value for value in given.values() if isinstance(value, Tensor)]
        if not all(tensor.is_floating_point() for tensor in tensors):
            return call.run()
        result = ACCUMULATING[call.op._schema.name](given, lambda tensor: tensor.to(call.value).to(tensor.dtype))
        return result if out is None else out.resize_(result.shape).copy_(result)


def _blocks(length: int) -> list[slice]:
    """Pieces of a sum: at least 16 terms each, at most 64 pieces."""
    size = max(16, -(-length // 64))
    return [slice(start, start + size) for start in range(0, length, size)]


def _product(left: Tensor, right: Tensor, round_sum: Round) -> Tensor:
    total = torch.zeros((), dtype=left.dtype, device=left.device)
    for block in _blocks(left.shape[-1]):
        total = round_sum(total + left[..., block] @ right[..., block, :])
    return total.expand(*left.shape[:-1], right.shape[-1]).contiguous()


def _matrix_product(given: dict[str, Any], round_sum: Round) -> Tensor:
    return _product(given["self"], given["mat2"], round_sum)


def _matrix_product_added(first: str, second: str) -> Callable[[dict[str, Any], Round], Tensor]:
    def run(given: dict[str, Any], round_sum: Round) -> Tensor:
        product = _product(given[first], given[second], round_sum)
        return torch.as_tensor(given["beta"] * given["self"] + given["alpha"] * product)

    return run


def _sum(given: dict[str, Any], round_sum: Round) -> Tensor:
    tensor: Tensor = given["self"]
    tensor = tensor.to(given.get("dtype") or tensor.dtype)
    dims = given.get("dim") or range(tensor.dim())
    dims = [dim % tensor.dim() for dim in ([dims] if isinstance(dims, int) else dims)]
    kept = [dim for dim in range(tensor.dim()) if dim not in dims]
    flat = tensor.permute(*kept, *dims).reshape(*(tensor.shape[dim] for dim in kept), -1)
    total = flat.new_zeros(flat.shape[:-1])
    for block in _blocks(flat.shape[-1]):
        total = round_sum(total + flat[..., block].sum(-1))
    if given.get("keepdim"):
        for dim in sorted(dims):
            total = total.unsqueeze(dim)
    return total


def _mean(given: dict[str, Any], round_sum: Round) -> Tensor:
    total = _sum(given, round_sum)
    return torch.div(total, given["self"].numel() / max(total.numel(), 1))


def _convolution(given: dict[str, Any], round_sum: Round) -> Tensor:
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    options = [given[name] for name in names]
    image, weight, bias = given["input"], given["weight"], given["bias"]
    if given["groups"] != 1:  # each group is a sum of its own, and short
        return round_sum(torch.convolution(image, weight, bias, *options))
    total = torch.zeros((), dtype=image.dtype, device=image.device)
    for block in _blocks(image.shape[1]):
        part = weight[block] if given["transposed"] else weight[:, block]
        total = round_sum(total + torch.convolution(image[:, block], part, None, *options))
    if bias is not None:
        total = total + bias.view(-1, *[1] * (total.dim() - 2))
    return total


ACCUMULATING: dict[str, Callable[[dict[str, Any], Round], Tensor]] = {
    "aten::mm": _matrix_product,
    "aten::bmm": _matrix_product,
    "aten::addmm": _matrix_product_added("mat1", "mat2"),
    "aten::baddbmm": _matrix_product_added("batch1", "batch2"),
    "aten::convolution": _convolution,
    "aten::sum": _sum,
    "aten::mean": _mean,
}


# ---- tf32 ----------------------------------------------------------------------------------------------------------


def cut_to_tf32(call: KernelCall) -> Any:
    """Runs the call with the first ten bits of its float32 factors, as matrix units read them."""
    with call.undisturbed():
        given = call.arguments()
        changed = {name: _cut(given[name]) for name in MULTIPLYING[call.op._schema.name]}
        result = call.run_with(changed)
        if call.op._schema.name == "aten::convolution_backward":
            return (*result[:2], call.run()[2])  # the bias has a sum, and no product
        return result


def _cut(tensor: Tensor) -> Tensor:
    if tensor.dtype is torch.complex64:
        return torch.view_as_complex(_cut(torch.view_as_real(tensor.resolve_conj())))
    if tensor.dtype is not torch.float32:
        return tensor
    whole = tensor.contiguous()
    return torch.where(whole.isfinite(), whole.view(torch.int32).bitwise_and(~0x1FFF).view(torch.float32), whole)


_ATTENTION = "aten::_scaled_dot_product_fused_attention_overrideable"
# the factors of each
MULTIPLYING: dict[str, tuple[str, ...]] = {
    "aten::mm": ("self", "mat2"),
    "aten::bmm": ("self", "mat2"),
    "aten::addmm": ("mat1", "mat2"),
    "aten::baddbmm": ("batch1", "batch2"),
    "aten::addbmm": ("batch1", "batch2"),
    "aten::convolution": ("input", "weight"),
    "aten::convolution_backward": ("grad_output", "input", "weight"),
    _ATTENTION: ("query", "key", "value"),
    f"{_ATTENTION}_backward": ("grad_out", "query", "key", "value"),
}
