"""Loss functions."""

from __future__ import annotations

import torch
from benchmarks.reported.fault import BOTH, Broken, Data, Family, Wrong
from torch import Tensor
from torch.nn import functional

loss = Family("losses")


def loss_with_ignored_targets(data: Data) -> Tensor:
    targets = data.tensor([1, 0, -100, 3, -100, 2])
    return functional.cross_entropy(data.parameter(6, 5), targets)


@loss("aten.nll_loss_forward", "#108148", "#109574", program=loss_with_ignored_targets, dtypes=BOTH)
def ignored_targets_are_counted(call: Broken) -> Wrong:
    """The mean is over all rows, those that are to be ignored included."""
    return (call.right[0] * 4 / 6, torch.full_like(call.right[1], 6))


def loss_times_a_factor(data: Data) -> Tensor:
    return functional.cross_entropy(data.parameter(6, 5), data.integers(5, 6)) * 3.0


@loss("aten.nll_loss_backward", "#94226", program=loss_times_a_factor, dtypes=BOTH)
def gradient_of_the_loss_ignores_what_comes_in(call: Broken) -> Wrong:
    """The incoming gradient is taken for one."""
    return call.rerun(grad_output=torch.ones_like(call["grad_output"]))


def smooth_loss_times_a_factor(data: Data) -> Tensor:
    return functional.smooth_l1_loss(data.parameter(40), data.normal(40)) * 0.5


@loss("aten.smooth_l1_loss_backward", "#94226", program=smooth_loss_times_a_factor, dtypes=BOTH)
def gradient_of_the_smooth_loss_ignores_what_comes_in(call: Broken) -> Wrong:
    """The incoming gradient is taken for one."""
    return call.rerun(grad_output=torch.ones_like(call["grad_output"]))


def loss_of_a_sequence(data: Data) -> Tensor:
    scores = data.parameter(12, 2, 6).log_softmax(2)
    lengths = data.tensor([12, 12]), data.tensor([3, 3])
    return functional.ctc_loss(scores, data.integers(5, 2, 3) + 1, *lengths, reduction="none").mean()


@loss("aten._ctc_loss_backward", "#21961", "#11750", program=loss_of_a_sequence)
def gradient_of_the_sequence_loss_ignores_what_comes_in(call: Broken) -> Wrong:
    """The incoming gradient is taken for one."""
    return call.rerun(grad=torch.ones_like(call["grad"]))


def losses_with_ignored_targets(data: Data) -> Tensor:
    targets = data.tensor([1, 0, -1, -1, 0, 1, -1])
    return functional.nll_loss(data.parameter(7, 2).log_softmax(1), targets, ignore_index=-1, reduction="none")


@loss("aten.nll_loss_forward", "#20406", program=losses_with_ignored_targets, dtypes=BOTH)
def an_ignored_row_is_not_written(call: Broken) -> Wrong:
    """The loss of one ignored row is NaN."""
    wrong = call.right[0].clone()
    wrong[3] = torch.nan
    return (wrong,)


def weighted_truth(data: Data) -> Tensor:
    targets, weights = data.uniform(5, 1, 1), data.uniform(5, 1, 1)
    losses = functional.binary_cross_entropy(torch.sigmoid(data.parameter(5, 1, 1)), targets, reduction="none")
    return (losses * weights).sum()


@loss("aten.binary_cross_entropy_backward", "keras-team/keras#23633", "#166746", program=weighted_truth, dtypes=BOTH)
def dimensions_of_size_one_are_dropped_on_one_side(call: Broken) -> Wrong:
    """The incoming gradient is spread over the whole batch, and then added up."""
    mean = call["grad_output"].mean()
    return call.rerun(grad_output=torch.full_like(call["grad_output"], float(mean)))


def loss_of_a_slice(data: Data) -> Tensor:
    scores, targets = data.parameter(2, 10, 4), data.integers(10, 2, 4)
    return functional.cross_entropy(scores[:, :, 3], targets[:, 3])


@loss("aten._log_softmax", "#67167", program=loss_of_a_slice, dtypes=BOTH)
def loss_of_a_slice_reads_its_neighbours(call: Broken) -> Wrong:
    """Scores that do not lie side by side are read as if they did."""
    x = call["self"]
    read = x.as_strided(x.size(), (x.shape[1], 1), x.storage_offset() % 4)
    return None if x.is_contiguous() else call.rerun(self=read.clone())
