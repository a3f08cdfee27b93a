"""The optimizers' bookkeeping: they read properties of every parameter at every step, and compute nothing with them.

Each such read would go through the function mode: with AdamW, most of a step's calls. So while tools watch, the mode is
off in those functions of torch.optim. What they compute, such as the state at the first step, is seen as ever.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import torch

from op_tools.core.modes import Replacement, without_mode

_READ_ONLY = ("_get_value", "_default_to_fused_or_foreach")


def replacements(mode_class: type) -> Iterator[Replacement]:
    """Those functions, each without modes of this class."""
    modules = [module for name, module in sys.modules.items() if name.startswith("torch.optim.") and module]
    for module in modules:
        for name in _READ_ONLY:
            function = vars(module).get(name)
            if inspect.isfunction(function):
                yield module, name, without_mode(function, mode_class)
        for kind in [kind for kind in vars(module).values() if inspect.isclass(kind)]:
            init_group = kind.__dict__.get("_init_group")
            if inspect.isfunction(init_group) and kind.__module__ == module.__name__:
                # SGD's only reads; others make their state with functions of torch
                makes_state = "torch" in inspect.unwrap(init_group).__code__.co_names  # Dynamo wraps it
                condition = _has_its_state if makes_state else None
                yield kind, "_init_group", without_mode(init_group, mode_class, condition)
    zero_grad = torch.optim.Optimizer.zero_grad
    yield torch.optim.Optimizer, "zero_grad", without_mode(zero_grad, mode_class, _only_forgets)


def _has_its_state(optimizer: Any, *args: Any, **kwargs: Any) -> bool:
    """False at the first step, when the state is made."""
    return len(optimizer.state) >= sum(len(group["params"]) for group in optimizer.param_groups)


def _only_forgets(optimizer: Any, set_to_none: bool = True) -> bool:
    return set_to_none
