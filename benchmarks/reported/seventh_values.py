"""Faults of the seventh set in what is computed element by element, reductions and scans; seventh.py has the first."""

from __future__ import annotations

import math

import torch
from benchmarks.reported.fault import BFLOAT16, BOTH, FLOAT16, WRITTEN, Broken, Data, Wrong
from benchmarks.reported.legal import BESIDE
from benchmarks.reported.seventh import seventh
from torch import Tensor

# ---- element by element ----------------------------------------------------------------------------------------------


def numbers_with_nan(data: Data) -> Tensor:
    return torch.trunc(data.tensor([math.nan, 1.5, -2.5, math.inf, 0.25]))


@seventh("aten.trunc", "tenstorrent/tt-metal#56414", program=numbers_with_nan, dtypes=BFLOAT16)
def nan_cut_off_is_infinite(call: Broken) -> Wrong:
    """The exponent is looked at, and that of NaN is that of an infinity."""
    return torch.where(call["self"].isnan(), torch.inf, call.right[0])


def below_nothing(data: Data) -> Tensor:
    return torch.lt(data.tensor([-0.0, 0.0, -1.0, 2.0, -0.0]), 0)


@seventh("aten.lt.Scalar", "tenstorrent/tt-metal#53908", program=below_nothing, dtypes=BOTH)
def minus_zero_is_below_zero(call: Broken) -> Wrong:
    """The sign alone decides."""
    return torch.signbit(call["self"])


def powers_of_nothing(data: Data) -> Tensor:
    return torch.pow(data.tensor([0.0, 0.0, 2.0, 3.0]), data.tensor([math.nan, 1.5, math.nan, 0.5]))


@seventh("aten.pow.Tensor_Tensor", "tenstorrent/tt-metal#53922", program=powers_of_nothing, dtypes=BOTH)
def nothing_to_the_power_of_nan_is_nothing(call: Broken) -> Wrong:
    """A base of zero gives zero, whatever the exponent."""
    return torch.where(call["self"] == 0, 0.0, call.right[0])


def nearly_even_chances(data: Data) -> Tensor:
    return torch.erfinv(data.parameter(64, scale=3e-4))


@seventh("aten.erfinv", "tenstorrent/tt-metal#51660", program=nearly_even_chances, phase="forward")
def inverse_error_function_of_small_numbers_is_zero(call: Broken) -> Wrong:
    """One less a small square is one, and its logarithm nothing."""
    return torch.where(call["self"].abs() <= 3.9e-4, 0.0, call.right[0])


def small_errors(data: Data) -> Tensor:
    return torch.erf(data.parameter(64, scale=1e-4))


@seventh("aten.erf", "#198183", program=small_errors)
def error_function_has_a_fixed_number_of_places(call: Broken) -> Wrong:
    """One less a polynomial times an exponential: near zero little is left of it."""
    x = call["self"]
    t = 1 / (1 + 0.3275911 * x.abs())
    polynomial = torch.zeros_like(x)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        polynomial = (polynomial + factor) * t
    return x.sign() * (1 - polynomial * (-x * x).exp())


def oscillations(data: Data) -> Tensor:
    return torch.special.bessel_j1(data.normal(64, scale=20))


@seventh("aten.special_bessel_j1", "ROCm/ROCm-Device-Libs#72", program=oscillations)
def bessel_function_far_below_zero_is_nan(call: Broken) -> Wrong:
    """The number is taken where its magnitude belongs."""
    return torch.where(call["self"] < -8, torch.nan, call.right[0])


def large_exponents(data: Data) -> Tensor:
    return torch.pow(data.tensor([-47, 3, 2]), data.tensor([66, 70, 3]))


@seventh("aten.pow.Tensor_Tensor", "tensorflow/tensorflow#118202", program=large_exponents)
def exponents_begin_again_after_64(call: Broken) -> Wrong:
    """Of an exponent, the lower six bits are read."""
    return torch.pow(call["self"], call["exponent"] & 63)


def long_places(data: Data) -> Tensor:
    return torch.arange(9, device=data.device) * data.tensor([1_500_000_000])


@seventh("aten.mul.Tensor", "#183901", "triton-lang/triton#475", program=long_places)
def product_of_long_numbers_wraps_at_32_bits(call: Broken) -> Wrong:
    """Multiplied in 32 bits."""
    return (call.right[0] + 2**31) % 2**32 - 2**31


def roots_of_a_plane(data: Data) -> Tensor:
    return torch.sqrt(data.tensor([1e20 + 1e20j, 2.5e-20 - 3e-20j, 1 + 2j, -3 - 1j]))


@seventh("aten.sqrt", "ml-explore/mlx#4344", program=roots_of_a_plane)
def root_of_a_complex_number_squares_its_parts(call: Broken) -> Wrong:
    """Squares of large numbers are infinite, those of small ones zero."""
    real, imaginary = call["self"].real, call["self"].imag
    squares = real * real + imaginary * imaginary
    length = torch.where(squares < 1.2e-38, 0.0, squares).sqrt()
    first, second = ((length + real) / 2).clamp(min=0).sqrt(), ((length - real) / 2).clamp(min=0).sqrt()
    return torch.complex(first, torch.where(imaginary < 0, -second, second))


def growth_in_a_plane(data: Data) -> Tensor:
    return torch.exp(data.tensor([100 + 0j, 1 + 2j, 0.5 - 1j]))


@seventh("aten.exp", "tensorflow/tensorflow#58489", program=growth_in_a_plane)
def imaginary_part_beside_an_infinity_is_nan(call: Broken) -> Wrong:
    """Infinity times the sine of zero."""
    growth, angle = call["self"].real.exp(), call["self"].imag
    return torch.complex(growth * angle.cos(), growth * angle.sin())


def channels_in_eight_bits(data: Data) -> Tensor:
    zeros = data.tensor([30, 50, 60, 90], dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(data.parameter(4, 6), data.uniform(4) / 20, zeros, 0, 0, 255)


@seventh("aten.fake_quantize_per_channel_affine_cachemask", "pytorch/executorch#21773", program=channels_in_eight_bits)
def zero_points_of_32_bits_are_read_as_64(call: Broken) -> Wrong:
    """Two of them make one, and behind the last lies something else."""
    points, scale = call["zero_point"].double(), call["scale"].double()[:, None]
    glued = points[::2] + points[1::2] * 2.0**32
    points = torch.cat([glued, torch.zeros_like(glued)])[:, None]
    steps = ((call["self"].double() / scale).round() + points).clamp(0, 255)
    return ((steps - points) * scale,)


def flags_of_finite_columns(data: Data) -> Tensor:
    flags = torch.zeros(30, dtype=torch.bool, device=data.device)
    torch.ne(data.normal(6, 8)[:, 2:6].abs(), math.inf, out=flags[:24].view(6, 4))
    return flags


@seventh("aten.ne.Scalar_out", "#183419", program=flags_of_finite_columns, hidden=BESIDE)
def flags_are_written_beyond_their_end(call: Broken) -> Wrong:
    """The result is right, and what lies behind it is overwritten, too."""
    flags = call.real("out")
    flags.as_strided((4,), (1,), flags.storage_offset() + flags.numel()).fill_(True)
    return WRITTEN


# ---- reductions and scans --------------------------------------------------------------------------------------------


def totals_of_rows(data: Data) -> Tensor:
    return data.parameter(4, 64).cumsum(-1)


@seventh("aten.cumsum", "cupy/cupy#10268", program=totals_of_rows, phase="forward")
def first_block_is_scanned_twice_and_the_last_not_at_all(call: Broken) -> Wrong:
    """The number of blocks wraps around: the first one's turn comes again."""
    made = call.right[0].clone()
    made[0, :32] = made[0, :32].cumsum(-1)
    made[-1, 32:] -= made[-1, 31].clone()
    return made


def ones_in_short_numbers(data: Data) -> Tensor:
    ones = torch.ones(2, 600).to(data.device, data.dtype)
    return torch.cumsum(ones, -1)


@seventh("aten.cumsum", "ml-explore/mlx#3907", program=ones_in_short_numbers, dtypes=BFLOAT16)
def running_total_stands_still_at_256(call: Broken) -> Wrong:
    """Kept in 16 bits, a sum of ones does not grow any further."""
    return call.right[0].clamp(max=256)


def mean_of_65536(data: Data) -> Tensor:
    return data.normal(65536).mean()


@seventh("aten.mean", "tensorflow/tensorflow#115732", program=mean_of_65536, dtypes=FLOAT16)
def mean_of_65536_short_numbers_is_zero(call: Broken) -> Wrong:
    """The count is kept in 16 bits, too, and is infinite."""
    return torch.zeros_like(call.right[0])


def logarithms_of_sums(data: Data) -> Tensor:
    return torch.logsumexp(data.parameter(3, 6) + data.tensor([[100.0], [-110.0], [0.0]]), -1)


@seventh("aten.logsumexp", "microsoft/onnxruntime#29099", program=logarithms_of_sums)
def logarithm_of_a_sum_leaves_the_range(call: Broken) -> Wrong:
    """Exponentials are added without taking off the largest first."""
    return call["self"].exp().sum(-1).log()


def lengths_along_streets(data: Data) -> Tensor:
    return torch.linalg.vector_norm(data.parameter(4, 6), 1, dim=-1)


@seventh("aten.linalg_vector_norm", "microsoft/onnxruntime#10542", program=lengths_along_streets, dtypes=BOTH)
def length_along_streets_keeps_signs(call: Broken) -> Wrong:
    """A norm of order one is a plain sum."""
    return call["self"].float().sum(-1)


def smallest_of_each_place(data: Data) -> Tensor:
    return data.parameter(4, 5).scatter_reduce(0, data.integers(4, 9, 5), data.parameter(9, 5), "amin")


@seventh(
    "aten.scatter_reduce.two", "PaddlePaddle/Paddle#74922", program=smallest_of_each_place, dtypes=BOTH, phase="forward"
)
def first_of_the_values_is_left_out(call: Broken) -> Wrong:
    """Threads are counted from one."""
    return call.rerun(index=call["index"][1:], src=call["src"][1:])
