"""What keeps a second run of a call apart from the program: its autocast, hooks, tangents and random numbers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch.autograd import forward_ad

from op_tools.core.call import OpCall
from op_tools.ops import autocast_policy
from op_tools.values.tensors import tensors_in

_KEPT_AS_OTHERS = "its tensors were kept by the program's saved_tensors_hooks, perhaps as others"
_THROUGH_TANGENTS = "they flow through the tangents of forward-mode AD, too"

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


def default_device(device: str | None) -> contextlib.AbstractContextManager[Any]:
    """Factories such as torch.eye make their tensors on this device, and not on the program's default device."""
    return torch.device(device) if device is not None and torch._C._len_torch_function_stack() else NOTHING


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


def other_gradients(call: OpCall, hooks: Any) -> str:
    """Why the call's gradients may be others than its results explain; "" where they may not. Before it runs."""
    if hooks and not str(getattr(hooks[0], "__module__", "")).startswith("torch."):  # torch's give back what they got
        return _KEPT_AS_OTHERS
    return _THROUGH_TANGENTS if _has_tangents(call) else ""


def _has_tangents(call: OpCall) -> bool:
    with torch.no_grad():
        return any(
            forward_ad.unpack_dual(tensor).tangent is not None
            for tensor in tensors_in((call.args, call.kwargs))
            if tensor.is_floating_point() or tensor.is_complex()
        )


@contextlib.contextmanager
def random_numbers_kept() -> Iterator[None]:
    """The CPU's generator goes on where it was."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
