"""Sees op calls, decides once for each op which tools they concern (plan.py), and sends them on their way (route.py).

A session is one thread's set of started tools. One function mode per session sees every call of torch's API; functions
that torch does not dispatch are wrapped (third_party.py). An op that no tool wants costs one look-up in a dictionary.
"""

from __future__ import annotations

import threading
from typing import Any, Callable

import torch
from torch.overrides import TorchFunctionMode

from op_tools import native
from op_tools.core import (
    autograd_functions,
    dynamo,
    exemptions,
    gradients,
    graphs,
    inductor,
    interruption,
    termination,
    where,
)
from op_tools.core.plan import OTHERWISE, Plan
from op_tools.core.route import through_tools
from op_tools.core.watcher import AnyWatcher
from op_tools.ops import names
from op_tools.ops.no_ops import NO_OPS
from op_tools.output import messages, tables
from op_tools.values import tensors

_local = threading.local()
_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)  # the running backward pass
MAX_PLANS = 10_000  # distinct functions that are remembered; classes made in a loop must not fill the memory


def this_threads_session() -> Session:
    """The session of the calling thread."""
    session: Session | None = getattr(_local, "session", None)
    if session is None:
        session = _local.session = Session()
    return session


def make_ready(tool: AnyWatcher) -> None:
    """Chooses the ways of what tools need at every call: with the C++ helper, or without."""
    names.make_ready()
    if tool.watches_gradients:
        helper = native.library()
        for module in (gradients, tensors, tables, where):
            module.choose_way(helper)


class Session:
    """The tools that one thread has started, in order."""

    def __init__(self) -> None:
        self._thread = threading.current_thread()
        self._tools: list[AnyWatcher] = []
        self._mode: Mode | None = None
        self._is_fleeting = False  # put on in a backward pass: autograd puts the stack back after each of its nodes
        self._is_stale = False  # a tool was started or stopped, or a step begun, where the mode could not be changed
        self.plans: dict[Any, Plan | None] = {}

    def add(self, tool: AnyWatcher) -> None:
        make_ready(tool)
        self._tools.append(tool)
        self._refresh()

    def remove(self, tool: AnyWatcher) -> None:
        if tool in self._tools:
            self._tools.remove(tool)
        if self._is_lost():
            messages.complain(
                f"{type(tool).__name__} was started inside a backward pass and has seen no more than the rest of one "
                "of its nodes: start it before backward() is called"
            )
        self._refresh()

    def step_began(self) -> None:
        if any(tool.steps is not None for tool in self._tools):
            self._refresh()

    def _refresh(self) -> None:
        """Puts the mode on the stack, or takes it off. Each thread has its own stack, which no other can change."""
        self.plans.clear()
        is_own = self._is_this_threads()
        if self._is_lost():
            self._leave()
        self._is_stale = self._thread.is_alive() and (not is_own or self._is_mode_in_use())
        if self._is_stale:  # the next op in this session's thread sees to it, or the end of the one that is running
            if is_own:
                interruption.soon(self._catch_up)
            return
        awake = bool(self._awake())
        if awake is (self._mode is None):
            dynamo.make_room()
        if awake and self._mode is None:
            self._mode = Mode(self)
            self._is_fleeting = _graph_task() >= 0
            _put_under_the_stack(self._mode)
            autograd_functions.watch(self, Mode)
            exemptions.begin(self, Mode)
            graphs.watch(self)
            inductor.watch(self)
        elif not awake and self._mode is not None:
            mode = self._mode
            self._leave()
            if is_own:
                _take_off_the_stack(mode)

    def _leave(self) -> None:
        self._mode = None
        autograd_functions.leave(self)
        exemptions.end(self)
        graphs.leave(self)
        inductor.leave(self)

    def _is_lost(self) -> bool:
        """Whether the mode has gone with the autograd node in which it was put on. Other stacks are unknown."""
        return self._is_fleeting and self._mode is not None and not (self._is_this_threads() and self._mode in _stack())

    def _is_this_threads(self) -> bool:
        return getattr(_local, "session", None) is self

    def _is_mode_in_use(self) -> bool:
        """True inside an op or a backward pass: torch holds the mode then, and puts it back on the stack afterwards."""
        return self._mode is not None and (self._mode not in _stack() or autograd_functions.passes_running() > 0)

    def _awake(self) -> list[AnyWatcher]:
        return [tool for tool in self._tools if tool.is_awake()]

    def _catch_up(self) -> bool:
        """Does what another thread could not, or what could not be done inside an op."""
        if self._is_mode_in_use():
            return False
        self._refresh()
        termination.finish()
        return True

    def decide(self, func: Any, name: str | None = None, inside_mode: bool = False) -> Plan | None:
        """What to do about calls of `func`: None is nothing. `inside_mode`: ops that it calls are seen, too."""
        if self._is_stale and self._is_this_threads() and not interruption.soon(self._catch_up) and not self._awake():
            return None  # a profiler is in the way: the next call tries again
        if len(self.plans) > MAX_PLANS:
            self.plans.clear()
        name = name or names.op_name(func)
        plan = None if NO_OPS.fullmatch(name) else Plan(func, name, self._awake(), inside_mode)
        self.plans[func] = plan
        return plan


_UNDECIDED = object()


class Mode(TorchFunctionMode):
    """Hands every call of torch's API to the session's tools."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._plans = session.plans

    @dynamo.hidden
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if dynamo.is_tracing():
            return func(*args, **(kwargs or {}))
        plan: Any = self._plans.get(func, _UNDECIDED)
        if plan is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        if plan is _UNDECIDED:
            if func in autograd_functions.RUN_BACKWARD:
                with autograd_functions.backward_seen_by(self):
                    return func(*args, **(kwargs or {}))
            plan = self._session.decide(func)
            if plan is None:
                return func(*args, **(kwargs or {}))
        if plan.shortcut is not None and not graphs.captures:
            result = plan.shortcut(func, args, kwargs or {})
            if result is not OTHERWISE:
                return result
        return through_tools(self._plans, plan, func, args, kwargs or {})

    def function_applied(self, function: type, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """A call of an autograd.Function. Ops in its forward are seen, too: it may be a whole checkpointed layer."""
        plan: Any = self._plans.get(function, _UNDECIDED)
        if plan is _UNDECIDED:
            plan = self._session.decide(function, f"{function.__module__}.{function.__qualname__}.apply", True)
        if plan is None or dynamo.is_tracing():
            return run(*args, **kwargs)
        return through_tools(self._plans, plan, run, args, kwargs)

    def region_ran(self, region: Any, ran: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """A part of a compiled graph that has run: the tools that watch see it; its time is not known by itself."""
        plan: Any = self._plans.get(region, _UNDECIDED)
        if plan is _UNDECIDED:
            plan = self._session.decide(region, region.name)
            if plan is not None:
                plan.only_watches()
        if plan is not None:
            through_tools(self._plans, plan, ran, args, {})


def _put_under_the_stack(mode: Mode) -> None:
    """Under the modes that are in use: each of them is taken off from the top when its `with` ends, whatever is there.

    Only the default device, which torch itself keeps at the bottom, stays below ours.
    """
    above = _taken_off()
    default = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    if above and default is not None and above[-1] is default:
        torch._C._push_on_torch_function_stack(above.pop())
    _put_on([mode, *reversed(above)])


def _take_off_the_stack(mode: Mode) -> None:
    _put_on([other for other in reversed(_taken_off()) if other is not mode])


def _taken_off() -> list[Any]:
    """Every mode, the topmost first."""
    return [torch._C._pop_torch_function_stack() for _ in _stack()]


def _put_on(modes: list[Any]) -> None:
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def _stack() -> list[Any]:
    return [torch._C._get_function_stack_at(index) for index in range(torch._C._len_torch_function_stack())]
