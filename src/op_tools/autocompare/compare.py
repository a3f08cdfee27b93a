"""One call compared with the same call elsewhere: inputs, outputs and gradients, each with a verdict.

The tool does it while a program runs, replay does it with calls from disk, a worker process does it for the tool.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable

import torch
from torch import Tensor

from op_tools.autocompare import lists
from op_tools.autocompare.arguments import Arguments, is_long_list
from op_tools.autocompare.judging import choices, random_ops, verdict
from op_tools.autocompare.judging.limits import Precision, precision_of
from op_tools.autocompare.judging.second_look import MOVES
from op_tools.autocompare.judging.tolerance import Tolerance, Tolerances
from op_tools.autocompare.judging.verdict import Verdict
from op_tools.autocompare.parts import Gradient, Input, Many, Output, Part, dense, end_to_end
from op_tools.autocompare.reference import rerun
from op_tools.autocompare.reference.pair import CannotCompare, Pair
from op_tools.autocompare.reference.rerun import Run
from op_tools.autocompare.row import Row, error_info, judge_plain, output_names, range_of
from op_tools.autocompare.seen import Seen
from op_tools.device import host_copies
from op_tools.ops import catalogue
from op_tools.ops.cast_tables import read_cast_tables
from op_tools.ops.catalogue import Trait
from op_tools.values import trees


@dataclass
class Comparison:
    """What came out for one call, or for its gradients. `failure`: why it could not be compared."""

    rows: list[Row] = field(default_factory=list)
    run: Run | None = None
    gradients: list[Tensor | None] | None = None
    casts: Mapping[torch.dtype, torch.dtype] = field(default_factory=dict)
    failure: str = ""
    skipped: str = ""
    pair: Pair | None = None  # the runs, if they can be used again for the gradients

    @property
    def is_wrong(self) -> bool:
        return any(row.is_wrong for row in self.rows)


class Comparer:
    """Compares calls with the CPU; or, `on_device`, with the same device in higher precision.

    Nobody knows then what the op costs in the device's own dtype: `slack` widens the limits.
    """

    def __init__(
        self,
        tolerances: Tolerances,
        cast_table: Callable[[str], Mapping[torch.dtype, torch.dtype] | None],
        on_device: bool = False,
        slack: float = 1.0,
    ) -> None:
        self.tolerances = tolerances
        self._cast_table = cast_table
        self.on_device = on_device
        self._slack = slack

    def forward(self, seen: Seen, with_graph: bool = False) -> Comparison:
        """Inputs, which the call may have damaged, and outputs. With a graph, the runs are kept for `backward`."""
        if Trait.EMPTY in (catalogue.of(seen.name) or Trait.SUMS):
            return Comparison(skipped="uninitialised memory")
        if random_ops.is_random(seen.name, seen.given.args, seen.given.kwargs):
            return self._random_forward(seen)
        try:
            pair = self._pair(seen, with_graph=with_graph)
            known: dict[int, Row] = {}  # by the id of a tensor: a call that works in place returns an argument
            rows = [] if seen.kept is None else list(self._input_rows(seen, seen.kept, pair, known))
            rows += self._output_rows(seen, pair, known)
            kept = pair if with_graph and not pair.is_exact else None
            return Comparison(rows, pair.expected, None, pair.casts, pair=kept)
        except CannotCompare as error:
            return Comparison(failure=str(error))

    def backward(
        self,
        seen: Seen,
        grad_outputs: Sequence[Tensor | None],
        grad_inputs: Sequence[Tensor | None],
        pair: Pair | None = None,
    ) -> Comparison:
        """The gradients that flowed out of the call's inputs, for those that flowed into its outputs.

        `pair`: the runs that `forward` has kept.
        """
        if random_ops.is_random(seen.name, seen.given.args, seen.given.kwargs):
            return self._random_backward(seen, grad_outputs, grad_inputs)
        try:
            if pair is None or not pair.run_backward(grad_outputs):
                pair = self._pair(seen, grad_outputs)
            rows = [
                self._row(name, got, pair, Gradient(place))
                for place, (name, got) in enumerate(zip(seen.given.gradient_names(seen.name), grad_inputs))
                if got is not None and pair.expected_part(Gradient(place)) is not None
            ]
            return Comparison(rows, pair.expected, pair.gradients, pair.casts)
        except CannotCompare as error:
            return Comparison(failure=str(error))

    def same_memory(self, seen: Seen) -> Comparison:
        """For a view: its numbers are its input's, and it looks at them as it should."""
        op, result, tolerance_of = seen.name, seen.result, self.tolerances.of
        values = [result] if isinstance(result, Tensor) else [value for _, value in trees.leaves(result)]
        names = (*seen.given.names(op, "input"), *output_names(op, len(values)))
        return Comparison(
            [
                Row(name, verdict.RIGHT, *tolerance_of(op, value))
                for name, value in zip(names, (*seen.given.leaves, *values))
            ]
        )

    def same_gradient(self, seen: Seen, grad_inputs: Sequence[Tensor | None]) -> Comparison:
        """For a view's gradient that is what arrived: its numbers are right if that was."""
        op, names = seen.name, seen.given.gradient_names(seen.name)
        return Comparison(
            [
                Row(name, verdict.RIGHT, *self.tolerances.for_dtype(op, got.dtype))
                for name, got in zip(names, grad_inputs)
                if got is not None
            ]
        )

    def _pair(
        self,
        seen: Seen,
        grad_outputs: Sequence[Tensor | None] | None = None,
        with_graph: bool = False,
        first_look: bool = False,
    ) -> Pair:
        table = self._cast_table(seen.name)
        higher = rerun.HIGHER if table is None else {**rerun.HIGHER, **table}
        if self.on_device:
            higher = rerun.higher_on(seen.given.tensors, higher)
        return Pair(seen, higher, grad_outputs, self.on_device, self._slack, with_graph, first_look)

    def pair_to_glance_at(self, seen: Seen, with_graph: bool) -> Pair | None:
        """The runs for a first look; None where only a full comparison will do."""
        if catalogue.of(seen.name) is None or catalogue.has(seen.name, Trait.EMPTY):
            return None
        if seen.is_tf32() or random_ops.is_random(seen.name, seen.given.args, seen.given.kwargs):
            return None
        return self._pair(seen, with_graph=with_graph, first_look=True)

    # ---- the parts of a call -----------------------------------------------------------------------------------------

    def _output_rows(self, seen: Seen, pair: Pair, known: dict[int, Row]) -> list[Row]:
        got = [value for _, value in trees.leaves(seen.result)]
        if not got and isinstance(seen.given, lists.Joined):
            return []  # what it returns is what it was given
        if len(got) != len(pair.expected.results):
            raise CannotCompare(f"{len(got)} results on the device, {len(pair.expected.results)} as reference")
        names = output_names(seen.name, len(got))
        if is_long_list(seen.result):
            first, last = known.get(id(got[0])), known.get(id(got[-1]))
            if first is not None and first is last:
                return [replace(first, name=range_of(names))]
            return self._rows_of_list(names, got, pair, [Output(index) for index in range(len(got))], {})
        return [
            replace(known[id(value)], name=name) if id(value) in known else self._row(name, value, pair, Output(index))
            for index, (name, value) in enumerate(zip(names, got))
        ]

    def _input_rows(self, seen: Seen, kept: Arguments, pair: Pair, known: dict[int, Row]) -> Iterator[Row]:
        names = seen.given.names(seen.name, "input")
        together: set[int] = set()
        for places in seen.given.long_lists():
            if all(index in pair.changed for index in places):
                parts = [Input(index) for index in places]
                listed = slice(places.start, places.stop)
                yield from self._rows_of_list(names[listed], kept.leaves[listed], pair, parts, known)
                together.update(places)
        for index, (name, before, after) in enumerate(zip(names, seen.given.leaves, kept.leaves)):
            if index not in together:
                row = self._input_row(name, before, after, pair, index)
                if index in pair.changed:
                    known[id(after)] = row
                yield row

    def _input_row(self, name: str, before: Any, after: Any, pair: Pair, index: int) -> Row:
        tolerance = self.tolerances.of(pair.name, before)
        if not isinstance(before, Tensor):
            return Row(name, verdict.RIGHT, *tolerance)
        if index in pair.changed:
            return self._row(name, after, pair, Input(index))
        if after is before or verdict.same_bits(before, after):
            return Row(name, verdict.RIGHT, *tolerance, error_info(before, pair.expected_part(Input(index))))
        judged = verdict.judge_exact(after, before)
        reason = f"the call changed an input that it must leave alone: {judged.reason}"
        return Row(name, judged._replace(right=False, reason=reason, severity=math.inf), *tolerance)

    def _rows_of_list(
        self,
        names: Sequence[str],
        got: Sequence[Any],
        pair: Pair,
        parts: Sequence[Input | Output],
        known: dict[int, Row],
    ) -> list[Row]:
        """One row for many tensors; if something is wrong with them, a row for each."""
        together = self._row(range_of(names), end_to_end(got), pair, Many(tuple(parts)))
        rows = [together] * len(got)
        if together.is_wrong:
            each = [self._row(name, value, pair, part) for name, value, part in zip(names, got, parts)]
            rows = each if any(row.is_wrong for row in each) else rows
        known.update((id(value), row) for value, row in zip(got, rows))
        return rows if rows[0] is not together else [together]

    def _row(self, name: str, got: Any, pair: Pair, part: Part) -> Row:
        """One value of the device beside the reference's."""
        same, expected = pair.same_part(part), pair.expected_part(part)
        tolerance = self.tolerances.of(pair.name, got)
        if not isinstance(got, Tensor) or not isinstance(expected, Tensor):
            return Row(name, judge_plain(got, expected, same, tolerance), *tolerance)
        info = error_info(got, expected)
        got, expected, same = dense(got), dense(expected), None if same is None else dense(same)
        if got.shape != expected.shape:
            return Row(name, verdict.wrong_shape(got, expected), *tolerance, info)
        is_real = got.is_floating_point() or got.is_complex()
        if is_real and not (pair.is_exact and not isinstance(part, Gradient)):
            judged = _judge_numbers(got, expected, same, pair, part, tolerance)
        else:
            judged = _judge_exactly(got, expected, same, pair, part)
        if not judged.right and Trait.CHOICE in pair.traits and not judged.measures.nonfinite:
            return Row(name, None, *tolerance, info, "several results are right")
        return Row(name, judged, *tolerance, info)

    # ---- random ops --------------------------------------------------------------------------------------------------

    def _random_forward(self, seen: Seen) -> Comparison:
        result = next(trees.tensors(seen.result), None)
        if result is None:
            return Comparison(skipped="random")
        if Trait.DROPOUT in (catalogue.of(seen.name) or Trait.SUMS):
            return self._dropout_forward(seen, result)
        draws = random_ops.draws_of(seen.name, seen.given.args, seen.given.kwargs)
        if draws is None:
            return Comparison(skipped="random")
        reason = random_ops.draws_are_wrong(result, draws)
        judged = Verdict(not reason, reason, verdict.EQUAL, math.inf if reason else 0.0)
        return Comparison([Row(f"{seen.name} output", judged, *self.tolerances.of(seen.name, result))])

    def _dropout_forward(self, seen: Seen, result: Tensor) -> Comparison:
        given, rate = seen.given.tensors[0].detach(), random_ops.drop_rate(seen.given.args, seen.given.kwargs)
        mask = random_ops.mask_of(given, result)
        row = self._masked_row(f"{seen.name} output", result, given, mask, rate, seen.name)
        wrong_rate = random_ops.rate_is_wrong(given, mask, rate, random_ops.inner_dimensions(seen.name, given))
        if wrong_rate and row.verdict is not None and row.verdict.right:
            row.verdict = row.verdict._replace(right=False, reason=wrong_rate, severity=math.inf)
        return Comparison([row])

    def _random_backward(
        self, seen: Seen, grad_outputs: Sequence[Tensor | None], grad_inputs: Sequence[Tensor | None]
    ) -> Comparison:
        result, arrived, got = next(trees.tensors(seen.result), None), grad_outputs[0], grad_inputs[0]
        is_dropout = Trait.DROPOUT in (catalogue.of(seen.name) or Trait.SUMS)
        if not is_dropout or result is None or arrived is None or got is None:
            return Comparison(skipped="random")
        given, rate = seen.given.tensors[0].detach(), random_ops.drop_rate(seen.given.args, seen.given.kwargs)
        # where the input was zero the mask cannot be seen: either gradient is right
        mask = torch.where(given == 0, got != 0, random_ops.mask_of(given, result))
        name = seen.given.gradient_names(seen.name)[0]
        return Comparison([self._masked_row(name, got, arrived, mask, rate, seen.name)])

    def _masked_row(self, name: str, got: Tensor, given: Tensor, mask: Tensor, rate: float, op: str) -> Row:
        got, tolerance = got.detach(), self.tolerances.of(op, got)
        expected = random_ops.dropped_out(given.double(), mask, rate)
        judged = verdict.judge(got, expected, expected.to(got.dtype), precision_of(got.dtype), tolerance)
        return Row(name, judged, *tolerance, error_info(got, expected))


def compare_call(
    name: str,
    function: Callable[..., Any],
    given: Arguments,
    result: Any,
    grad_outputs: Sequence[Tensor | None] | None = None,
    grad_inputs: Sequence[Tensor | None] = (),
) -> list[Comparison]:
    """Compares one call that was seen earlier, from disk perhaps, with the CPU: forward, and backward if it is given.

    `given` are the arguments as they were before the call. The variables for tolerances and casts are read now.
    """
    comparer = Comparer(Tolerances(), read_cast_tables().cast_table)
    seen = Seen(name, function, given.copied(), None, host_copies.host_copy(result), changed=True)
    found = [comparer.forward(seen)]
    if grad_outputs is not None:
        found.append(comparer.backward(seen, *host_copies.host_copy((list(grad_outputs), list(grad_inputs)))))
    return found


# ---- verdicts --------------------------------------------------------------------------------------------------------


def _judge_numbers(
    got: Tensor, expected: Tensor, same: Tensor | None, pair: Pair, part: Part, tolerance: Tolerance
) -> Verdict:
    precision = pair.precision(got, same)
    if same is not None and (verdict.same_bits(got, same) or verdict.is_as_good(got, same, precision)):
        return verdict.measured(got, expected, same, precision, tolerance)
    judged = verdict.judge(got, expected, same, precision, tolerance)
    if judged.right:
        return judged
    for other in pair.other_parts(part):
        again = verdict.judge(got, expected, other, pair.precision(got, other), tolerance)
        if again.right:
            return again
    if Trait.ORDER in pair.traits and isinstance(part, Gradient):
        summed = _judge_ties(got, expected, same, pair, precision, tolerance)
        if summed is not None and summed.right:
            return summed
    for roughly in (False, True) if pair.second_look.may_add_roughly(part, precision) else (False,):
        for moves in MOVES:  # often the first few are enough
            second_look = pair.second_look.sensitivity(part, precision, moves, roughly)
            if second_look is not None:
                judged = verdict.judge(got, expected, same, precision, tolerance, second_look)
            if judged.right:
                return judged
    return judged


def _judge_ties(
    got: Tensor, expected: Tensor, same: Tensor | None, pair: Pair, precision: Precision, tolerance: Tolerance
) -> Verdict | None:
    """A gradient that may go to any of several equal values; None where there are none."""
    ties = choices.Ties(pair.name, pair.expected.arguments)
    if not ties.exist:
        return None
    summed = [None if one is None else ties.summed(one.double()) for one in (got, expected, same)]
    assert summed[0] is not None
    assert summed[1] is not None
    return verdict.judge(summed[0], summed[1], summed[2], precision, tolerance)


def _judge_exactly(got: Tensor, expected: Tensor, same: Tensor | None, pair: Pair, part: Part) -> Verdict:
    judged = verdict.judge_exact(got, expected)
    if judged.right or (same is not None and verdict.same_bits(got, same)):
        return verdict.RIGHT
    if Trait.ORDER in pair.traits and not got.is_floating_point():
        return verdict.RIGHT if choices.same_values(pair.name, pair.expected.arguments, got, expected) else judged
    if Trait.JUMPS in pair.traits or pair.is_unknown:
        undecided = pair.second_look.undecided(part)
        if undecided is not None:
            return verdict.judge_exact(got, expected, undecided)
    return judged
