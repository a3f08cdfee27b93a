"""The way of one call through the tools: OpCall → before → the op → after; and of its gradients, when they flow.

Calls on the CPU, and calls that a look would disturb, are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable, Union

import torch
from torch import Tensor
from torch.nn import Parameter

from op_tools.core import gradients, graphs, where
from op_tools.core.call import OpCall
from op_tools.core.guard import guarded, report
from op_tools.core.modes import dispatch_modes, with_modes_aside, without_graph
from op_tools.core.plan import Plan
from op_tools.core.source_line import RunInLine
from op_tools.core.steps import STEPS
from op_tools.core.watcher import AnyWatcher
from op_tools.device import failure, progress
from op_tools.output import messages

_FAILED = object()  # in place of the state of a tool whose `before` failed


def through_tools(
    plans: dict[Any, Plan | None],
    plan: Plan,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """One call on its way to the tools that are concerned."""
    if _is_inside_kernel():
        return func(*args, **kwargs)
    place = place_of(args)
    if kwargs and place is not DEVICE:
        place = place_of(kwargs.values()) or place
    if place is CPU and not (plan.moves or plan.sees_cpu):
        return func(*args, **kwargs)
    of_shards = plan.for_shards() if isinstance(place, type) and place.__name__ == "DTensor" else None
    reason = reason_to_leave_alone(place if of_shards is None else DEVICE)
    if of_shards is not None and reason is None:
        return _call(of_shards, func, args, kwargs, True)
    if reason is not None:
        messages.say_not_seen_once(
            "left alone", reason, text=f"op_tools leaves {plan.name} and the like alone: {reason}"
        )
        return func(*args, **kwargs)
    if not plan.announced and place is DEVICE and not plan.announce():
        plans[plan.key] = None
    if not plan.watchers and not plan.changers:
        return func(*args, **kwargs)
    return _call(plan, func, args, kwargs, _is_looked_at(plan, place))


def _is_looked_at(plan: Plan, place: Place) -> bool:
    return place is DEVICE or (plan.sees_cpu and place is CPU)


def _call(plan: Plan, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], on_device: bool) -> Any:
    """The way of one call: before, the op itself, after, and the hooks for its gradients."""
    watchers, changers = plan.watchers, plan.changers
    if plan.conditional:
        watchers = [tool for tool in watchers if _condition_holds(tool, plan.name, args, kwargs)]
        changers = [tool for tool in changers if _condition_holds(tool, plan.name, args, kwargs)]
        if not watchers and not changers:
            return func(*args, **kwargs)
    call = OpCall(plan.name, func, args, kwargs, where.here(plan.print_stack), STEPS.current)
    edges = None
    if plan.watches_gradients and call.is_recorded:
        # the C++ helper does not know DTensors
        find = gradients.edges_in_python if plan.is_for_shards else gradients.edges_of_inputs
        edges = find(args, kwargs)
    # function modes are off already where one of them has called us
    aside = with_modes_aside if plan.inside_mode or dispatch_modes() else without_graph
    states = aside(_before, watchers, call)
    try:
        run = call.where.source.run
        result = call.result = _changed(changers, call, run) if changers else run(func, args, kwargs)
    except BaseException as error:
        if type(error).__name__ == "_StopRecomputationError":
            raise  # how checkpointing ends the recomputation of a layer once it has what it needs
        call.error = error
        if isinstance(error, RuntimeError):
            failure.is_noticed(error, (call.id, call.name, call.where))
        aside(_failed, watchers, call, states)
        raise
    progress.recent.append((call.id, call.name, call.where))
    progress.last.append(call.id)
    # a factory such as torch.ones has no tensors among its arguments: only the result shows where it is
    if not on_device:
        if not _is_looked_at(plan, place_of((result,))):
            return result
        if not plan.announced:
            plan.announce()
    aside(_after, watchers, call, states, edges)
    return result


def _before(watchers: list[AnyWatcher], call: OpCall) -> list[Any]:
    states = []
    for tool in watchers:
        try:
            states.append(tool.before(call))
        except Exception as error:  # noqa: BLE001  a tool's own failure never ends the user's run
            report(tool, call, error)
            states.append(_FAILED)
    return states


def _failed(watchers: list[AnyWatcher], call: OpCall, states: list[Any]) -> None:
    for tool, state in zip(reversed(watchers), reversed(states)):
        if state is not _FAILED:
            guarded(tool, call, tool.failed, call, state)


def _after(watchers: list[AnyWatcher], call: OpCall, states: list[Any], edges: gradients.Edges | None) -> None:
    """`after` in the reverse order of `before`; then the hooks for the gradients of tools that wait for them."""
    listening = []
    tells_nodes = False
    spans: tuple[Any, ...] = ()
    for index in range(len(watchers) - 1, -1, -1):
        tool = watchers[index]
        if states[index] is _FAILED:
            continue
        try:
            kept = tool.after(call, states[index])
        except Exception as error:  # noqa: BLE001  see above
            report(tool, call, error)
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
        report(watchers[0], call, error)


def _changed(changers: list[AnyWatcher], call: OpCall, run: RunInLine) -> Any:
    """Runs the op by way of the tools that change how it runs; the one started last is the closest to the op."""
    proceed: Callable[..., Any] = lambda *args, **kwargs: run(call.func, args, kwargs)  # noqa: E731
    for tool in reversed(changers):
        proceed = _through_changer(tool, call, proceed)
    return proceed(*call.args, **call.kwargs)


def _through_changer(tool: AnyWatcher, call: OpCall, proceed: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: tool.run(call, proceed, args, kwargs)


def _condition_holds(tool: AnyWatcher, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
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


class _Listener:
    """Hands what the hooks in backward see to the tools."""

    __slots__ = ("_call", "_tools")

    def __init__(self, call: OpCall, tools: list[tuple[AnyWatcher, Any]]) -> None:
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
        if dispatch_modes():  # of the program, on in backward, too
            with_modes_aside(self._hand_on, inputs, outputs)
        else:
            self._hand_on(inputs, outputs)

    def _hand_on(self, inputs: list[torch.Tensor | None], outputs: list[torch.Tensor | None]) -> None:
        flowing = gradients.Gradients(inputs, outputs)
        for tool, state in self._tools:
            if tool.active:
                try:
                    tool.flowed(self._call, state, flowing)
                except Exception as error:  # noqa: BLE001  see above
                    report(tool, self._call, error)


# ---- calls that are left alone: a look would disturb them, or could not be right -------------------------------------

# where the tensors of a call are; where there is a tensor subclass with a behaviour of its own, its class
DEVICE = "device"
CPU = "cpu"
META = "meta"
Place = Union[None, str, type]

_is_plain: dict[type, bool] = {Tensor: True, Parameter: True}


def place_of(values: Iterable[Any]) -> Place:
    """Where the tensors among `values` are: None where there are none. One on the accelerator is enough."""
    place: Place = None
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            if not value.is_cpu:
                return META if value.is_meta else DEVICE
            place = CPU
        elif kind is list or kind is tuple or isinstance(value, (list, tuple)):
            inner = place_of(value)
            if inner is not None:
                if inner is not CPU:
                    return inner
                place = inner
        elif isinstance(value, Tensor):
            if not _plain(kind):
                return kind
            if not value.is_cpu:
                return META if value.is_meta else DEVICE
            place = CPU
    return place


def _plain(kind: type) -> bool:
    """True for subclasses that are only a name, such as Buffer; false for DTensor, FakeTensor and the like."""
    plain = _is_plain.get(kind)
    if plain is None:
        plain = _is_plain[kind] = (
            getattr(kind, "__torch_dispatch__", None) is getattr(Tensor, "__torch_dispatch__", None)
        ) and kind.__torch_function__.__func__ is Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
    return plain


_is_excluded: Callable[[Any], bool] = getattr(torch._C, "_dispatch_tls_is_dispatch_key_excluded", lambda key: False)
_BELOW_AUTOGRAD = getattr(torch._C.DispatchKey, "AutogradOther", None)


def _is_inside_kernel() -> bool:
    """Whether a kernel that is written in Python is at work, as backward calls it: what it calls is no call of ours."""
    return _is_excluded(_BELOW_AUTOGRAD) and not torch.is_inference_mode_enabled()


_functorch: Callable[[], Any] = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)
_tracing: Callable[[], Any] = getattr(torch._C, "_get_tracing_state", lambda: None)


def reason_to_leave_alone(place: Place) -> str | None:
    """Why a call is left alone; None for the usual call."""
    if place is META:
        return "its tensors are on the meta device and have no data"
    if isinstance(place, type):
        return f"tensors of the class {place.__name__} have a behaviour of their own"
    if _tracing() is not None:
        return "torch.jit.trace is recording"
    if _functorch() is not None:
        return "a function transform (torch.func, vmap) is active"
    if place is DEVICE and (graphs.HAS_CUDA or graphs.captures) and graphs.is_capturing():
        return "a CUDA graph is being captured, and what it replays is not seen"
    return None


def for_helper() -> tuple[Any, ...]:
    """The classes of tensors that are known, and questions that it cannot answer by itself: yes is unusual."""
    return _is_plain, graphs.for_helper()
