"""Teaches DTensor the attention kernel of chips: PyTorch has a place for it, and no rule how to shard it.

Without the rule, tensor parallelism fails on every chip whose attention PyTorch calls by that place, at the first
`scaled_dot_product_attention`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Callable

import torch

from ditorch import ring_attention
from ditorch_shared.imports import after_import

Sharding = tuple[list[Any], list[Any]]  # where the results of a kernel lie, and where its arguments do; None: no tensor

_NAME = "_scaled_dot_product_fused_attention_overrideable"
_BATCH, _HEADS = 0, 1  # the dimensions along which nothing in attention depends on anything else
_MAX_LENGTH = 5  # where max_q stands among the arguments of the backward pass after the bias

_asked = False


def teach_attention() -> Callable[[], None]:
    """Gives DTensor its rules as soon as it is imported. Returns how to take them back; who asks second need not."""
    global _asked
    if _asked or not torch.distributed.is_available() or not hasattr(torch.ops.aten, _NAME):
        return lambda: None
    _asked = True
    undo: list[Callable[[], object]] = []
    call_off = after_import("torch.distributed.tensor", lambda _: undo.extend(_teach()))

    def forget() -> None:
        global _asked
        _asked = False
        call_off()
        for take_back in undo:
            take_back()

    return forget


def _teach() -> Iterator[Callable[[], object]]:
    """Registers what DTensor has no rule for, and yields how to take each back."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_NAME}", "Meta"):
        return  # before torch 2.7: DTensor plans with the shapes of results, and here they are unknown
    from torch.distributed.tensor.experimental import register_sharding

    forward, backward = (getattr(torch.ops.aten, name).default for name in (_NAME, f"{_NAME}_backward"))
    rings = ring_attention.handlers(forward, backward)
    if rings is None:
        return  # without them the rules would apply under context parallelism, where they are wrong
    yield ring_attention.install(rings)
    for operator, rule in ((forward, _forward), (backward, _backward)):
        if operator not in _strategies():
            register_sharding(operator)(rule)
            yield functools.partial(_strategies().pop, operator)


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

    if ring_attention.is_ring(others[_MAX_LENGTH]):
        ring_attention.refuse_backward_outside()
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
    if query.shape[_BATCH] == key.shape[_BATCH]:
        yield Shard(_BATCH)
    # Where several heads share a key, both must be split at the same heads.
    if query.shape[_HEADS] == key.shape[_HEADS] or key.shape[_HEADS] % query.mesh.size() == 0:
        yield Shard(_HEADS)


def _of_bias(bias: Any, place: Any) -> Any:
    """A mask is split like the rest, unless it is the same for the whole batch or all heads."""
    from torch.distributed.tensor import Replicate, Shard

    if not _is_tensor(bias):
        return None
    if not isinstance(place, Shard):
        return Replicate()
    dimension = place.dim - (4 - len(bias.shape))  # a mask with fewer dimensions lacks the first ones
    return Replicate() if dimension < 0 or bias.shape[dimension] == 1 else Shard(dimension)


def _is_tensor(argument: Any) -> bool:
    return hasattr(argument, "placements")
