"""Keeps Dynamo (torch.compile) out of our own Python code.

Dynamo compiles every Python frame that compiled code enters. An op between two graphs calls our mode there, and so does
the code that 2.13 generates for accelerators: our functions would be traced as if they were the user's. That crashes
or, worse, hides the op from the tools. Each function of ours that torch or the user's code calls is marked instead.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar, cast

import torch

# what C++ has for Dynamo; importing Dynamo itself would take seconds
_eval_frame: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)

Function = TypeVar("Function", bound=Callable[..., Any])

# true while torch.compile traces
is_tracing: Callable[[], bool] = (
    getattr(torch.compiler, "is_dynamo_compiling", None)
    or getattr(torch.compiler, "is_compiling", None)
    or (lambda: False)
)


def hidden(function: Function) -> Function:
    """Marks a function: when compiled code calls it, neither it nor anything that it calls is compiled.

    While torch.compile traces code that calls it, it is traced like any other: see `is_tracing`.
    """
    if hasattr(_eval_frame, "set_code_exec_strategy"):
        skip = _eval_frame._FrameAction.SKIP
        _eval_frame.set_code_exec_strategy(function.__code__, _eval_frame._FrameExecStrategy(skip, skip))
        return function
    if hasattr(_eval_frame, "skip_code") and hasattr(_eval_frame, "set_eval_frame"):
        return cast(Function, _outside_of_compiled_code(function))
    return function


def passed_over(function: Function) -> Function:
    """Marks a function that only calls another: it is not compiled, and what it calls is or is not, as ever."""
    if hasattr(_eval_frame, "set_code_exec_strategy"):
        action = _eval_frame._FrameAction
        strategy = _eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
        _eval_frame.set_code_exec_strategy(function.__code__, strategy)
    elif hasattr(_eval_frame, "skip_code"):
        _eval_frame.skip_code(function.__code__)
    return function


def _outside_of_compiled_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """For releases that cannot mark what a function calls: Dynamo is off until it returns."""
    set_eval_frame = _eval_frame.set_eval_frame

    def unseen(*args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return function(*args, **kwargs)
        before = set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            set_eval_frame(before)

    _eval_frame.skip_code(unseen.__code__)
    return functools.wraps(function)(unseen)
