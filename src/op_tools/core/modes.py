"""How the tools compute: a FLOP counter or checkpointing must not see their ops, nor autograd make nodes of them."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable

import torch

from op_tools.core import dynamo

# a module or class, the name of a function in it, and what stands there while tools watch
Replacement = tuple[Any, str, Callable[..., Any]]

# how many dispatch modes are on
dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def with_modes_aside(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `function`; no tool and no mode sees the ops that it uses, nor does autograd."""
    return unseen_by_modes(without_graph, function, *arguments)


def unseen_by_modes(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `function`, whose ops belong to the program's graph: no tool and no mode sees them."""
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunction(), _disable_current_modes() if dispatch_modes() else _NOTHING:
        return function(*arguments)


def without_graph(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `function`; autograd makes no nodes of what it computes.

    Each thread numbers the nodes that are made in it, and backward runs them in that order: ours would change it.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    torch._C._set_grad_enabled(False)  # as torch.no_grad does, at a third of the price
    try:
        return function(*arguments)
    finally:
        torch._C._set_grad_enabled(True)


def without_mode(
    function: Callable[..., Any], mode_class: type, condition: Callable[..., bool] | None = None
) -> Callable[..., Any]:
    """`function` with our mode off, where it is the only one and the condition holds for the arguments."""
    # called a hundred times in a step: nothing is looked up that is known here
    count, topmost = torch._C._len_torch_function_stack, torch._C._get_function_stack_at
    take_off, put_on = torch._C._pop_torch_function_stack, torch._C._push_on_torch_function_stack

    @functools.wraps(function)
    @dynamo.hidden
    def unseen(*args: Any, **kwargs: Any) -> Any:
        # another mode may want to see it
        if count() != 1 or type(topmost(0)) is not mode_class or not (condition is None or condition(*args, **kwargs)):
            return function(*args, **kwargs)
        mode = take_off()
        try:
            return function(*args, **kwargs)
        finally:
            put_on(mode)

    return unseen
