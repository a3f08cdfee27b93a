"""How much of a difference roundings on the way explain: a closer look at what is beyond the usual limits.

The call runs again in higher precision with its inputs a rounding error away; and where large numbers cancel out, the
size of what was rounded before counts.
"""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from collections.abc import Iterator

import torch
from torch import Tensor

from op_tools.autocompare.judging import attention
from op_tools.autocompare.judging.limits import LARGE_ELEMENTS, MOVES, SENSITIVITY_MARGIN, Precision, rounding_of
from op_tools.autocompare.judging.measures import as_real, dense, differing
from op_tools.autocompare.observed import InputGradients, Part
from op_tools.autocompare.reference.runs import Reference, Rerun
from op_tools.autocompare.reference.ways import moved_by, with_zeros
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.ops.names import normalized
from op_tools.values import trees


def of(reference: Reference) -> Sensitivity:
    """That of a call; the runs that it takes are kept for the call's other values."""
    known = _known.get(reference)
    if known is None or known.grad_outputs is not reference.grad_outputs:  # its runs had no gradients
        known = _known[reference] = Sensitivity(reference)
    return known


class Sensitivity:
    """Of one call. The runs that it takes are made when they are needed."""

    def __init__(self, reference: Reference) -> None:
        # whose it is: memory must not wait for the garbage collector
        self._reference: Reference = weakref.proxy(reference)
        self.grad_outputs = reference.grad_outputs
        self._traits = reference.ways.traits
        self._is_large = sum(tensor.numel() for tensor in reference.observed.given.tensors) >= LARGE_ELEMENTS
        self._moved: dict[float, list[list[tuple[Rerun, InputGradients]]]] = {}
        self._other_numbers: dict[float, list[tuple[Rerun, InputGradients]]] = {}
        self._with_zeros: list[tuple[Rerun, InputGradients]] | None = None
        self._labels = catalogue.LABELS.get(normalized(reference.name).base)
        self._of_sizes: list[tuple[Rerun, InputGradients]] | None = None
        self._sizes_in_attention: list[Tensor] | None = None

    def allowance(self, part: Part, precision: Precision) -> Tensor | None:
        """What each element may be off by because of what cancels out: part of its `sensitivity`, soon to be had.

        There is no wait for the device. None where nothing cancels out, or it cannot be had: then there is a full look.
        """
        if Trait.LOGITS not in self._traits:
            return None
        expected = self._expected(part)
        with torch.no_grad(), contextlib.suppress(RuntimeError):
            sizes = self._sizes_in_gradient(part) or [*self._sizes_before_cancellation(part, expected)]
            if sizes:
                largest = functools.reduce(torch.maximum, [size.double() for size in sizes])
                return (largest * (precision.eps / 2)).expand_as(expected).contiguous()
        return None

    def may_add_roughly(self, part: Part, precision: Precision) -> bool:
        """True where the device may keep a sum in 16 bits: cuDNN does, for the parameters of a batch norm."""
        return Trait.ROUGH in self._traits and part.role == "gradient" and precision.eps > 1e-6

    def sensitivity(self, part: Part, precision: Precision, moves: int, roughly: bool = False) -> Tensor | None:
        """How far each element may lie from the expected one because of roundings on the way: at least."""
        expected = self._expected(part)
        farthest = None if moves else torch.zeros_like(expected, dtype=torch.float64)
        amount = self._amount(precision, roughly)
        for value in self._moved_parts(part, expected, amount, moves):
            distance = (value - expected).abs().double().nan_to_num_(nan=math.inf)
            farthest = distance if farthest is None else torch.maximum(farthest, distance, out=farthest)
        if farthest is None:
            return None
        if moves and Trait.STEPS in self._traits:
            farthest = _anywhere_in_chaos(farthest, expected)
        if moves and self._adds(part):
            farthest = torch.maximum(farthest, self._size_of_terms(part, expected) * amount)
        farthest *= SENSITIVITY_MARGIN * math.sqrt(self._length(expected.numel()))
        if moves and Trait.SCATTERS in self._traits and self._adds(part):
            in_own_dtype = precision.eps / 2 * math.sqrt(self._length(expected.numel()))
            farthest = torch.maximum(farthest, self._size_of_terms(part, expected) * in_own_dtype)
        unit = precision.eps / 2 * precision.limits.peak
        largest = expected.abs().nan_to_num(0.0, 0.0).max().double()
        # terms that are as small as numbers can be are rounded, each of them
        farthest.clamp_min_(precision.smallest * precision.limits.peak * math.sqrt(self._length(expected.numel())))
        if self._reference.ways.on_device and Trait.NORM in self._traits:
            # what is left of a gradient that is cancelled out; on the CPU the run in the same dtype shows it
            for one in [one for one in self.grad_outputs or () if one is not None and one.numel()]:
                farthest = torch.maximum(farthest, dense(one).abs().nan_to_num(0.0, 0.0).max().double() * unit)
        if Trait.LOGITS in self._traits:
            for size in self._sizes_before_cancellation(part, expected):
                farthest = torch.maximum(farthest, size.double() * unit)
        if not bool(largest):
            # so they may be everywhere: then the size of what went in is all that is left to measure with
            farthest = torch.maximum(farthest, self._largest_input() * unit)
        return farthest

    def _amount(self, precision: Precision, roughly: bool) -> float:
        return precision.eps / 2 if roughly else self._rounding()

    def common_factor(self, part: Part, precision: Precision, roughly: bool = False) -> float:
        """By how much the whole result may be off because plain numbers are rounded: one less a beta of 0.999 is so in
        every element."""
        expected, largest = self._expected(part), 0.0
        if expected.is_complex():
            return 0.0
        exact = expected.double()
        for run, gradients in self._runs_of_other_numbers(self._amount(precision, roughly)):
            value = part.of(run, gradients)
            if isinstance(value, Tensor) and value.shape == expected.shape:
                slope = ((dense(value).double() - exact) * exact).sum() / exact.square().sum()
                largest = max(largest, abs(float(slope.nan_to_num(0.0, 0.0, 0.0))))
        return SENSITIVITY_MARGIN * largest

    def _runs_of_other_numbers(self, amount: float) -> list[tuple[Rerun, InputGradients]]:
        """The call in higher precision with its plain numbers a rounding error away, and its tensors as they are."""
        runs = self._other_numbers.get(amount)
        if runs is None:
            runs = self._other_numbers[amount] = []
            given = self._reference.observed.given
            has_numbers = any(isinstance(value, float) for _, value in trees.leaves((given.args, given.kwargs)))
            for step in (1 + amount, 1 - amount) if has_numbers else ():
                with contextlib.suppress(Exception):  # outside of what the op accepts
                    runs.append(self._reference.run_changed(lambda tensor: tensor, step.__mul__))
        return runs

    def may_overflow(self, part: Part, precision: Precision, allowed: Tensor) -> Tensor:
        """Which elements may be infinite, or NaN: where the sum, or a part of it that is kept in 16 bits, is too large.

        `allowed`: how far the elements may lie from the expected ones. Of complex numbers by element each part has an
        answer of its own.
        """
        expected = self._expected(part)
        if expected.is_complex() and part.role == "output" and Trait.ELEMENTWISE in self._traits:
            return self._parts_may_overflow(part, precision, expected)
        largest = expected.abs() + allowed
        if self._adds(part):
            largest = torch.maximum(largest, self._size_of_terms(part, expected))
        power = _SPREADS.get(normalized(self._reference.name).base)
        if power is None or part.role != "output" or part.places[0]:
            return largest > precision.largest
        count = sum(tensor.numel() for tensor in self._numbers_given()) / max(expected.numel(), 1)
        squares = expected.double() ** power * count
        return (largest > precision.largest) | (squares > max(precision.largest, torch.finfo(torch.float32).max))

    def _parts_may_overflow(self, part: Part, precision: Precision, expected: Tensor) -> Tensor:
        """The real part of exp(100 + 0i) is too large for float32; its imaginary part is zero, and stays so."""
        largest = sizes = as_real(expected).abs()
        for value in self._moved_parts(part, expected, self._rounding(), MOVES[-1]):
            distance = (as_real(value) - as_real(expected)).abs().nan_to_num_(nan=math.inf)
            largest = torch.maximum(largest, sizes + SENSITIVITY_MARGIN * distance)
        return largest > precision.largest

    def _adds(self, part: Part) -> bool:
        """Whether a value is a sum of products; the gradient of what moves numbers adds up those of one place."""
        return Trait.ADDS in self._traits or (part.role == "gradient" and Trait.EXACT in self._traits)

    def _size_of_terms(self, part: Part, expected: Tensor) -> Tensor:
        """What a sum would be if nothing in it cancelled out: few random moves may miss how large that is."""
        if self._of_sizes is None:
            self._of_sizes = []
            with contextlib.suppress(Exception):  # outside of what the op accepts
                self._of_sizes.append(self._reference.run_changed(lambda tensor: tensor.abs().to(tensor.dtype)))
        for run, gradients in self._of_sizes:
            value = part.of(run, gradients)
            if isinstance(value, Tensor) and value.shape == expected.shape:
                return dense(value).abs().double().nan_to_num(0.0, 0.0)
        return torch.zeros((), dtype=torch.float64, device=expected.device)

    def _sizes_before_cancellation(self, part: Part, expected: Tensor) -> Iterator[Tensor]:
        """The logarithm of a sum that is nearly one, or a probability that is, less one: both are rounded before.

        Where logits, or one factor of them, are zero, everything is as likely, and nothing cancels out.
        """
        if part.role != "gradient" and Trait.MATRIX not in self._traits:
            yield self._largest_input()
        yield from self._sizes_in_gradient(part)
        if self._with_zeros is None:
            self._with_zeros = []
            for number in range(min(2, len(self._numbers_given()))):
                with contextlib.suppress(Exception):  # outside of what the op accepts
                    self._with_zeros.append(self._reference.run_changed(with_zeros(number)))
        for run, gradients in self._with_zeros:
            value = part.of(run, gradients)
            if isinstance(value, Tensor) and value.shape == expected.shape:
                yield dense(value).abs().nan_to_num(0.0, 0.0)

    def _sizes_in_gradient(self, part: Part) -> list[Tensor]:
        """The same for a gradient of attention, where it is known."""
        if part.role != "gradient" or normalized(self._reference.name).base != "scaled_dot_product_attention":
            return []
        if self._sizes_in_attention is None:
            self._sizes_in_attention = []
            with contextlib.suppress(Exception):  # a call of another form
                self._sizes_in_attention = attention.sizes(self._reference.observed.given, self.grad_outputs or ())
        return self._sizes_in_attention[part.places[0] : part.places[0] + 1]

    def undecided(self, part: Part) -> Tensor | None:
        """Where a whole number or a truth value changes when the inputs are moved by a rounding error."""
        expected = self._expected(part)
        found: Tensor | None = None
        for value in self._moved_parts(part, expected, self._rounding(), MOVES[-1]):
            differs = differing(value, expected)
            found = differs if found is None else found | differs
        return found

    def _moved_parts(self, part: Part, expected: Tensor, amount: float, moves: int) -> Iterator[Tensor]:
        for run, gradients in self._moved_runs(amount, moves):
            value = part.of(run, gradients)
            if isinstance(value, Tensor) and value.shape == expected.shape:
                yield dense(value)

    def _moved_runs(self, amount: float, moves: int) -> Iterator[tuple[Rerun, InputGradients]]:
        """The call in higher precision with its inputs a rounding error away, so many times."""
        known = self._moved.setdefault(amount, [])
        for seed in range(moves):
            if seed < len(known):
                yield from known[seed]
                continue
            # the same signs, then all of them turned round
            runs = (self._moved_run(direction * amount, seed) for direction in (1, -1))
            if self._is_large:  # one at a time
                yield from (run for run in runs if run is not None)
            else:
                known.append([run for run in runs if run is not None])
                yield from known[seed]

    def _moved_run(self, amount: float, seed: int) -> tuple[Rerun, InputGradients] | None:
        move = moved_by(amount, seed, self._labels)
        has_flags = Trait.FLOAT32_NUMBERS in self._traits  # each of them is exactly what it is
        with contextlib.suppress(Exception):  # outside of what the op accepts
            # a momentum or a factor is rounded to the op's dtype as well, and one less it may be a small number
            return self._reference.run_changed(
                lambda tensor: tensor if has_flags and tensor.dim() == 0 else move(tensor), (1 + amount).__mul__
            )
        return None

    def _expected(self, part: Part) -> Tensor:
        return dense(part.of(self._reference.expected, self._reference.gradients))

    def _rounding(self) -> float:
        call = self._reference.observed
        dtypes = [tensor.dtype for tensor in (*call.given.tensors, *trees.tensors(call.result))]
        return rounding_of(dtypes, self._reference.same is not None, self._reference.ways.is_tf32)

    def _length(self, elements: int) -> float:
        """About how many terms are added up for one element."""
        sizes = sorted((tensor.numel() for tensor in self._numbers_in()), reverse=True) or [1]
        length = sizes[0] / max(elements, 1)
        if self._traits & catalogue.ON_MATRIX_UNITS and len(sizes) > 1:
            length = max(length, math.sqrt(sizes[0] * sizes[1] / max(elements, 1)))
        return max(1.0, length)

    def _largest_input(self) -> Tensor:
        sizes = [dense(tensor).abs().nan_to_num(0.0, 0.0).max() for tensor in self._numbers_in() if tensor.numel()]
        return torch.stack([size.double() for size in sizes]).max() if sizes else torch.zeros((), dtype=torch.float64)

    def _numbers_in(self) -> list[Tensor]:
        return [*self._numbers_given(), *(one for one in self.grad_outputs or () if one is not None)]

    def _numbers_given(self) -> list[Tensor]:
        given = self._reference.observed.given.tensors
        return [tensor for tensor in given if tensor.is_floating_point() or tensor.is_complex()]


def _anywhere_in_chaos(farthest: Tensor, expected: Tensor) -> Tensor:
    """Where a rounding error of the inputs changes a result as a whole, as of a recurrent layer with too large weights,
    a few moves tell how far elements go, but not which of them: any that moves may go as far.

    Of other ops, one matrix without a solution in a batch would excuse all the others.
    """
    moves = farthest[farthest.isfinite()]
    sizes = expected.abs().double().nan_to_num(0.0, 0.0)
    if not moves.numel() or bool(moves.square().sum() < sizes.square().sum() / 4):
        return farthest
    return torch.where(farthest > 0, torch.maximum(farthest, moves.max()), farthest)


# ops that add up squares of distances from the mean, in float32 where the CPU takes float64, and to which power of the
# result their mean is
_SPREADS = {"std": 2, "std_mean": 2, "var": 1, "var_mean": 1}
_known: weakref.WeakKeyDictionary[Reference, Sensitivity] = weakref.WeakKeyDictionary()
