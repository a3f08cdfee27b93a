"""apply_feature: one of the tools on chosen ops, under the user's own condition."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Callable

import torch
from torch.overrides import resolve_name

from op_tools.core.running import Watched
from op_tools.core.session import this_threads_session
from op_tools.core.third_party import wrapped_function
from op_tools.core.tool import FEATURES, AnyTool
from op_tools.errors import UnknownOpError
from op_tools.ops.lookup import look_up
from op_tools.ops.names import op_name

Op = Any  # a full name, or the function itself


class Feature:
    """What apply_feature returns: the feature is in effect until `remove` is called."""

    def __init__(self, applied: list[AnyTool]) -> None:
        self._applied = applied

    def remove(self) -> None:
        """Ends the feature, and shows its summary."""
        for tool in self._applied:
            tool.stop()
        self._applied = []


def apply_feature(
    ops: Op | Iterable[Op], feature: str, condition_func: Callable[..., Any] = lambda *args, **kwargs: True
) -> Feature:
    """Puts a feature on one op or several: full names or functions, torch's own or any third party's.

    `condition_func` takes the op's own arguments and says for each call whether the feature takes effect. Torch's ops
    are watched in the calling thread (and in autograd's threads), functions of third parties in every thread.
    """
    assert feature in FEATURES, f"{feature!r} is no feature; these are: {', '.join(FEATURES)}"
    wanted = [ops] if isinstance(ops, str) or callable(ops) else list(ops)
    if not wanted or any(op == "" for op in wanted if isinstance(op, str)):
        raise ValueError("ops is empty: give an op's full name, such as torch.nn.functional.linear, or the function")
    found = [_find(op) for op in wanted]
    make = FEATURES[feature]
    applied: list[AnyTool] = []
    by_torch = [name for name, owner, _ in found if owner is None]
    if by_torch:
        applied.append(_joined(make, by_torch, condition_func, this_threads_session()))
    for name, owner, attribute in found:
        if owner is not None:
            applied.append(_joined(make, [name], condition_func, wrapped_function(name, owner, attribute)))
    return Feature(applied)


def _joined(make: type[AnyTool], names: list[str], condition: Callable[..., Any], watched: Watched) -> AnyTool:
    tool = make(ops=names, skip=[], condition=condition)
    tool.join(watched)
    return tool


def _find(op: Op) -> tuple[str, Any, str]:
    """The op's name; and where it is kept, for a function that torch does not dispatch (else None)."""
    if isinstance(op, str):
        owner, attribute, function = look_up(op)
    else:
        owner, attribute, function = None, "", op
    bound_to = getattr(function, "__self__", None)
    if isinstance(function, type) and issubclass(function, torch.autograd.Function):
        return f"{function.__module__}.{function.__qualname__}.apply", None, ""
    if isinstance(bound_to, type) and issubclass(bound_to, torch.autograd.Function) and function.__name__ == "apply":
        return f"{bound_to.__module__}.{bound_to.__qualname__}.apply", None, ""
    if not callable(function):
        raise UnknownOpError(f"{op!r} is no op: it is a {type(function).__name__}, which cannot be called")
    if _is_dispatched(function):
        return op_name(function), None, ""
    if owner is None:
        owner, attribute = _home(function)
    name = op if isinstance(op, str) else f"{function.__module__}.{function.__qualname__}"
    return name, owner, attribute


def _is_dispatched(function: Any) -> bool:
    """True where function modes see the calls: torch's own API, and ops of torch.library."""
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)) or resolve_name(function):
        return True
    return type(function).__name__ == "builtin_function_or_method" and str(function.__module__).startswith("torch")


def _home(function: Any) -> tuple[Any, str]:
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    owner: Any = module
    path = str(getattr(function, "__qualname__", "")).split(".")
    for part in path[:-1]:
        owner = getattr(owner, part, None)
    if owner is None or getattr(owner, path[-1], None) is None:
        raise UnknownOpError(
            f"{function!r} cannot be replaced: it is not found under its own name in its module. Give the full name of "
            "where it is called from, such as 'my_package.module.function'"
        )
    return owner, path[-1]
