"""How the tools compute where modes are on: a FLOP counter or checkpointing must not see their ops."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch

from op_tools.core import dynamo

# a module or class, the name of a function in it, and what stands there while tools watch
Replacement = tuple[Any, str, Callable[..., Any]]

# how many dispatch modes are on
dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


def with_modes_aside(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `function`; no tool and no mode sees the ops that it uses."""
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunction(), _disable_current_modes():
        return function(*arguments)


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
