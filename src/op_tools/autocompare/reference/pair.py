"""The runs that a call is compared with: in higher precision, in the device's own, and more for a second look."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn import functional

from op_tools.autocompare.arguments import Convert
from op_tools.autocompare.judging import verdict
from op_tools.autocompare.judging.limits import (
    IN_16_BITS,
    LOW_NORM,
    LOW_NORM_ALONE,
    LOW_STEPS,
    LOW_SUMS,
    SINGLE_LOOSE,
    TF32,
    Limits,
    Precision,
    precision_of,
    real,
)
from op_tools.autocompare.judging.second_look import SecondLook
from op_tools.autocompare.parts import Gradients, Part, dense
from op_tools.autocompare.reference import rerun
from op_tools.autocompare.reference.rerun import Run, Way
from op_tools.autocompare.seen import Seen
from op_tools.ops import catalogue, silent_writes
from op_tools.ops.catalogue import Trait
from op_tools.ops.names import normalized
from op_tools.values import trees

_ON_DEVICE = Way("higher precision", rerun.HIGHER, None)
_FINE = 2.0**-12  # of what 16 bits cost a typical value: still much more than float32 costs it

Dtypes = Mapping[torch.dtype, torch.dtype]


class CannotCompare(Exception):  # noqa: N818  it never reaches a user as an error
    """No reference could be had."""


class Pair:
    """A call's runs elsewhere: `expected` in higher precision, `same` in the device's own (None where there is none).

    On the CPU; or `on_device`, where there is no run in the device's own dtype: that would be the call itself. For a
    `first_look` there is none either: it is needed only for what is not cleared then.
    """

    def __init__(
        self,
        seen: Seen,
        higher: Dtypes,
        grad_outputs: Sequence[Tensor | None] | None = None,
        on_device: bool = False,
        slack: float = 1.0,
        with_graph: bool = False,
        first_look: bool = False,
    ) -> None:
        name = self.name = seen.name
        found = catalogue.of(name)
        self.is_unknown = found is None
        self.traits = Trait.SUMS if found is None else found
        # an embedding that does not renormalize its rows copies them
        self.is_exact = not on_device and (
            catalogue.has(name, Trait.EXACT) or (normalized(name).base == "embedding" and not seen.changed)
        )
        self.seen = seen
        self.grad_outputs = grad_outputs
        self._with_graph = with_graph  # gradients are asked for later
        self.on_device = on_device
        self._slack = slack
        self._first_look = first_look
        self._is_tf32 = seen.is_tf32()
        self._chosen = seen.dtype_of_autocast()
        self._others: list[tuple[Run, Gradients]] | None = None
        self._other_ways: list[tuple[Callable[..., Any], Way]] = []
        self._better, own = self._ways(higher, on_device)
        self.same: Run | None = None
        self._same_gradients: Gradients = None
        self.expected: Run
        self.gradients: Gradients
        only_own = self.is_exact and grad_outputs is None and not (first_look and with_graph)
        self._second_look: SecondLook | None = None
        reason = "" if not own or (first_look and not (only_own or on_device)) else self._run_in_own_dtype(own)
        if only_own and self.same is not None:
            self.expected, self.gradients = self.same, self._same_gradients
        else:
            self._run_in_higher_precision(reason)
        self._higher = higher

    @property
    def casts(self) -> Dtypes:
        """Which dtypes of the arguments were replaced by which."""
        if self.expected is self.same:
            return {}
        floats = {tensor.dtype for tensor in self.seen.given.tensors if tensor.dtype in self._higher}
        return {dtype: self._higher[dtype] for dtype in floats}

    def _run_in_own_dtype(self, ways: list[tuple[Callable[..., Any], Way]]) -> str:
        """Takes the first way that goes, and keeps the others for later; returns why the last one did not go."""
        reason = ""
        for number, (function, way) in enumerate(ways):
            try:
                self.same, self._same_gradients = self._run(way, function)
                self._other_ways = ways[number + 1 :]
                return ""
            except Exception as error:  # noqa: BLE001  whatever the CPU cannot do
                reason = _in_words(error)
        return reason

    def _run_in_higher_precision(self, reason: str) -> None:
        try:
            self.expected, self.gradients = self._run(self._better)
        except Exception as error:  # noqa: BLE001  see above
            if self.same is None:
                raise CannotCompare(reason or _in_words(error)) from None
            self.expected, self.gradients = self.same, self._same_gradients

    def _ways(self, higher: Dtypes, on_device: bool) -> tuple[Way, list[tuple[Callable[..., Any], Way]]]:
        """In higher precision; and in the device's own, with autocast and tf32 as there: several ways may be right."""
        device, chosen, function = None if on_device else "cpu", self._chosen, self.seen.function
        if on_device and chosen is None and not self._is_tf32 and higher is rerun.HIGHER:
            return _ON_DEVICE, []
        better = Way("higher precision", higher, device)
        if chosen is not None and chosen is not torch.float32:
            better = Way(better.name, higher, device, rerun.rounded_to(chosen, higher.get(chosen, chosen)))
        if on_device:
            return better, [(function, Way("tf32", higher, device, _tf32_then(better)))] if self._is_tf32 else []
        own = Way("the same dtype", {})
        if chosen is not None:
            own = Way(own.name, {}, convert=rerun.rounded_to(chosen, chosen))
        elif self.seen.autocast is not None:
            own = Way(own.name, {}, autocast=self.seen.autocast)
        ways = [(function, own.then(rerun.as_tf32) if self._is_tf32 else own)]
        if chosen is not None:
            if normalized(self.name).base == "cross_entropy":
                ways.insert(0, (_cross_entropy_in_parts, Way("in parts", {})))
            # an op that is made of others: autocast looks at each of them
            ways.append((function, Way("autocast on the CPU", {}, autocast=self.seen.autocast)))
        # where the CPU has no kernel for a low precision: rounded once, in the end
        return better, [*ways, (function, Way("float32", rerun.SINGLE))]

    def _run(self, way: Way, function: Callable[..., Any] | None = None) -> tuple[Run, Gradients]:
        seen, graph = self.seen, self.grad_outputs is not None or self._with_graph
        function = rerun.stand_in(self.name) or function or seen.function
        if self.is_unknown:
            with rerun.random_numbers_kept():
                return self._run_and_backward(way, function, graph)
        return self._run_and_backward(way, function, graph)

    def _run_and_backward(self, way: Way, function: Callable[..., Any], graph: bool) -> tuple[Run, Gradients]:
        run = rerun.run(function, self.seen.given, way, graph, self.seen.changed)
        return run, run.gradients(self.grad_outputs) if self.grad_outputs is not None else None

    def run_changed(self, change: Convert) -> tuple[Run, Gradients]:
        """The call in higher precision, with something done to its numbers before."""
        return self._run(self._better.then(change))

    def wait_with(self, seen: Seen) -> None:
        """Until gradients come, it holds no more of the call than this."""
        self.seen = seen

    def run_backward(self, grad_outputs: Sequence[Tensor | None]) -> bool:
        """The gradients of runs that were made with a graph. False where they cannot be had so."""
        try:
            self.gradients = self.expected.gradients(grad_outputs)
            if self.same is self.expected:
                self._same_gradients = self.gradients
            elif self.same is not None:
                self._same_gradients = self.same.gradients(grad_outputs)
        except Exception:  # noqa: BLE001  then they are run anew, and say why that fails
            return False
        self.grad_outputs = grad_outputs
        self._second_look = None  # its runs had no gradients
        return True

    @property
    def second_look(self) -> SecondLook:
        """For what a first one does not clear."""
        if self._second_look is None:
            self._second_look = SecondLook(self)
        return self._second_look

    def same_part(self, part: Part) -> Any:
        """This value in the run in the device's own dtype."""
        return None if self.same is None else part.of(self.same, self._same_gradients)

    def other_parts(self, part: Part) -> Iterator[Tensor]:
        """This value as the CPU makes it in other ways that are just as right. Only autocast leaves a choice."""
        if self._others is None:
            self._others = []
            for function, way in self._other_ways if self._chosen is not None else ():
                with contextlib.suppress(Exception):
                    self._others.append(self._run(way, function))
        for run, gradients in self._others:
            value = part.of(run, gradients)
            if isinstance(value, Tensor):
                yield dense(value)

    def expected_part(self, part: Part) -> Any:
        """This value in the run in higher precision."""
        return part.of(self.expected, self.gradients)

    @functools.cached_property
    def changed(self) -> set[int]:
        """The leaves among the arguments that the call is meant to change."""
        if not self.seen.changed:
            return set()
        arguments, before = self.expected.arguments, self.seen.given.leaves
        silently = silent_writes.silently_written(self.name, self.seen.function, arguments.args, arguments.kwargs)
        written = {id(tensor) for tensor in (*self.expected.written, *trees.tensors(silently))}
        # an op that nobody knows may write without counting, and below autograd nobody counts
        look = self.is_unknown or not written
        return {
            index
            for index, value in enumerate(arguments.leaves)
            if isinstance(value, Tensor) and (id(value) in written or (look and self._differs(before[index], value)))
        }

    def _differs(self, before: Tensor, after: Tensor) -> bool:
        if before.is_floating_point() or before.is_complex():
            before = self.expected.way.convert(before.detach())
        return not verdict.same_bits(before.detach(), after.detach())

    def precision(self, got: Tensor, same: Tensor | None) -> Precision:
        """That of the result, or the lower one that autocast has computed it in."""
        other = self._chosen
        if same is None and self.seen.autocast is not None and normalized(self.name).base == "cross_entropy":
            other = self.seen.given.tensors[0].dtype  # see _cross_entropy_in_parts
        if same is not None:
            other = same.dtype if same.is_floating_point() or same.is_complex() else None
        # sums over what was broadcast have the errors of their terms
        is_known = same is not None or (self._first_look and not self.on_device)
        is_by_element = is_known and not self._is_smaller_than_result(got)
        return _precision(self.name, got.dtype, other, is_by_element, self._is_tf32, self.on_device, self._slack)

    def _is_smaller_than_result(self, got: Tensor) -> bool:
        results = self.expected.results
        return not results or got.numel() < _size(results[0])


@functools.lru_cache(maxsize=10_000)
def _precision(
    name: str,
    got: torch.dtype,
    other: torch.dtype | None,
    is_by_element: bool,
    is_tf32: bool,
    on_device: bool,
    slack: float,
) -> Precision:
    dtypes = [real(got)] if other is None else [real(got), real(other)]
    dtype = max(dtypes, key=lambda one: float(torch.finfo(one).eps))
    is_fine = catalogue.has(name, Trait.FINE) and dtype in IN_16_BITS and is_by_element
    precision = precision_of(dtype, _limits(name, dtype, is_tf32, on_device), slack, _FINE if is_fine else 1.0)
    return precision._replace(goes_on=catalogue.has(name, Trait.STEPS))


def _limits(name: str, dtype: torch.dtype, is_tf32: bool, on_device: bool) -> Limits | None:
    is_low = torch.finfo(dtype).bits <= 16
    if not catalogue.has(name, catalogue.ON_MATRIX_UNITS):
        if not is_low or not catalogue.has(name, Trait.NORM):
            return None
        return LOW_NORM_ALONE if on_device else LOW_NORM
    if is_low:
        return LOW_STEPS if catalogue.has(name, Trait.STEPS) else LOW_SUMS
    if dtype is not torch.float32:
        return None
    if is_tf32:
        return TF32
    return SINGLE_LOOSE if catalogue.has(name, Trait.CONVOLUTION) or "attention" in name else None


def _size(value: Any) -> int:
    return value.numel() if isinstance(value, Tensor) else 0


def _tf32_then(better: Way) -> Callable[[Tensor], Tensor]:
    return lambda tensor: better.convert(rerun.as_tf32(tensor))


def _cross_entropy_in_parts(scores: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """As autocast runs it on accelerators: the logarithm in the dtype of the scores, the sum in float32."""
    if kwargs.pop("label_smoothing", 0.0) or target.is_floating_point():
        raise NotImplementedError("made of other parts")
    log = functional.log_softmax(scores, 1 if scores.dim() > 1 else 0, dtype=scores.dtype)
    return functional.nll_loss(log.float(), target, *args, **kwargs)


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
