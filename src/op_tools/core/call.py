"""OpCall: one call of one op. Everything that the tools see, keep and show is made from it."""

from __future__ import annotations

import itertools
from typing import Any, Callable

import torch

from op_tools.core.where import Where
from op_tools.ops import autocast_policy

ids = itertools.count(1)


class OpCall:
    """One call of one op, from before it runs until its gradients have flowed.

    `result` is set once the op has run, `error` if it raised instead. `step` is the training step (steps.py).
    `autocast` is the one that it runs under, None for most; `is_recorded`: by autograd. `other_gradients`: why its
    gradients may be others than its results explain.
    """

    __slots__ = (
        "args", "autocast", "error", "func", "id", "is_recorded", "kwargs", "name", "other_gradients", "result", "step",
        "where",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        where: Where,
        step: int,
    ) -> None:
        self.id = next(ids)
        self.name = name
        self.func = func
        self.args = (*args,)  # a copy: autograd writes to the tuple that a tensor's hook was called with
        self.kwargs = kwargs
        self.result: Any = None
        self.error: BaseException | None = None
        self.where = where
        self.step = step
        self.autocast = autocast_policy.of_call(args, kwargs) if autocast_policy.is_any_enabled() else None
        self.is_recorded = torch.is_grad_enabled()
        self.other_gradients = ""

    def without_tensors(self) -> OpCall:
        """The same call with its arguments and result let go: what may be kept until backward."""
        made = OpCall.__new__(OpCall)
        made.id, made.name, made.func, made.step, made.where = self.id, self.name, self.func, self.step, self.where
        made.autocast, made.is_recorded, made.other_gradients = self.autocast, self.is_recorded, self.other_gradients
        made.args, made.kwargs, made.result, made.error = (), {}, None, None
        return made

    def with_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpCall:
        """The same call with others, and without a result."""
        made = self.without_tensors()
        made.args, made.kwargs = args, kwargs
        return made

    def details(self) -> dict[str, Any]:
        """What stands beside its tensors on disk."""
        noted = {"forward_id": self.id, "step": self.step, "source": self.where.line(), "module": self.where.module}
        if self.autocast is not None:
            noted["autocast"] = self.autocast.noted()
        return noted

    def __repr__(self) -> str:
        return f"<OpCall {self.id} {self.name} at {self.where.line()}>"
