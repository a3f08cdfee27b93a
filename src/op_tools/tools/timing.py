"""OpTimeMeasure: forward and backward time of every op call.

    +----------------------------+-------+---------+----------+---------+-------+-------+------+
    |            name            | calls | forward | backward |  total  | mean  | share | unit |
    +----------------------------+-------+---------+----------+---------+-------+-------+------+
    | torch.nn.functional.linear |  170  | 93.816  | 145.911  | 239.727 | 1.410 | 71.3% |  ms  |
    …
    op elasped info saved to op_tools_results/op_time_measure_result/op_elasped_info_pid4711_2026-01-02-03-04-05.csv

Times are the device's where it has events, taken around the op on the stream it runs on, and the host's elsewhere; the
table on disk has the host's as well. A device that waits for the host spends that time inside an op, too: where both
times are alike, the host is the limit. Events are read when the device has long passed them, so it is never waited for,
except at OP_TOOLS_VERBOSE=2, which shows each call at once.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from op_tools import messages, paths, settings, show, trees
from op_tools.call import OpCall
from op_tools.errors import SettingError
from op_tools.gradients import Gradients
from op_tools.timing import signature
from op_tools.timing.clock import Clock, clock_of
from op_tools.timing.ledger import COLUMNS, Ledger, Span, Timing
from op_tools.tool import Tool

_DEEPEST = 200  # calls inside calls; checkpointing leaves some behind when it stops in the middle of an op


class _Thread:
    """What one thread is in the middle of."""

    __slots__ = ("ended", "running")

    def __init__(self) -> None:
        self.running: list[Span] = []  # calls inside calls, the innermost last
        self.ended: Span | None = None  # in backward: the op may have another node, which would be the next to run


class OpTimeMeasure(Tool):
    """Measures forward and backward time of every op call: a summary, a table on disk, and a trace for Perfetto."""

    hook = "OpTimeMeasureHook"
    prefix = "OP_TIME_MEASURE"
    innermost = True
    watches_gradients = True
    times_gradients = True

    def __init__(self, *, trace_events: int | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._trace_events = trace_events
        self._ledger: Ledger
        self._threads: dict[int, _Thread] = defaultdict(_Thread)
        self._latest_clock: Clock | None = None
        self._shown: deque[tuple[str, ...]] = deque(maxlen=0)

    def started(self) -> None:
        most = settings.MAX_CACHE_SIZE.get()
        events = settings.TRACE_EVENTS.get() if self._trace_events is None else self._trace_events
        if not isinstance(events, int) or events < 0:
            raise SettingError(f"trace_events={events!r} cannot be used: it must be a whole number, 0 or above")
        self._shown = deque(maxlen=most if self.verbose == 2 else 0)
        self._ledger = Ledger(paths.time_measure_csv(self.out), most, events, self._shown.append)
        self._threads.clear()

    def stopped(self) -> None:
        for thread in list(self._threads.values()):
            self._hand_over(thread)
        ledger = self._ledger
        ledger.close()
        if self.verbose >= 1 and ledger.totals:
            messages.say(_summary(ledger))
        if self._shown:
            messages.say(show.table(COLUMNS[:5], self._shown))
        if self.verbose >= 1 and ledger.rows.written:
            messages.say(f"op elasped info saved to {ledger.rows.path}")
        if self.verbose >= 1 and ledger.trace.written:
            messages.say(f"op trace for https://ui.perfetto.dev saved to {ledger.trace.path}")

    # -- forward ------------------------------------------------------------------------------------------------------

    def before(self, call: OpCall) -> Any:
        args, kwargs = call.args, call.kwargs
        device = _device_among(args)
        if device is None and kwargs:
            device = _device_among(kwargs.values())
        is_guess = device is None
        if device is None:
            clock = self._latest_clock  # an op that makes its tensors: they will be where the last ones were
        else:
            clock = self._latest_clock = clock_of(device)
        shown = show.inputs(call) if self.verbose == 2 else None
        timing = Timing(call, clock, signature.of_call(args, kwargs))
        # where the result turns out to be on the CPU, we never hear of the call again
        return self._begin(timing, backward=False, may_vanish=is_guess), is_guess, shown

    def after(self, call: OpCall, state: Any) -> Any:
        if state is None:  # `before` failed
            return None
        span, is_guess, shown = state
        span.finish()
        timing, result = span.timing, call.result
        if not is_guess:
            self._leave(span)
        else:
            device = _device_among((result,))
            if device is None or clock_of(device) is not timing.clock:
                span.without_events()
        timing.outputs = signature.of(result)
        will_flow = torch.is_grad_enabled() and _requires_grad(result)
        span.is_last = not will_flow
        self._ledger.add(span)
        if shown is not None:
            self._show_forward(call, shown, span)
        if not will_flow:
            return None
        self._ledger.wait_for_gradients(timing)
        return timing

    def failed(self, call: OpCall, state: Any) -> None:
        if state is not None:
            span, is_guess, _ = state
            span.finish()
            span.without_events()
            if not is_guess:
                self._leave(span)

    # -- backward, in autograd's threads ------------------------------------------------------------------------------

    def begins(self, call: OpCall, state: Any) -> None:
        thread = self._threads[get_ident()]
        span = thread.ended
        if span is not None and span.timing is state:
            # the op's next node follows its last one: one span for both costs half
            thread.ended = None
            thread.running.append(span)
        else:
            self._begin(state, backward=True)

    def ends(self, call: OpCall, state: Any) -> None:
        thread = self._threads[get_ident()]
        for span in reversed(thread.running):
            if span.timing is state and span.backward:
                span.finish()
                self._leave(span)
                thread.ended = span
                return

    def flowed(self, call: OpCall, state: Any, gradients: Gradients) -> None:
        for thread in list(self._threads.values()):
            if thread.ended is not None and thread.ended.timing is state:
                self._hand_over(thread)
        if self.verbose == 2:
            self._show_backward(call, state, gradients)
        self._ledger.gradients_flowed(state, signature.of(gradients.inputs), signature.of(gradients.outputs))

    # -----------------------------------------------------------------------------------------------------------------

    def _begin(self, timing: Timing, backward: bool, may_vanish: bool = False) -> Span:
        identity = get_ident()
        thread = self._threads[identity]
        if thread.ended is not None:
            self._hand_over(thread)
        running = thread.running
        if len(running) > _DEEPEST:
            running.clear()
        span = Span(timing, backward, running[-1] if running else None, identity)
        if not may_vanish:
            running.append(span)
        return span

    def _leave(self, span: Span) -> None:
        """Whatever is above it on the stack was given up in the middle: an error went through it."""
        thread = self._threads[span.thread]
        if thread.ended is not None:
            self._hand_over(thread)
        running = thread.running
        while running and running.pop() is not span:
            pass

    def _hand_over(self, thread: _Thread) -> None:
        span, thread.ended = thread.ended, None
        if span is not None:
            self._ledger.add(span)

    def _show_forward(self, call: OpCall, inputs: show.Described, span: Span) -> None:
        self._ledger.read(everything=True)
        stack = f"\n{call.where.stack}" if call.where.stack else ""
        times = show.table(("name", "forward_id", "forward_elasped", "unit"), [_times(call, span.elapsed)])
        messages.say(f"\n\n\n{call.where.line()}{stack}\n{show.arguments_table(call, inputs)}\n{times}\n\n\n")

    def _show_backward(self, call: OpCall, timing: Timing, gradients: Gradients) -> None:
        self._ledger.read(everything=True)
        rows = show.argument_rows(call.name, "grad_outputs", trees.results(gradients.outputs))
        rows += show.argument_rows(call.name, "grad_inputs", trees.results(gradients.inputs))
        elapsed = max(timing.backward, 0.0)
        times = show.table(("name", "forward_id", "backward_elasped", "unit"), [_times(call, elapsed)])
        messages.say(f"\n\n\n{show.table(show.ARGUMENT_COLUMNS, rows)}\n{times}\n\n\n")


def _device_among(values: Iterable[Any]) -> torch.device | None:
    """That of the first tensor that is not on the CPU."""
    for value in values:
        if isinstance(value, Tensor):
            if not value.is_cpu:
                return value.device
        elif isinstance(value, (list, tuple)):
            device = _device_among(value)
            if device is not None:
                return device
    return None


def _requires_grad(result: Any) -> bool:
    if isinstance(result, Tensor):
        return result.requires_grad
    return any(tensor.requires_grad for tensor in trees.tensors(result))


def _times(call: OpCall, elapsed: float) -> tuple[str, ...]:
    return (call.name, str(call.id), f"{elapsed:.8f}", "ms")


def _summary(ledger: Ledger) -> str:
    """Every op, the one that took most first. The column for ops inside others is there where there are such."""
    totals = sorted(ledger.totals.items(), key=lambda item: -item[1].own)
    everything = sum(total.own for _, total in totals) or 1.0
    rows = []
    for name, total in totals:
        times = (total.forward, total.backward, total.own, total.own / total.calls if total.calls else 0.0)
        with_inner = f"{total.all_in_all:.3f}" if total.has_inner else ""
        cells = [f"{value:.3f}" for value in times]
        rows.append([name, str(total.calls), *cells, f"{total.own / everything:.1%}", "ms", with_inner])
    columns = ("name", "calls", "forward", "backward", "total", "mean", "share", "unit", "with_ops_inside")
    return show.table(columns, rows)
