"""The first look of screen.py as two Triton kernels for a whole batch, on CUDA where Triton is there.

Before it is used it must say the same as torch does on numbers of its own; a device where it does not, or cannot be
built, does without it, which is said once.
"""

from __future__ import annotations

import functools
import math
import os
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from op_tools.autocompare.judging import error_statistics, verdict
from op_tools.autocompare.judging.limits import Precision, Tolerance, precision_of
from op_tools.autocompare.prefilter.first_look import Look
from op_tools.device.compiled import is_genuine
from op_tools.output import messages
from op_tools.values.tensors import with_memory

SLOTS = 128  # programs for each pair
SLOTS_OF_LARGE = 1024  # which takes about half of the time for large ones, and five times as long for small ones
_MIN_ELEMENTS_OF_LARGE = 2**21  # elements of a pair, on average
_FIELDS = error_statistics.Found._fields
# what the kernel finds, in its order; the rest of Found is zero without a run on the CPU
SUMS = (
    "squares", "slope", "weight", "got_squares", "product", "expected_squares", "errors", "ulps", "nonzero",
    "nonfinite",
)  # fmt: skip
MAXIMA = ("peak", "max_abs", "max_relative", "max_ulp", "excess")
_DTYPES = frozenset((torch.float32, torch.float16, torch.bfloat16, torch.float64))
_EXACT = precision_of(torch.float64)._replace(largest=math.inf)  # where only max_abs and nonfinite are asked for


def is_there(device: torch.device) -> bool:
    """True where `look` works on this device."""
    return _kernels(device) is not None


def fits(got: Tensor, expected: Tensor) -> bool:
    """Whether `look` works for such tensors of a device where it works."""
    return got.is_cuda and got.dtype in _DTYPES and expected.dtype in _DTYPES


def look(looks: Sequence[Look]) -> Tensor:
    """A row of Found's numbers for each pair. All have the same two dtypes."""
    kernels = _kernels(looks[0].got.device)
    assert kernels is not None
    return _launched(kernels, looks)


def _launched(kernels: Any, looks: Sequence[Look], slots: int = 0) -> Tensor:
    """`slots`: as many as suit the sizes, where they are not given."""
    count, device = len(looks), looks[0].got.device
    held: list[Tensor] = []  # until the kernels are launched
    addresses: list[int] = []
    for one in looks:
        allowance, got, expected = one.allowance, one.got_address, one.expected_address
        if not got or (allowance is not None and not one.are_in_order):
            copies = with_memory(one.got).contiguous(), with_memory(one.expected).contiguous()
            held += copies
            got, expected = map(Tensor.data_ptr, copies)
        addresses += (got, expected, one.elements, 0 if allowance is None else allowance.data_ptr())
    numbers = [_numbers(one.precision or _EXACT, one.tolerance.rtol) for one in looks]
    table, given = _in_one_copy(addresses, b"".join(numbers), device)
    if not slots:
        slots = SLOTS_OF_LARGE if sum(one.elements for one in looks) >= _MIN_ELEMENTS_OF_LARGE * count else SLOTS
    sizes = torch.empty((count, 2, slots), dtype=torch.float64, device=device)
    found = torch.empty((count, slots, 16), dtype=torch.float64, device=device)
    kernels.run(table, given, sizes, found, count, looks[0].got.dtype, looks[0].expected.dtype)
    sums, maxima = found[:, :, : len(SUMS)].sum(1), found[:, :, len(SUMS) : len(SUMS) + len(MAXIMA)].amax(1)
    return torch.cat((sums, maxima, sums.new_zeros((count, 1))), 1).index_select(1, _places(device))


@functools.lru_cache(maxsize=1000)
def _numbers(precision: Precision, rtol: float) -> bytes:
    """What the kernels are told of one pair."""
    half_eps, share = precision.eps / 2, precision.share_of_largest
    numbers = half_eps, precision.floor * half_eps, precision.smallest, precision.largest, rtol, share
    return struct.pack("=6d", *numbers)


def _in_one_copy(addresses: list[int], numbers: bytes, device: torch.device) -> tuple[Tensor, Tensor]:
    """Both on the device, one after the other."""
    # the second begins at 16 bytes, too: for other addresses Triton would compile a kernel of its own
    first = len(addresses) + len(addresses) % 2
    packed = bytearray(8 * first + len(numbers))
    struct.pack_into(f"={len(addresses)}q", packed, 0, *addresses)
    packed[8 * first :] = numbers
    both = torch.frombuffer(packed, dtype=torch.int64).to(device, non_blocking=True)
    return both[:first], both[first:].view(torch.float64)


@functools.lru_cache(maxsize=16)
def _places(device: torch.device) -> Tensor:
    """Where each of Found's fields stands among the kernel's sums and maxima; what these lack is the zero behind."""
    columns = (*SUMS, *MAXIMA)
    places = [columns.index(name) if name in columns else len(columns) for name in _FIELDS]
    return torch.tensor(places, device=device)


# ---- is it there, and is it right? -----------------------------------------------------------------------------------

_known: dict[torch.device, Any] = {}


def _kernels(device: torch.device) -> Any:
    """None where there are none."""
    try:
        return _known[device]
    except KeyError:
        kernels = _known[device] = _checked(device)
        return kernels


def _checked(device: torch.device) -> Any:
    if not is_genuine(device) or os.environ.get("TRITON_INTERPRET") == "1":
        return None  # an interpreter is a thousand times slower than torch
    try:
        from op_tools.autocompare.prefilter import kernels
    except ImportError:
        return None  # torch alone
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            _compare_with_torch(kernels, device)
    except Exception as error:  # noqa: BLE001  a compiler may fail in any way
        messages.complain_once(
            "autocompare",
            "fused",
            text=f"OpAutoCompare does without Triton: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}",
        )
        return None
    return kernels


def _compare_with_torch(kernels: Any, device: torch.device) -> None:
    tolerance = Tolerance(1e-3, 1e-3)
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        precision, looks = precision_of(dtype), []
        for size in (1, 1000, 200_000):
            expected = torch.randn(size, dtype=torch.float64, generator=generator).mul_(3).exp_().to(device)
            expected = expected.clamp_(-6e4, 6e4)
            got = (expected * 1.002).to(dtype)
            looks.append(Look(got, expected, precision, tolerance))
        fine = precision_of(dtype, floor=2.0**-12)
        looks += [
            *(Look(one.got, one.expected, fine, tolerance) for one in looks),
            *(Look(one.got, one.expected, fine, tolerance, one.expected.abs().sqrt()) for one in looks),
        ]
        fast = [row for slots in (SLOTS, SLOTS_OF_LARGE) for row in _launched(kernels, looks, slots).tolist()]
        for one, numbers in zip(looks * 2, fast):
            assert one.precision is not None
            slow = verdict.first_look(one.got, one.expected, one.precision, tolerance, one.allowance).tolist()
            for name, left, right in zip(_FIELDS, numbers, slow):
                if not math.isclose(left, max(right, 0.0), rel_tol=1e-9, abs_tol=1e-300):
                    raise ArithmeticError(f"{name} of {one.elements} elements of {dtype}: {left} instead of {right}")
        strange = torch.tensor([1.0, math.nan, math.inf, -math.inf, 2.0], dtype=torch.float64, device=device)
        alike = Look(strange.to(dtype), strange, precision, tolerance)
        wrong = Look(strange.flip(0).to(dtype), strange, precision, tolerance)
        place = _FIELDS.index("nonfinite")
        if [row[place] for row in _launched(kernels, [alike, wrong]).tolist()] != [0.0, 2.0]:
            raise ArithmeticError("NaN and infinities are not told apart")
        moved = strange.clone()
        moved[0] += 2.0**-5
        same, other = (Look(one.to(dtype), strange.to(dtype), None, tolerance) for one in (strange, moved))
        found = [one.verdict(row) for one, row in zip((same, other), _launched(kernels, [same, other]).tolist())]
        if found != [verdict.RIGHT, None]:
            raise ArithmeticError("equal numbers are not told from others")
