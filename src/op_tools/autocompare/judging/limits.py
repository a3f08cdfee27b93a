"""What an op may cost in the dtype that it was computed in: the limits that an honest device stays below."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

_SLACK_OF_BIAS = 1.5
IN_16_BITS = (torch.float16, torch.bfloat16)


class Limits(NamedTuple):
    """What an honest device stays below. Errors are in their scales; `bias` is in units of eps."""

    bulk: float
    ratio: float  # of the device's bulk to the CPU's
    peak: float
    bias: float


LOW = Limits(1.5, 3.0, 16.0, 0.6)  # computed in float32, then rounded once
LOW_NORM = Limits(1.5, 3.0, 16.0, 1 / 32)
LOW_NORM_ALONE = Limits(1.5, 3.0, 16.0, 1 / 3)  # where nobody knows whether factors on the way are rounded
LOW_SUMS = Limits(2.0, 4.0, 20.0, 0.6)  # parts of a sum may be rounded, too (allow_bf16_reduced_precision_reduction)
LOW_STEPS = Limits(3.0, 6.0, 64.0, 0.6)  # rounded again and again, from one time step to the next
SINGLE = Limits(32.0, 32.0, 256.0, 32.0)  # other orders of summation, approximations good to some units
SINGLE_LOOSE = Limits(128.0, 128.0, 1024.0, 64.0)  # Winograd's algorithm, attention in three passes of tf32
TF32 = Limits(4.0, 4.0, 32.0, 2.0**14)  # against a CPU that rounds to tf32 where a device may cut off
DOUBLE = Limits(256.0, 256.0, 4096.0, 256.0)  # the reference is no better


class Precision(NamedTuple):
    """The dtype that an op was computed in, and the limits for it."""

    name: str
    eps: float
    smallest: float  # an error below this is none
    largest: float  # what lies beyond is infinite
    limits: Limits
    floor: float = 1.0  # an error is small beside this share of what rounding costs a typical value
    goes_on: bool = False  # one error is part of many results

    @property
    def share_of_largest(self) -> float:
        """Of the largest number, by which any other may be off: differences of equal numbers on the way, as in the
        gradient of softmax, are exactly zero only in some orders. Low precisions are computed in a higher one."""
        return self.eps / 2 if self.eps < 1e-6 else 0.0


@functools.lru_cache(maxsize=1000)
def precision_of(dtype: torch.dtype, limits: Limits | None = None, slack: float = 1.0, floor: float = 1.0) -> Precision:
    """For results of this dtype; `limits` where the op is known to need others, `slack` where less is known."""
    info = torch.finfo(dtype)
    if limits is None:
        limits = LOW if info.bits <= 16 else SINGLE if info.bits == 32 else DOUBLE
    if slack != 1:
        # roundings have no direction, however many there are
        bulk, ratio, peak, bias = (slack * limit for limit in limits)
        limits = Limits(bulk, ratio, peak, min(bias, _SLACK_OF_BIAS * limits.bias))
    # float16 needs its subnormals; the tiny numbers of other dtypes may be flushed to zero
    smallest = 2.0**-25 if dtype is torch.float16 else float(info.tiny)
    return Precision(str(dtype).partition(".")[2], float(info.eps), smallest, float(info.max), limits, floor)


def real(dtype: torch.dtype) -> torch.dtype:
    """That of the parts of a complex number."""
    return {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}.get(
        dtype, dtype
    )
