"""Backward passes of ours make no nodes in the thread that asks for them: one of the program's, or of autograd's.

There autograd would make one to join several results, and one for each leaf that has none because nothing leads to it.
So both are made before, in the thread of graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare.reference import graph_thread

_engine: Any = torch.autograd.Variable._execution_engine


class _Joined(torch.autograd.Function):
    """Hands each tensor what has arrived at it."""

    @staticmethod
    def forward(ctx: Any, arrived: Sequence[Tensor], *tensors: Tensor) -> Tensor:
        ctx.arrived = arrived
        return torch.empty((), dtype=tensors[0].dtype, device=tensors[0].device)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.arrived)


def nodes_of(leaves: Sequence[Tensor]) -> Any:
    """Holds the nodes of these leaves. To be called in the thread of graphs."""
    return _joined(leaves, ()).grad_fn if leaves else None


def gradients(
    results: Sequence[Tensor], arrived: Sequence[Tensor], leaves: Sequence[Tensor], create_graph: bool = False
) -> Sequence[Tensor | None]:
    """What flows to the leaves, whose nodes are held, where these gradients arrive at the results, one or more."""
    if len(results) > 1:
        root = graph_thread.run_there(lambda: _joined(results, arrived), results)
        results, arrived = (root,), (root.detach(),)
    # as torch.autograd.grad does, which takes long to look at shapes that are known to be right
    found: Sequence[Tensor | None] = _engine.run_backward(
        tuple(results),
        tuple(arrived),
        create_graph,
        create_graph,
        tuple(leaves),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return found


def _joined(tensors: Sequence[Tensor], arrived: Sequence[Tensor]) -> Tensor:
    with torch.enable_grad():
        joined: Tensor = _Joined.apply(tuple(arrived), *tensors)  # type: ignore[no-untyped-call]
        return joined
