"""Every limit of a verdict: what an honest device stays below, by precision and by op; and atol and rtol of `allclose`.

verdict.py tells what the numbers are compared with. Whoever changes a limit runs `make bench-faults` before and after.
"""

from __future__ import annotations

import functools
import math
import os
import re
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from op_tools import settings
from op_tools.ops import catalogue
from op_tools.ops.catalogue import Trait


class Limits(NamedTuple):
    """What an honest device stays below. Errors are in their scales; `bias` is in units of eps."""

    bulk: float
    ratio: float  # of the device's bulk to the CPU's
    peak: float
    bias: float


LOW = Limits(1.5, 3.0, 16.0, 0.6)  # computed in float32, then rounded once
LOW_MEAN = Limits(1.5, 3.0, 6.0, 0.6)  # one number, of numbers that were each rounded once
LOW_NORM = Limits(1.5, 3.0, 16.0, 1 / 32)
LOW_NORM_ALONE = Limits(1.5, 3.0, 16.0, 1 / 3)  # where factors on the way may be rounded
LOW_SUMS = Limits(2.0, 4.0, 20.0, 0.6)  # parts of a sum may be rounded, too (allow_bf16_reduced_precision_reduction)
LOW_STEPS = Limits(3.0, 6.0, 64.0, 0.6)  # rounded again and again, from one time step to the next
LOW_STEPS_OF_LOGARITHMS = Limits(3.0, 6.0, 64.0, 4.0)
SINGLE = Limits(32.0, 32.0, 256.0, 32.0)  # other orders of summation, approximations good to some units
SINGLE_LOOSE = Limits(128.0, 128.0, 1024.0, 64.0)  # Winograd's algorithm, attention in three passes of tf32
IN_TF32 = Limits(4.0, 4.0, 32.0, 2.0)  # against a CPU that cuts factors off to tf32
DOUBLE = Limits(256.0, 256.0, 4096.0, 256.0)  # the reference is no better

DEVICE_ALONE_SLACK = 4.0  # widens all limits where the device itself is the reference, and the CPU is seldom asked
_MAX_BIAS_SLACK = 1.5  # roundings have no direction, however many there are
# share of what 16 bits cost a typical value that is still much more than float32 costs it
_FLOOR_IN_FLOAT32 = 2.0**-12
_FLOOR_OF_OWN_SIZE = 2.0**-24  # where even the smallest element is held to its own size

# bias: the slope of the errors over the values
MIN_VALUES_FOR_BIAS = 8
MIN_VALUE_TO_ERROR = 8.0  # a factor cannot be told from values that are small beside their errors
_BIAS_TO_USUAL = 4.0  # times the bias of the CPU in the same dtype
_BIAS_SIGMAS = 6.0
_BULK_OF_FEW = 3.0  # the mean of a few squares is often far from typical: 1 + 3 / sqrt(count)
MIN_ROW_ELEMENTS = 32  # a row or column of fewer elements says nothing of its own

# sensitivity: how far a result moves when its inputs are moved by a rounding error
LARGE_ELEMENTS = 2**24  # from here on memory counts more than time
MOVES = (0, 1, 3)  # how often the inputs are moved, there and back: each try allows more
SENSITIVITY_MARGIN = 4.0
_ROUNDING_IN_FLOAT32 = 2.0**-21  # of what is stored in 16 bits, computed in float32
_ROUNDING_WITHOUT_CPU = 64.0  # times half a unit, where no run in the device's own dtype shows what roundings cost

# proofs by identities, in units of the variance that rounding brings: the largest row, all rows, a common factor in
# units of rounding, and results that are not finite. What is beyond is computed again.
PROOF_LIMITS = (100.0, 6.0, 1.0, 0.0)

RANDOM_SIGMAS = 7.0  # a healthy generator is this far off once in 10^11 draws
SPREAD_MARGIN = 1.5  # the fourth moment of an exponential distribution is the largest among those that are known
MIN_DRAWS_FOR_SPREAD = 100

# factors of a matrix, multiplied again: units in the last place of its size, for each row or column
FACTOR_UNITS = 32.0

IN_16_BITS = (torch.float16, torch.bfloat16)
_TF32_EPS = 2.0**-10


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
        return self.eps / 2 if self.eps < 1e-6 and self.floor == 1 else 0.0

    def allowed_bulk(self, usual: float, count: float) -> float:
        """Of `count` errors, where the CPU's bulk is `usual`."""
        return (1 + _BULK_OF_FEW / math.sqrt(count)) * max(self.limits.bulk, self.limits.ratio * usual)

    def allowed_bias(self, usual: float, standard_error: float) -> float:
        """Where the CPU's bias is `usual`."""
        return math.hypot(max(self.eps * self.limits.bias, _BIAS_TO_USUAL * abs(usual)), _BIAS_SIGMAS * standard_error)


@functools.lru_cache(maxsize=1000)
def precision_of(dtype: torch.dtype, limits: Limits | None = None, slack: float = 1.0, floor: float = 1.0) -> Precision:
    """For results of this dtype; `limits` where the op is known to need others, `slack` where less is known."""
    info = torch.finfo(dtype)
    if limits is None:
        limits = LOW if info.bits <= 16 else SINGLE if info.bits == 32 else DOUBLE
    if slack != 1:
        bulk, ratio, peak, bias = (slack * limit for limit in limits)
        limits = Limits(bulk, ratio, peak, min(bias, _MAX_BIAS_SLACK * limits.bias))
    # float16 needs its subnormals; the tiny numbers of other dtypes may be flushed to zero
    smallest = 2.0**-25 if dtype is torch.float16 else float(info.tiny)
    return Precision(str(dtype).partition(".")[2], float(info.eps), smallest, float(info.max), limits, floor)


def precision_of_mean(dtype: torch.dtype, count: float, elements: int) -> Precision:
    """For `elements` means, or sums, of so many numbers together that were each rounded to this dtype."""
    precision = precision_of(dtype, LOW_MEAN if elements == 1 else None)
    return precision._replace(eps=precision.eps / math.sqrt(max(1.0, count / max(1, elements))))


def in_steps(precision: Precision, are_logarithms: bool) -> Precision:
    """Where 16 bits are rounded again and again; a rounded logarithm is a factor of what it stands for."""
    steps = LOW_STEPS_OF_LOGARITHMS if are_logarithms else LOW_STEPS
    return precision._replace(limits=steps) if precision.limits == LOW else precision


def with_tf32_inside(precision: Precision) -> Precision:
    """Where some products on the way may be cut off to tf32, which makes them all a little smaller."""
    bias = max(precision.limits.bias, IN_TF32.bias * _TF32_EPS / precision.eps)
    return precision._replace(limits=precision.limits._replace(bias=bias))


@functools.lru_cache(maxsize=10_000)
def precision_for(
    op: str,
    got: torch.dtype,
    computed_in: torch.dtype | None,
    is_by_element: bool,
    is_relative: bool,
    is_tf32: bool,
    on_device: bool,
    slack: float,
) -> Precision:
    """For a result of an op: the lower of its dtype and the one that it was computed in, with the op's own limits.

    `is_by_element`: its errors are those of single elements, not of sums over what was broadcast. `is_relative`: even
    the smallest of them is held to its own size.
    """
    dtypes = [real(got)] if computed_in is None else [real(got), real(computed_in)]
    dtype = max(dtypes, key=lambda one: float(torch.finfo(one).eps))
    if is_tf32 and dtype is torch.float32:
        wide = precision_of(dtype, IN_TF32, slack)
        return wide._replace(name="tf32", eps=_TF32_EPS, goes_on=catalogue.has(op, Trait.STEPS))
    is_fine = catalogue.has(op, Trait.FINE) and dtype in IN_16_BITS and is_by_element
    limits = _limits_of(op, dtype, on_device)
    floor = _FLOOR_OF_OWN_SIZE if is_relative and is_by_element else _FLOOR_IN_FLOAT32 if is_fine else 1.0
    precision = precision_of(dtype, limits, slack, floor)
    return precision._replace(goes_on=catalogue.has(op, Trait.STEPS | Trait.SCANS))


def _limits_of(op: str, dtype: torch.dtype, on_device: bool) -> Limits | None:
    """None for those that the dtype has anyway."""
    is_low = torch.finfo(dtype).bits <= 16
    if catalogue.has(op, Trait.POWERS) and dtype is torch.float32:
        return SINGLE_LOOSE
    if not catalogue.has(op, catalogue.ON_MATRIX_UNITS):
        if not is_low or not catalogue.has(op, Trait.NORM):
            return None
        return LOW_NORM_ALONE if on_device or catalogue.has(op, Trait.ROUGH) else LOW_NORM
    if is_low:
        return LOW_STEPS if catalogue.has(op, Trait.STEPS) else LOW_SUMS
    if dtype is not torch.float32:
        return None
    return SINGLE_LOOSE if catalogue.has(op, Trait.CONVOLUTION) or "attention" in op else None


def rounding_of(dtypes: list[torch.dtype], costs_are_known: bool, is_tf32: bool = False) -> float:
    """Half a unit in the last place of what a call with tensors of these dtypes is computed in.

    Low precisions are computed in float32 and rounded in the end; what roundings in between cost shows in the run on
    the CPU. Without one, each of them may be in the low precision, and sums that cancel out may lose much more.
    """
    dtypes = [real(dtype) for dtype in dtypes]
    low = [dtype for dtype in dtypes if dtype in IN_16_BITS]
    if low:
        return _ROUNDING_IN_FLOAT32 if costs_are_known else max(float(torch.finfo(dtype).eps) for dtype in low) / 2
    if is_tf32:
        return _TF32_EPS / 2
    half_unit = 2.0**-53 if torch.float64 in dtypes and torch.float32 not in dtypes else 2.0**-24
    return half_unit if costs_are_known else _ROUNDING_WITHOUT_CPU * half_unit


def real(dtype: torch.dtype) -> torch.dtype:
    """That of the parts of a complex number."""
    return _PARTS.get(dtype, dtype)


_PARTS = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


# ---- the contract's `allclose` -----------------------------------------------------------------------------------


class Tolerance(NamedTuple):
    """|got - expected| <= atol + rtol * |expected|."""

    atol: float
    rtol: float


class GivenTolerance(Tolerance):
    """One that the user has set: it decides, and not our limits."""

    __slots__ = ()


NOTHING = Tolerance(0.0, 0.0)  # for None
NUMBER = Tolerance(1e-6, 1e-6)  # for a Python number
_OTHER_TENSORS = Tolerance(1e-3, 1e-3)
_DEFAULTS = {
    torch.float16: Tolerance(1e-4, 1e-4),
    torch.bfloat16: Tolerance(1e-3, 1e-3),
    torch.float32: Tolerance(1e-5, 1e-5),
    torch.float64: Tolerance(1e-8, 1e-8),
}
_HELP = 'two numbers "atol,rtol", such as 1e-3,1e-4'
_VARIABLE = re.compile(r"(?:(?P<op>.+)_)?AUTOCOMPARE_ERROR_TOLERANCE(?:_(?P<dtype>[A-Z0-9]+))?")
_DTYPES = {"FLOAT16": torch.float16, "BFLOAT16": torch.bfloat16, "FLOAT32": torch.float32, "FLOAT64": torch.float64}


class Tolerances:
    """The tolerances of one run. Made when a tool starts: a variable that cannot be understood is an error then.

    The most specific variable wins: LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16 (the op's last name, in capitals), then
    AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16, then AUTOCOMPARE_ERROR_TOLERANCE, then the defaults above.
    """

    def __init__(self) -> None:
        self._given: dict[tuple[str, torch.dtype | None], Tolerance] = {}
        for variable, text in os.environ.items():
            match = _VARIABLE.fullmatch(variable)
            if match and text.strip():
                dtype = _dtype(variable, match["dtype"])
                self._given[match["op"] or "", dtype] = settings.parse(variable, text, _two_numbers, _HELP)
        # for tensors of a dtype that the op with this full name was given, or gave; asked for at every value
        self.for_dtype: Callable[[str, torch.dtype], Tolerance] = functools.lru_cache(maxsize=10_000)(self._find)

    def of(self, op: str, value: Any) -> Tolerance:
        """For any value."""
        if isinstance(value, Tensor):
            return self.for_dtype(op, value.dtype)
        return NOTHING if value is None else NUMBER

    def _find(self, op: str, dtype: torch.dtype) -> Tolerance:
        op, dtype = op.rpartition(".")[2].upper(), real(dtype)
        for key in ((op, dtype), (op, None), ("", dtype), ("", None)):
            if key in self._given:
                return self._given[key]
        return _DEFAULTS.get(dtype, _OTHER_TENSORS)


def _dtype(variable: str, name: str | None) -> torch.dtype | None:
    def parse(name: str) -> torch.dtype:
        if name not in _DTYPES:
            raise ValueError(f"a tolerance can be given for {', '.join(_DTYPES)}")
        return _DTYPES[name]

    return None if name is None else settings.parse(variable, name, parse, "the dtype that a tolerance is meant for")


def _two_numbers(text: str) -> Tolerance:
    try:
        atol, rtol = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError("it must be two numbers with a comma between them: atol,rtol") from None
    if not (0 <= atol < math.inf and 0 <= rtol < math.inf):
        raise ValueError("neither number may be negative or infinite")
    return GivenTolerance(atol, rtol)
