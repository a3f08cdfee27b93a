"""One call compared with the same call elsewhere: inputs, outputs and gradients, each with a verdict.

The tool does it while a program runs, replay does it with calls from disk, a worker process does it for the tool.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn import functional

from op_tools import chance, order, reference, traits, trees, verdict
from op_tools.reference import Arguments, Run, Way
from op_tools.tolerance import Tolerances
from op_tools.traits import Trait
from op_tools.verdict import Limits, Verdict

_LOW = (torch.float16, torch.bfloat16)
_ORDINARY = Trait.SUMS  # what an op is taken for that nobody has described
_MOVES = 3  # how often the inputs are moved a little, there and back, in a second look


class Seen:
    """One call as it was seen on the device, with everything that a comparison needs."""

    __slots__ = ("autocast", "changed", "chosen", "function", "given", "is_fast", "kept", "name", "result")

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        given: Arguments,
        kept: Arguments | None,
        result: Any,
        autocast: torch.dtype | None = None,
        chosen: torch.dtype | None = None,
        is_fast: bool = False,
        changed: bool = False,
    ) -> None:
        self.name = name
        self.function = function
        self.given = given  # the arguments before the call
        self.kept = kept  # the arguments after the call; None where nobody looked
        self.result = result
        self.autocast = autocast  # the dtype of autocast where it was on
        self.chosen = chosen  # the dtype that autocast should have chosen for this op
        self.is_fast = is_fast  # matrix products in float32 may have been done in tf32
        self.changed = changed  # the call worked in place on some of its arguments

    def depends_on_layout(self) -> bool:
        """True where a copy of the arguments that lies differently in memory means something else."""
        return traits.base_name(self.name) == "as_strided"

    def bytes(self) -> int:
        """The memory that it takes."""
        tensors = {id(tensor): tensor for tensor in (*self.given.tensors, *trees.tensors(self.result))}
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors.values())


@dataclass
class Row:
    """One value compared. `verdict` is None where it was not: `reason` says why."""

    name: str
    verdict: Verdict | None
    atol: float = 0.0
    rtol: float = 0.0
    error_info: str = ""
    reason: str = ""

    @property
    def is_wrong(self) -> bool:
        return self.verdict is not None and not self.verdict.right

    @property
    def is_close(self) -> bool:
        return self.verdict is None or self.verdict.measures.allclose


@dataclass
class Comparison:
    """What came out for one call, or for its gradients. `failure`: why it could not be compared."""

    rows: list[Row] = field(default_factory=list)
    run: Run | None = None
    gradients: list[Tensor | None] | None = None
    casts: Mapping[torch.dtype, torch.dtype] = field(default_factory=dict)
    failure: str = ""
    skipped: str = ""

    @property
    def is_wrong(self) -> bool:
        return any(row.is_wrong for row in self.rows)

    @property
    def severity(self) -> float:
        return max((row.verdict.severity for row in self.rows if row.verdict is not None), default=0.0)


def for_backward(seen: Seen) -> Seen:
    """What must be kept of a call until its gradients come."""
    found = traits.of(seen.name) or _ORDINARY
    kept = Seen(seen.name, seen.function, seen.given, None, seen.result, seen.autocast, _policy(seen))
    kept.is_fast, kept.changed = seen.is_fast, seen.changed
    if Trait.DROPOUT not in found:  # its mask is in the result
        kept.result = trees.map_tensors(reference.hollow, seen.result)
    if not all(tensor.is_cpu for tensor in seen.given.tensors):  # a view: only shapes matter
        kept.given = seen.given.mapped(reference.hollow)
    return kept


class CannotCompare(Exception):  # noqa: N818  it never reaches a user as an error
    """No reference could be had."""


class Comparer:
    """Compares calls with the CPU."""

    def __init__(
        self, tolerances: Tolerances, cast_table: Callable[[str], Mapping[torch.dtype, torch.dtype] | None]
    ) -> None:
        self._tolerances = tolerances
        self._cast_table = cast_table

    def forward(self, seen: Seen) -> Comparison:
        """Inputs, which the call may have damaged, and outputs."""
        found = traits.of(seen.name) or _ORDINARY
        if Trait.EMPTY in found:
            return Comparison(skipped="uninitialised memory")
        if chance.is_random(seen.name, seen.given.args, seen.given.kwargs):
            return self._random_forward(seen)
        try:
            pair = _Pair(seen, found, self._higher(seen.name))
            return self._compared(seen, pair)
        except CannotCompare as error:
            return Comparison(failure=str(error))

    def backward(
        self, seen: Seen, grad_outputs: Sequence[Tensor | None], grad_inputs: Sequence[Tensor | None]
    ) -> Comparison:
        """The gradients that flowed out of the call's inputs, for those that flowed into its outputs."""
        found = traits.of(seen.name) or _ORDINARY
        if Trait.EMPTY in found:
            return Comparison(skipped="uninitialised memory")
        if chance.is_random(seen.name, seen.given.args, seen.given.kwargs):
            return self._random_backward(seen, grad_outputs, grad_inputs)
        try:
            pair = _Pair(seen, found, self._higher(seen.name), grad_outputs)
            rows = []
            for place, (label, got) in enumerate(zip(_gradient_labels(seen.given), grad_inputs)):
                expected = pair.expected_gradients[place]
                if got is not None and expected is not None:
                    rows.append(self._row(f"{seen.name} {label}", got, expected, pair, _Gradient(place)))
            return Comparison(rows, pair.expected, pair.expected_gradients, pair.casts)
        except CannotCompare as error:
            return Comparison(failure=str(error))

    def same_memory(self, seen: Seen) -> Comparison:
        """For a view: its numbers are its input's, and it looks at them as it should."""
        names = [f"{seen.name} {label}" for label in seen.given.labels("input")]
        values = [value for _, value in trees.leaves(seen.result)]
        names += [f"{seen.name} output" + (f"[{index}]" if len(values) > 1 else "") for index in range(len(values))]
        tolerances = (self._tolerances.of(seen.name, value) for value in (*seen.given.leaves, *values))
        return Comparison([Row(name, verdict.RIGHT, *tolerance) for name, tolerance in zip(names, tolerances)])

    # ---- the parts of a call -----------------------------------------------------------------------------------------

    def _compared(self, seen: Seen, pair: _Pair) -> Comparison:
        got, expected = [value for _, value in trees.leaves(seen.result)], pair.expected.results
        if len(got) != len(expected):
            raise CannotCompare(f"it returned {len(got)} values on the device, {len(expected)} as reference")
        rows = list(self._input_rows(seen, pair)) if seen.kept is not None else []
        for index, (value, reference_value) in enumerate(zip(got, expected)):
            label = f"{seen.name} output" + (f"[{index}]" if len(got) > 1 else "")
            rows.append(self._row(label, value, reference_value, pair, _Output(index)))
        return Comparison(rows, pair.expected, None, pair.casts)

    def _input_rows(self, seen: Seen, pair: _Pair) -> Iterator[Row]:
        assert seen.kept is not None
        before, after, expected = seen.given.leaves, seen.kept.leaves, pair.expected.arguments.leaves
        for index, label in enumerate(seen.given.labels("input")):
            name, value, now = f"{seen.name} {label}", before[index], after[index]
            if not isinstance(value, Tensor):
                yield self._plain_row(name, value, value)
                continue
            should_change = seen.changed and pair.changed(index)
            if not should_change and verdict.same_bits(value, now):
                yield self._unchanged_row(name, value, expected[index])
            elif should_change:
                yield self._row(name, now, expected[index], pair, _Input(index))
            else:
                judged = verdict.judge_exact(now, value)
                reason = f"the call changed an input that it must leave alone: {judged.reason}"
                tolerance = self._tolerances.of(seen.name, value)
                yield Row(name, judged._replace(right=False, reason=reason, severity=math.inf), *tolerance)

    def _unchanged_row(self, name: str, value: Tensor, expected: Any) -> Row:
        tolerance = self._tolerances.of(name.partition(" ")[0], value)
        return Row(name, verdict.RIGHT, *tolerance, _error_info(value, expected))

    def _plain_row(self, name: str, got: Any, expected: Any, same: Any = None) -> Row:
        tolerance = self._tolerances.of(name.partition(" ")[0], got)
        numbers = isinstance(got, (int, float, complex)) and isinstance(expected, (int, float, complex))
        if not numbers or got == expected or got == same or (got != got and expected != expected):
            return Row(name, verdict.RIGHT, *tolerance)
        distance = abs(got - expected)
        relative = distance / abs(expected) if expected else math.inf
        close = distance <= tolerance.atol + tolerance.rtol * abs(expected)
        measures = verdict.Measures(close, distance, relative, 1.0 if close else math.nan)
        reason = "" if close else f"{got} instead of {expected}"
        return Row(name, Verdict(close, reason, measures, 0.0 if close else math.inf), *tolerance)

    def _row(self, name: str, got: Any, expected: Any, pair: _Pair, part: Any) -> Row:
        """One value of the device beside the reference's."""
        same = pair.same_part(part)
        if not isinstance(got, Tensor) or not isinstance(expected, Tensor):
            return self._plain_row(name, got, expected, same)
        tolerance = self._tolerances.of(name.partition(" ")[0], got)
        info = _error_info(got, expected)
        got, expected = _dense(got), _dense(expected)
        same = None if same is None else _dense(same)
        judged = self._judged(got, expected, same, pair, part, tolerance)
        if not judged.right and Trait.CHOICE in pair.traits and not judged.measures.nonfinite:
            return Row(name, None, *tolerance, info, "several results are right")
        return Row(name, judged, *tolerance, info)

    def _judged(
        self, got: Tensor, expected: Tensor, same: Tensor | None, pair: _Pair, part: Any, tolerance: Any
    ) -> Verdict:
        if got.shape != expected.shape:
            return verdict.wrong_shape(got, expected)
        is_real = got.is_floating_point() or got.is_complex()
        if not is_real or (pair.is_exact and not isinstance(part, _Gradient)):
            return self._judged_exactly(got, expected, same, pair, part)
        precision = pair.precision(got, same)
        if same is not None and verdict.same_bits(got, same):
            return verdict.agreeing(got, expected, precision, tolerance)
        judged = verdict.judge(got, expected, same, precision, tolerance)
        if judged.right:
            return judged
        for other in pair.others(part):
            again = verdict.judge(got, expected, other, pair.precision(got, other), tolerance)
            if again.right:
                return again
        second_look = pair.sensitivity(part, precision)
        if second_look is None:
            return judged
        return verdict.judge(got, expected, same, precision, tolerance, second_look)

    def _judged_exactly(self, got: Tensor, expected: Tensor, same: Tensor | None, pair: _Pair, part: Any) -> Verdict:
        judged = verdict.judge_exact(got, expected)
        if judged.right or (same is not None and verdict.same_bits(got, same)):
            return verdict.RIGHT
        if Trait.ORDER in pair.traits and not got.is_floating_point():
            return verdict.RIGHT if order.same_values(pair.name, pair.expected.arguments, got, expected) else judged
        if Trait.JUMPS in pair.traits or pair.is_unknown:
            moved = pair.undecided(part)
            if moved is not None:
                return verdict.judge_exact(got, expected, moved)
        return judged

    # ---- random ops --------------------------------------------------------------------------------------------------

    def _random_forward(self, seen: Seen) -> Comparison:
        name, (args, kwargs) = seen.name, (seen.given.args, seen.given.kwargs)
        result = next(trees.tensors(seen.result), None)
        found = traits.of(name) or _ORDINARY
        reason = ""
        if result is None:
            return Comparison(skipped="random")
        if Trait.DROPOUT in found:
            return self._dropout_forward(seen, result)
        draws = chance.draws_of(name, args, kwargs)
        if draws is None:
            return Comparison(skipped="random")
        reason = chance.draws_are_wrong(result, draws)
        judged = Verdict(not reason, reason, verdict.EQUAL, math.inf if reason else 0.0)
        return Comparison([Row(f"{name} output", judged, *self._tolerances.of(name, result))])

    def _dropout_forward(self, seen: Seen, result: Tensor) -> Comparison:
        given, rate = seen.given.tensors[0].detach(), chance.drop_rate(seen.given.args, seen.given.kwargs)
        mask = chance.mask_of(given, result)
        expected = chance.dropped_out(given.double(), mask, rate)
        tolerance = self._tolerances.of(seen.name, result)
        same = expected.to(result.dtype)
        judged = verdict.judge(result, expected, same, verdict.precision_of(result.dtype), tolerance)
        whole_channels = traits.base_name(seen.name) not in ("dropout", "native_dropout")
        wrong_rate = chance.rate_is_wrong(given, mask, rate, whole_channels)
        if judged.right and wrong_rate:
            judged = judged._replace(right=False, reason=wrong_rate, severity=math.inf)
        return Comparison([Row(f"{seen.name} output", judged, *tolerance, _error_info(result, expected))])

    def _random_backward(self, seen: Seen, grad_outputs: Sequence[Any], grad_inputs: Sequence[Any]) -> Comparison:
        found = traits.of(seen.name) or _ORDINARY
        result = next(trees.tensors(seen.result), None)
        if Trait.DROPOUT not in found or result is None or grad_outputs[0] is None or grad_inputs[0] is None:
            return Comparison(skipped="random")
        given, rate = seen.given.tensors[0].detach(), chance.drop_rate(seen.given.args, seen.given.kwargs)
        got = grad_inputs[0]
        # where the input was zero the mask cannot be seen: either gradient is right
        kept = torch.where(given == 0, got != 0, chance.mask_of(given, result))
        expected = chance.dropped_out(grad_outputs[0].double(), kept, rate)
        tolerance = self._tolerances.of(seen.name, got)
        judged = verdict.judge(got, expected, expected.to(got.dtype), verdict.precision_of(got.dtype), tolerance)
        label = _gradient_labels(seen.given)[0]
        return Comparison([Row(f"{seen.name} {label}", judged, *tolerance, _error_info(got, expected))])

    def _higher(self, name: str) -> Mapping[torch.dtype, torch.dtype]:
        table = self._cast_table(name)
        return reference.HIGHER if table is None else {**reference.HIGHER, **table}


# ---- which part of a call a value is ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Input:
    index: int

    def of(self, run: Run, gradients: Any) -> Any:
        return run.arguments.leaves[self.index]


@dataclass(frozen=True)
class _Output:
    index: int

    def of(self, run: Run, gradients: Any) -> Any:
        values = run.results
        return values[self.index] if self.index < len(values) else None


@dataclass(frozen=True)
class _Gradient:
    place: int

    def of(self, run: Run, gradients: Any) -> Any:
        return gradients[self.place]


class _Pair:
    """The two runs elsewhere: one in higher precision, one in the device's own."""

    def __init__(
        self,
        seen: Seen,
        found: Trait,
        higher: Mapping[torch.dtype, torch.dtype],
        grad_outputs: Sequence[Tensor | None] | None = None,
    ) -> None:
        self.name = seen.name
        self.traits = found
        self.is_unknown = traits.of(seen.name) is None
        self.is_exact = Trait.EXACT in found
        self._seen = seen
        self._grad_outputs = grad_outputs
        self._moved: list[tuple[Run, Any]] | None = None
        self._is_tf32 = seen.is_fast and bool(found & (Trait.MATRIX | Trait.CONVOLUTION))
        self._other_ways: list[tuple[Callable[..., Any], Way]] = []
        self._other_runs: list[tuple[Run, Any]] | None = None
        better, own = self._ways(higher)
        self._better = better
        self.same: Run | None = None
        self.same_gradients: list[Tensor | None] | None = None
        failure: Exception | None = None
        for way in own:
            try:
                self.same, self.same_gradients = self._run(way)
                break
            except Exception as error:  # noqa: BLE001  whatever the CPU cannot do
                failure = error
        try:
            if self.is_exact and grad_outputs is None and self.same is not None:
                self.expected, gradients = self.same, self.same_gradients
            else:
                self.expected, gradients = self._run(better)
        except Exception as error:  # noqa: BLE001
            if self.same is None:
                raise CannotCompare(_first_line(failure or error)) from None
            self.expected, gradients = self.same, self.same_gradients
        self.expected_gradients = gradients or []
        floats = {tensor.dtype for tensor in seen.given.tensors if tensor.dtype in higher}
        self.casts = {dtype: higher[dtype] for dtype in floats} if self.expected is not self.same else {}

    def _ways(self, higher: Mapping[torch.dtype, torch.dtype]) -> tuple[Way, list[Way]]:
        """In higher precision; and in the device's own, as autocast and tf32 have it there."""
        better, own = Way("higher precision", higher), Way("the same dtype", {})
        autocast, chosen = self._seen.autocast, _policy(self._seen)
        if chosen is torch.float32:
            own = Way(own.name, {}, convert=Way("", reference.SINGLE).convert)
        elif chosen is not None:
            better = Way(better.name, higher, convert=reference.rounded_to(chosen, higher.get(chosen, chosen)))
            own = Way(own.name, {}, convert=reference.rounded_to(chosen, chosen))
        elif autocast is not None:
            own = Way(own.name, {}, autocast=autocast)
        if self._is_tf32:
            own = own.then(own.name, reference.as_tf32)
        if chosen is not None:
            # an op that is made of others: autocast looks at each of them
            self._other_ways = [(self._seen.function, Way("autocast on the CPU", {}, autocast=autocast))]
            if traits.base_name(self.name) == "cross_entropy":
                self._other_ways.append((_cross_entropy_in_parts, Way("in parts", {})))
        # where the CPU has no kernel for a low precision: rounded once, in the end
        return better, [own, Way("float32", reference.SINGLE)]

    def _run(self, way: Way, function: Callable[..., Any] | None = None) -> tuple[Run, list[Tensor | None] | None]:
        seen, graph = self._seen, self._grad_outputs is not None
        function = function or seen.function
        with reference.random_numbers_kept() if self.is_unknown else reference.NOTHING:
            try:
                run = reference.run(function, seen.given, way, graph, seen.changed)
            except reference.ChangedInputs:
                seen.changed = True
                run = reference.run(function, seen.given, way, graph, True)
            return run, run.gradients(self._grad_outputs) if self._grad_outputs is not None else None

    def same_part(self, part: Any) -> Any:
        return None if self.same is None else part.of(self.same, self.same_gradients)

    def changed(self, index: int) -> bool:
        """True where the reference changed this input."""
        before, after = self._seen.given.leaves[index].detach(), self.expected.arguments.leaves[index]
        if before.is_floating_point() or before.is_complex():
            before = self.expected.way.convert(before)
        return not verdict.same_bits(before, after.detach())

    def precision(self, got: Tensor, same: Tensor | None) -> verdict.Precision:
        """That of the result, or the lower one that autocast has computed it in."""
        dtype = got.dtype.to_real() if got.is_complex() else got.dtype
        if same is not None and same.is_floating_point() and torch.finfo(same.dtype).eps > torch.finfo(dtype).eps:
            dtype = same.dtype
        limits: Limits | None = None
        if self.traits & (Trait.MATRIX | Trait.CONVOLUTION):
            if torch.finfo(dtype).bits <= 16:
                limits = verdict.LOW_STEPS if Trait.STEPS in self.traits else verdict.LOW_SUMS
            elif dtype is torch.float32 and self._is_tf32:
                limits = verdict.TF32
            elif dtype is torch.float32 and (Trait.CONVOLUTION in self.traits or "attention" in self.name):
                limits = verdict.SINGLE_LOOSE
        elif Trait.NORM in self.traits and torch.finfo(dtype).bits <= 16:
            limits = verdict.LOW_NORM
        return verdict.precision_of(dtype, limits)

    def others(self, part: Any) -> Iterator[Tensor]:
        """What the CPU makes of it in other ways that are just as right."""
        if self._other_runs is None:
            self._other_runs = []
            for function, way in self._other_ways:
                with contextlib.suppress(Exception):
                    self._other_runs.append(self._run(way, function))
        for run, gradients in self._other_runs:
            value = part.of(run, gradients)
            if isinstance(value, Tensor):
                yield _dense(value)

    # ---- a second look -----------------------------------------------------------------------------------------------

    def _moved_runs(self) -> list[tuple[Run, Any]]:
        """The call in higher precision with its inputs a rounding error away, several times."""
        if self._moved is None:
            self._moved = []
            generator = torch.Generator().manual_seed(0)
            amount = _rounding(self._seen, self.same is not None)
            for _ in range(_MOVES):
                state = generator.get_state()
                for direction in (1, -1):
                    generator.set_state(state)  # the same signs, then all of them turned round
                    way = self._better.then("moved", reference.moved_by(direction * amount, generator))
                    try:
                        self._moved.append(self._run(way))
                    except Exception:  # noqa: BLE001  outside of what the op accepts
                        continue
        return self._moved

    def sensitivity(self, part: Any, precision: verdict.Precision) -> Tensor | None:
        """How far a value may lie from the expected one because of roundings on the way."""
        expected = _dense(part.of(self.expected, self.expected_gradients))
        farthest: Tensor | None = None
        for run, gradients in self._moved_runs():
            value = part.of(run, gradients)
            if isinstance(value, Tensor) and value.shape == expected.shape:
                distance = torch.nan_to_num((_dense(value) - expected).abs().double(), nan=math.inf)
                farthest = distance if farthest is None else torch.maximum(farthest, distance)
        if farthest is None:
            return None
        farthest *= 4 * math.sqrt(self._length(expected.numel()))
        if precision.eps < 1e-6:
            # differences of equal numbers on the way, such as in softmax's gradient, are zero here and on the CPU alone
            largest = expected.abs().nan_to_num(posinf=0.0).max() * (precision.eps / 2 * precision.limits.peak)
            farthest = torch.maximum(farthest, largest.double())
        return farthest

    def undecided(self, part: Any) -> Tensor | None:
        """Where a whole number or a truth value changes when the inputs are moved by a rounding error."""
        expected = part.of(self.expected, self.expected_gradients)
        found: Tensor | None = None
        for run, gradients in self._moved_runs():
            value = part.of(run, gradients)
            if isinstance(value, Tensor) and value.shape == expected.shape:
                differs = verdict.differing(value, expected)
                found = differs if found is None else found | differs
        return found

    def _length(self, elements: int) -> float:
        """About how many terms are added up for one element."""
        sizes = [tensor.numel() for tensor in self._seen.given.tensors if tensor.is_floating_point()]
        sizes += [gradient.numel() for gradient in self._grad_outputs or () if gradient is not None]
        sizes = sorted(sizes, reverse=True) or [1]
        length = sizes[0] / max(elements, 1)
        if self.traits & (Trait.MATRIX | Trait.CONVOLUTION) and len(sizes) > 1:
            length = max(length, math.sqrt(sizes[0] * sizes[1] / max(elements, 1)))
        return max(1.0, length)


def _policy(seen: Seen) -> torch.dtype | None:
    """The dtype that autocast ran a call in; None where it left the call alone, or nobody knows."""
    gave = {tensor.dtype for tensor in trees.tensors(seen.result) if tensor.is_floating_point()}
    return seen.chosen if gave == {seen.chosen} else None


def _cross_entropy_in_parts(scores: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """As autocast runs it on accelerators: the logarithm in the dtype of the scores, the sum in float32."""
    log = functional.log_softmax(scores, 1 if scores.dim() > 1 else 0, dtype=scores.dtype)
    return functional.nll_loss(log.float(), target, *args, **{k: v for k, v in kwargs.items() if k != "label_smoothing"})


def _rounding(seen: Seen, costs_are_known: bool) -> float:
    """Half a unit in the last place of what the call is computed in.

    Low precisions are computed in float32 and rounded in the end, and what roundings in between cost shows in the run on
    the CPU. Without one, each of them may be in the low precision.
    """
    dtypes = [tensor.dtype for tensor in (*seen.given.tensors, *trees.tensors(seen.result))]
    if any(dtype in _LOW for dtype in dtypes):
        low = next(dtype for dtype in dtypes if dtype in _LOW)
        return 2.0**-21 if costs_are_known else float(torch.finfo(low).eps) / 2
    return 2.0**-53 if torch.float64 in dtypes and torch.float32 not in dtypes else 2.0**-24


# ---- names and texts -------------------------------------------------------------------------------------------------


def _gradient_labels(given: Arguments) -> list[str]:
    """A gradient is called after its input: that of `input[1]` is `grad[1]`."""
    named = zip(given.labels("grad"), given.leaves)
    return [label for label, value in named if isinstance(value, Tensor)]


def _error_info(got: Tensor, expected: Any) -> str:
    if isinstance(expected, Tensor) and expected.dtype is not got.dtype:
        return f"Inconsistent dtypes: {got.dtype} {expected.dtype}"
    return ""


def _dense(tensor: Tensor) -> Tensor:
    plain = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    return plain.resolve_conj().resolve_neg()


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
