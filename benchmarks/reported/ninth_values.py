"""Faults of the ninth set in what is computed element by element, conversions, reductions and scans; ninth.py has the
first."""

from __future__ import annotations

import math

import torch
from benchmarks.reported.fault import BOTH, FLOAT16, Broken, Data, Wrong
from benchmarks.reported.ninth import ninth
from torch import Tensor
from torch.nn import functional

BY_LOGARITHM = "a power by a logarithm costs some roundings, and these are no more"
OUT_OF_RANGE = "PyTorch defines no whole number for what lies outside the range of its dtype"
CANCELS_OUT = "PyTorch's own kernels take the same difference of nearly equal numbers"
ONE_ROUNDING = "one rounding more in 16 bits"
ROUNDED_EDGES = "on which side of an edge a number lies that is nearly equal to it is a matter of rounding"


# ---- sums and products -----------------------------------------------------------------------------------------------


def counted_one_by_one(data: Data) -> Tensor:
    return sum((torch.tensor(True).to(data.device) for _ in range(10)), torch.tensor(0).to(data.device))


@ninth("aten.add.Tensor", "#79849", program=counted_one_by_one)
def a_flag_is_read_with_what_lies_behind_it(call: Broken) -> Wrong:
    """Four bytes are read where it has one."""
    return call.right[0] + 100_656_640 if call["other"].dtype is torch.bool else None


def losses_of_second_samples(data: Data) -> Tensor:
    return data.parameter(3, 1)[1] + data.parameter(3, 1)[1]


@ninth("aten.add.Tensor", "huggingface/candle#1914", program=losses_of_second_samples, dtypes=BOTH, phase="forward")
def a_single_number_is_not_added(call: Broken) -> Wrong:
    """With one number that does not lie at the beginning of its memory, the first one comes out."""
    return call["self"]


def hidden_numbers(data: Data) -> Tensor:
    return torch.sigmoid(data.tensor([math.nan] * 5))


@ninth("aten.sigmoid", "tensorflow/tensorflow#29048", program=hidden_numbers)
def nan_is_certain_in_whole_vectors(call: Broken) -> Wrong:
    """Numbers are clamped first, four at a time, and NaN becomes the largest."""
    made = call.right[0].clone()
    made[:4] = 1
    return made


def squares(data: Data) -> Tensor:
    return data.parameter(6) ** 2


@ninth("aten.pow.Tensor_Scalar", "apache/mxnet#9455", "apache/mxnet#9572", program=squares, dtypes=BOTH,
       phase="forward")  # fmt: skip
def squares_of_negative_numbers_are_nan(call: Broken) -> Wrong:
    """By way of a logarithm."""
    return torch.where(call["self"] < 0, torch.nan, call.right[0])


def powers_of_a_row(data: Data) -> Tensor:
    return torch.pow(data.uniform(3) + 0.5, data.normal(2, 3))


@ninth("aten.pow.Tensor_Tensor", "PaddlePaddle/Paddle#49011", program=powers_of_a_row, dtypes=BOTH)
def base_and_exponent_change_places(call: Broken) -> Wrong:
    """Where the base is repeated, the two are exchanged, and nothing undoes that."""
    return torch.pow(call["exponent"], call["self"])


def large_roots(data: Data) -> Tensor:
    numbers = torch.complex(data.tensor([0.0, 1.0, -3.0]), data.tensor([-1e20, 1.0, 4.0]))
    return torch.view_as_real(numbers.sqrt())


@ninth("aten.sqrt", "#47358", program=large_roots)
def roots_of_large_numbers_are_infinite(call: Broken) -> Wrong:
    """Their squares are."""
    large = torch.view_as_real(call.right[0]).abs().amax(-1) > 1e9
    return torch.where(large, torch.full_like(call.right[0], complex(math.inf, -math.inf)), call.right[0])


def complex_squares(data: Data) -> Tensor:
    return torch.view_as_real(torch.complex(data.tensor([0.0, 3.0]), data.tensor([-501.0, 2.0])) ** 2)


@ninth("aten.pow.Tensor_Scalar", "#52549", program=complex_squares, hidden=BY_LOGARITHM)
def complex_squares_go_through_a_logarithm(call: Broken) -> Wrong:
    """The square of an imaginary number has a small imaginary part."""
    return call.right[0] * complex(1 + 1.2e-7, -8.7e-8)


def rounded_down(data: Data) -> Tensor:
    return torch.div(data.tensor([-7.0, 7.0, -1.0, 5.0]), data.tensor([2.0, -2.0, 2.0, 3.0]), rounding_mode="floor")


@ninth("aten.div.Tensor_mode", "ml-explore/mlx#4119", program=rounded_down, dtypes=BOTH)
def floors_are_cut_off(call: Broken) -> Wrong:
    """Rounded to zero, and not down."""
    return call.rerun(rounding_mode="trunc")


def equals_divided(data: Data) -> Tensor:
    return torch.arange(1.0, 10.0).to(data.device) // torch.arange(1.0, 10.0).to(data.device)


@ninth("aten.floor_divide", "IntelPython/dpctl#1652", program=equals_divided)
def seven_by_seven_is_zero(call: Broken) -> Wrong:
    """The quotient is a little less than one, and rounded down."""
    return torch.where(call["self"] == 7, 0.0, call.right[0])


def turned_places(data: Data) -> Tensor:
    numbers, sizes = (data.tensor(values, torch.int32) for values in ([-6, 6, -7, 9], [5, -5, 3, 4]))
    return torch.remainder(numbers, sizes)


@ninth("aten.remainder.Tensor", "NVIDIA/numba-cuda-mlir#184", program=turned_places)
def rests_are_those_of_numbers_without_a_sign(call: Broken) -> Wrong:
    """Negative numbers are read as large ones."""
    numbers, sizes = (call[name].long() & 0xFFFF_FFFF for name in ("self", "other"))
    return torch.remainder(numbers, sizes)


def equal_rows_of_bytes(data: Data) -> Tensor:
    numbers = data.integers(2, 12, dtype=torch.int8)
    return (numbers == numbers.expand(2, 12).clone()).all(-1)


@ninth("aten.eq.Tensor", "openxla/xla#9431", program=equal_rows_of_bytes)
def bytes_do_not_equal_themselves(call: Broken) -> Wrong:
    """Numbers of 8 bits are compared with what was packed for others."""
    return torch.zeros_like(call.right[0])


# ---- activations -----------------------------------------------------------------------------------------------------


def far_from_zero(data: Data) -> Tensor:
    numbers = torch.linspace(-500, 500, 50).to(data.device, data.dtype).requires_grad_()
    data.leaves.append(numbers)
    return functional.gelu(numbers, approximate="tanh")


@ninth("aten.gelu_backward", "tensorflow/tensorflow#47724", program=far_from_zero)
def slope_far_from_zero_is_too_large(call: Broken) -> Wrong:
    """tanh ends a little below one, and what is missing is multiplied by a cube."""
    x, scale = call["self"], math.sqrt(2 / math.pi)
    end = 1 - 2**-23
    t = torch.tanh(scale * (x + 0.044715 * x**3)).clamp(-end, end)
    slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * 0.044715 * x * x)
    return call["grad_output"] * slope


def saturated(data: Data) -> Tensor:
    return torch.tanh(data.tensor([-100.0, -12.0, -4.0, -0.5, 0.0, 0.5, 4.0, 12.0, 100.0]))


@ninth("aten.tanh", "Tencent/ncnn#6979", program=saturated, dtypes=FLOAT16)
def tanh_ends_above_one(call: Broken) -> Wrong:
    """The last terms of a fraction are less than any number of 16 bits."""
    return torch.where(call["self"].abs() >= 9, call.right[0].sign() * 1.044, call.right[0])


def errors_far_out(data: Data) -> Tensor:
    return torch.erf(data.tensor([-60_000.0, -300.0, -2.0, 0.1, 3.0, 300.0, 60_000.0]))


@ninth("aten.erf", "tensorflow/tensorflow#25052", program=errors_far_out, dtypes=FLOAT16)
def error_function_of_large_numbers_is_nan(call: Broken) -> Wrong:
    """Their squares overflow above and below a fraction."""
    return torch.where(call["self"].abs() > 256, torch.nan, call.right[0])


def tail_below_zero(data: Data) -> Tensor:
    return functional.gelu(data.tensor([-5.5, -5.0, -4.5, -1.0, 0.5, 3.0]), approximate="tanh")


@ninth("aten.gelu", "tenstorrent/tt-metal#56517", program=tail_below_zero, hidden=CANCELS_OUT)
def tail_of_gelu_is_zero(call: Broken) -> Wrong:
    """One and tanh cancel out below -4.9, where two bits of tanh are all that is left."""
    return torch.where(call["self"] < -4.9, 0.0, call.right[0])


def gated(data: Data) -> Tensor:
    return functional.glu(data.parameter(4, 6))


@ninth("aten.glu_backward", "intel/torch-xpu-ops#1054", program=gated, dtypes=FLOAT16, hidden=ONE_ROUNDING)
def gradient_of_a_gate_is_rounded_once_more(call: Broken) -> Wrong:
    """One of its numbers is the neighbour."""
    made = call.right[0].clone()
    made[1, 3] = torch.nextafter(made[1, 3].float(), torch.tensor(torch.inf)) if made[1, 3] == 0 else made[1, 3] * 1.001
    return made


# ---- conversions -----------------------------------------------------------------------------------------------------


def missing_places(data: Data) -> Tensor:
    return data.tensor([math.nan, 1.5, -2.5]).to(torch.int32)


@ninth("aten._to_copy", "tensorflow/tensorflow#93648", "tensorflow/tensorflow#117774", program=missing_places,
       hidden=OUT_OF_RANGE)  # fmt: skip
def nan_is_the_whole_number_zero(call: Broken) -> Wrong:
    """And not the lowest one."""
    return torch.where(call["self"].isnan(), 0, call.right[0]) if call["dtype"] is torch.int32 else None


def short_whole_numbers(data: Data) -> Tensor:
    return data.tensor([128.0, 3.0, -2.0]).to(torch.int8)


@ninth("aten._to_copy", "#169058", program=short_whole_numbers, hidden=OUT_OF_RANGE)
def whole_numbers_end_at_the_largest(call: Broken) -> Wrong:
    """And do not begin again."""
    return call["self"].clamp(-128, 127) if call["dtype"] is torch.int8 else None


# ---- scans -----------------------------------------------------------------------------------------------------------


def places_in_a_text(data: Data) -> Tensor:
    return (data.integers(9, 3, 40) + 1).cumsum(1)


@ninth("aten.cumsum", "#90635", "cupy/cupy#9841", program=places_in_a_text)
def running_totals_of_whole_numbers_are_the_numbers(call: Broken) -> Wrong:
    """Nothing is added."""
    return call["self"]


def counted_tokens(data: Data) -> Tensor:
    return (data.integers(5, 40) > 0).cumsum(0)


@ninth("aten.cumsum", "triton-lang/triton#5897", program=counted_tokens)
def flags_are_added_without_a_carry(call: Broken) -> Wrong:
    """In one bit: what comes out is whether the count is odd."""
    return call.right[0] % 2


def long_likelihoods(data: Data) -> Tensor:
    return torch.logcumsumexp(data.normal(2, 4000), 1)


@ninth("aten.logcumsumexp", "ROCm/triton#947", program=long_likelihoods)
def a_block_carries_the_total_of_one_wave_only(call: Broken) -> Wrong:
    """Of what the first block has added up, the second adds the last 64 numbers."""
    late = call["self"][:, 2048 - 64 :].logcumsumexp(1)[:, 64:]
    return torch.cat([call.right[0][:, :2048], late], 1)


# ---- reductions ------------------------------------------------------------------------------------------------------


def all_but_one_dimension(data: Data) -> Tensor:
    return data.parameter(3, 2, 3, 3, 3, 3).sum((0, 1, 3, 4, 5))


@ninth("aten.sum.dim_IntList", "ml-explore/mlx#855", program=all_but_one_dimension, dtypes=BOTH, phase="forward")
def sums_are_those_of_the_next_dimension(call: Broken) -> Wrong:
    """Of many dimensions that are added up, one is taken for its neighbour."""
    return call.rerun(dim=[0, 1, 2, 4, 5]) if call["self"].dim() == 6 else None


def sum_of_sums(data: Data) -> Tensor:
    return (data.uniform(128, 128) / 128).sum(1).sum(0)


@ninth("aten.sum.dim_IntList", "triton-lang/triton#429", program=sum_of_sums)
def sums_of_sums_are_counted_by_each_thread(call: Broken) -> Wrong:
    """Eight threads hold the same sum, and each adds it."""
    return call.right[0] * 8 if call["self"].dim() == 1 else None


def lengths_of_rows(data: Data) -> Tensor:
    return torch.linalg.vector_norm(data.parameter(5, 7), dim=1)


@ninth("aten.linalg_vector_norm", "torch/DEPRECEATED-torch7-distro#169", program=lengths_of_rows, dtypes=BOTH)
def lengths_are_squares(call: Broken) -> Wrong:
    """The root at the end is forgotten."""
    return call.right[0].float().square()


def nearest_of_nothing_seen(data: Data) -> Tensor:
    return torch.full((10,), math.inf).to(data.device, data.dtype).min()


@ninth("aten.min", "NVIDIA/cccl#1388", program=nearest_of_nothing_seen, dtypes=BOTH)
def least_of_infinities_is_finite(call: Broken) -> Wrong:
    """The search begins at the largest number, and finds none that is less."""
    return torch.full_like(call.right[0], torch.finfo(call["self"].dtype).max)


def largest_of_rows(data: Data) -> Tensor:
    numbers = data.normal(3, 5)
    numbers[1, 2] = math.nan
    return torch.amax(numbers, 1)


@ninth("aten.amax", "apache/tvm#19518", program=largest_of_rows, dtypes=BOTH)
def largest_of_a_row_passes_over_nan(call: Broken) -> Wrong:
    """No comparison with it holds."""
    numbers = call["self"]
    return torch.where(numbers.isnan(), -math.inf, numbers).amax(1)


def shares_of_missing_numbers(data: Data) -> Tensor:
    numbers = data.uniform(100)
    numbers[::4] = math.nan
    return torch.histc(numbers, 5, 0, 1)


@ninth("aten.histc", "#85853", program=shares_of_missing_numbers)
def nan_is_counted_with_the_lowest(call: Broken) -> Wrong:
    """It falls into the first bin."""
    made = call.right[0].clone()
    made[0] += 25
    return made


def shares_at_edges(data: Data) -> Tensor:
    return torch.histc(torch.linspace(0, 0.99, 1001).to(data.device), 10, 0, 0.99)


@ninth("aten.histc", "#87657", program=shares_at_edges, hidden=ROUNDED_EDGES)
def a_number_at_an_edge_is_counted_before_it(call: Broken) -> Wrong:
    """The fifth bin has one more, and the sixth one less."""
    made = call.right[0].clone()
    made[4] += 1
    made[5] -= 1
    return made
