"""Gathering and scattering: lost updates, wrong places, wrong counts."""

from __future__ import annotations

import torch
from benchmarks.reported.fault import BOTH, WRITTEN, Broken, Data, Family, Wrong
from torch import Tensor
from torch.nn import functional

index = Family("indexing")


def last_of_each(indices: Tensor, values: Tensor, target: Tensor) -> Tensor:
    """The target plus, for each place, only the last of the values that belong there."""
    total = target.clone()
    for place, value in zip(indices.flatten().tolist(), values):
        total[place] = target[place] + value
    return total


def repeated_places(data: Data) -> Tensor:
    cache, rows = data.normal(8, 6), data.normal(4, 6)
    return cache.index_put_((data.tensor([1, 5, 2, 1]),), rows, accumulate=True) + 0


@index("aten.index_put_", "torch-spyre/torch-spyre#4411", program=repeated_places, dtypes=BOTH)
def index_put_loses_updates_of_a_repeated_place(call: Broken) -> Wrong:
    """Of several values for one place, the last is added alone."""
    return last_of_each(call["indices"][0], call["values"], call["self"])


def combined_experts(data: Data) -> Tensor:
    return torch.zeros(6, 5).to(data.device, data.dtype).index_add(0, data.integers(6, 18), data.parameter(18, 5))


@index("aten.index_add", "torch-spyre/torch-spyre#3638", program=combined_experts, dtypes=BOTH)
def index_add_loses_updates_of_a_repeated_place(call: Broken) -> Wrong:
    """Of several rows for one place, the last is added alone."""
    return last_of_each(call["index"], call["source"], call["self"])


def scaled_rows(data: Data) -> Tensor:
    return data.normal(10, 8).index_add(0, data.integers(10, 40), data.parameter(40, 8), alpha=0.37)


@index("aten.index_add", "intel/torch-xpu-ops#3530", program=scaled_rows)
def index_add_rounds_what_it_adds(call: Broken) -> Wrong:
    """With a factor, each row is rounded to float16 on its way."""
    rounded = (call["source"] * call["alpha"]).half().float()
    return call["self"].index_add(0, call["index"], rounded)


def doubled_rows(data: Data) -> Tensor:
    rows = data.normal(4, 6)
    places = data.tensor([0, 2])
    rows[places] += rows[places]
    return rows * 2


@index("aten.index_put_", "#138908", program=doubled_rows, dtypes=BOTH)
def assignment_adds_to_what_is_there(call: Broken) -> Wrong:
    """Values are added where they should replace."""
    return call.rerun(accumulate=True)


def looked_up_words(data: Data) -> Tensor:
    table = data.parameter(10, 6)
    return functional.embedding(data.tensor([[0, 1, 1, 2], [0, 0, 9, 3]]), table, padding_idx=0)


@index("aten.embedding_dense_backward", "#26302", "#103023", "#28716", program=looked_up_words, dtypes=BOTH)
def padding_gets_a_gradient(call: Broken) -> Wrong:
    """The row of the padding word is trained like the others."""
    return call.rerun(padding_idx=-1)


def words_by_frequency(data: Data) -> Tensor:
    words = data.tensor([2, 5, 5, 5, 7, 7, 8, 9, 9])
    return functional.embedding(words, data.parameter(12, 4), scale_grad_by_freq=True)


@index("aten.embedding_dense_backward", "intel/torch-xpu-ops#3002", program=words_by_frequency, dtypes=BOTH)
def words_are_counted_in_the_wrong_group(call: Broken) -> Wrong:
    """The count of the next word divides a word's gradient."""
    words = call["indices"]
    counts = torch.bincount(words, minlength=12)
    shifted = torch.cat([counts[words.unique()][1:], counts[words.unique()][:1]])
    wrong = call.right[0].clone()
    wrong[words.unique()] *= (counts[words.unique()] / shifted)[:, None]
    return wrong


def chosen_elements(data: Data) -> Tensor:
    x = data.tensor([[1, 0, 2, 0, -100, -100], [1, 0, 2, 0, -100, -100]])
    return x[x >= 0]


@index("aten.index.Tensor", "#125100", program=chosen_elements)
def first_chosen_element_is_another(call: Broken) -> Wrong:
    """Of the elements that a mask chooses, the first comes from a wrong place."""
    wrong = call.right[0].clone()
    wrong[0] = call["self"].flatten()[-1]
    return wrong


def some_elements(data: Data) -> Tensor:
    x = data.normal(100)
    return x[x > 0.2] * 2


@index("aten.index.Tensor", "#181867", program=some_elements, dtypes=BOTH)
def too_few_elements_are_chosen(call: Broken) -> Wrong:
    """The result of a mask is shorter than the mask says."""
    return call.right[0][:-3].clone()


def places_of_nonzero_elements(data: Data) -> Tensor:
    return torch.nonzero(data.tensor([0, 1, 0, 3, 4, 0, 2, 2]))


@index("aten.nonzero", "intel/torch-xpu-ops#4396", program=places_of_nonzero_elements)
def nonzero_is_cut_short(call: Broken) -> Wrong:
    """The last places are missing."""
    return call.right[0][:2].clone()


def scatter_of_nothing(data: Data) -> Tensor:
    scores = data.uniform(1, 60)
    nothing = torch.empty(1, 0, dtype=torch.int64).to(data.device)
    return scores.scatter(1, nothing, scores.gather(1, nothing))


@index("aten.scatter", "intel/intel-extension-for-pytorch#682", program=scatter_of_nothing, dtypes=BOTH)
def scatter_of_nothing_is_zero(call: Broken) -> Wrong:
    """With no index the tensor is not copied, and the result is what the memory held."""
    return torch.zeros_like(call.right[0]) if not call["index"].numel() else None


def flags_at_an_odd_address(data: Data) -> Tensor:
    flags = torch.zeros(8, dtype=torch.bool).to(data.device)
    view = flags.narrow(0, 1, 4)
    view.index_put_((data.tensor([0, 2]),), torch.ones(2, dtype=torch.bool).to(data.device), accumulate=True)
    return flags.clone()


@index("aten.index_put_", "#195074", program=flags_at_an_odd_address)
def flags_are_written_at_the_beginning_of_a_word(call: Broken) -> Wrong:
    """Truth values land in front of the view that they belong to."""
    view = call.real("self")
    written = view.clone()
    call.unwritten()
    offset = view.storage_offset()
    view.as_strided(view.size(), (1,), offset - offset % 4).copy_(written)
    return WRITTEN


def largest_five(data: Data) -> Tensor:
    return data.parameter(3, 24).topk(5).values


@index("aten.topk", "intel/torch-xpu-ops#4604", program=largest_five, dtypes=BOTH)
def topk_misses_the_largest(call: Broken) -> Wrong:
    """A stale flag lets the search begin below the largest values."""
    order = call["self"].argsort(-1, descending=True)[..., 2:7]
    return call["self"].gather(-1, order), order


def repeated_rows(data: Data) -> Tensor:
    x = data.parameter(6, 4)
    return x[data.tensor([0, 3, 3, 1])] * 2


@index("aten._index_put_impl_", "pymc-devs/pytensor#2242", program=repeated_rows, dtypes=BOTH, phase="backward")
def gradient_of_indexing_loses_repeated_rows(call: Broken) -> Wrong:
    """A row that is used twice gets the gradient of its last use."""
    return last_of_each(call["indices"][0], call["values"], call["self"]) if call["accumulate"] else None
