"""What the numbers in a tensor are like, computed on the host: a device in doubt is no judge in its own case."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from op_tools.device.host_copies import host_copy

_ELEMENTS_AT_ONCE = 2**22  # elements that are widened to float64 at a time


@dataclass(frozen=True)
class TensorStatistics:
    """Of the finite elements, None where there are none; and how many others there are."""

    min: float | None
    max: float | None
    mean: float | None
    std: float | None  # of these elements, not an estimate for others like them
    norm: float | None
    nan: int
    inf: int
    first_bad: tuple[int, ...] | None  # where the first NaN or infinity is


def statistics(tensor: Tensor) -> TensorStatistics:
    """Of a strided tensor on any device, which is waited for."""
    host = host_copy(tensor.detach()).resolve_conj().resolve_neg()
    if host.is_floating_point() and host.dtype.itemsize == 1:
        host = host.float()  # few functions know float8
    bad = ~torch.isfinite(host)
    flat = (torch.view_as_real(host) if host.is_complex() else host).reshape(-1)
    nan = int(flat.isnan().sum())
    count, total, lowest, highest = 0, 0.0, math.inf, -math.inf
    for numbers in _finite_parts(flat):
        count += len(numbers)
        total += float(numbers.sum())
        lowest, highest = min(lowest, float(numbers.min())), max(highest, float(numbers.max()))
    if not count:
        return TensorStatistics(None, None, None, None, None, nan, len(flat) - nan, _first(bad))
    mean = total / count
    spread = sum(float((numbers - mean).square().sum()) for numbers in _finite_parts(flat))
    squares = sum(float(numbers.square().sum()) for numbers in _finite_parts(flat))
    std, norm = math.sqrt(spread / count), math.sqrt(squares)
    return TensorStatistics(lowest, highest, mean, std, norm, nan, len(flat) - nan - count, _first(bad))


def _finite_parts(flat: Tensor) -> Iterator[Tensor]:
    for part in flat.split(_ELEMENTS_AT_ONCE):
        numbers = part.double()
        numbers = numbers[torch.isfinite(numbers)]
        if len(numbers):
            yield numbers


def _first(bad: Tensor) -> tuple[int, ...] | None:
    if not bool(bad.any()):
        return None
    position = int(bad.reshape(-1).int().argmax())
    place = []
    for size in reversed(bad.shape):
        place.append(position % size)
        position //= size
    return tuple(reversed(place))
