"""How far chance brings counts and sums: what a healthy generator stays within."""

from __future__ import annotations

import torch
from torch import Tensor

from op_tools.autocompare.judging.limits import RANDOM_SIGMAS

# of a count above its deviations: rare events come in ones, and their deviation says little
RARE_DRAWS = 7.0
EXPONENTIAL_DRAWS = 50.0  # the same of sums of what has an exponential tail, in units of that
_COARSE_UNITS = 32.0  # units in the last place by which probabilities may be off that are computed in their own dtype


def coarse(dtype: torch.dtype) -> float:
    """The share by which numbers of this dtype may be off because they were computed in it."""
    return _COARSE_UNITS * float(torch.finfo(dtype).eps)


def are_far(
    counts: Tensor,
    expected: Tensor,
    variance: Tensor,
    dtype: torch.dtype = torch.float64,
    rare: float | Tensor = RARE_DRAWS,
) -> bool:
    """Whether counts are farther from what is expected than chance brings them. `dtype`: of the probabilities."""
    slack = coarse(dtype) * expected.abs()
    return bool(((counts - expected).abs() > RANDOM_SIGMAS * variance.sqrt() + rare + slack).any())


def sums_by_size(sizes: Tensor, *values: Tensor) -> list[Tensor]:
    """Each of the values added up for all sizes of the same power of two."""
    powers = sizes.clamp(2.0**-30, 2.0**30).log2().floor().long().reshape(-1) + 30
    return [torch.bincount(powers, one.reshape(-1), minlength=61) for one in values]
