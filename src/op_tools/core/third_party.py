"""Functions that torch does not dispatch, such as a third party's: each is replaced by one that asks the tools."""

from __future__ import annotations

import functools
import gc
import sys
import types
from typing import Any, Callable

from op_tools.core import dynamo
from op_tools.core.plan import Plan
from op_tools.core.route import through_tools
from op_tools.core.session import make_ready
from op_tools.core.steps import STEPS
from op_tools.core.watcher import AnyWatcher
from op_tools.output import messages

# the name of a wrapped function: what stands in for it
_wrapped: dict[str, WrappedFunction] = {}


class WrappedFunction:
    """One function of a third party, and the tools that its calls go through, in every thread."""

    def __init__(self, name: str, owner: Any, attribute: str, lists: list[Any]) -> None:
        self.name = name
        self._lists = lists  # that hold the function, and are not called through
        self._owner, self._attribute = owner, attribute
        self._original = owner.__dict__[attribute] if attribute in getattr(owner, "__dict__", {}) else None
        self._function: Callable[..., Any] = getattr(owner, attribute)
        self._tools: list[AnyWatcher] = []
        self._plans: dict[Any, Plan | None] = {}
        self._replaced: list[tuple[Any, str, Any]] = []

    # a tool takes this for its session

    def add(self, tool: AnyWatcher) -> None:
        make_ready(tool)
        self._tools.append(tool)
        self._plans.clear()
        if not self._replaced:
            self._put_in_place()

    def remove(self, tool: AnyWatcher) -> None:
        if tool in self._tools:
            self._tools.remove(tool)
        self._plans.clear()
        if not self._tools:
            self._put_back()

    def step_began(self) -> None:
        """Plans are kept by step already."""

    def _put_in_place(self) -> None:
        _wrapped[self.name] = self
        stand_in = self._stand_in()
        if isinstance(self._original, (staticmethod, classmethod)):
            stand_in = staticmethod(stand_in)
        self._replace(self._owner, self._attribute, stand_in)
        self._replace_in_modules(stand_in)
        self._name_what_is_out_of_reach()

    def _stand_in(self) -> Any:
        function = self._function

        @functools.wraps(function)
        @dynamo.hidden
        def asks_the_tools_first(*args: Any, **kwargs: Any) -> Any:
            plan = self._plans.get(STEPS.current)
            if plan is None:
                self._plans.clear()
                awake = [tool for tool in self._tools if tool.is_awake()]
                plan = self._plans[STEPS.current] = Plan(STEPS.current, self.name, awake, inside_mode=True)
            if not plan.watchers and not plan.changers:
                return function(*args, **kwargs)
            return through_tools(self._plans, plan, function, args, kwargs)

        return asks_the_tools_first

    def _replace(self, owner: Any, attribute: str, stand_in: Any) -> None:
        original = self._original if self._original is not None else self._function
        setattr(owner, attribute, stand_in)
        self._replaced.append((owner, attribute, original))

    def _replace_in_modules(self, stand_in: Any) -> None:
        """`from third_party import function` made another name for it: every module's names are looked through."""
        for module in list(sys.modules.values()):
            if not isinstance(module, types.ModuleType):
                continue
            for name, value in list(vars(module).items()):
                if value is self._function:
                    setattr(module, name, stand_in)
                    self._replaced.append((module, name, value))

    def _name_what_is_out_of_reach(self) -> None:
        """Names in modules were replaced; a default argument, a closure or a list that holds the function was not."""
        if isinstance(self._function, (types.MethodType, types.BuiltinMethodType)):
            return  # made anew at each look-up
        ours = (self.__dict__, self._replaced, *self._lists)
        holders = [
            holder
            for holder in gc.get_referrers(self._function)
            if isinstance(holder, (list, tuple, dict, types.CellType)) and not any(holder is own for own in ours)
        ]
        others = [holder for holder in holders if not _is_own(holder, self)]
        self._lists = []
        if others:
            kinds = ", ".join(sorted({type(holder).__name__ for holder in others}))
            messages.say_once(
                "out of reach",
                self.name,
                text=f"op_tools: {self.name} is also held by {len(others)} other object(s) ({kinds}): "
                "calls through these are not seen",
            )

    def _put_back(self) -> None:
        for owner, name, original in reversed(self._replaced):
            setattr(owner, name, original)
        self._replaced.clear()
        _wrapped.pop(self.name, None)


def _is_own(holder: Any, wrapped: WrappedFunction) -> bool:
    """True for what this file itself made: the stand-in's closure and `__wrapped__`, the notes for putting back."""
    function = wrapped._function
    if isinstance(holder, dict):
        return holder.get("__wrapped__") is function or holder is vars(wrapped)
    if isinstance(holder, tuple):
        return any(holder is note for note in wrapped._replaced)
    return isinstance(holder, types.CellType) and any(
        holder in (getattr(value, "__closure__", None) or ())
        for owner, name, _ in wrapped._replaced
        for value in (vars(owner).get(name) if hasattr(owner, "__dict__") else None,)
    )


def wrapped_function(name: str, owner: Any, attribute: str, lists: list[Any]) -> WrappedFunction:
    """What stands in for `owner.attribute`, from its first tool's start to its last one's stop."""
    return _wrapped.get(name) or WrappedFunction(name, owner, attribute, lists)
