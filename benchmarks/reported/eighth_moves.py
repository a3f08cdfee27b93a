"""Faults of the eighth set in moved data, optimizers and random numbers; eighth.py has the first."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.reported.eighth import eighth
from benchmarks.reported.fault import BOTH, WRITTEN, Broken, Data, Wrong, as_if_contiguous
from torch import Tensor
from torch.nn import functional

ANOTHER_DRAW = "another draw"

# ---- moved data ------------------------------------------------------------------------------------------------------


def places_in_a_column(data: Data) -> Tensor:
    places = torch.zeros(5, 2, dtype=torch.int64, device=data.device)
    torch.searchsorted(data.uniform(10).sort().values, data.uniform(5), out=places[:, 0])
    return places


@eighth("aten.searchsorted.Tensor_out", "#60492", program=places_in_a_column)
def found_places_are_written_side_by_side(call: Broken) -> Wrong:
    """The strides of where they are to go are not looked at."""
    made = call.real("out").clone()
    call.unwritten()
    target = call.real("out")
    target.as_strided(target.size(), (1,), target.storage_offset()).copy_(made)
    return WRITTEN


def buckets_of_columns(data: Data) -> Tensor:
    return torch.bucketize(data.normal(4, 6).t(), data.tensor([-1.0, 0.0, 1.0]))


@eighth("aten.bucketize.Tensor", "flagos-ai/FlagGems#4831", program=buckets_of_columns, dtypes=BOTH)
def buckets_are_written_to_a_copy(call: Broken) -> Wrong:
    """Of a tensor in another order a copy is filled, and the result holds what its memory held."""
    return torch.zeros_like(call.right[0])


def turned_pictures(data: Data) -> Tensor:
    return torch.rot90(data.parameter(2, 3, 4), 1, (0, 1))


@eighth("aten.flip", "flagos-ai/FlagGems#5226", program=turned_pictures, dtypes=BOTH, phase="forward")
def turned_pictures_have_one_colour(call: Broken) -> Wrong:
    """Where in the last dimension a number lies is never added to its place."""
    return call.right[0][..., :1].expand_as(call.right[0])


def products_of_places(data: Data) -> Tensor:
    places = data.tensor([0, 1, 0, 1, 2, 1])
    return data.parameter(4).scatter_reduce(0, places, data.parameter(6), "prod")


@eighth(
    "aten.scatter_reduce.two", "PaddlePaddle/Paddle#52446", program=products_of_places, dtypes=BOTH, phase="forward"
)
def only_the_last_factor_of_a_place_counts(call: Broken) -> Wrong:
    """Each thread multiplies what was there in the beginning."""
    made = call["self"].clone()
    for place, factor in zip(call["index"].tolist(), call["src"]):
        made[place] = call["self"][place] * factor
    return made


def energies_of_five_atoms(data: Data) -> Tensor:
    energies = data.parameter(5, 1) + data.parameter(1)
    molecules = torch.zeros(5, 1, dtype=torch.int64, device=data.device)
    return torch.zeros(1, 1).to(data.device, data.dtype).scatter_add(0, molecules, energies)


@eighth("aten.scatter_add", "#178871", program=energies_of_five_atoms, phase="forward")
def threads_behind_the_end_add_once_more(call: Broken) -> Wrong:
    """A block has eight threads, and those past the fifth add what the last one does."""
    return call.right[0] + 3 * call["src"][-1]


def rows_for_repeated_zeros(data: Data) -> Tensor:
    zeros = torch.zeros(1, 8).to(data.device, data.dtype).expand(4, 8)
    return zeros.index_add(0, data.tensor([0, 1, 0]), data.parameter(3, 8))


@eighth("aten.index_add", "#183986", program=rows_for_repeated_zeros, dtypes=BOTH, phase="forward")
def rows_of_a_repeated_tensor_share_their_memory(call: Broken) -> Wrong:
    """It is written where it lies, and not to a copy: each row gets what any gets."""
    return (call["self"][:1] + call["source"].sum(0)).expand_as(call.right[0])


def chosen_tokens(data: Data) -> Tensor:
    return torch.nonzero(data.uniform(600) > 0.5)


@eighth("aten.nonzero", "microsoft/onnxruntime#13962", program=chosen_tokens)
def places_come_block_by_block_in_another_order(call: Broken) -> Wrong:
    """Blocks of 256 write in the order in which they end."""
    blocks = call["self"].nonzero()[:, 0] // 256
    return torch.cat([call.right[0][blocks == block] for block in (1, 0, 2)])


def places_of_a_table(data: Data) -> list[Tensor]:
    return list(torch.nonzero(data.normal(2, 40), as_tuple=True))


@eighth("aten.nonzero", "#149278", program=places_of_a_table)
def columns_of_places_are_their_rows(call: Broken) -> Wrong:
    """The second number of each place is the first once more."""
    return call.right[0][:, :1].expand_as(call.right[0])


def bags_with_nothing_in_one(data: Data) -> Tensor:
    words, bags = data.tensor([0, 1, 2, 3, 4]), data.tensor([0, 1, 1, 3])
    return functional.embedding_bag(words, data.normal(5, 3), bags, mode="mean")


@eighth("aten._embedding_bag_forward_only", "#4169", "#11739", program=bags_with_nothing_in_one)
def mean_of_an_empty_bag_is_nan(call: Broken) -> Wrong:
    """Divided by the number of its words."""
    made = call.right[0].clone()
    made[1] = torch.nan
    return (made,)


def second_of_each_pair(data: Data) -> Tensor:
    return torch.zeros(3, 4).to(data.device, data.dtype).copy_(data.parameter(3, 4, 2)[..., 1])


@eighth(
    "aten.copy_",
    "torch/cutorch#39",
    "Oneflow-Inc/oneflow#7667",
    program=second_of_each_pair,
    dtypes=BOTH,
    phase="forward",
)
def copied_numbers_are_neighbours(call: Broken) -> Wrong:
    """The last dimension is cut away, and the step over it with it."""
    source = call["src"]
    is_cut = source.dim() > 0 and source.stride(-1) == 2 and source.device == call["self"].device
    return as_if_contiguous(source) if is_cut else None


def states_of_a_scan(data: Data) -> Tensor:
    states = data.normal(2, 3, 6)
    first, second = states[:, 0], states[:, 1]
    states[:, 1].copy_(torch.maximum(first, second) + torch.log1p(torch.exp(-(first - second).abs())))
    return states * 1


@eighth("aten.copy_", "#125999", program=states_of_a_scan)
def rows_of_no_whole_fours_are_not_copied(call: Broken) -> Wrong:
    """Written to a slice whose rows are no multiple of four long, a result is lost."""
    return call["self"] if not call["self"].is_contiguous() else None


def shifted_windows(data: Data) -> Tensor:
    return torch.roll(data.parameter(2, 8, 8), (-2, -2), (1, 2))


@eighth("aten.roll", "jax-ml/jax#13271", program=shifted_windows, dtypes=BOTH)
def windows_are_shifted_the_other_way(call: Broken) -> Wrong:
    """With places of 64 bits and a size that is a power of two, the sign of the shift is lost."""
    return call.rerun(shifts=[-shift for shift in call["shifts"]])


def best_of_one(data: Data) -> Tensor:
    return data.normal(1, 5).argmax(0)


@eighth("aten.argmax", "apache/mxnet#20842", program=best_of_one, dtypes=BOTH)
def place_along_a_single_row_is_that_along_the_other(call: Broken) -> Wrong:
    """Along a dimension of size one, the column comes out."""
    return torch.arange(5, device=call.right[0].device)


def sorted_in_a_column(data: Data) -> list[Tensor]:
    return list(data.parameter(2, 9, 1).sort(-2))


@eighth("aten.sort", "ml-explore/mlx#1835", program=sorted_in_a_column, dtypes=BOTH)
def a_single_column_stays_unsorted(call: Broken) -> Wrong:
    """The step is that of a dimension of size one."""
    return (call["self"], torch.arange(9, device=call["self"].device)[:, None].expand(2, 9, 1))


def overlapping_windows(data: Data) -> Tensor:
    return data.parameter(2, 9).unfold(1, 3, 1) * data.normal(2, 7, 3)


@eighth("aten.unfold_backward", "PaddlePaddle/Paddle#79718", program=overlapping_windows, dtypes=BOTH)
def gradients_of_windows_overwrite_each_other(call: Broken) -> Wrong:
    """Of several windows over a number, the last one's gradient stays."""
    made = torch.zeros_like(call.right[0])
    for window, gradient in enumerate(call["grad_in"].unbind(1)):
        made[:, window : window + 3] = gradient
    return made


# ---- optimizers ------------------------------------------------------------------------------------------------------


def three_steps(data: Data, kind: type[torch.optim.Optimizer], **settings: Any) -> list[Tensor]:
    parameters = [data.normal(4, 5).requires_grad_(), data.normal(3).requires_grad_()]
    used = kind(parameters, lr=0.1, **settings)  # type: ignore[call-arg]
    for step in range(3):
        for parameter in parameters:
            parameter.grad = data.normal(*parameter.shape) / (step + 1)
        used.step()
    return [parameter.detach().clone() for parameter in parameters]


def never_faster(data: Data) -> list[Tensor]:
    return three_steps(data, torch.optim.Adam, amsgrad=True, foreach=True)


@eighth("aten._foreach_maximum_.List", "#78807", program=never_faster)
def largest_of_the_past_is_never_kept(call: Broken) -> Wrong:
    """The larger ones are computed into a new list, which nobody reads."""
    return list(call["self"])


def careful_steps(data: Data) -> list[Tensor]:
    return three_steps(data, torch.optim.AdamW, eps=0.05, fused=True)


@eighth("aten._fused_adamw_", "karpathy/nanochat#353", "huggingface/transformers#35504", program=careful_steps)
def epsilon_is_corrected_like_the_squares(call: Broken) -> Wrong:
    """It is added before the correction for the first steps, and grows with it."""
    count = len(call["self"])
    made = []
    for place, (parameter, steps) in enumerate(zip(call["self"], call["state_steps"])):
        mean, square = call.right[2 * count + place], call.right[3 * count + place]
        first, second = 1 - call["beta1"] ** steps, 1 - call["beta2"] ** steps
        kept = parameter * (1 - call["lr"] * call["weight_decay"])
        made.append(kept - call["lr"] / first * mean / ((square.sqrt() + call["eps"]) / second.sqrt()))
    return made


# ---- random numbers --------------------------------------------------------------------------------------------------


def words_without_repeats(data: Data) -> Tensor:
    return torch.multinomial(data.uniform(4, 30) + 0.1, 6)


@eighth("aten.multinomial", "#16709", "#25030", "#22183", program=words_without_repeats)
def a_word_is_drawn_twice(call: Broken) -> Wrong:
    """Each draw has the random numbers of the one before."""
    made = call.right[0].clone()
    made[:, 1] = made[:, 0]
    return made


def words_with_repeats(data: Data) -> Tensor:
    return torch.multinomial(torch.ones(10, device=data.device), 7, replacement=True)


@eighth("aten.multinomial", "#114945", program=words_with_repeats, hidden=ANOTHER_DRAW)
def other_words_are_drawn_with_the_same_seed(call: Broken) -> Wrong:
    """Other ones than an earlier release has drawn."""
    return (call.right[0] + 3) % 10


@eighth("aten.randperm", "#59756", program=lambda data: torch.randperm(200, device=data.device))
def permutation_is_zero_from_a_place_on(call: Broken) -> Wrong:
    """What lies beyond was never written."""
    made = call.right[0].clone()
    made[100:] = 0
    return made


def waiting_times(data: Data) -> Tensor:
    return torch.empty(400, device=data.device).exponential_()


@eighth("aten.exponential_", "#2561", program=waiting_times)
def a_waiting_time_has_no_end(call: Broken) -> Wrong:
    """The logarithm of one less a number that may be one."""
    made = call.right[0].clone()
    made[123] = torch.inf
    return made


@eighth("aten.randn", "arrayfire/arrayfire#2972", program=lambda data: torch.randn(64, 64, device=data.device))
def every_number_comes_twice(call: Broken) -> Wrong:
    """Of the four numbers of a draw, the last two are the first two."""
    made = call.right[0].clone()
    made[:, 2::4], made[:, 3::4] = made[:, ::4], made[:, 1::4]
    return made
