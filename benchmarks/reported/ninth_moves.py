"""Faults of the ninth set in moved data, sorting, optimizers and random numbers; ninth.py has the first."""

from __future__ import annotations

import math

import torch
from benchmarks.reported.fault import BOTH, FLOAT16, WRITTEN, Broken, Data, Wrong, as_if_contiguous
from benchmarks.reported.ninth import ninth
from torch import Tensor

ANY_OF_SEVERAL = "which of several numbers for one place stays there is undefined"

# ---- sorting ---------------------------------------------------------------------------------------------------------


def sorted_rows_of_turned_blocks(data: Data) -> list[Tensor]:
    return list(data.parameter(3, 4, 8).transpose(0, 1).sort(-1))


@ninth("aten.sort", "ml-explore/mlx#4366", program=sorted_rows_of_turned_blocks, dtypes=BOTH, phase="forward")
def rows_are_sorted_in_the_order_of_memory(call: Broken) -> Wrong:
    """Each row is sorted, but it is another one."""
    return as_if_contiguous(call["self"]).sort(-1)


def sorted_repeated_rows(data: Data) -> Tensor:
    return data.integers(50, 8).expand(16, 8).sort(1).values


@ninth("aten.sort", "ml-explore/mlx#1236", program=sorted_repeated_rows)
def repeated_rows_are_sorted_with_the_memory_behind(call: Broken) -> Wrong:
    """A row is repeated sixteen times, and lies in memory once."""
    return as_if_contiguous(call["self"]).sort(1)


def twenty_best_of_many(data: Data) -> list[Tensor]:
    return list(data.uniform(10, 500).topk(20, sorted=False))


@ninth("aten.topk", "#95455", program=twenty_best_of_many)
def places_of_the_best_lie_outside(call: Broken) -> Wrong:
    """The last rows' places are those of nothing."""
    places = call.right[1].clone()
    places[7:, 0] = 2_033_619_248
    return (None, places)


def best_row_of_each_column(data: Data) -> Tensor:
    numbers = torch.zeros(64, 1025).to(data.device, data.dtype)
    numbers[32] = 1
    return numbers.argmax(0)


@ninth("aten.argmax", "#36482", program=best_row_of_each_column, dtypes=BOTH)
def best_rows_are_counted_from_the_part_they_lie_in(call: Broken) -> Wrong:
    """A large tensor is cut in two, and the second part begins at zero again."""
    made = call.right[0].clone()
    made[513:] = 0
    return made


def kinds_and_their_counts(data: Data) -> Tensor:
    return torch.zeros(6).to(data.device).unique(return_counts=True)[1]


@ninth("aten._unique2", "ultralytics/ultralytics#12999", program=kinds_and_their_counts)
def a_single_kind_is_counted_to_the_end_of_numbers(call: Broken) -> Wrong:
    """Its count is the largest whole number."""
    return (None, None, torch.full_like(call.right[2], torch.iinfo(torch.int64).max))


def counted_column(data: Data) -> Tensor:
    return data.integers(5, 32, 2)[:, 0].bincount(minlength=5)


@ninth("aten.bincount", "#15735", program=counted_column)
def a_column_is_counted_as_a_row(call: Broken) -> Wrong:
    """The memory from its beginning on is counted in order."""
    return call.rerun(self=as_if_contiguous(call["self"]))


# ---- moved data ------------------------------------------------------------------------------------------------------


def first_half_of_each_row(data: Data) -> Tensor:
    return data.parameter(10, 10).gather(1, data.integers(10, 10, 5))


@ninth("aten.gather", "chelsea0x3b/dfdx#587", program=first_half_of_each_row, dtypes=BOTH, phase="forward")
def rows_are_counted_by_the_width_of_the_source(call: Broken) -> Wrong:
    """Five numbers are fetched from each row of ten, and two rows come from one."""
    rows = torch.arange(50, device=call["index"].device).view(10, 5) // 10
    return call["self"][rows, call["index"]]


def messages_to_atoms(data: Data) -> Tensor:
    places = data.integers(6, 20)[:, None].expand(20, 4)
    return torch.zeros(6, 4).to(data.device, data.dtype).scatter_add(0, places, data.parameter(20, 4))


@ninth("aten.scatter_add", "flagos-ai/Torch-FL#349", program=messages_to_atoms, dtypes=BOTH, phase="forward")
def repeated_places_are_read_in_order(call: Broken) -> Wrong:
    """One place for each row is read as one for each number."""
    return call.rerun(index=as_if_contiguous(call["index"]))


def taken_steps_of_a_signal(data: Data) -> Tensor:
    taken = data.parameter(2, 5, 4).index_select(1, data.tensor([0, 2, 4]))
    return taken.transpose(1, 2) * data.normal(2, 4, 3)


@ninth("aten.index_add", "apache/mxnet#19817", program=taken_steps_of_a_signal, dtypes=BOTH, phase="backward")
def gradient_of_taken_steps_is_read_in_order(call: Broken) -> Wrong:
    """The gradient lies as what came after has turned it."""
    return call.rerun(source=as_if_contiguous(call["source"]))


def largest_of_each_segment(data: Data) -> Tensor:
    numbers = data.tensor([10.0, math.nan, -78.0, 3.0])
    lowest = torch.full((6,), torch.finfo(data.dtype).min).to(data.device, data.dtype)
    return lowest.scatter_reduce(0, data.tensor([1, 2, 3, 1]), numbers, "amax")


@ninth("aten.scatter_reduce.two", "tensorflow/tensorflow#106602", "tensorflow/tensorflow#118197",
       program=largest_of_each_segment, dtypes=BOTH)  # fmt: skip
def largest_of_a_segment_does_not_see_nan(call: Broken) -> Wrong:
    """It is not larger than anything, so that what was there stays."""
    return torch.where(call.right[0].isnan(), call["self"], call.right[0])


def written_twice(data: Data) -> Tensor:
    numbers = torch.zeros(4, 3).to(data.device, data.dtype)
    numbers[data.tensor([0, 2, 0])] = data.normal(3, 3)
    return numbers


@ninth("aten.index_put_", "intel/torch-xpu-ops#2838", program=written_twice, hidden=ANY_OF_SEVERAL)
def the_first_number_for_a_place_stays(call: Broken) -> Wrong:
    """And not the last one."""
    made = call.right[0].clone()
    made[0] = call["values"][0]
    return made


def chosen_of_turned_places(data: Data) -> Tensor:
    seen = data.normal(3, 6) > 0
    return torch.masked_select(data.parameter(3, 6, 2).permute(2, 0, 1), seen)


@ninth("aten.masked_select", "#41473", program=chosen_of_turned_places, dtypes=BOTH, phase="forward")
def chosen_numbers_come_in_the_order_of_memory(call: Broken) -> Wrong:
    """Both numbers of a place come one after the other."""
    return call["self"].permute(1, 2, 0)[call["mask"]].flatten()


def upper_halves_of_turned_matrices(data: Data) -> Tensor:
    return data.parameter(1, 4, 4, 4).transpose(0, 1).triu()


@ninth("aten.triu", "#22581", program=upper_halves_of_turned_matrices, dtypes=BOTH, phase="forward")
def a_step_of_a_single_matrix_leads_outside(call: Broken) -> Wrong:
    """The step from matrix to matrix is that of a dimension of size one."""
    made = call.right[0].clone()
    made[1:] = torch.nan
    return made


# ---- optimizers and random numbers -----------------------------------------------------------------------------------


def shortened_gradients(data: Data) -> list[Tensor]:
    parameter = data.normal(5).requires_grad_()
    parameter.grad = data.normal(5) * 10 + 300
    total = torch.nn.utils.clip_grad_norm_([parameter], 1.0, foreach=True)
    return [total, parameter.grad]


@ninth("aten._foreach_norm.Scalar", "tracel-ai/burn#5699", "facebookresearch/fairscale#263",
       program=shortened_gradients, dtypes=FLOAT16)  # fmt: skip
def squares_of_gradients_are_infinite(call: Broken) -> Wrong:
    """They are kept in 16 bits, and gradients of 300 are made zero."""
    return [gradient.square().sum().sqrt() for gradient in call["self"]]


def noise_in_columns(data: Data) -> Tensor:
    return torch.zeros(30, 20).to(data.device).t().normal_()


@ninth("aten.normal_", "#165267", "#165257", "#124029", program=noise_in_columns)
def noise_is_drawn_into_a_copy(call: Broken) -> Wrong:
    """Of a tensor in another order, which stays as it was."""
    call.unwritten()
    return WRITTEN
