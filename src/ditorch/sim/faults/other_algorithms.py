"""Other ways to compute what kernels compute: softmax in one pass, moments by blocks, attention by blocks of keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

import torch
from torch import Tensor

from ditorch.sim.faults.work import Results, Work

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_BLOCKS = 3
_SCANNED_TOGETHER = 128


# ---- formulas of one number ----------------------------------------------------------------------------------------


def _exp(x: Tensor, _: dict[str, Any]) -> Tensor:
    """A power of two; what the product with the constant has lost is put back."""
    power = x * math.log2(math.e)
    lost = (x.double() * math.log2(math.e) - power.double()).nan_to_num(0.0, 0.0, 0.0)
    return torch.exp2(power) * (1 + lost * math.log(2)).to(x.dtype)


def _sigmoid(x: Tensor, _: dict[str, Any]) -> Tensor:
    small = torch.exp(-x.abs())
    return torch.where(torch.ge(x, 0), 1 / (1 + small), small / (1 + small))


def _tanh(x: Tensor, _: dict[str, Any]) -> Tensor:
    grown = torch.expm1(-2 * x.abs())
    return torch.copysign(grown / (grown + 2), x)


def _gelu(x: Tensor, given: dict[str, Any]) -> Tensor:
    if given.get("approximate") == "tanh":
        inner = math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)
        return torch.where(x.isfinite(), x * _sigmoid(2 * inner, {}), torch.nn.functional.gelu(x, approximate="tanh"))
    return torch.where(x.isfinite(), 0.5 * x * torch.erfc(x * -math.sqrt(0.5)), torch.nn.functional.gelu(x))


def _silu(x: Tensor, _: dict[str, Any]) -> Tensor:
    return torch.where(x.isfinite(), x * _sigmoid(x, {}), torch.nn.functional.silu(x))


def _softplus(x: Tensor, given: dict[str, Any]) -> Tensor:
    scaled = x * given["beta"]
    soft = (scaled.clamp_min(0) + torch.log1p(torch.exp(-scaled.abs()))) / given["beta"]
    return torch.where(torch.gt(scaled, given["threshold"]), x, soft)


FORMULAS: dict[str, Callable[[Tensor, dict[str, Any]], Tensor]] = {
    "exp": _exp,
    "log": lambda x, _: torch.log2(x) * math.log(2),
    "rsqrt": lambda x, _: 1 / torch.sqrt(x),
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "gelu": _gelu,
    "silu": _silu,
    "softplus": _softplus,
}


# ---- softmax -------------------------------------------------------------------------------------------------------


def _online(x: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    """The largest number and the sum of exponentials, in one pass over blocks: both are corrected as it goes."""
    largest = x.new_full((), -math.inf)
    total = x.new_zeros(())
    for block in x.tensor_split(min(_BLOCKS, x.shape[dimension]), dimension):
        grown = torch.maximum(largest, block.amax(dimension, keepdim=True))
        known = _known(grown)
        total = total * torch.exp(largest - known) + torch.exp(block - known).sum(dimension, keepdim=True)
        largest = grown
    return largest, total


def _known(largest: Tensor) -> Tensor:
    """Nothing can be taken from a row of which all is -inf so far."""
    return torch.where(largest.isneginf(), torch.zeros_like(largest), largest)


def _softmax(work: Work) -> Results | None:
    given = work.converted(_WIDE)
    x, dimension = given["self"], given["dim"]
    if not x.numel() or not x.dim() or not x.is_floating_point():
        return None
    largest, total = _online(x, dimension)
    return [torch.exp(x - largest) / total]


def _log_softmax(work: Work) -> Results | None:
    given = work.converted(_WIDE)
    x, dimension = given["self"], given["dim"]
    if not x.numel() or not x.dim() or not x.is_floating_point():
        return None
    largest, total = _online(x, dimension)
    return [x - largest - torch.log(total)]


# ---- means and variances -------------------------------------------------------------------------------------------


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the sum of squared differences from it along the last dimension, merged block by block (Welford)."""
    count, mean, squares = 0, x.new_zeros(x.shape[:-1]), x.new_zeros(x.shape[:-1])
    for block in x.tensor_split(min(_BLOCKS, x.shape[-1]), -1):
        own_mean = block.sum(-1) / block.shape[-1]
        own_squares = (block - own_mean.unsqueeze(-1)).square().sum(-1)
        distance, whole = own_mean - mean, count + block.shape[-1]
        mean = mean + distance * (block.shape[-1] / whole)
        squares = squares + own_squares + distance.square() * (count * block.shape[-1] / whole)
        count = whole
    return mean, squares


def _flat(x: Tensor, dimensions: Sequence[int]) -> Tensor:
    """With these dimensions as the last one."""
    kept = [one for one in range(x.dim()) if one not in dimensions]
    return x.permute(*kept, *dimensions).reshape(*(x.shape[one] for one in kept), -1)


def _variance(root: bool) -> Callable[[Work], Results | None]:
    def make(work: Work) -> Results | None:
        given = work.converted(_WIDE)
        x = given["self"]
        if "correction" not in given or not x.numel() or not x.dim() or not x.is_floating_point():
            return None
        wanted = given["dim"] or range(x.dim())
        dimensions = sorted(one % x.dim() for one in wanted)
        flat = _flat(x, dimensions)
        correction = 1 if given["correction"] is None else given["correction"]
        if flat.shape[-1] <= correction:
            return None
        variance = _moments(flat)[1] / (flat.shape[-1] - correction)
        for one in dimensions if given["keepdim"] else ():
            variance = variance.unsqueeze(one)
        return [variance.sqrt() if root else variance]

    return make


def _layer_norm(work: Work) -> Results | None:
    given = work.converted(_WIDE)
    x, shape = given["input"], given["normalized_shape"]
    if not x.numel():
        return None
    mean, squares = _moments(x.flatten(-len(shape)))
    mean, squares = (one.reshape(*one.shape, *[1] * len(shape)) for one in (mean, squares))
    scale = 1 / torch.sqrt(squares / math.prod(shape) + given["eps"])
    normal = (x - mean) * scale
    normal = normal if given["weight"] is None else normal * given["weight"]
    return [normal if given["bias"] is None else normal + given["bias"], mean, scale]


def _batch_norm(work: Work) -> Results | None:
    given = work.converted(_WIDE)
    x: Tensor = given["input"]
    others = [one for one in range(x.dim()) if one != 1]
    if not given["training"] or not x.numel() or x.dim() < 2:
        return None
    mean, squares = _moments(_flat(x, others))
    count = x.numel() // x.shape[1]
    scale = 1 / torch.sqrt(squares / count + given["eps"])
    statistics = (("running_mean", mean), ("running_var", squares / max(count - 1, 1)))
    for name, seen in statistics:
        if work.given[name] is not None:
            work.given[name].copy_(torch.lerp(given[name], seen.to(given[name].dtype), given["momentum"]))

    def by_channel(values: Tensor) -> Tensor:
        return values.reshape(-1, *[1] * (x.dim() - 2))

    factor = scale if given["weight"] is None else scale * given["weight"]
    normal = (x - by_channel(mean)) * by_channel(factor)
    return [normal if given["bias"] is None else normal + by_channel(given["bias"]), mean, scale]


# ---- scans ---------------------------------------------------------------------------------------------------------


def _scan(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Work], Results | None]:
    """A tree in each block, and what came before it: everything in the tensor's own dtype, as CUDA does."""

    def make(work: Work) -> Results | None:
        x: Tensor = work.given["self"]
        x = x.to(work.given.get("dtype") or x.dtype)
        if not x.is_floating_point() or not x.numel() or not x.dim():
            return None
        made: list[Tensor] = []
        for block in x.movedim(work.given["dim"], -1).split(_SCANNED_TOGETHER, -1):
            step = 1
            while step < block.shape[-1]:
                block = torch.cat([block[..., :step], combine(block[..., :-step], block[..., step:])], -1)
                step *= 2
            made.append(combine(made[-1][..., -1:], block) if made else block)
        return [torch.cat(made, -1).movedim(-1, work.given["dim"]).contiguous()]

    return make


# ---- attention -----------------------------------------------------------------------------------------------------


def _attention(work: Work) -> Results | None:
    """By blocks of keys, each of which corrects what the ones before have made."""
    given = work.converted(_WIDE)
    query, key, value, bias = (given[name] for name in ("query", "key", "value", "attn_bias"))
    if given["dropout_p"] or not query.numel() or query.shape[:-2] != key.shape[:-2]:
        return None
    scale = given["scale"] or 1 / math.sqrt(query.shape[-1])
    mask = query.new_zeros(query.shape[-2], key.shape[-2])
    if given["is_causal"]:
        mask = mask.masked_fill(torch.ones_like(mask).triu(1).bool(), -math.inf)
    if bias is not None:
        is_boolean = bias.dtype is torch.bool
        mask = mask + (torch.zeros_like(bias, dtype=mask.dtype).masked_fill(~bias, -math.inf) if is_boolean else bias)
    largest = query.new_full((*query.shape[:-1], 1), -math.inf)
    total, output = torch.zeros_like(largest), query.new_zeros(*query.shape[:-1], value.shape[-1])
    for block in torch.arange(key.shape[-2], device=key.device).tensor_split(min(_BLOCKS, key.shape[-2])):
        places = slice(int(block[0]), int(block[-1]) + 1)
        scores = torch.matmul(query * scale, key[..., places, :].transpose(-1, -2)) + mask[..., places]
        grown = torch.maximum(largest, scores.amax(-1, keepdim=True))
        known = _known(grown)
        weights, correction = torch.exp(scores - known), torch.exp(largest - known)
        total = total * correction + weights.sum(-1, keepdim=True)
        output = output * correction + torch.matmul(weights, value[..., places, :])
        largest = grown
    if not bool(largest.isfinite().all()):
        return None  # a query that sees nothing
    return [output / total, (largest + torch.log(total)).squeeze(-1)]


ALGORITHMS: dict[str, Callable[[Work], Results | None]] = {
    "_softmax": _softmax,
    "_safe_softmax": lambda work: None if bool(work.given["self"].isneginf().any()) else _softmax(work),
    "_log_softmax": _log_softmax,
    "var": _variance(root=False),
    "std": _variance(root=True),
    "native_layer_norm": _layer_norm,
    "native_batch_norm": _batch_norm,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "cumsum": _scan(torch.add),
    "cumprod": _scan(torch.mul),
    "_logcumsumexp": _scan(torch.logaddexp),
}
