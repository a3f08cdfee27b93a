"""apply_feature: one of the tools on chosen ops, under the user's own condition."""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, Callable

import torch
from torch.overrides import resolve_name

from op_tools.core.running import Watched
from op_tools.core.session import this_threads_session
from op_tools.core.third_party import wrapped_function
from op_tools.core.tool import FEATURES, AnyTool
from op_tools.core.watcher import AnyWatcher
from op_tools.errors import UnknownOpError
from op_tools.ops.lookup import look_up
from op_tools.ops.names import op_name

Op = Any  # a full name, a function, or a module; or a list of these, which may hold lists


class Feature:
    """What apply_feature returns: the feature is in effect until `remove` is called, or the program ends."""

    def __init__(self, tool: AnyTool) -> None:
        self._tool = tool

    def remove(self) -> None:
        """Ends the feature, and shows its summary."""
        self._tool.stop()


class _Several:
    """What one tool watches together: this thread's session, and functions of third parties."""

    def __init__(self, parts: list[Watched]) -> None:
        self._parts = parts

    def add(self, tool: AnyWatcher) -> None:
        for part in self._parts:
            part.add(tool)

    def remove(self, tool: AnyWatcher) -> None:
        for part in self._parts:
            part.remove(tool)

    def step_began(self) -> None:
        for part in self._parts:
            part.step_began()


def apply_feature(ops: Op, feature: str, condition_func: Callable[..., Any] = lambda *args, **kwargs: True) -> Feature:
    """Puts a feature on one op or several: full names, functions or modules, torch's own or any third party's.

    `condition_func` takes the op's own arguments and says for each call whether the feature takes effect. Torch's ops
    are watched in the calling thread (and in autograd's threads), functions of third parties in every thread.
    """
    is_known = isinstance(feature, str) and feature in FEATURES
    assert is_known, f"{feature!r} is no feature; these are: {', '.join(FEATURES)}"
    lists: list[Any] = []  # hold functions for the length of this call, and are not called through
    wanted = list(_flattened(ops, lists))
    lists.append(wanted)
    if not wanted or any(op == "" for op in wanted if isinstance(op, str)):
        raise ValueError("ops is empty: give an op's full name, such as torch.nn.functional.linear, or the function")
    found = list({each[0]: each for each in map(_find, wanted)}.values())
    parts: list[Watched] = [this_threads_session()] if any(owner is None for _, owner, _ in found) else []
    parts += [wrapped_function(name, owner, place, lists) for name, owner, place in found if owner is not None]
    tool = FEATURES[feature](ops=[name for name, _, _ in found], skip=[], condition=condition_func)
    tool.names_skipped_ops = False  # the others were not asked for
    tool.join(_Several(parts))
    return Feature(tool)


def _flattened(ops: Op, lists: list[Any]) -> Iterator[Op]:
    """Ops without the lists that they are in; those are noted."""
    if isinstance(ops, types.ModuleType) and not _is_torchs(ops):
        ops = _functions_of(ops)
    elif isinstance(ops, str) or callable(ops) or not isinstance(ops, Iterable):
        yield ops
        return
    lists.append(ops)
    for op in ops:
        yield from _flattened(op, lists)


def _is_torchs(module: types.ModuleType) -> bool:
    return module.__name__.partition(".")[0] == "torch"


def _functions_of(module: types.ModuleType) -> list[Op]:
    """The public functions that a package has made itself."""
    package = module.__name__.partition(".")[0]
    routines = [value for name, value in vars(module).items() if not name.startswith("_") and inspect.isroutine(value)]
    own = [function for function in routines if str(function.__module__).partition(".")[0] == package]
    if not own:
        raise UnknownOpError(f"the module {module.__name__} has no ops: it has no public functions of its own")
    return own


def _find(op: Op) -> tuple[str, Any, str]:
    """The op's name; and where it is kept, for a function that torch does not dispatch (else None)."""
    if isinstance(op, types.ModuleType):
        return rf"{re.escape(op.__name__)}\.\w+", None, ""
    if isinstance(op, str):
        owner, attribute, function = look_up(op)
    else:
        owner, attribute, function = None, "", op
    bound_to = getattr(function, "__self__", None)
    if isinstance(function, type) and issubclass(function, torch.autograd.Function):
        return f"{function.__module__}.{function.__qualname__}.apply", None, ""
    if isinstance(bound_to, type) and issubclass(bound_to, torch.autograd.Function) and function.__name__ == "apply":
        return f"{bound_to.__module__}.{bound_to.__qualname__}.apply", None, ""
    if isinstance(function, (type, torch.nn.Module)):
        kind = function if isinstance(function, type) else type(function)
        method = f"{kind.__module__}.{kind.__qualname__}.forward"
        raise UnknownOpError(f"{kind.__qualname__} is a class and no op: name one of its methods, such as {method!r}")
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
