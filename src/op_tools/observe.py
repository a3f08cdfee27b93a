"""OpObserve: prints the arguments and results of every op call."""

from __future__ import annotations

from collections import Counter
from typing import Optional

from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.core.tool import Tool
from op_tools.output import messages, tables
from op_tools.output.results import Results


class OpObserve(Tool[Optional[tables.Described], str]):
    """Prints the arguments and results of every op call, and the gradients that flow through it; not at verbose=0."""

    hook = "OpObserveHook"
    prefix = "OP_OBSERVE"
    feature = "dump_op_args"
    watches_gradients = True

    def started(self) -> None:
        self._calls: Counter[str] = Counter()

    def collected(self) -> Results:
        """How often each op was called."""
        return Results("OpObserve", ("op", "calls"), self._calls.most_common(), sum(self._calls.values()))

    def before(self, call: OpCall) -> tables.Described | None:
        # as they are before the call: an in-place op changes what requires_grad says
        return tables.inputs(call) if self.verbose else None

    def after(self, call: OpCall, state: tables.Described | None) -> str | None:
        self._calls[call.name] += 1
        if state is None:
            return None
        above = f"\n\n\n{tables.heading(call)}\n"
        messages.say_lines(tables.arguments_table(call, state, above, "\n\n"))
        return above

    def failed(self, call: OpCall, state: tables.Described | None) -> None:
        if state is None:
            return
        above, below = f"\n\n\n{tables.heading(call)}\n", f"\nraised {call.error!r}\n\n"
        messages.say_lines(tables.arguments_table(call, state, above, below))

    def flowed(self, call: OpCall, state: str, gradients: Gradients) -> None:
        messages.say_lines(tables.gradients_table(call.name, gradients.outputs, gradients.inputs, state, "\n\n"))
