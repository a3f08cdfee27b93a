"""One call compared with the same call elsewhere: inputs, outputs and gradients. In whatever process.

The tool does it while a program runs, or a worker process does it for the tool.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from op_tools.autocompare.judging import free_order, in_pieces, judge, packed_weights, random_ops
from op_tools.autocompare.judging.limits import LARGE_ELEMENTS, Tolerances
from op_tools.autocompare.judging.verdict import RIGHT, Row
from op_tools.autocompare.observed import CannotCompare, ObservedCall, output_names
from op_tools.autocompare.reference.runs import Reference, References, Rerun
from op_tools.core.gradients import Gradients
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.values import trees

_NO_ORDER = "it writes numbers where it also reads, and PyTorch defines no order"
MAX_SAVED_REFERENCE_BYTES = 2**30  # of a wrong call, with its arguments in float64


@dataclass
class Comparison:
    """What came out for one call, or for its gradients. `failure`: why it could not be compared."""

    rows: list[Row] = field(default_factory=list)
    run: Rerun | None = None
    gradients: Sequence[Tensor | None] | None = None
    casts: Mapping[torch.dtype, torch.dtype] = field(default_factory=dict)
    failure: str = ""
    skipped: str = ""
    remark: str = ""  # what else is to be said
    reference: Reference | None = None  # the runs, if they can be used again for the gradients

    @property
    def is_wrong(self) -> bool:
        return any(row.verdict is not None and not row.verdict.right for row in self.rows)


class Comparer:
    """Compares calls with their references, in full. `shows_runs`: comparisons have the whole runs, to be shown."""

    def __init__(self, tolerances: Tolerances, references: References, shows_runs: bool = False) -> None:
        self.tolerances = tolerances
        self.references = references
        self._shows_runs = shows_runs

    def forward(self, call: ObservedCall, with_graph: bool = False) -> Comparison:
        """Inputs, which the call may have damaged, and outputs. With a graph, the runs are kept for `backward`."""
        if catalogue.has(call.name, Trait.EMPTY):
            return Comparison(skipped="uninitialised memory")
        if random_ops.may_be_random(call.name) and random_ops.is_random(call):
            return _of_random(random_ops.forward_rows(call, self.tolerances))
        if not self._shows_runs and _is_large(call):
            found = in_pieces.forward(call, self.references, self.tolerances)
            if found is not None:
                return self._with_run(Comparison(found.rows, casts=found.casts), call, None)
        try:
            reference = self.references.of(call, None, with_graph)
            rows = judge.rows_of(call.values(reference), reference, self.tolerances)
            if call.shared and any(row.is_wrong for row in rows) and free_order.is_free(call, reference):
                return Comparison(skipped=_NO_ORDER)
            kept = reference if with_graph and not reference.is_exact else None
            return Comparison(rows, reference.expected, None, reference.casts, reference=kept)
        except CannotCompare as error:
            if packed_weights.packs(call.name):
                return Comparison(packed_weights.rows_of(call, self.tolerances))
            return Comparison(failure=str(error))

    def backward(self, call: ObservedCall, gradients: Gradients, reference: Reference | None = None) -> Comparison:
        """The gradients that flowed out of the call's inputs. `reference`: the runs that `forward` has kept."""
        if random_ops.may_be_random(call.name) and random_ops.is_random(call):
            if all(gradient is None for gradient in gradients.inputs):
                return Comparison()
            return _of_random(random_ops.backward_rows(call, gradients, self.tolerances))
        if reference is None and not self._shows_runs and _is_large(call):
            found = in_pieces.backward(call, gradients, self.references, self.tolerances)
            if found is not None:
                return self._with_run(Comparison(found.rows, casts=found.casts), call, gradients)
        try:
            if reference is None or not reference.run_backward(gradients.outputs):
                reference = self.references.of(call, gradients.outputs)
            rows = judge.rows_of(call.gradient_values(reference, gradients), reference, self.tolerances)
            return Comparison(rows, reference.expected, reference.gradients, reference.casts)
        except CannotCompare as error:
            return Comparison(failure=str(error))

    def _with_run(self, comparison: Comparison, call: ObservedCall, gradients: Gradients | None) -> Comparison:
        """A wrong call that was compared in pieces, with the whole reference, to be saved: if there is room for it."""
        if not comparison.is_wrong:
            return comparison
        elements = call.result.numel() + sum(tensor.numel() for tensor in call.given.tensors)
        if 8 * elements > MAX_SAVED_REFERENCE_BYTES:
            comparison.remark = "the reference is too large to be saved beside it: replay computes it again, in pieces"
            return comparison
        with contextlib.suppress(CannotCompare):
            arrived = None if gradients is None else gradients.outputs
            reference = self.references.of(call, arrived, first_look=True)
            comparison.run, comparison.gradients = reference.expected, reference.gradients
        return comparison

    def same_memory(self, call: ObservedCall) -> Comparison:
        """For a view: its numbers are its input's, and it looks at them as it should."""
        op, result, tolerance_of = call.name, call.result, self.tolerances.of
        values = [result] if isinstance(result, Tensor) else [value for _, value in trees.leaves(result)]
        names = (*call.given.names(op, "input"), *output_names(op, len(values)))
        return Comparison(
            [Row(name, RIGHT, *tolerance_of(op, value)) for name, value in zip(names, (*call.given.leaves, *values))]
        )

    def same_gradient(self, call: ObservedCall, gradients: Gradients) -> Comparison:
        """For a view's gradient that is what arrived: its numbers are right if that was."""
        op, names = call.name, call.given.gradient_names(call.name)
        return Comparison(
            [
                Row(name, RIGHT, *self.tolerances.for_dtype(op, got.dtype))
                for name, got in zip(names, gradients.inputs)
                if got is not None
            ]
        )


def _is_large(call: ObservedCall) -> bool:
    return isinstance(call.result, Tensor) and call.result.numel() >= LARGE_ELEMENTS


def _of_random(rows: list[Row]) -> Comparison:
    return Comparison(rows) if rows else Comparison(skipped="random")
