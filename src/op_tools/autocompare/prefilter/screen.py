"""A first look at many results at once, on the device: nobody waits for it, and its numbers are read together later.

The numbers are those of statistics.Found, the same that a full verdict begins with: what is cleared here, it would
clear. Where there is Triton, two kernels do it for all pairs (fused.py); else torch's own, pair by pair.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare.judging import verdict
from op_tools.autocompare.judging.error_statistics import Found
from op_tools.autocompare.judging.measures import differing
from op_tools.autocompare.judging.verdict import Verdict
from op_tools.autocompare.prefilter import fused
from op_tools.autocompare.prefilter.first_look import Look
from op_tools.device.events import marker_of

OUT_OF_MEMORY: type[BaseException] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
_COUNT, _NONFINITE = len(Found._fields), Found._fields.index("nonfinite")


def is_quick(tensors: Sequence[Tensor]) -> bool:
    """Whether the device of these tensors has looked at results before the CPU could."""
    return any(fused.is_there(tensor.device) for tensor in tensors)


class Screen:
    """Pairs on one device that are looked at together."""

    def __init__(self, device: torch.device) -> None:
        self.looks: list[Look] = []
        self._marker = marker_of(device)
        self._mark: Any = None
        self._numbers: Tensor | None = None

    def launch(self) -> None:
        """Lets the device look, behind the work that makes the tensors. They are let go."""
        if not self.looks:
            return
        with torch.no_grad(), contextlib.suppress(OUT_OF_MEMORY):  # then nothing is cleared
            numbers = _found(self.looks)
            if self._marker is None:
                self._numbers = numbers  # without marks, a copy that is on its way could be read too early
            else:
                self._numbers = numbers.to("cpu", non_blocking=True)
                self._mark = self._marker.set()
        for look in self.looks:
            look.got = look.expected = look.allowance = None

    def is_ready(self) -> bool:
        """Whether `read` need not wait."""
        return self._mark is None or bool(self._mark.query())

    def read(self) -> list[Verdict | None]:
        """One answer for each pair, waiting if need be."""
        if self._numbers is None:
            return [None] * len(self.looks)
        if self._mark is not None and self._marker is not None:
            self._marker.wait(self._mark)
        rows = self._numbers.tolist()
        self._numbers = self._mark = None
        return [look.verdict(row) for look, row in zip(self.looks, rows)]


def _found(looks: list[Look]) -> Tensor:
    """A row of numbers for each."""
    is_there = fused.is_there(looks[0].got.device)
    together: dict[Any, list[int]] = {}
    for index, look in enumerate(looks):
        is_fused = is_there and look.elements and fused.fits(look.got, look.expected)
        key = (look.got.dtype, look.expected.dtype) if is_fused else None
        together.setdefault(key, []).append(index)
    parts = [
        torch.stack([_alone(looks[index]) for index in indices])
        if key is None
        else fused.look([looks[index] for index in indices])
        for key, indices in together.items()
    ]
    if len(parts) == 1:
        return parts[0]
    order = [index for indices in together.values() for index in indices]
    places = sorted(range(len(order)), key=order.__getitem__)
    return torch.cat(parts)[torch.tensor(places).to(parts[0].device, non_blocking=True)]


def _alone(look: Look) -> Tensor:
    got: Tensor = look.got
    if look.precision is not None and look.elements:
        return verdict.first_look(got, look.expected, look.precision, look.tolerance, look.allowance)
    numbers = torch.zeros(_COUNT, dtype=torch.float64, device=got.device)
    if look.elements:
        numbers[_NONFINITE] = differing(got, look.expected).sum()
    return numbers
