"""What keeps a second run of a call apart from the program: its autocast, hooks, modes and random numbers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Callable

import torch

from op_tools.ops import autocast_policy

NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


@contextlib.contextmanager
def shielded(autocast: torch.dtype | None, graph: bool) -> Iterator[None]:
    """Autocast, hooks and anomaly detection of the program do not reach what runs inside."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(graph))
        if autocast is not None:
            stack.enter_context(autocast_policy.autocast("cpu", dtype=autocast, cache_enabled=False))
        elif autocast_policy.active_dtype("cpu") is not None:
            stack.enter_context(autocast_policy.autocast("cpu", enabled=False))
        if graph and top_hooks(True) is not None:
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor))
        if graph and is_below_autograd():
            stack.enter_context(_above_autograd())
        if torch.is_anomaly_enabled():
            stack.enter_context(torch.autograd.set_detect_anomaly(False))
        yield


# inside a kernel that is written in Python nothing has gradients
is_below_autograd: Callable[[], bool] = functools.partial(
    torch._C._dispatch_tls_is_dispatch_key_excluded, torch._C.DispatchKey.AutogradFunctionality
)


@contextlib.contextmanager
def _above_autograd() -> Iterator[None]:
    key = torch._C.DispatchKey.AutogradFunctionality
    torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, True)


# None unless checkpointing, or other code, hooks into what is saved for backward: it must not see what we save.
# Where torch does not tell, there may be such hooks.
top_hooks: Callable[[bool], Any] = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", bool)


def are_the_programs(pack: Any) -> bool:
    """Whether such hooks are not torch's own, which give back what they were given."""
    return not str(getattr(pack, "__module__", "")).startswith("torch.")


@contextlib.contextmanager
def random_numbers_kept() -> Iterator[None]:
    """The CPU's generator goes on where it was."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
