"""One call, checked in every way: is it there, is it right, forward and backward, in all its forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
from torch import Tensor

from ditorch_conformance.ops import samples
from ditorch_conformance.ops.attempts import Device, Finding, NotRun, Outcome, gradient_of, words
from ditorch_conformance.ops.samples import Call
from ditorch_conformance.ops.stream import Stream
from ditorch_conformance.results import HARNESS, RIGHT, SKIPPED, WRONG
from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.judging import random_ops
from op_tools.autocompare.judging.comparer import Comparer, Comparison
from op_tools.autocompare.judging.limits import Tolerances
from op_tools.autocompare.judging.measures import dense, same_bits
from op_tools.autocompare.judging.verdict import Row
from op_tools.autocompare.observed import ObservedCall
from op_tools.autocompare.reference.runs import References
from op_tools.core.gradients import Gradients
from op_tools.device import host_copies
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.values import trees

FORWARD, BACKWARD, SECOND = "forward", "backward", "double backward"
IN_PLACE, OUT, NON_CONTIGUOUS = "in-place", "out=", "non-contiguous"
EMPTY, ZERO_DIMENSIONAL, TWICE = "empty", "0-d", "deterministic"
_MAX_COMPOSITE_RATIO = 4.0
_IN_PASSES = "torch.fft."  # one op, rounded after each of several passes
_TIES = ("torch.msort",)  # the gradient of equal values may go to any of them


@dataclass
class Checked:
    """All that was found about one call."""

    findings: list[Finding] = field(default_factory=list)
    kernels: dict[str, None] = field(default_factory=dict)
    falls_back: dict[str, None] = field(default_factory=dict)  # kernels that computed on the CPU
    max_ulp: float = 0.0  # of results, against float64
    mean_ulp: float = 0.0
    rmse_ratio: float = 0.0  # of the errors to those of the CPU in the same dtype
    warned: str = ""

    def add(self, check: str, status: str, reason: str = "") -> None:
        self.findings.append(Finding(check, status, reason))


class Checker:
    """Checks calls on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._host = Device(device), Device(torch.device("cpu"))
        self._comparer = Comparer(Tolerances(), References(lambda name: None))

    def check(self, call: Call) -> Checked:
        checked = Checked()
        if call.is_derived and not self._runs_on_host(call):
            return checked
        try:
            outcome = self._forward(call, checked)
            checked.findings += self._again(call, outcome, checked)
            if not _is_random(call):
                checked.findings += self._variants(call, outcome)
        except NotRun as not_run:
            checked.findings.append(not_run.finding)
        except Exception as error:  # noqa: BLE001 - of ours, or of what compares: no fault of the device's
            checked.findings.append(Finding("comparison", HARNESS, words(error), info=type(error).__name__))
        return checked

    # ---- forward and backward ----------------------------------------------------------------------------------------

    def _forward(self, call: Call, checked: Checked) -> Outcome:
        outcome = self._device.run(call, FORWARD, with_gradients=False)
        checked.warned = outcome.warned
        try:
            if call.has_gradient:
                outcome = self._device.run(call, BACKWARD, with_gradients=True)
        except NotRun as not_run:
            checked.findings.append(not_run.finding)
        observed = _observed(call, outcome)
        comparison = self._comparer.forward(observed, with_graph=bool(outcome.gradients))
        found = self._judged(call, FORWARD, comparison)
        checked.findings.append(found)
        if samples.is_empty(call):
            checked.findings.append(found._replace(check=EMPTY))
        if samples.is_zero_dimensional(call):
            checked.findings.append(found._replace(check=ZERO_DIMENSIONAL))
        _measure(comparison, checked)
        if outcome.gradients and found.status == RIGHT:
            gradients = Gradients(*(_on_host(one) for one in (outcome.gradients, outcome.arrived)))
            backward = self._comparer.backward(observed.for_backward(), gradients, comparison.reference)
            checked.findings.append(self._judged(call, BACKWARD, backward))
        return outcome

    def _judged(self, call: Call, check: str, comparison: Comparison) -> Finding:
        if comparison.failure:
            return Finding(check, HARNESS, f"nothing to compare it with: {comparison.failure}")
        is_composite = call.is_module or catalogue.of(call.name) is None or call.name.startswith(_IN_PASSES)
        wrong = [row for row in comparison.rows if row.is_wrong and not (is_composite and _is_as_the_cpu(row))]
        if not wrong:
            return Finding(check, RIGHT)
        if _draws(call):
            return Finding(check, SKIPPED, "its results are random")
        if check == BACKWARD and call.name in _TIES:
            return Finding(check, SKIPPED, "several results are right")
        if is_composite and not self._runs_on_host(call):
            # how often it is rounded on the way, only the CPU in the same dtype could tell
            return Finding(check, SKIPPED, "the CPU has no kernels for it in this dtype")
        worst = max(wrong, key=lambda row: row.verdict.severity if row.verdict else 0.0)
        assert worst.verdict is not None
        return Finding(check, WRONG, f"{worst.name.partition(' ')[2] or worst.name}: {worst.verdict.reason}")

    def _again(self, call: Call, first: Outcome, checked: Checked) -> Iterator[Finding]:
        """The same a second time, with a note of every kernel: are the bits the same?"""
        stream, with_gradients = Stream(), bool(first.gradients)
        try:
            second = self._device.observed(call, with_gradients, stream)
            is_same = _same(_values(first), _values(second))
            if not is_same:  # torch takes other formulas for some gradients where it is watched
                is_same = _same(_values(first), _values(self._device.run(call, TWICE, with_gradients)))
        except Exception:  # noqa: BLE001 - some ops refuse to be watched; that is no fault of the device's
            return
        checked.kernels, checked.falls_back = stream.kernels, stream.falls_back
        if not catalogue.has(call.name, Trait.EMPTY):
            yield Finding(TWICE, RIGHT if is_same else WRONG, "other bits the second time")

    def _runs_on_host(self, call: Call) -> bool:
        try:
            self._host.run(call, FORWARD, with_gradients=call.has_gradient)
        except NotRun:
            return False
        return True

    # ---- other forms -------------------------------------------------------------------------------------------------

    def _variants(self, call: Call, outcome: Outcome) -> Iterator[Finding]:
        backward_ran = bool(outcome.gradients)
        for check, form, is_there in (
            (IN_PLACE, self._in_place, call.in_place is not None and _can_be_in_place(call, outcome)),
            (OUT, self._out, call.takes_out and bool([*trees.tensors(outcome.result)])),
            (NON_CONTIGUOUS, self._non_contiguous, _can_be_spread(call)),
            (SECOND, self._second, call.has_second_gradient and backward_ran),
        ):
            if is_there:
                try:
                    yield form(call, outcome)
                except NotRun as not_run:
                    yield not_run.finding._replace(check=check)

    def _in_place(self, call: Call, outcome: Outcome) -> Finding:
        assert call.in_place is not None
        form = _detached(call, function=call.in_place, name=f"{call.name}_", changes_arguments=True)
        made = self._device.run(form, IN_PLACE)
        if made.result is not made.args[0]:
            return Finding(IN_PLACE, WRONG, "it does not return the tensor that it was given")
        return self._compared(form, IN_PLACE, made, outcome)

    def _out(self, call: Call, outcome: Outcome) -> Finding:
        """Into tensors that hold other numbers before."""
        out = trees.map_tensors(lambda one: torch.empty_like(one.detach()).fill_(3), _on_host(outcome.result))
        plain = _detached(call)
        form = _detached(call, kwargs={**plain.kwargs, "out": tuple(out) if isinstance(out, list) else out})
        made = self._device.run(form, OUT)
        kwargs = {name: value for name, value in made.kwargs.items() if name != "out"}
        found = self._compared(plain, OUT, Outcome(made.args, kwargs, made.kwargs["out"]), outcome)
        return self._or_wrong_on_host(found, form, plain, lambda one: one.kwargs["out"])

    def _non_contiguous(self, call: Call, outcome: Outcome) -> Finding:
        from torch.testing._internal.common_utils import noncontiguous_like

        def spread(tensor: Tensor) -> Tensor:
            return noncontiguous_like(tensor.detach()) if _is_spreadable(tensor) else tensor.detach()

        form = call.with_tensors(spread)
        return self._compared(form, NON_CONTIGUOUS, self._device.run(form, NON_CONTIGUOUS), outcome)

    def _compared(self, form: Call, check: str, made: Outcome, first: Outcome) -> Finding:
        """Mostly it has the same bits as the plain form, which was judged."""
        if _same([*trees.tensors(made.result)], [*trees.tensors(first.result)]):
            return Finding(check, RIGHT)
        return self._judged(form, check, self._comparer.forward(_observed(form, made)))

    def _or_wrong_on_host(
        self, finding: Finding, form: Call, plain: Call, result_of: Callable[[Outcome], Any]
    ) -> Finding:
        """What is wrong on the CPU as well is torch's own mistake."""
        if finding.status != WRONG:
            return finding
        made, right = (self._host.run(one, finding.check) for one in (form, plain))
        if _same([*trees.tensors(result_of(made))], [*trees.tensors(right.result)]):
            return finding
        return Finding(finding.check, SKIPPED, "it is not what the plain form gives on the CPU, either")

    def _second(self, call: Call, outcome: Outcome) -> Finding:
        form = gradient_of(call, outcome)
        made = self._device.run(form, SECOND, with_gradients=True)
        # it depends on the factors, or the order, of the first
        if catalogue.has(call.name, Trait.CHOICE | Trait.ORDER) or call.name in _TIES:
            return Finding(SECOND, SKIPPED, "several results are right")
        if not made.gradients:
            return Finding(SECOND, SKIPPED, "the gradient does not depend on anything")
        gradients = Gradients(*(_on_host(one) for one in (made.gradients, made.arrived)))
        return self._judged(form, SECOND, self._comparer.backward(_observed(form, made).for_backward(), gradients))


def _observed(call: Call, outcome: Outcome) -> ObservedCall:
    """The call for the comparison, all of it on the host."""
    given = Arguments(call.args, call.kwargs)
    kept, result = Arguments(outcome.args, outcome.kwargs).copied_with(outcome.result, host_copies.copies_of)
    may_change = all(tensor.layout is torch.strided for tensor in given.tensors)  # of other layouts it is unknown
    return ObservedCall(call.name, call.function, given, kept, result, changed=may_change)


def _is_as_the_cpu(row: Row) -> bool:
    """For what is made of several ops: errors of the size that the CPU has in the same dtype, however they lie."""
    assert row.verdict is not None
    measures = row.verdict.measures
    return not measures.nonfinite and 0 < measures.rmse_ratio <= _MAX_COMPOSITE_RATIO


def _detached(call: Call, **changes: Any) -> Call:
    plain = call.with_tensors(lambda tensor: tensor.detach())
    return Call(**{**vars(plain), **changes})


def _can_be_in_place(call: Call, outcome: Outcome) -> bool:
    """Where the result fits into the first argument."""
    first, result = outcome.args[0] if outcome.args else None, outcome.result
    if not isinstance(first, Tensor) or not isinstance(result, Tensor):
        return False
    return first.shape == result.shape and first.dtype == result.dtype and first.layout == result.layout


def _can_be_spread(call: Call) -> bool:
    """Where strides do not change what the call means."""
    return "as_strided" not in call.name and any(_is_spreadable(tensor) for tensor in call.tensors)


def _is_spreadable(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.dim() > 0 and tensor.numel() > 1


def _is_random(call: Call) -> bool:
    given = Arguments(call.args, call.kwargs)
    return random_ops.may_be_random(call.name) and random_ops.is_random(
        ObservedCall(call.name, call.function, given, None, None)
    )


def _draws(call: Call) -> bool:
    """Whether another seed gives other results on the CPU: modules with dropout, ops without a description."""
    if call.draws:
        return True
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        fresh = call.with_tensors(lambda tensor: tensor.detach().clone())
        try:
            results.append([*trees.tensors(fresh.function(*fresh.args, **fresh.kwargs))])
        except Exception:  # noqa: BLE001 - then nothing is known
            return False
    return not _same(*results)


def _values(outcome: Outcome) -> list[Tensor | None]:
    return [*trees.tensors(outcome.result), *outcome.gradients]


def _same(one: list[Any], other: list[Any]) -> bool:
    if len(one) != len(other):
        return False
    pairs = zip(_on_host(one), _on_host(other))
    return all(left is right if left is None or right is None else _equal(left, right) for left, right in pairs)


def _equal(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return same_bits(dense(left.detach()), dense(right.detach()))


def _on_host(value: Any) -> Any:
    return host_copies.host_copy(value)


def _measure(comparison: Comparison, checked: Checked) -> None:
    for row in comparison.rows:
        if row.verdict is not None and " output" in row.name:
            measures = row.verdict.measures
            checked.max_ulp = max(checked.max_ulp, measures.max_ulp)
            checked.mean_ulp = max(checked.mean_ulp, measures.mean_ulp)
            checked.rmse_ratio = max(checked.rmse_ratio, measures.rmse_ratio)
