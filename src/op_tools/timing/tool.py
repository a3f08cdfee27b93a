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

from collections import deque
from typing import Any, Callable, Optional

from ditorch_shared.collectives import is_collective
from op_tools import native, settings
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.core.plan import announce_applied
from op_tools.core.tool import Tool
from op_tools.errors import SettingError
from op_tools.output import messages, paths, tables
from op_tools.output.results import Results
from op_tools.timing.collectives import TimedCollectives
from op_tools.timing.ledger import COLUMNS, Book, Ledger, Timing, Total
from op_tools.timing.native_ledger import NativeLedger
from op_tools.timing.timer import Span
from op_tools.values import trees


class OpTimeMeasure(Tool[tuple[Any, Optional[tables.Described]], Span]):
    """Measures forward and backward time of every op call: a summary, a table on disk, and a trace for Perfetto.

    `trace_events`: how many events the trace may hold, 0 for no trace (OP_TIME_MEASURE_TRACE_EVENTS).
    """

    hook = "OpTimeMeasureHook"
    prefix = "OP_TIME_MEASURE"
    feature = "measure_op_time"
    innermost = True
    watches_gradients = True
    times_gradients = True

    def __init__(self, *, trace_events: int | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._trace_events = trace_events
        self._ledger: Book
        self._collectives: TimedCollectives
        self._shown: deque[tuple[str, ...]] = deque(maxlen=0)

    def started(self) -> None:
        most = settings.MAX_CACHE_SIZE.get()
        events = settings.TRACE_EVENTS.get() if self._trace_events is None else self._trace_events
        if not isinstance(events, int) or events < 0:
            raise SettingError(f"trace_events={events!r} cannot be used: it must be a whole number, 0 or above")
        self._shown = deque(maxlen=most if self.verbose == 2 else 0)
        path = paths.time_measure_csv(self.out)
        collectives = self._collectives = TimedCollectives(self._wants_collective)
        # at level 2 each backward is shown when its gradients have flowed, which takes Python anyway
        helper = native.library() if self.verbose < 2 else None
        if helper is None:
            self._ledger = Ledger(path, most, events, collectives, self._shown.append)
        else:
            self._ledger = NativeLedger(helper, path, most, events, collectives)
        collectives.start()

    def collected(self) -> Results:
        """Sums for every op in ms, the one that took most first. What ops inside an op took is theirs."""
        written = [one.path for one in (self._ledger.rows, self._ledger.trace) if one.written]
        totals = self._ledger.totals
        rows = _rows(totals)
        calls, not_seen = sum(row[1] for row in rows), self._collectives.not_seen()
        return Results("OpTimeMeasure", _SUMMED, rows, calls, not_seen, map(str, written))

    def stopped(self) -> None:
        ledger = self._ledger
        ledger.close()
        if self.verbose >= 1 and ledger.totals:
            messages.say(_summary(ledger.totals))
        for what, count, reason in self._collectives.not_seen() if self.verbose >= 1 else ():
            messages.complain(f"OpTimeMeasure did not measure {count or ''} {what}: {reason}".replace("  ", " "))
        if self._shown:
            messages.say(tables.table(COLUMNS[:5], self._shown))
        if self.verbose >= 1 and ledger.rows.written:
            messages.say(f"op elasped info saved to {paths.shown(ledger.rows.path)}")
        if self.verbose >= 1 and ledger.trace.written:
            messages.say(f"op trace for https://ui.perfetto.dev saved to {paths.shown(ledger.trace.path)}")

    def shortcut(self, name: str, report: Callable[[Exception], None], otherwise: object) -> Callable[..., Any] | None:
        return None if is_collective(name) else self._ledger.shortcut(name, report, otherwise)

    def _wants_collective(self, name: str) -> bool:
        """Whether those that the program does not call by a Python function of torch's are measured, too."""
        wants = self.condition is None and self.is_awake() and name in self.selection
        if wants and self.verbose >= 1:
            announce_applied(self, name)
        return wants

    # -- forward ------------------------------------------------------------------------------------------------------

    def before(self, call: OpCall) -> tuple[Any, tables.Described | None]:
        shown = tables.inputs(call) if self.verbose == 2 else None
        if is_collective(call.name):
            self._collectives.enter(call, is_shown=self.verbose == 2)
        return self._ledger.begin(call), shown

    def after(self, call: OpCall, state: tuple[Any, tables.Described | None]) -> Any:
        span, shown = state
        if is_collective(call.name) and self._collectives.leave():
            span.give_up()
            return None
        will_flow = self._ledger.end(span, call)
        if shown is not None:
            self._show_forward(call, shown, span.timing)
        return span if will_flow else None

    def failed(self, call: OpCall, state: tuple[Any, tables.Described | None]) -> None:
        if is_collective(call.name):
            self._collectives.leave()
        state[0].give_up()

    # -- backward, in autograd's threads; where the C++ helper is there, it does this by itself -----------------------

    def begins(self, call: OpCall, state: Span) -> None:
        self._ledger.timer.node_begins(state)

    def ends(self, call: OpCall, state: Span) -> None:
        self._ledger.timer.node_ends(state)

    def flowed(self, call: OpCall, state: Span, gradients: Gradients) -> None:
        self._ledger.timer.flowed(state, gradients.inputs, gradients.outputs)
        if self.verbose == 2:
            self._show_backward(call, state.timing, gradients)

    # -----------------------------------------------------------------------------------------------------------------

    def _show_forward(self, call: OpCall, inputs: tables.Described, timing: Timing) -> None:
        self._ledger.read(everything=True)
        stack = f"\n{call.where.stack}" if call.where.stack else ""
        times = tables.table(("name", "forward_id", "forward_elasped", "unit"), [_times(call, timing.forward)])
        messages.say(f"\n\n\n{call.where.line()}{stack}\n{tables.arguments_table(call, inputs)}\n{times}\n\n\n")

    def _show_backward(self, call: OpCall, timing: Timing, gradients: Gradients) -> None:
        self._ledger.read(everything=True)
        rows = tables.argument_rows(call.name, "grad_outputs", trees.results(gradients.outputs))
        rows += tables.argument_rows(call.name, "grad_inputs", trees.results(gradients.inputs))
        times = tables.table(
            ("name", "forward_id", "backward_elasped", "unit"), [_times(call, max(timing.backward, 0.0))]
        )
        messages.say(f"\n\n\n{tables.table(tables.ARGUMENT_COLUMNS, rows)}\n{times}\n\n\n")


def _times(call: OpCall, elapsed: float) -> tuple[str, ...]:
    return (call.name, str(call.id), f"{elapsed:.8f}", "ms")


_SUMMED = ("op", "calls", "forward", "backward", "total", "mean", "share", "unit", "with_ops_inside")


def _rows(totals: dict[str, Total]) -> list[tuple[Any, ...]]:
    """Every op, the one that took most first."""
    ranked = sorted(totals.items(), key=lambda item: -item[1].own)
    everything = sum(total.own for _, total in ranked) or 1.0
    rows = []
    for op, total in ranked:
        mean = total.own / total.calls if total.calls else 0.0
        with_inner = total.all_in_all if total.has_inner else None
        share = total.own / everything
        rows.append((op, total.calls, total.forward, total.backward, total.own, mean, share, "ms", with_inner))
    return rows


def _summary(totals: dict[str, Total]) -> str:
    """The column for ops inside others is there where there are such."""
    shown = []
    for op, calls, *times, share, unit, with_inner in _rows(totals):
        cells = [f"{value:.3f}" for value in times]
        shown.append([op, str(calls), *cells, f"{share:.1%}", unit, "" if with_inner is None else f"{with_inner:.3f}"])
    return tables.table(("name", *_SUMMED[1:]), shown)
