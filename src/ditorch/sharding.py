"""Teaches DTensor the attention kernel of chips: PyTorch has a place for it, and no rule how to shard it.

Without the rule, tensor parallelism fails on every chip whose attention PyTorch calls by that place, at the first
`scaled_dot_product_attention`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

import torch

from ditorch.imports import after_import

Sharding = tuple[list[Any], list[Any]]  # where the results of a kernel lie, and where its arguments do; None: no tensor

_NAME = "_scaled_dot_product_fused_attention_overrideable"
_BATCH, _HEADS = 0, 1  # the dimensions along which nothing in attention depends on anything else


_asked = False


def teach_attention() -> Callable[[], None]:
    """Gives DTensor its rules as soon as it is imported. Returns how to take them back; who asks second need not."""
    global _asked
    if _asked or not torch.distributed.is_available() or not hasattr(torch.ops.aten, _NAME):
        return lambda: None
    _asked = True
    taught: list[Any] = []
    call_off = after_import("torch.distributed.tensor", lambda _: taught.extend(_teach()))

    def forget() -> None:
        global _asked
        _asked = False
        call_off()
        for operator in taught:
            _strategies().pop(operator)

    return forget


def _teach() -> Iterator[Any]:
    """Registers what DTensor has no rule for, and yields it."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_NAME}", "Meta"):
        return  # before torch 2.7: DTensor plans with the shapes of results, and here nobody knows them
    from torch.distributed.tensor.experimental import register_sharding

    for name, rule in ((_NAME, _forward), (f"{_NAME}_backward", _backward)):
        operator = getattr(torch.ops.aten, name).default
        if operator not in _strategies():
            register_sharding(operator)(rule)
            yield operator


def _strategies() -> dict[Any, Any]:
    from torch.distributed.tensor import DTensor

    strategies: dict[Any, Any] = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
    return strategies


def _forward(query: Any, key: Any, value: Any, attn_bias: Any = None, *_: object, **__: object) -> list[Sharding]:
    shardings: list[Sharding] = []
    for place in _places(query, key):
        results = [place, place, *[None] * 7]  # the output and its logsumexp, and what holds for all of them
        shardings.append((results, [place, place, place, _of_bias(attn_bias, place)]))
    return shardings


def _backward(
    grad_out: Any, query: Any, key: Any, value: Any, attn_bias: Any, *others: Any, **_: object
) -> list[Sharding]:
    from torch.distributed.tensor import Partial, Replicate

    shardings: list[Sharding] = []
    for place in _places(query, key):
        bias = _of_bias(attn_bias, place)
        of_gradient = Partial() if bias == Replicate() != place else bias
        # after the bias: which gradients are wanted, the output and its logsumexp, and what holds for all of them
        rest = [None, place, place, *(Replicate() if _is_tensor(argument) else None for argument in others[3:])]
        shardings.append(([place, place, place, of_gradient], [place, place, place, place, bias, *rest]))
    return shardings


def _places(query: Any, key: Any) -> Iterator[Any]:
    """Whole on every process, or split along the batch, or along the heads."""
    from torch.distributed.tensor import Replicate, Shard

    yield Replicate()
    if len(query.shape) != 4:
        return
    yield Shard(_BATCH)
    # Where several heads share a key, both must be split at the same heads.
    if query.shape[_HEADS] == key.shape[_HEADS] or key.shape[_HEADS] % query.mesh.size() == 0:
        yield Shard(_HEADS)


def _of_bias(bias: Any, place: Any) -> Any:
    """A mask is split like the rest, unless it is the same for the whole batch or all heads."""
    from torch.distributed.tensor import Replicate, Shard

    if not _is_tensor(bias):
        return None
    whole = not isinstance(place, Shard) or len(bias.shape) < 4 or bias.shape[place.dim] == 1
    return Replicate() if whole else place


def _is_tensor(argument: Any) -> bool:
    return hasattr(argument, "placements")
