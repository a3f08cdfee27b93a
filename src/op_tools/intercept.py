"""Sees op calls and takes them through the tools: torch → OpCall → before → the op → after; gradients when they flow.

A session is one thread's set of started tools. One function mode per session sees every call of torch's API; functions
that torch does not dispatch are wrapped (wrap.py). Which tools an op concerns is decided once per op and kept in a
dictionary, so an op that no tool wants costs one look-up.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any, Callable

import torch
from torch.overrides import TorchFunctionMode

from op_tools import autograd, bookkeeping, gradients, messages, native, unusual, where
from op_tools.call import OpCall
from op_tools.errors import StopTraining
from op_tools.names import MOVES, is_collective, is_no_op, op_name
from op_tools.tool import STEPS, Tool

_local = threading.local()
_sessions: list[Session] = []
_MOST_PLANS = 10_000  # distinct functions that are remembered; classes made in a loop must not fill the memory


def this_threads_session() -> Session:
    """The session of the calling thread."""
    session: Session | None = getattr(_local, "session", None)
    if session is None:
        session = _local.session = Session()
        _sessions.append(session)
    return session


def step() -> int:
    """Marks the beginning of the next training step, for tools limited to some steps and for reports by step."""
    number = STEPS.advance()
    for session in list(_sessions):
        session.step_began(number)
    return number


class Session:
    """The tools that one thread has started, in order."""

    def __init__(self) -> None:
        self._tools: list[Tool] = []
        self._mode: Mode | None = None
        self.plans: dict[Any, Plan | None] = {}

    def add(self, tool: Tool) -> None:
        if tool.watches_gradients:
            helper = native.library()
            gradients.choose_way(helper)
            where.choose_way(helper)
        self._tools.append(tool)
        self._refresh()

    def remove(self, tool: Tool) -> None:
        if tool in self._tools:
            self._tools.remove(tool)
        self._refresh()

    def step_began(self, number: int) -> None:
        for tool in self._tools:
            unusual.with_modes_aside(tool.step_began, number)
        if any(tool.steps is not None for tool in self._tools):
            self._refresh()

    def stop_all(self) -> None:
        for tool in reversed(self._tools[:]):
            tool.stop()

    def abandon(self) -> None:
        """In a forked child: the parent's tools, files and threads are not ours."""
        for tool in self._tools:
            tool._session = None
        self._tools.clear()
        self._refresh()

    def _refresh(self) -> None:
        self.plans.clear()
        awake = bool(self._awake())
        if awake and self._mode is None:
            self._mode = Mode(self)
            _put_under_the_stack(self._mode)
            autograd.watch(self)
            bookkeeping.quiet(self, Mode)
        elif not awake and self._mode is not None:
            mode, self._mode = self._mode, None
            autograd.leave(self)
            bookkeeping.loud(self)
            _take_off_the_stack(mode)

    def _awake(self) -> list[Tool]:
        return [tool for tool in self._tools if tool.steps is None or STEPS.current in tool.steps]

    def decide(self, func: Any, name: str | None = None, inside_mode: bool = False) -> Plan | None:
        """What to do about calls of `func`: None is nothing. `inside_mode`: ops that it calls are seen, too."""
        if len(self.plans) > _MOST_PLANS:
            self.plans.clear()
        name = name or op_name(func)
        plan = None if is_no_op(name) else Plan(func, name, self._awake(), inside_mode)
        self.plans[func] = plan
        return plan


class Plan:
    """Which tools an op's calls go through, and in which order."""

    __slots__ = (
        "announced",
        "changers",
        "conditional",
        "inside_mode",
        "key",
        "moves",
        "name",
        "print_stack",
        "shortcut",
        "skipping",
        "watchers",
        "watches_gradients",
    )

    def __init__(self, key: Any, name: str, tools: list[Tool], inside_mode: bool) -> None:
        is_opaque = inside_mode or is_collective(name)
        # what communicates or has other effects must not be run a second time unless the user names it
        chosen = [
            tool
            for tool in tools
            if name in tool.selection and not (is_opaque and tool.runs_again and not tool.selection.names(name))
        ]
        self.key = key
        self.name = name
        self.inside_mode = inside_mode
        self.skipping = [tool for tool in tools if tool not in chosen]
        self.watchers = sorted((tool for tool in chosen if not tool.changes), key=lambda tool: tool.innermost)
        self.changers = [tool for tool in chosen if tool.changes]
        self.watches_gradients = any(tool.watches_gradients for tool in self.watchers)
        self.conditional = any(tool.condition is not None for tool in chosen)
        self.moves = name in MOVES
        self.print_stack = any(tool.print_stack for tool in chosen)
        self.announced = False
        self.shortcut: Callable[..., Any] | None = None

    def announce(self) -> bool:
        """Says which tools apply, at the first call that concerns them. False when none does."""
        self.announced = True
        for tool in self.skipping:
            if tool.verbose >= 1:
                messages.say_once("skip", tool.hook, self.name, text=f"skip {tool.hook} on {self.name}")
        for tool in (*self.watchers, *self.changers):
            if tool.verbose >= 1 and tool.condition is None:
                announce_applied(tool, self.name)
        self._find_shortcut()
        return bool(self.watchers or self.changers)

    def _find_shortcut(self) -> None:
        special = self.conditional or self.print_stack or self.inside_mode
        if special or self.changers or len(self.watchers) != 1:
            return
        tool, name, func = self.watchers[0], self.name, self.key

        def report(error: Exception) -> None:
            _report(tool, OpCall(name, func, (), {}, where.here(1), STEPS.current), error)

        self.shortcut = tool.shortcut(name, report, OTHERWISE)


OTHERWISE = object()


def announce_applied(tool: Tool, name: str) -> None:
    messages.say_once("apply", tool.hook, name, text=f"apply {tool.hook} on {name}")


_UNDECIDED = object()
# what torch.compile knows to be true while it traces
_is_compiling: Callable[[], bool] = (
    getattr(torch.compiler, "is_dynamo_compiling", None)
    or getattr(torch.compiler, "is_compiling", None)
    or (lambda: False)
)


class Mode(TorchFunctionMode):
    """Hands every call of torch's API to the session's tools."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._plans = session.plans

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if _is_compiling():
            return func(*args, **(kwargs or {}))
        plan: Any = self._plans.get(func, _UNDECIDED)
        if plan is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        if plan is _UNDECIDED:
            if func in autograd.RUN_BACKWARD:
                with autograd.backward_seen_by(self):
                    return func(*args, **(kwargs or {}))
            plan = self._session.decide(func)
            if plan is None:
                return func(*args, **(kwargs or {}))
        if plan.shortcut is not None:
            result = plan.shortcut(func, args, kwargs or {})
            if result is not OTHERWISE:
                return result
        return through_tools(self._plans, plan, func, args, kwargs or {})

    def function_applied(self, function: type, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """A call of an autograd.Function. Ops in its forward are seen, too: it may be a whole checkpointed layer."""
        plan: Any = self._plans.get(function, _UNDECIDED)
        if plan is _UNDECIDED:
            plan = self._session.decide(function, f"{function.__module__}.{function.__qualname__}.apply", True)
        if plan is None or _is_compiling():
            return run(*args, **kwargs)
        return through_tools(self._plans, plan, run, args, kwargs)


def through_tools(
    plans: dict[Any, Plan | None],
    plan: Plan,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """One call on its way to the tools that are concerned."""
    place = unusual.place_of(args)
    if kwargs and place is not unusual.DEVICE:
        place = unusual.place_of(kwargs.values()) or place
    if place is unusual.CPU and not plan.moves:
        return func(*args, **kwargs)
    strange = unusual.reason(place)
    if strange is not None:
        messages.say_once("left alone", strange, text=f"op_tools leaves {plan.name} and the like alone: {strange}")
        return func(*args, **kwargs)
    if not plan.announced and place is unusual.DEVICE and not plan.announce():
        plans[plan.key] = None
    if not plan.watchers and not plan.changers:
        return func(*args, **kwargs)
    return _call(plan, func, args, kwargs, place is unusual.DEVICE)


def _call(plan: Plan, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], on_device: bool) -> Any:
    """The way of one call: before, the op itself, after, and the hooks for its gradients."""
    watchers, changers = plan.watchers, plan.changers
    if plan.conditional:
        watchers = [tool for tool in watchers if _condition_holds(tool, plan.name, args, kwargs)]
        changers = [tool for tool in changers if _condition_holds(tool, plan.name, args, kwargs)]
        if not watchers and not changers:
            return func(*args, **kwargs)
    call = OpCall(plan.name, func, args, kwargs, where.here(4, plan.print_stack), STEPS.current)
    edges = None
    if plan.watches_gradients and torch.is_grad_enabled():
        edges = gradients.edges_of_inputs(args, kwargs)
    aside = unusual.modes_aside(plan.inside_mode)
    states = _before(watchers, call) if aside is None else aside(_before, watchers, call)
    try:
        result = call.result = _changed(changers, call) if changers else func(*args, **kwargs)
    except BaseException as error:
        if type(error).__name__ == "_StopRecomputationError":
            raise  # how checkpointing ends the recomputation of a layer once it has what it needs
        call.error = error
        (aside or _directly)(_failed, watchers, call, states)
        raise
    # a factory such as torch.ones has no tensors among its arguments: only the result shows where it is
    if not on_device:
        if unusual.place_of((result,)) is not unusual.DEVICE:
            return result
        if not plan.announced:
            plan.announce()
    if aside is None:
        _after(watchers, call, states, edges)
    else:
        aside(_after, watchers, call, states, edges)
    return result


def _directly(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _before(watchers: list[Tool], call: OpCall) -> list[Any]:
    states = []
    for tool in watchers:
        try:
            states.append(tool.before(call))
        except Exception as error:  # noqa: BLE001  a tool's own failure never ends the user's run
            _report(tool, call, error)
            states.append(None)
    return states


def _failed(watchers: list[Tool], call: OpCall, states: list[Any]) -> None:
    for tool, state in zip(reversed(watchers), reversed(states)):
        guarded(tool, call, tool.failed, call, state)


def _after(watchers: list[Tool], call: OpCall, states: list[Any], edges: gradients.Edges | None) -> None:
    """`after` in the reverse order of `before`; then the hooks for the gradients of tools that wait for them."""
    listening = []
    tells_nodes = False
    spans: tuple[Any, ...] = ()
    for index in range(len(watchers) - 1, -1, -1):
        tool = watchers[index]
        try:
            kept = tool.after(call, states[index])
        except Exception as error:  # noqa: BLE001  see above
            _report(tool, call, error)
            continue
        if edges is not None and kept is not None and tool.watches_gradients:
            if type(kept) is gradients.native_span:
                spans = (*spans, kept)
            else:
                listening.append((tool, kept))
                tells_nodes = tells_nodes or tool.times_gradients
    if edges is None or not (listening or spans):
        return
    listener = _Listener(call.without_tensors(), listening) if listening else None
    try:
        edges.watch(call.result, listener, tells_nodes, spans)
    except Exception as error:  # noqa: BLE001  see above
        _report(watchers[0], call, error)


def _changed(changers: list[Tool], call: OpCall) -> Any:
    """Runs the op by way of the tools that change how it runs; the one started last is the closest to the op."""
    proceed: Callable[..., Any] = call.func
    for tool in reversed(changers):
        proceed = _through_changer(tool, call, proceed)
    return proceed(*call.args, **call.kwargs)


def _through_changer(tool: Tool, call: OpCall, proceed: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: tool.run(call, proceed, args, kwargs)


def _condition_holds(tool: Tool, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if tool.condition is None:
        return True
    try:
        holds = bool(tool.condition(*args, **kwargs))
    except Exception as error:  # noqa: BLE001  the user's own function: the run goes on without the feature
        messages.complain_once(
            "condition", tool.hook, name, text=f"the condition for {tool.hook} on {name} raised {error!r}: not applied"
        )
        return False
    if tool.verbose >= 1:
        verb = "apply" if holds else "skip"
        messages.say_once(verb, tool.hook, name, text=f"{verb} {tool.hook} on {name}")
    return holds


def guarded(tool: Tool, call: OpCall, function: Callable[..., Any], *arguments: Any) -> Any:
    """A tool's own failure is reported once and never ends the user's run."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001  see above
        _report(tool, call, error)
        return None


def _report(tool: Tool, call: OpCall, error: Exception) -> None:
    """Says that a tool failed; an error that is meant to end the run goes on."""
    if isinstance(error, StopTraining):
        raise error
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    at = f" ({os.path.basename(place.tb_frame.f_code.co_filename)}:{place.tb_lineno})" if place is not None else ""
    messages.complain_once(
        "failed",
        tool.hook,
        call.name,
        text=f"{type(tool).__name__} could not deal with {call.name} (forward_id {call.id}, {call.where.line()}): "
        f"{type(error).__name__}: {str(error).partition(chr(10))[0]}{at}; training goes on without it",
    )


class _Listener:
    """Hands what the hooks in backward see to the tools."""

    __slots__ = ("_call", "_tools")

    def __init__(self, call: OpCall, tools: list[tuple[Tool, Any]]) -> None:
        self._call = call
        self._tools = tools

    def begins(self) -> None:
        for tool, state in self._tools:
            if tool.times_gradients and tool.active:
                guarded(tool, self._call, tool.begins, self._call, state)

    def ends(self) -> None:
        for tool, state in self._tools:
            if tool.times_gradients and tool.active:
                guarded(tool, self._call, tool.ends, self._call, state)

    def received(self, inputs: list[torch.Tensor | None], outputs: list[torch.Tensor | None]) -> None:
        flowing = gradients.Gradients(inputs, outputs)
        for tool, state in self._tools:
            if tool.active:
                guarded(tool, self._call, tool.flowed, self._call, state, flowing)


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
    return [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]


def _put_on(modes: list[Any]) -> None:
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def _stop_everything() -> None:
    for session in list(_sessions):
        session.stop_all()


def _abandon_everything() -> None:
    for session in list(_sessions):
        session.abandon()


atexit.register(_stop_everything)
os.register_at_fork(after_in_child=_abandon_everything)
