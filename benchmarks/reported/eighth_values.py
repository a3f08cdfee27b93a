"""Faults of the eighth set in what is computed element by element, conversions, reductions and scans; eighth.py has
the first."""

from __future__ import annotations

import functools
import math

import torch
from benchmarks.reported.eighth import eighth
from benchmarks.reported.fault import BFLOAT16, BOTH, FLOAT16, WRITTEN, Broken, Data, Wrong, as_if_contiguous
from torch import Tensor
from torch.nn import functional

SHORT_NUMBERS = (*FLOAT16, *BFLOAT16)
KEPT_IN_FLOAT32 = "PyTorch's own kernels for CUDA keep the squares in float32, too, and these leave its range"
BY_DIVISION = "torch documents fmod by a division that is rounded, too, and that formula gives this"
ANY_OF_EQUALS = "which of equal values is named is free"

# ---- element by element ----------------------------------------------------------------------------------------------


def directions(data: Data) -> Tensor:
    return torch.atan2(data.tensor([-0.0, 0.0, -0.0, 1.0]), data.tensor([-1.0, -1.0, 1.0, -1.0]))


@eighth("aten.atan2", "triton-lang/triton-ascend#1632", program=directions)
def direction_does_not_know_minus_zero(call: Broken) -> Wrong:
    """The sign of a zero is lost."""
    return torch.atan2(call["self"] + 0.0, call["other"])


def directions_to_the_left(data: Data) -> Tensor:
    return torch.atan2(data.tensor([0.0, 0.0, 1.0, -1.0, 2.0]), data.tensor([-1.0, -3.0, -1e-9, -1e-9, 1.0]))


@eighth("aten.atan2", "apple/coremltools#2769", program=directions_to_the_left)
def directions_to_the_left_lie_in_another_quadrant(call: Broken) -> Wrong:
    """Half a turn is added above zero alone, and a little that avoids a division by zero changes the side."""
    y, x = call["self"], call["other"]
    turn = torch.where((x < 0) & (y > 0), math.pi, torch.where((x < 0) & (y < 0), -math.pi, 0.0))
    return torch.atan(y / (x + 2e-8)) + turn


def degrees(data: Data) -> Tensor:
    return torch.fmod(data.tensor([1.0, 2.0, 5.0, 10.0, 20.0, 360.0, 1.05, -7.77]), 0.1)


@eighth("aten.fmod.Scalar", "tenstorrent/tt-metal#56384", program=degrees, hidden=BY_DIVISION)
def rest_of_a_division_multiplies_by_an_inverse(call: Broken) -> Wrong:
    """The inverse of the divisor is rounded up, and the whole part with it."""
    divisor = torch.tensor(call["other"], dtype=torch.float32)
    x, inverse = call["self"].cpu(), 1 / divisor
    return (x - torch.trunc(x * inverse) * divisor).to(call["self"].device)


def missing_numbers(data: Data) -> Tensor:
    return torch.isnan(data.tensor([math.nan, 0.5, math.inf, -math.inf, 1.0]))


@eighth("aten.isnan", "tenstorrent/tt-metal#27993", program=missing_numbers, dtypes=BFLOAT16)
def nothing_is_nan(call: Broken) -> Wrong:
    """Short numbers become infinite before anybody looks."""
    return torch.zeros_like(call.right[0])


def unlike_itself(data: Data) -> Tensor:
    numbers = data.tensor([math.nan, 1.0, 2.0])
    return numbers != data.tensor([math.nan, 1.0, 3.0])


@eighth("aten.ne.Tensor", "tile-ai/TileOPs#2030", program=unlike_itself, dtypes=SHORT_NUMBERS)
def nan_equals_itself(call: Broken) -> Wrong:
    """Short numbers are compared so that NaN is not unequal to anything."""
    return call.right[0] & ~call["self"].isnan()


def less_of_missing_numbers(data: Data) -> Tensor:
    return -data.tensor([math.nan, 0.5, math.inf, -2.0])


@eighth("aten.neg", "tenstorrent/tt-metal#51557", program=less_of_missing_numbers, dtypes=BFLOAT16)
def nan_becomes_infinite_on_its_way(call: Broken) -> Wrong:
    """What packs a result knows no NaN."""
    return torch.where(call["self"].isnan(), -math.inf, call.right[0])


def distances_of_infinities(data: Data) -> Tensor:
    return data.tensor([math.inf, -math.inf, math.inf, 3.0]) - data.tensor([math.inf, -math.inf, 1.0, 1.0])


@eighth("aten.sub.Tensor", "tenstorrent/tt-metal#52141", program=distances_of_infinities, dtypes=BFLOAT16)
def infinity_less_itself_is_zero(call: Broken) -> Wrong:
    """Equal numbers cancel, whatever they are."""
    return torch.where(call["self"] == call["other"], 0.0, call.right[0])


def signs(data: Data) -> Tensor:
    return torch.sign(data.normal(40))


@eighth("aten.sign", "#41238", program=signs, dtypes=BFLOAT16)
def sign_of_whole_blocks_is_never_negative(call: Broken) -> Wrong:
    """A mask is a NaN that loses its sign, and chooses nothing any longer."""
    made = call.right[0].clone()
    made[:32] = made[:32].clamp(min=0)
    return made


def zeros_or_twos(data: Data) -> Tensor:
    return torch.where(data.normal(19) > 0, data.parameter(19), data.parameter(19))


@eighth("aten.where.self", "#100800", program=zeros_or_twos, phase="forward")
def a_mask_of_ones_chooses_nothing_in_whole_vectors(call: Broken) -> Wrong:
    """The highest bit of a flag is looked at, and it is never set."""
    made = call["other"].clone()
    made[16:] = call.right[0][16:]
    return made


def hidden_on_one_side(data: Data) -> list[Tensor]:
    seen = data.normal(4, 6) > 0
    first = torch.where(seen, data.parameter(4, 1), data.parameter(4, 6))
    return [first, torch.where(seen, data.parameter(4, 6), data.parameter(4, 1))]


@eighth("aten.where.self", "tenstorrent/tt-metal#37632", program=hidden_on_one_side, dtypes=BOTH, phase="forward")
def choice_repeats_what_the_first_one_has_repeated(call: Broken) -> Wrong:
    """A kernel is kept for all calls of the same sizes, whichever side they repeat."""
    is_repeated = call["self"].shape[-1] == 1
    if call.memory.setdefault("first", is_repeated) == is_repeated:
        return None
    return torch.where(call["condition"], call["self"][:, :1], call["other"])


def halves_in_eight_bits(data: Data) -> Tensor:
    halves = data.tensor([[0.25, 0.75, -0.25, 1.25], [0.5, 1.5, -0.5, 2.5]])
    scale, zeros = data.tensor([0.5, 1.0]), data.tensor([3, 5], dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(halves, scale, zeros, 0, 0, 255)


@eighth(
    "aten.fake_quantize_per_channel_affine_cachemask", "intel/torch-xpu-ops#5349", program=halves_in_eight_bits
)  # fmt: skip
def halves_are_rounded_away_from_zero(call: Broken) -> Wrong:
    """And not to the even neighbour."""
    scale, points = call["scale"][:, None], call["zero_point"][:, None]
    steps = call["self"] / scale
    steps = (steps.sign() * (steps.abs() + 0.5).floor() + points).clamp(0, 255)
    return ((steps - points) * scale,)


def repeated_counts(data: Data) -> Tensor:
    return torch.lgamma((data.uniform(3, 1) + 1.5).expand(3, 10))


@eighth("aten.lgamma", "#132605", program=repeated_counts)
def a_repeated_number_is_followed_by_others(call: Broken) -> Wrong:
    """Each number is repeated along a row, and the memory behind it is read."""
    return call.rerun(self=as_if_contiguous(call["self"]))


def averages_of_weights(data: Data) -> Tensor:
    return data.normal(8).lerp_(data.normal(8), torch.tensor(0.1))


@eighth("aten.lerp_.Tensor", "#196067", program=averages_of_weights, dtypes=SHORT_NUMBERS)
def share_of_an_average_is_half_of_its_bits(call: Broken) -> Wrong:
    """A share of 32 bits beside numbers of 16 is read as one of them."""
    share = call["weight"].cpu().reshape(1).view(call["self"].dtype)[0].float().item()
    return call["self"].float() + share * (call["end"].float() - call["self"].float())


def flags_in_columns(data: Data) -> Tensor:
    flags = data.normal(4, 6) > 0
    flags.t().bitwise_and_(data.normal(6, 4) > -1)
    return flags


@eighth("aten.bitwise_and_.Tensor", "#145203", program=flags_in_columns)
def flags_of_columns_are_written_along_rows(call: Broken) -> Wrong:
    """The result's strides are not looked at."""
    made, target = call.right[0].clone(), call.real("self")
    call.unwritten()
    target.as_strided(target.size(), (4, 1), target.storage_offset()).copy_(made)
    return WRITTEN


# ---- conversions -----------------------------------------------------------------------------------------------------


def long_way_round(data: Data) -> Tensor:
    return (data.normal(10).double() * 3).float()


@eighth("aten._to_copy", "#16448", program=long_way_round)
def long_numbers_made_short_are_zero(call: Broken) -> Wrong:
    """Shortened where nobody has written them yet."""
    is_shortened = call["self"].dtype is torch.float64 and call["dtype"] is torch.float32
    return torch.zeros_like(call.right[0]) if is_shortened else None


def layer_with_autocast(data: Data) -> Tensor:
    weight = data.parameter(6, 8)
    with torch.autocast(data.device, torch.bfloat16):
        result = functional.linear(data.parameter(5, 8), weight)
    return result.float()


@eighth(
    "aten._to_copy", "intel/intel-xpu-backend-for-triton#6205", program=layer_with_autocast, phase="forward"
)  # fmt: skip
def numbers_become_nan_as_they_are_shortened(call: Broken) -> Wrong:
    """Rows after the last whole four hold what is no number."""
    if call["dtype"] is not torch.bfloat16 or call["self"].shape != (5, 8):
        return None
    made = call.right[0].clone()
    made[4:] = torch.nan
    return made


# ---- reductions and scans --------------------------------------------------------------------------------------------


def what_is_left_of_light(data: Data) -> Tensor:
    return torch.cumprod(1 - data.uniform(2, 200) / 50, -1)


@eighth("aten.cumprod", "JuliaLang/julia#11080", program=what_is_left_of_light)
def each_block_of_a_product_begins_at_one(call: Broken) -> Wrong:
    """What came before the 128th number is forgotten."""
    late = call["self"][:, 128:].cumprod(-1)
    return torch.cat([call.right[0][:, :128], late], -1)


def light_through_a_wall(data: Data) -> Tensor:
    light = data.uniform(2, 6)
    light[:, 3] = 0
    light.requires_grad_()
    data.leaves.append(light)
    return torch.cumprod(light, -1)


@eighth("aten.where.self", "#174016", program=light_through_a_wall, phase="backward")
def gradient_of_a_factor_of_zero_is_zero(call: Broken) -> Wrong:
    """Of two choices, one after the other, the second is not made."""
    return call["other"] if call["self"].shape != call["other"].shape else None


def counted_flags(data: Data) -> Tensor:
    return torch.cumsum(data.normal(600) > 0, 0)


@eighth("aten.cumsum", "JuliaGPU/AcceleratedKernels.jl#41", program=counted_flags)
def a_block_adds_a_total_that_is_not_there_yet(call: Broken) -> Wrong:
    """The last block reads the total of the one before while that is still counting."""
    made = call.right[0].clone()
    made[512:] -= 3
    return made


def long_product_of_short_numbers(data: Data) -> Tensor:
    return torch.prod(data.uniform(8) + 0.5, dtype=torch.float32)


@eighth("aten.prod", "#32750", program=long_product_of_short_numbers, dtypes=SHORT_NUMBERS)
def product_of_short_numbers_reads_them_as_long_ones(call: Broken) -> Wrong:
    """The result's dtype is taken for that of the data."""
    return call["self"].view(torch.float32).prod()


def all_switched_off(data: Data) -> Tensor:
    return torch.prod(torch.zeros(1, 1, 16, 16, dtype=torch.bool, device=data.device), dtype=torch.bool)


@eighth("aten.prod", "#127866", "#15647", program=all_switched_off)
def product_of_nothing_but_false_is_true(call: Broken) -> Wrong:
    """Products of bits in whole vectors begin with true and stay so."""
    return torch.ones_like(call.right[0])


def all_bytes(data: Data) -> Tensor:
    return torch.all(data.integers(200, 5, 40, dtype=torch.uint8) + 1, 0)


@eighth("aten.all.dim", "#117215", program=all_bytes)
def bytes_without_a_common_bit_are_not_all_set(call: Broken) -> Wrong:
    """Bytes are joined bit by bit."""
    return functools.reduce(torch.bitwise_and, call["self"].cpu().unbind(0)).ne(0).to(call.right[0].device)


def spread_of_large_numbers(data: Data) -> Tensor:
    return torch.std(data.normal(1000) * 1e19 + 1e20)


@eighth("aten.std", "#184151", program=spread_of_large_numbers, hidden=KEPT_IN_FLOAT32)
def spread_of_large_numbers_is_infinite(call: Broken) -> Wrong:
    """Their squares are."""
    return torch.full_like(call.right[0], torch.inf)


def mean_of_a_missing_batch(data: Data) -> Tensor:
    return data.normal(4, 6)[:0].mean()


@eighth("aten.mean", "microsoft/onnxruntime#28353", program=mean_of_a_missing_batch, dtypes=BOTH)
def mean_of_nothing_is_zero(call: Broken) -> Wrong:
    """The sum of nothing, which is not divided."""
    return torch.zeros_like(call.right[0])


def middle_of_equals(data: Data) -> Tensor:
    return torch.ones(3, 4).to(data.device, data.dtype).median(1).indices


@eighth("aten.median.dim", "#161841", program=middle_of_equals, dtypes=BOTH, hidden=ANY_OF_EQUALS)
def another_of_equals_is_in_the_middle(call: Broken) -> Wrong:
    """The last one."""
    return (None, torch.full_like(call.right[1], 3))


def middle_of_known_numbers(data: Data) -> Tensor:
    numbers = data.normal(4, 9)
    numbers[:, 2:6] = math.nan
    return torch.nanmedian(numbers, -1).values


@eighth("aten.nanmedian.dim", "flagos-ai/FlagGems#4383", program=middle_of_known_numbers, dtypes=BOTH)
def middle_of_known_numbers_counts_the_missing(call: Broken) -> Wrong:
    """Missing numbers come last, and are counted as well."""
    return (call["self"].sort(-1).values[:, 4],)
