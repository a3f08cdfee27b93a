"""Code that Inductor has compiled: what its fused kernels read and wrote goes through the tools, region by region.

Python looks `__call__` up on the class of a compiled graph. So a method put there sees every graph, also those that
were compiled before a tool began. A graph runs as it is; then each region of it (fused_regions.py) is handed to the
tools as a call that has run.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Callable

import torch
from torch import Tensor

from ditorch_shared.imports import after_import
from op_tools.core import dynamo, fused_regions, generated_source, where
from op_tools.core.autograd_functions import mode_of_this_thread
from op_tools.core.fused_regions import Region, UnreadableGraphError
from op_tools.core.modes import with_modes_aside
from op_tools.errors import StopTraining
from op_tools.output.messages import in_short, say_not_seen_once

_MODULE = "torch._inductor.output_code"
_watching: set[int] = set()
_lock = threading.Lock()
_own_call: Callable[..., Any] | None = None  # the class's own, while ours is in its place
_call_off: Callable[[], None] = lambda: None  # noqa: E731  waiting for Inductor to be imported
_cut_graphs: dict[int, CutGraph | None] = {}  # by the id of a compiled graph, which has no hash, while it lives


class CutGraph:
    """A graph with its regions, and where their values are: in its inputs, or in its outputs."""

    def __init__(self, compiled: Any) -> None:
        graph = fused_regions.read(compiled.inductor_post_grad_graph_str)
        details = compiled.fx_kwargs
        label = f"{'backward' if details.get('is_backward') else 'forward'}_{details.get('graph_id') or 0}"
        self.inputs, self.outputs, self._written = graph.inputs, graph.outputs, graph.written
        source = compiled.source_code
        overwritten = generated_source.overwritten(source, graph.inputs)
        self.changed = overwritten.union(getattr(compiled, "mutated_input_idxs", ()))  # places of inputs
        kernels = generated_source.kernels_of(source, graph.outputs, graph.written)
        self.regions = fused_regions.cut(graph, kernels, label)

    def values(self, given: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[str, Any]:
        """`given`: the inputs as they were before it ran."""
        after = dict(zip(self.inputs, inputs))
        written = {name: after[place] for name, place in self._written.items()}
        return {**written, **dict(zip(self.outputs, outputs)), **dict(zip(self.inputs, given))}


class RanRegion:
    """A region that has run: the first call gives its results; others, for a reference, run its ops again."""

    def __init__(self, region: Region, results: Any) -> None:
        self._region = region
        self._results: list[Any] = [results]

    def __call__(self, *values: Any) -> Any:
        return self._results.pop() if self._results else self._region(*values)


def watch(session: object) -> None:
    """Compiled graphs are seen from now on, as long as a session wants it."""
    global _call_off
    with _lock:
        _watching.add(id(session))
        if len(_watching) == 1:
            _call_off = after_import(_MODULE, _put_in_place)
            dynamo.hide_own_lines()


def leave(session: object) -> None:
    """Undoes `watch`; the last one puts everything back as it was."""
    global _own_call
    with _lock:
        _watching.discard(id(session))
        if _watching:
            return
        _call_off()
        dynamo.show_own_lines()
        if _own_call is not None:
            _graph_class().__call__, _own_call = _own_call, None


def _put_in_place(module: ModuleType) -> None:
    global _own_call
    kind = getattr(module, "CompiledFxGraph", None)
    if kind is not None and _own_call is None:
        _own_call, kind.__call__ = kind.__call__, _called


def _graph_class() -> Any:
    return sys.modules[_MODULE].CompiledFxGraph


@dynamo.hidden
def _called(compiled: Any, inputs: Any) -> Any:
    """In place of `CompiledFxGraph.__call__`."""
    run = _own_call
    assert run is not None
    mode = mode_of_this_thread()
    cut = None if mode is None or dynamo.is_tracing() else _cut(compiled)
    if cut is None:
        return run(compiled, inputs)
    kept = list(inputs)
    given = [value.clone() if place in cut.changed else value for place, value in enumerate(kept)]
    outputs = run(compiled, inputs)  # which empties the list of its inputs
    try:
        with_modes_aside(_show_all, mode, cut, cut.values(given, kept, outputs))
    except StopTraining:
        raise
    except Exception as error:  # noqa: BLE001  a failure of ours never ends the user's run
        _say_not_seen(in_short(error))
    return outputs


def _cut(compiled: Any) -> CutGraph | None:
    """The regions of a graph; None where it cannot be read, which is said."""
    if id(compiled) not in _cut_graphs:
        weakref.finalize(compiled, _cut_graphs.pop, id(compiled), None)
        try:
            _cut_graphs[id(compiled)] = CutGraph(compiled)
        except UnreadableGraphError as error:
            _cut_graphs[id(compiled)] = None
            _say_not_seen(str(error))
        except Exception as error:  # noqa: BLE001  a failure of ours never ends the user's run
            _cut_graphs[id(compiled)] = None
            _say_not_seen(in_short(error))
    return _cut_graphs[id(compiled)]


def _say_not_seen(reason: str) -> None:
    advice = "run it with TORCHDYNAMO_DISABLE=1"
    say_not_seen_once(
        "compiled", reason, text=f"op_tools cannot look into a graph of torch.compile ({reason}): {advice}"
    )


def _show_all(mode: Any, cut: CutGraph, values: dict[str, Any]) -> None:
    with torch.no_grad():  # gradients are results of the backward graph
        for region in cut.regions:
            _show(mode, region, values)


def _show(mode: Any, region: Region, values: dict[str, Any]) -> None:
    """Hands a region that has run to the tools."""
    arguments = tuple(values[name] for name in region.reads)
    results = tuple(values[name] for name in region.writes)
    if not any(isinstance(value, Tensor) for value in arguments):
        return
    ran = RanRegion(region, results[0] if len(results) == 1 else results)
    caller = where.of_forward(sys._getframe()) or where.here()
    with where.pretended(where.RecordedWhere(region.line or caller.line(), caller.module)):
        mode.region_ran(region, ran, arguments)
