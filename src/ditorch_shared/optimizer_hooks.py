"""Torch's hooks that run before and after every optimizer's step."""

from __future__ import annotations

from typing import Any, Callable

from torch.optim import optimizer as optim

from ditorch_shared.dynamo import hidden, is_tracing

Listener = Callable[[Any], None]
_register_after: Callable[..., Any] | None = getattr(optim, "register_optimizer_step_post_hook", None)
_register_before: Callable[..., Any] | None = getattr(optim, "register_optimizer_step_pre_hook", None)


class OptimizerHooks:
    """Calls `before` and `after` with the optimizer.

    Both may be exchanged at any time: within a step, torch lets no hook be added or removed.
    """

    def __init__(self, before: Listener, after: Listener) -> None:
        self.before, self.after = before, after
        wanted = ((_register_before, _hook(self, "before")), (_register_after, _hook(self, "after")))
        self._handles = [register(hook) for register, hook in wanted if register is not None]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def ignore(optimizer: Any) -> None:
    """For hooks without a listener any more."""


def _hook(hooks: OptimizerHooks, name: str) -> Callable[..., None]:
    @hidden
    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not is_tracing():  # a compiled step is not counted: tracing this would break its graph
            getattr(hooks, name)(optimizer)

    return hook
