"""One call compared with the same call elsewhere: inputs, outputs and gradients. In whatever process.

The tool does it while a program runs, or a worker process does it for the tool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.autocompare.judging import judge, random_ops
from op_tools.autocompare.judging.limits import Tolerances
from op_tools.autocompare.judging.verdict import RIGHT, Row
from op_tools.autocompare.observed import CannotCompare, ObservedCall, output_names
from op_tools.autocompare.reference.runs import Reference, Run
from op_tools.autocompare.reference.ways import Dtypes, ways_with
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.values import trees

Gradients = Sequence[Any]  # a tensor or None for each


@dataclass
class Comparison:
    """What came out for one call, or for its gradients. `failure`: why it could not be compared."""

    rows: list[Row] = field(default_factory=list)
    run: Run | None = None
    gradients: Sequence[Tensor | None] | None = None
    casts: Mapping[torch.dtype, torch.dtype] = field(default_factory=dict)
    failure: str = ""
    skipped: str = ""
    reference: Reference | None = None  # the runs, if they can be used again for the gradients

    @property
    def is_wrong(self) -> bool:
        return any(row.verdict is not None and not row.verdict.right for row in self.rows)


class Comparer:
    """Compares calls with the CPU; or, `on_device`, with the same device in higher precision.

    Nobody knows then what the op costs in the device's own dtype: `slack` widens the limits.
    """

    def __init__(
        self,
        tolerances: Tolerances,
        cast_table: Callable[[str], Dtypes | None],
        on_device: bool = False,
        slack: float = 1.0,
    ) -> None:
        self.tolerances = tolerances
        self.on_device = on_device
        self._find_ways = ways_with(cast_table, on_device)
        self._slack = slack

    def forward(self, call: ObservedCall, with_graph: bool = False) -> Comparison:
        """Inputs, which the call may have damaged, and outputs. With a graph, the runs are kept for `backward`."""
        if catalogue.has(call.name, Trait.EMPTY):
            return Comparison(skipped="uninitialised memory")
        if self._is_random(call):
            return _of_random(random_ops.forward_rows(call, self.tolerances))
        try:
            reference = self.reference(call, None, with_graph)
            rows = judge.rows_of(call.values(reference), reference, self.tolerances)
            kept = reference if with_graph and not reference.is_exact else None
            return Comparison(rows, reference.expected, None, reference.casts, reference=kept)
        except CannotCompare as error:
            return Comparison(failure=str(error))

    def backward(
        self,
        call: ObservedCall,
        grad_outputs: Gradients,
        grad_inputs: Gradients,
        reference: Reference | None = None,
    ) -> Comparison:
        """The gradients that flowed out of the call's inputs, for those that flowed into its outputs.

        `reference`: the runs that `forward` has kept.
        """
        if self._is_random(call):
            return _of_random(random_ops.backward_rows(call, grad_outputs, grad_inputs, self.tolerances))
        try:
            if reference is None or not reference.run_backward(grad_outputs):
                reference = self.reference(call, grad_outputs)
            rows = judge.rows_of(call.gradient_values(reference, grad_inputs), reference, self.tolerances)
            return Comparison(rows, reference.expected, reference.gradients, reference.casts)
        except CannotCompare as error:
            return Comparison(failure=str(error))

    def same_memory(self, call: ObservedCall) -> Comparison:
        """For a view: its numbers are its input's, and it looks at them as it should."""
        op, result, tolerance_of = call.name, call.result, self.tolerances.of
        values = [result] if isinstance(result, Tensor) else [value for _, value in trees.leaves(result)]
        names = (*call.given.names(op, "input"), *output_names(op, len(values)))
        return Comparison(
            [Row(name, RIGHT, *tolerance_of(op, value)) for name, value in zip(names, (*call.given.leaves, *values))]
        )

    def same_gradient(self, call: ObservedCall, grad_inputs: Gradients) -> Comparison:
        """For a view's gradient that is what arrived: its numbers are right if that was."""
        op, names = call.name, call.given.gradient_names(call.name)
        return Comparison(
            [
                Row(name, RIGHT, *self.tolerances.for_dtype(op, got.dtype))
                for name, got in zip(names, grad_inputs)
                if got is not None
            ]
        )

    def reference(
        self,
        call: ObservedCall,
        grad_outputs: Gradients | None = None,
        with_graph: bool = False,
        first_look: bool = False,
    ) -> Reference:
        """The runs that a call is compared with."""
        device = None
        if self.on_device:  # some have no float64
            device = next((tensor.device for tensor in call.given.tensors if not tensor.is_cpu), None)
        chosen = None if call.chosen is None else call.dtype_of_autocast()
        ways = self._find_ways(call.name, call.autocast, chosen, call.is_tf32, device)
        return Reference(call, ways, grad_outputs, self._slack, with_graph, first_look)

    def reference_for_first_look(self, call: ObservedCall, with_graph: bool) -> Reference | None:
        """None where only a full comparison will do."""
        if catalogue.of(call.name) is None or catalogue.has(call.name, Trait.EMPTY):
            return None
        if call.is_tf32 or self._is_random(call):
            return None
        return self.reference(call, None, with_graph, first_look=True)

    def _is_random(self, call: ObservedCall) -> bool:
        given = call.given
        return random_ops.may_be_random(call.name) and random_ops.is_random(call.name, given.args, given.kwargs)


def _of_random(rows: list[Row]) -> Comparison:
    return Comparison(rows) if rows else Comparison(skipped="random")
