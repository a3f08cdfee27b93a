"""What is done about one call, in whatever process: it is compared, formatted, and saved if it is wrong."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

from op_tools.autocompare import call_tables, histograms
from op_tools.autocompare.judging.comparer import Comparer, Comparison
from op_tools.autocompare.observed import ObservedCall, copied
from op_tools.autocompare.reference.runs import Reference
from op_tools.autocompare.report import Outcome
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.device.host_copies import copies_of
from op_tools.output import messages, paths
from op_tools.storage import store

_MAX_SHOWN_PER_PLACE = 8  # wrong calls of one place in the program that are shown and saved in full
MAX_CONFIRMED_PER_PLACE = 8  # after so many wrong calls of one place, the device is believed

SavedPart = tuple[str, str, tuple[Any, ...], dict[str, Any]]  # folder, file, args, kwargs
_Place = tuple[str, str, str]  # the op, the line that calls it, forward or backward


class Examiner:
    """Compares calls and says what came out.

    `confirm`: who has the last word on what this one finds, and (`stands_in`) on what it cannot compare.
    """

    def __init__(
        self,
        comparer: Comparer,
        verbose: int,
        out: Path,
        place: str = "cpu",
        confirm: Examiner | None = None,
        stands_in: bool = False,
    ) -> None:
        self.comparer = comparer
        self.verbose = verbose
        self._out = out
        self._place = place  # of the reference, as the tables and folders call it
        self._confirm = confirm
        self._stands_in = stands_in
        self._confirmed: Counter[_Place] = Counter()
        self._wrong: Counter[_Place] = Counter()
        self._folders: dict[tuple[int, str], paths.OwnFolder] = {}

    def forward(self, call: OpCall, observed: ObservedCall, with_graph: bool = False) -> Outcome:
        """Inputs and outputs of a call. With a graph, the comparison has the runs that `backward` can use again."""
        comparison = self.comparer.forward(observed, with_graph)
        confirmed = self._last_word(call, "forward", comparison, lambda one: one.forward(call, observed.on_host()))
        if confirmed is not None:
            return confirmed
        outcome = Outcome(comparison)
        if comparison.is_wrong or self.verbose >= 2:
            self._tell(call, outcome, "forward", observed)
        comparison.run = None
        return outcome

    def view(self, call: OpCall, observed: ObservedCall) -> Outcome:
        """A call that has only looked at its input's memory in another way: nothing can be wrong."""
        outcome = Outcome(self.comparer.same_memory(observed))
        if self.verbose >= 2:
            self._tell(call, outcome, "forward", observed)
        return outcome

    def backward(
        self,
        call: OpCall,
        observed: ObservedCall,
        gradients: Gradients,
        flowing: Gradients | None = None,
        reference: Reference | None = None,
    ) -> Outcome:
        """The gradients of a call. `flowing` are the device's own, where the others are copies."""
        comparison = self.comparer.backward(observed, gradients, reference)
        if comparison.is_wrong and call.other_gradients:
            return Outcome(Comparison(skipped=f"gradients differ, but {call.other_gradients}"))
        confirmed = self._last_word(
            call,
            "backward",
            comparison,
            lambda one: one.backward(call, observed.on_host(), copied(gradients, copies_of), gradients),
        )
        if confirmed is not None:
            return confirmed
        outcome = Outcome(comparison)
        if comparison.is_wrong or self.verbose >= 2:
            self._tell(call, outcome, "backward", observed, gradients, flowing)
        comparison.run = comparison.gradients = None
        return outcome

    def _last_word(
        self, call: OpCall, phase: str, comparison: Comparison, ask: Callable[[Examiner], Outcome]
    ) -> Outcome | None:
        """The confirming examiner's outcome; None where it is not asked, or cannot compare."""
        if self._confirm is None or not (comparison.is_wrong or (comparison.failure and self._stands_in)):
            return None
        place = _place_of(call, phase)
        if self._confirmed[place] >= MAX_CONFIRMED_PER_PLACE and not self._stands_in:
            return None
        outcome = ask(self._confirm)
        if outcome.comparison.failure and not self._stands_in:
            return None
        self._confirmed[place] += outcome.comparison.is_wrong
        return outcome

    def _tell(
        self,
        call: OpCall,
        outcome: Outcome,
        phase: str,
        observed: ObservedCall,
        gradients: Gradients | None = None,
        flowing: Gradients | None = None,
    ) -> None:
        """Formats it, and saves what is wrong: the first few calls of each place in full."""
        comparison, in_full = outcome.comparison, True
        if comparison.is_wrong:
            place = _place_of(call, phase)
            self._wrong[place] += 1
            times = self._wrong[place]
            in_full = self.verbose >= 2 or times <= _MAX_SHOWN_PER_PLACE
            if times <= _MAX_SHOWN_PER_PLACE:
                outcome.saved = self._saved(call, list(_saved_parts(observed, comparison, self._place, gradients)))
        if comparison.rows and self.verbose:
            outcome.text = (
                call_tables.tables_of(call, observed, comparison, self._place, gradients, flowing)
                if in_full
                else call_tables.short_text(call, comparison)
            )

    def _saved(self, call: OpCall, parts: Sequence[SavedPart]) -> list[str]:
        when = paths.timestamp()
        own = self._folders.get((call.id, when))  # forward and backward within a second
        if own is None:
            own = paths.OwnFolder(paths.autocompare_folder, self._out, call.name, call.id, when)
            self._folders[call.id, when] = own
        details = call.details()
        saved = []
        try:
            for place, part, args, kwargs in parts:
                identifier = f"{os.getpid()}/{call.id}/{when}/{part}"
                saved.append(str(store.save(own.path() / place, part, call.name, args, kwargs, identifier, details)))
            values = {(place == "device", part): args for place, part, args, _ in parts}
            for part in ("output", "grad_inputs"):
                if (True, part) in values and (False, part) in values:
                    histograms.write(own.path() / "device", part, values[True, part], values[False, part])
        except OSError as error:
            reason = f"{paths.shown(self._out)} cannot be written ({error.strerror})"
            messages.complain_once("autocompare", "disk", text=f"{reason}: wrong calls are not saved")
        return saved


def _place_of(call: OpCall, phase: str) -> _Place:
    return call.name, call.where.line(), phase


def _saved_parts(
    observed: ObservedCall, comparison: Comparison, place: str, gradients: Gradients | None
) -> Iterator[SavedPart]:
    """What the device has, and what the reference has."""
    yield "device", "input", observed.given.args, observed.given.kwargs
    again = None if comparison.run is None else comparison.run.arguments
    if gradients is None:
        yield "device", "output", (observed.result,), {}
        if comparison.run is not None and again is not None:
            yield place, "input", again.args, again.kwargs
            yield place, "output", (comparison.run.result,), {}
        return
    yield "device", "grad_outputs", tuple(gradients.outputs), {}
    yield "device", "grad_inputs", tuple(gradients.inputs), {}
    if again is not None and comparison.gradients is not None:
        yield place, "input", again.args, again.kwargs
        yield place, "grad_outputs", tuple(gradients.outputs), {}
        yield place, "grad_inputs", tuple(comparison.gradients), {}
