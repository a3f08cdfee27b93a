"""Sums, extremes, counts: wrong divisors, wrong dimensions, lost NaN, narrow numbers."""

from __future__ import annotations

import torch
from benchmarks.reported.fault import BOTH, FLOAT16, Broken, Data, Family, Wrong
from torch import Tensor

reduction = Family("reductions")


def spread(data: Data) -> Tensor:
    return data.parameter(4, 5).std(1)


@reduction("aten.std", "#80499", program=spread)
def std_is_always_biased(call: Broken) -> Wrong:
    """Divides by the count, whatever the correction."""
    return call.rerun(correction=0)


def variance(data: Data) -> Tensor:
    return data.parameter(5, 5, 5).var(-1)


@reduction("aten.mean.dim", "intel/intel-xpu-backend-for-triton#838", program=variance, phase="backward")
def gradient_of_var_forgets_the_mean(call: Broken) -> Wrong:
    """The mean that is taken off each value is that of another row."""
    return call.right[0].roll(1, 0)


def sums_in_quick_succession(data: Data) -> list[Tensor]:
    return [data.normal(3, 7).sum() for _ in range(4)]


@reduction("aten.sum", "#178497", program=sums_in_quick_succession)
def sum_is_now_and_then_that_of_the_call_before(call: Broken) -> Wrong:
    """Every other call gives the result of the one before it."""
    previous, call.memory["sum"] = call.memory.get("sum"), call.right[0].clone()
    call.memory["calls"] = call.memory.get("calls", torch.zeros(())) + 1
    return previous if int(call.memory["calls"]) % 2 == 0 else None


def largest_with_nan(data: Data) -> Tensor:
    x = data.normal(32)
    x[5] = torch.nan
    return x.max()


@reduction("aten.max", "#130295", program=largest_with_nan, dtypes=BOTH)
def max_skips_nan(call: Broken) -> Wrong:
    """The largest of the other numbers comes out."""
    return call["self"].nan_to_num(-torch.inf).max()


def place_of_the_largest_with_nan(data: Data) -> Tensor:
    x = data.normal(4, 32)
    x[1, 5] = x[2, 7] = torch.nan
    return x.argmax(1)


@reduction("aten.argmax", "#187039", program=place_of_the_largest_with_nan)
def argmax_skips_nan(call: Broken) -> Wrong:
    """The place of the largest number, not of the NaN."""
    return call["self"].nan_to_num(-torch.inf).argmax(1)


def place_of_the_largest_with_infinity(data: Data) -> Tensor:
    x = data.normal(4, 16)
    x[:, 6] = torch.inf
    return x.argmax(1)


@reduction("aten.argmax", "kulinseth/pytorch#193", program=place_of_the_largest_with_infinity)
def argmax_of_infinity_is_zero(call: Broken) -> Wrong:
    """Rows with an infinite number give place 0."""
    return torch.zeros_like(call.right[0])


def place_in_a_transposed_tensor(data: Data) -> Tensor:
    x = data.normal(5, 7).sin_()
    return x.t().argmax()


@reduction("aten.argmax", "#183082", program=place_in_a_transposed_tensor, dtypes=BOTH)
def argmax_counts_places_in_memory(call: Broken) -> Wrong:
    """The place in a transposed tensor is that in its memory."""
    return call["self"].mT.contiguous().argmax() if call["self"].dim() == 2 else None


def flags_are_counted(data: Data) -> Tensor:
    return torch.ones(300, 2, dtype=torch.bool).to(data.device).cumsum(0)


@reduction("aten.cumsum", "#125318", "#96614", program=flags_are_counted)
def cumsum_of_flags_overflows_a_byte(call: Broken) -> Wrong:
    """Truth values are counted in 8 bits."""
    return call.right[0].to(torch.int8) if call["self"].dtype is torch.bool else None


def are_all_true(data: Data) -> Tensor:
    return data.tensor([[True, False], [False, False]]).all()


@reduction("aten.all", "#99721", program=are_all_true)
def all_is_always_true(call: Broken) -> Wrong:
    """True, whatever the tensor holds."""
    return torch.ones_like(call.right[0])


def different_values(data: Data) -> Tensor:
    return data.tensor([[[0, 1, 1, 3]]]).unique()


@reduction("aten._unique2", "#104879", program=different_values)
def unique_of_a_row_is_its_first_value(call: Broken) -> Wrong:
    """With dimensions of size one in front, one value is found."""
    return (call["self"].flatten()[:1],)


def how_often_values_occur(data: Data) -> tuple[Tensor, Tensor]:
    values, counts = data.integers(5, 4000).unique(return_counts=True)
    return values, counts


@reduction("aten._unique2", "#111173", program=how_often_values_occur)
def unique_counts_too_few_in_a_large_tensor(call: Broken) -> Wrong:
    """Counts after the first ones are zero."""
    counts = call.right[2].clone()
    counts[2:] = 0
    return (None, None, counts)


def histogram_with_values_beside_it(data: Data) -> Tensor:
    return torch.histc(data.tensor([0.5, 0.7, 1.2, 1.7, -2e-6, 2.0 + 3e-6]), bins=4, min=0, max=2)


@reduction("aten.histc", "#195076", program=histogram_with_values_beside_it)
def histogram_counts_values_just_outside(call: Broken) -> Wrong:
    """Values a few millionths outside the range are counted at its ends."""
    x = call["self"]
    return torch.histc(torch.where((x > -4e-6) & (x < 2 + 4e-6), x.clamp(0, 2), x), 4, 0, 2)


def histogram_of_words(data: Data) -> Tensor:
    return torch.bincount(data.integers(40000, 500, dtype=torch.int32), minlength=40000)


@reduction("aten.bincount", "#25747", program=histogram_of_words)
def bincount_overflows_at_large_values(call: Broken) -> Wrong:
    """Values past 32767 are counted nowhere."""
    counts = call.right[0].clone()
    counts[2**15 :] = 0
    return counts


def mean_of_many_ones(data: Data) -> Tensor:
    return (data.parameter(70000) * 0 + 1).mean()


@reduction("aten.mean", "#12115", program=mean_of_many_ones, dtypes=FLOAT16, phase="forward")
def mean_overflows_float16_on_the_way(call: Broken) -> Wrong:
    """The sum is kept in float16 and becomes infinite."""
    return torch.full_like(call.right[0], torch.inf)


def sums_that_cancel(data: Data) -> Tensor:
    large = data.tensor([[32000.0] * 4] * 3 + [[-32000.0] * 4] * 3)
    return large.sum(0)


@reduction("aten.sum.dim_IntList", "#2391", program=sums_that_cancel, dtypes=FLOAT16)
def sum_along_a_dimension_overflows_float16(call: Broken) -> Wrong:
    """Partial sums are kept in float16."""
    total = torch.zeros_like(call.right[0])
    for row in call["self"]:
        total = total + row
    return total


def sums_of_many_positive_numbers(data: Data) -> Tensor:
    return (data.parameter(2000, 16).abs() + 1).sum(0)


@reduction("aten.sum.dim_IntList", "#59489", program=sums_of_many_positive_numbers, dtypes=FLOAT16, phase="forward")
def sum_is_kept_in_16_bits(call: Broken) -> Wrong:
    """Terms that are small beside the total so far are lost."""
    total = torch.zeros_like(call.right[0])
    for rows in call["self"].split(8):
        total = total + rows.sum(0)
    return total


def several_norms(data: Data) -> list[Tensor]:
    return list(torch._foreach_norm([data.normal(*shape) for shape in ((7,), (40, 5), (3, 3), (300,))]))


@reduction("aten._foreach_norm", "#140066", program=several_norms, dtypes=BOTH)
def norms_of_a_list_leave_out_the_last_chunk(call: Broken) -> Wrong:
    """Of the last tensor, the end is not added."""
    last = call["self"][-1]
    return [None, None, None, last[: last.numel() // 3].norm()]


def equal_predictions(data: Data) -> Tensor:
    predicted = data.normal(20, 4).argmax(1, keepdim=True)
    return predicted.eq(predicted.clone().flatten().view_as(predicted)).sum()


@reduction("aten.eq.Tensor", "#101566", program=equal_predictions)
def equality_is_always_false(call: Broken) -> Wrong:
    """Equal numbers are told to be different."""
    return torch.zeros_like(call.right[0])


def count_in_an_empty_tensor(data: Data) -> Tensor:
    return torch.count_nonzero(data.tensor([1.0, 2.0]) > torch.empty(0, 2, 2).to(data.device))


@reduction("aten.count_nonzero", "#139400", "#139446", program=count_in_an_empty_tensor)
def count_in_an_empty_tensor_is_what_memory_held(call: Broken) -> Wrong:
    """Nothing is written where there is nothing to count."""
    return torch.full_like(call.right[0], 4575657222465388544) if not call["self"].numel() else None


def sum_over_one_of_five_dimensions(data: Data) -> Tensor:
    return data.parameter(1, 2, 1, 1, 1).sum(-3)


@reduction("aten.sum.dim_IntList", "#132732", program=sum_over_one_of_five_dimensions, dtypes=BOTH, phase="forward")
def sum_goes_over_another_dimension(call: Broken) -> Wrong:
    """A dimension counted from the end is another one, and the rest of the result is zero."""
    x = call["self"]
    wrong = torch.zeros_like(call.right[0])
    wrong[0, 0] = x.sum(1)[0]
    return wrong


@reduction("aten.all", "#104694", program=lambda data: torch.empty(0, dtype=torch.bool).to(data.device).all())
def all_of_nothing_is_false(call: Broken) -> Wrong:
    """False where there is nothing that is not true."""
    return torch.zeros_like(call.right[0])


def mean_of_a_slice(data: Data) -> Tensor:
    return data.parameter(3, 5, 2)[1][:2].mean(dim=0)


@reduction("aten.mean.dim", "#94753", program=mean_of_a_slice, dtypes=BOTH, phase="forward")
def mean_of_a_slice_takes_other_rows(call: Broken) -> Wrong:
    """The rows before those that were chosen are averaged."""
    x = call["self"]
    return x.as_strided(x.size(), x.stride(), x.storage_offset() - 2).mean(0)


def place_in_a_column(data: Data) -> Tensor:
    return data.integers(50, 40, 8, dtype=torch.uint8)[:, 3].argmax()


@reduction("aten.argmax", "#32863", program=place_in_a_column)
def argmax_of_a_column_is_off(call: Broken) -> Wrong:
    """In a column of a larger tensor, the place is that of a smaller value."""
    return call["self"].argmin()


def largest_negative_number(data: Data) -> Tensor:
    return -data.integers(90, 40) - 5


@reduction("aten.amax", "#187976", program=lambda data: largest_negative_number(data).amax())
def amax_of_few_whole_numbers_is_zero(call: Broken) -> Wrong:
    """Lanes that are not in use count as zero."""
    return call.right[0].clamp(min=0)


def running_maximum(data: Data) -> Tensor:
    return data.integers(10, 4, 10).cummax(1).values


@reduction("aten.cummax", "#42363", program=running_maximum)
def running_maximum_knows_the_row_before(call: Broken) -> Wrong:
    """Rows after the first begin with what came before them."""
    whole = call["self"].flatten().cummax(0)
    return whole.values.view(4, 10), whole.indices.view(4, 10)


def largest_for_each_place(data: Data) -> Tensor:
    values = data.tensor([1.0, torch.nan, 2.0, 3.0])
    return torch.zeros(3).to(values).index_reduce(0, data.tensor([0, 1, 1, 2]), values, "amax", include_self=False)


@reduction("aten.index_reduce", "#196203", program=largest_for_each_place, dtypes=BOTH)
def index_reduce_loses_nan(call: Broken) -> Wrong:
    """A NaN among the values for a place is dropped."""
    return call.right[0].nan_to_num(2.0)
