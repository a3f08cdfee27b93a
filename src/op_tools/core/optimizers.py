"""The optimizers' bookkeeping: they read properties of every parameter at every step, and compute nothing with them.

Each such read would go through the function mode: with AdamW, most of a step's calls. So while tools watch, the mode is
off in those functions of torch.optim. What they compute, such as the state at the first step, is seen as ever.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from typing import Any, Callable

import torch

from op_tools.core import dynamo

_replaced: list[tuple[Any, str, Any]] = []
_watching: set[int] = set()
_lock = threading.Lock()
_READ_ONLY = ("_get_value", "_default_to_fused_or_foreach")


def quiet(session: object, mode_class: type) -> None:
    """Makes the bookkeeping quiet for modes of this class, as long as a session wants it."""
    with _lock:
        _watching.add(id(session))
        if not _replaced:
            _replace_all(mode_class)


def loud(session: object) -> None:
    """Undoes `quiet`; the last one puts everything back as it was."""
    with _lock:
        _watching.discard(id(session))
        while _replaced and not _watching:
            owner, name, original = _replaced.pop()
            setattr(owner, name, original)


def _replace_all(mode_class: type) -> None:
    modules = [module for name, module in sys.modules.items() if name.startswith("torch.optim.") and module]
    for module in modules:
        for name in _READ_ONLY:
            function = vars(module).get(name)
            if inspect.isfunction(function):
                _replace(module, name, _without_mode(function, mode_class, _always))
        for kind in [kind for kind in vars(module).values() if inspect.isclass(kind)]:
            init_group = kind.__dict__.get("_init_group")
            if inspect.isfunction(init_group) and kind.__module__ == module.__name__:
                # SGD's only reads; others make their state with functions of torch
                makes_state = "torch" in inspect.unwrap(init_group).__code__.co_names  # Dynamo wraps it
                condition = _has_its_state if makes_state else _always
                _replace(kind, "_init_group", _without_mode(init_group, mode_class, condition))
    zero_grad = torch.optim.Optimizer.zero_grad
    _replace(torch.optim.Optimizer, "zero_grad", _without_mode(zero_grad, mode_class, _only_forgets))


def _replace(owner: Any, name: str, function: Any) -> None:
    _replaced.append((owner, name, vars(owner)[name]))
    setattr(owner, name, function)


def _always(*args: Any, **kwargs: Any) -> bool:
    return True


def _has_its_state(optimizer: Any, *args: Any, **kwargs: Any) -> bool:
    """False at the first step, when the state is made."""
    return len(optimizer.state) >= sum(len(group["params"]) for group in optimizer.param_groups)


def _only_forgets(optimizer: Any, set_to_none: bool = True) -> bool:
    return set_to_none


def _without_mode(
    function: Callable[..., Any], mode_class: type, computes_nothing: Callable[..., bool]
) -> Callable[..., Any]:
    # called a hundred times in a step: nothing is looked up that is known here
    count, topmost = torch._C._len_torch_function_stack, torch._C._get_function_stack_at
    take_off, put_on = torch._C._pop_torch_function_stack, torch._C._push_on_torch_function_stack
    always = computes_nothing is _always

    @functools.wraps(function)
    @dynamo.hidden
    def reads_unseen(*args: Any, **kwargs: Any) -> Any:
        # a mode of somebody else may want to see it
        if count() != 1 or type(topmost(0)) is not mode_class or not (always or computes_nothing(*args, **kwargs)):
            return function(*args, **kwargs)
        mode = take_off()
        try:
            return function(*args, **kwargs)
        finally:
            put_on(mode)

    return reads_unseen
