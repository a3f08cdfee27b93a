"""A second look at what a first one finds: how much of it roundings on the way explain.

The call runs again in higher precision with its inputs a rounding error away; and where large numbers cancel out, the
size of what was rounded before counts.
"""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from op_tools.autocompare.judging import attention, verdict
from op_tools.autocompare.judging.limits import IN_16_BITS, Precision, real
from op_tools.autocompare.parts import Gradient, Gradients, Part, dense
from op_tools.autocompare.reference import rerun
from op_tools.autocompare.reference.rerun import Run
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait
from op_tools.ops.names import normalized
from op_tools.values import trees

if TYPE_CHECKING:
    from op_tools.autocompare.reference.pair import Pair
    from op_tools.autocompare.seen import Seen

MOVES = (0, 1, 3)  # how often the inputs are moved a little, there and back; the more, the higher the limits
_UNKNOWN_COSTS = 64.0


class SecondLook:
    """At one call. The runs that it takes are made when they are needed, and kept for the call's other values."""

    def __init__(self, pair: Pair) -> None:
        self._pair: Pair = weakref.proxy(pair)  # whose it is: memory must not wait for the garbage collector
        self._moved: dict[float, list[list[tuple[Run, Gradients]]]] = {}
        self._with_zeros: list[tuple[Run, Gradients]] | None = None
        self._sizes_in_attention: list[Tensor] | None = None

    def allowance(self, part: Part, precision: Precision) -> Tensor | None:
        """What each element may be off by because of what cancels out: part of its `sensitivity`, soon to be had.

        Nobody waits for the device. None where nothing cancels out, or it cannot be had: then there is a full look.
        """
        if Trait.LOGITS not in self._pair.traits:
            return None
        expected = dense(self._pair.expected_part(part))
        with torch.no_grad(), contextlib.suppress(RuntimeError):
            sizes = self._sizes_in_gradient(part) or [*self._sizes_before_cancellation(part, expected)]
            if sizes:
                largest = functools.reduce(torch.maximum, [size.double() for size in sizes])
                return (largest * (precision.eps / 2)).expand_as(expected).contiguous()
        return None

    def may_add_roughly(self, part: Part, precision: Precision) -> bool:
        """True where the device may keep a sum in 16 bits: cuDNN does, for the parameters of a batch norm."""
        return Trait.ROUGH in self._pair.traits and isinstance(part, Gradient) and precision.eps > 1e-6

    def sensitivity(self, part: Part, precision: Precision, moves: int, roughly: bool = False) -> Tensor | None:
        """How far each element may lie from the expected one because of roundings on the way: at least."""
        expected = dense(self._pair.expected_part(part))
        farthest = None if moves else torch.zeros_like(expected, dtype=torch.float64)
        amount = precision.eps / 2 if roughly else _rounding(self._pair.seen, self._pair.same is not None)
        for value in self._moved_parts(part, expected, amount, moves):
            distance = torch.nan_to_num((value - expected).abs().double(), nan=math.inf)
            farthest = distance if farthest is None else torch.maximum(farthest, distance)
        if farthest is None:
            return None
        farthest *= 4 * math.sqrt(self._length(expected.numel()))
        unit = precision.eps / 2 * precision.limits.peak
        largest = expected.abs().nan_to_num(0.0, 0.0).max().double()
        # terms that are as small as numbers can be are rounded, each of them
        farthest.clamp_min_(precision.smallest * precision.limits.peak * math.sqrt(self._length(expected.numel())))
        if self._pair.on_device and self._pair.grad_outputs is not None and catalogue.has(self._pair.name, Trait.NORM):
            # what is left of a gradient that is cancelled out; on the CPU the run in the same dtype shows it
            given = [one for one in self._pair.grad_outputs if one is not None and one.numel()]
            for one in given:
                farthest = torch.maximum(farthest, dense(one).abs().nan_to_num(0.0, 0.0).max().double() * unit)
        if Trait.LOGITS in self._pair.traits:
            for size in self._sizes_before_cancellation(part, expected):
                farthest = torch.maximum(farthest, size.double() * unit)
        if not bool(largest):
            # so they may be everywhere: then the size of what went in is all that is left to measure with
            farthest = torch.maximum(farthest, self._largest_input() * unit)
        return farthest

    def _sizes_before_cancellation(self, part: Part, expected: Tensor) -> Iterator[Tensor]:
        """The logarithm of a sum that is nearly one, or a probability that is, less one: both are rounded before.

        Where logits, or one factor of them, are zero, everything is as likely, and nothing cancels out.
        """
        if not isinstance(part, Gradient) and Trait.MATRIX not in self._pair.traits:
            yield self._largest_input()
        yield from self._sizes_in_gradient(part)
        if self._with_zeros is None:
            self._with_zeros = []
            for number in range(min(2, len(self._numbers_given()))):
                with contextlib.suppress(Exception):  # outside of what the op accepts
                    self._with_zeros.append(self._pair.run_changed(rerun.with_zeros(number)))
        for run, gradients in self._with_zeros:
            value = part.of(run, gradients)
            if isinstance(value, Tensor) and value.shape == expected.shape:
                yield dense(value).abs().nan_to_num(0.0, 0.0)

    def _sizes_in_gradient(self, part: Part) -> list[Tensor]:
        """The same for a gradient of attention, where it is known."""
        if not isinstance(part, Gradient) or normalized(self._pair.name).base != "scaled_dot_product_attention":
            return []
        if self._sizes_in_attention is None:
            self._sizes_in_attention = []
            with contextlib.suppress(Exception):  # a call of another form
                self._sizes_in_attention = attention.sizes(self._pair.seen.given, self._pair.grad_outputs or ())
        return self._sizes_in_attention[part.place : part.place + 1]

    def undecided(self, part: Part) -> Tensor | None:
        """Where a whole number or a truth value changes when the inputs are moved by a rounding error."""
        expected = dense(self._pair.expected_part(part))
        found: Tensor | None = None
        for value in self._moved_parts(
            part, expected, _rounding(self._pair.seen, self._pair.same is not None), MOVES[-1]
        ):
            differs = verdict.differing(value, expected)
            found = differs if found is None else found | differs
        return found

    def _moved_parts(self, part: Part, expected: Tensor, amount: float, moves: int) -> Iterator[Tensor]:
        for run, gradients in self._moved_runs(amount, moves):
            value = part.of(run, gradients)
            if isinstance(value, Tensor) and value.shape == expected.shape:
                yield dense(value)

    def _moved_runs(self, amount: float, moves: int) -> list[tuple[Run, Gradients]]:
        """The call in higher precision with its inputs a rounding error away, so many times."""
        known = self._moved.setdefault(amount, [])
        for seed in range(len(known), moves):
            known.append([])
            for direction in (1, -1):  # the same signs, then all of them turned round
                with contextlib.suppress(Exception):  # outside of what the op accepts
                    known[seed].append(self._pair.run_changed(rerun.moved_by(direction * amount, seed)))
        return [run for runs in known[:moves] for run in runs]

    def _length(self, elements: int) -> float:
        """About how many terms are added up for one element."""
        sizes = sorted((tensor.numel() for tensor in self._numbers_in()), reverse=True) or [1]
        length = sizes[0] / max(elements, 1)
        if self._pair.traits & catalogue.ON_MATRIX_UNITS and len(sizes) > 1:
            length = max(length, math.sqrt(sizes[0] * sizes[1] / max(elements, 1)))
        return max(1.0, length)

    def _largest_input(self) -> Tensor:
        sizes = [dense(tensor).abs().nan_to_num(0.0, 0.0).max() for tensor in self._numbers_in() if tensor.numel()]
        return torch.stack([size.double() for size in sizes]).max() if sizes else torch.zeros((), dtype=torch.float64)

    def _numbers_in(self) -> list[Tensor]:
        return [*self._numbers_given(), *(one for one in self._pair.grad_outputs or () if one is not None)]

    def _numbers_given(self) -> list[Tensor]:
        given = self._pair.seen.given.tensors
        return [tensor for tensor in given if tensor.is_floating_point() or tensor.is_complex()]


def _rounding(seen: Seen, costs_are_known: bool) -> float:
    """Half a unit in the last place of what the call is computed in.

    Low precisions are computed in float32 and rounded in the end; what roundings in between cost shows in the run on
    the CPU. Without one, each of them may be in the low precision, and sums that cancel out may lose much more.
    """
    dtypes = [real(tensor.dtype) for tensor in (*seen.given.tensors, *trees.tensors(seen.result))]
    low = [dtype for dtype in dtypes if dtype in IN_16_BITS]
    if low:
        return 2.0**-21 if costs_are_known else max(float(torch.finfo(dtype).eps) for dtype in low) / 2
    half_unit = 2.0**-53 if torch.float64 in dtypes and torch.float32 not in dtypes else 2.0**-24
    return half_unit if costs_are_known else _UNKNOWN_COSTS * half_unit
