"""What is done about one call, in whatever process: it is compared, put into words, and saved if it is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from op_tools.autocompare import report
from op_tools.autocompare.compare import Comparer, Comparison
from op_tools.autocompare.reference.pair import Pair
from op_tools.autocompare.seen import Seen
from op_tools.core import gradients
from op_tools.core.call import OpCall
from op_tools.device import host_copies
from op_tools.output import messages, paths, tables
from op_tools.storage import store
from op_tools.values import trees

_MOST_SHOWN = 8  # wrong calls of one place in the program that are shown and saved in full

Gradients = Sequence[Any]  # a tensor or None for each
TableRow = tuple[str, ...]
Part = tuple[str, str, tuple[Any, ...], dict[str, Any]]  # folder, file, args, kwargs


@dataclass
class Outcome:
    """What is left of a comparison when its tensors are gone."""

    comparison: Comparison
    text: str = ""
    saved: list[str] = field(default_factory=list)


class Examiner:
    """Compares calls and says what came out. `confirm`: who has the last word on what this one finds."""

    def __init__(
        self, comparer: Comparer, verbose: int, out: Path, place: str = "cpu", confirm: Examiner | None = None
    ) -> None:
        self._comparer = comparer
        self._verbose = verbose
        self._out = out
        self._place = place  # of the reference, as the tables and folders call it
        self._confirm = confirm
        self._wrong: dict[tuple[str, str, str], int] = {}

    def forward(self, call: OpCall, seen: Seen, with_graph: bool = False) -> Outcome:
        """Inputs and outputs of a call. With a graph, the comparison has the runs that `backward` can use again."""
        comparison = self._comparer.forward(seen, with_graph)
        if self._confirm is not None and (comparison.is_wrong or comparison.failure):
            return self._confirm.forward(call, seen.on_host())
        return self._forward_outcome(call, seen, comparison)

    def view(self, call: OpCall, seen: Seen) -> Outcome:
        """A call that has only looked at its input's memory in another way: nothing can be wrong."""
        comparison = self._comparer.same_memory(seen)
        return Outcome(comparison) if self._verbose < 2 else self._forward_outcome(call, seen, comparison)

    def backward(
        self,
        call: OpCall,
        seen: Seen,
        grad_outputs: Gradients,
        grad_inputs: Gradients,
        flowing: gradients.Gradients | None = None,
        pair: Pair | None = None,
    ) -> Outcome:
        """The gradients of a call. `flowing` are the device's own, where the others are copies."""
        comparison = self._comparer.backward(seen, grad_outputs, grad_inputs, pair)
        if self._confirm is not None and (comparison.is_wrong or comparison.failure):
            outputs, inputs = host_copies.host_copy((grad_outputs, grad_inputs))
            flowing = gradients.Gradients(list(grad_inputs), list(grad_outputs))
            return self._confirm.backward(call, seen.on_host(), outputs, inputs, flowing)
        return self._outcome(
            call,
            comparison,
            "backward",
            lambda: _backward_rows(seen, grad_outputs, grad_inputs, flowing, comparison, self._place),
            lambda: _backward_parts(seen, grad_outputs, grad_inputs, comparison, self._place),
        )

    def _forward_outcome(self, call: OpCall, seen: Seen, comparison: Comparison) -> Outcome:
        return self._outcome(
            call,
            comparison,
            "forward",
            lambda: _forward_rows(call, seen, comparison, self._place),
            lambda: _forward_parts(seen, comparison, self._place),
        )

    def _outcome(
        self,
        call: OpCall,
        comparison: Comparison,
        phase: str,
        rows: Callable[[], list[TableRow]],
        parts: Callable[[], Iterable[Part]],
    ) -> Outcome:
        outcome, is_wrong = Outcome(comparison), comparison.is_wrong
        in_full = self._verbose >= 2 or not is_wrong
        if is_wrong:
            key = (call.name, call.where.line(), phase)
            times = self._wrong[key] = self._wrong.get(key, 0) + 1
            in_full = in_full or times <= _MOST_SHOWN
            if times <= _MOST_SHOWN:
                outcome.saved = self._saved(call, parts())
        if comparison.rows and (self._verbose >= 2 or (self._verbose >= 1 and is_wrong)):
            outcome.text = _text(call, comparison, rows()) if in_full else _line(call, comparison)
        comparison.run = comparison.gradients = None
        return outcome

    def _saved(self, call: OpCall, parts: Iterable[Part]) -> list[str]:
        when = paths.timestamp()
        folder = paths.autocompare_folder(self._out, call.name, call.id, when)
        details = {"forward_id": call.id, "step": call.step, "source": call.where.line(), "module": call.where.module}
        saved = []
        try:
            for place, part, args, kwargs in parts:
                identifier = f"{os.getpid()}/{call.id}/{when}/{part}"
                saved.append(str(store.save(folder / place, part, call.name, args, kwargs, identifier, details)))
        except OSError as error:
            messages.complain_once(
                "autocompare", "disk", text=f"{folder} cannot be written ({error.strerror}): wrong calls are not saved"
            )
        return saved


def _forward_rows(call: OpCall, seen: Seen, comparison: Comparison, place: str) -> list[TableRow]:
    name, has_tensors = call.name, bool(call.args or call.kwargs or call.result is not None)
    args, kwargs = (call.args, call.kwargs) if has_tensors else (seen.given.args, seen.given.kwargs)
    rows = tables.argument_rows(name, "inputs", trees.arguments(args, kwargs))
    rows += tables.argument_rows(name, "outputs", trees.results(call.result if has_tensors else seen.result))
    if not has_tensors:
        rows = _as_on_device(rows, seen)
    if comparison.run is not None:
        again = comparison.run.arguments
        rows += tables.argument_rows(name, f"inputs({place})", trees.arguments(again.args, again.kwargs))
        rows += tables.argument_rows(name, f"outputs({place})", trees.results(comparison.run.result))
    return rows


def _backward_rows(
    seen: Seen,
    outputs: Gradients,
    inputs: Gradients,
    flowing: gradients.Gradients | None,
    comparison: Comparison,
    place: str,
) -> list[TableRow]:
    name = seen.name
    if flowing is not None:
        outputs, inputs = flowing.outputs, flowing.inputs
    rows = tables.argument_rows(name, "grad_outputs", trees.arguments(tuple(outputs), {}))
    rows += tables.argument_rows(name, "grad_inputs", trees.arguments(tuple(inputs), {}))
    if flowing is None:
        rows = _as_on_device(rows, seen)
    if comparison.gradients is not None:
        rows += tables.argument_rows(name, f"grad_inputs({place})", trees.arguments(tuple(comparison.gradients), {}))
    return rows


_DEVICE, _POINTER = (tables.ARGUMENT_COLUMNS.index(column) for column in ("device", "data_ptr"))


def _as_on_device(rows: list[TableRow], seen: Seen) -> list[TableRow]:
    """Copies are shown as what they are copies of; where that lay, nobody knows any more."""
    if not seen.device:
        return rows
    for index, row in enumerate(rows):
        if row[_DEVICE]:
            cells = list(row)
            cells[_DEVICE], cells[_POINTER] = seen.device, ""
            rows[index] = tuple(cells)
    return rows


def _forward_parts(seen: Seen, comparison: Comparison, place: str) -> Iterator[Part]:
    yield "device", "input", seen.given.args, seen.given.kwargs
    yield "device", "output", (seen.result,), {}
    if comparison.run is not None:
        again = comparison.run.arguments
        yield place, "input", again.args, again.kwargs
        yield place, "output", (comparison.run.result,), {}


def _backward_parts(
    seen: Seen, outputs: Gradients, inputs: Gradients, comparison: Comparison, place: str
) -> Iterator[Part]:
    yield "device", "input", seen.given.args, seen.given.kwargs
    yield "device", "grad_outputs", tuple(outputs), {}
    yield "device", "grad_inputs", tuple(inputs), {}
    if comparison.run is not None and comparison.gradients is not None:
        again = comparison.run.arguments
        yield place, "input", again.args, again.kwargs
        yield place, "grad_outputs", tuple(outputs), {}
        yield place, "grad_inputs", tuple(comparison.gradients), {}


def _text(call: OpCall, comparison: Comparison, rows: list[TableRow]) -> str:
    parts = [report.heading(call, comparison), tables.table(tables.ARGUMENT_COLUMNS, rows)]
    parts.append(report.comparison_table(comparison.rows))
    if comparison.is_wrong:
        parts.append(report.reasons(comparison))
    return "\n\n\n" + "\n".join(parts) + "\n\n"


def _line(call: OpCall, comparison: Comparison) -> str:
    return f"forward_id: {call.id} {report.reasons(comparison)}"
