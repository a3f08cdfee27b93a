"""Faults of the fifth set in pictures, moved data and optimizers; recent.py has the others."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.reported.fault import BOTH, Broken, Data, Wrong, as_if_contiguous, from_the_beginning
from benchmarks.reported.legal import OTHER_ORDER
from benchmarks.reported.recent import recent
from torch import Tensor
from torch.nn import functional

# ---- pictures and pools ----------------------------------------------------------------------------------------------


def pooled_by_another_divisor(data: Data) -> Tensor:
    return functional.avg_pool2d(data.parameter(1, 2, 6, 6), 3, 2, 1, count_include_pad=False, divisor_override=5)


@recent("aten.avg_pool2d", "pytorch/executorch#18616", program=pooled_by_another_divisor, dtypes=BOTH, phase="forward")
def divisor_is_ignored_where_padding_does_not_count(call: Broken) -> Wrong:
    """Sums are divided by the number of elements instead."""
    return call.rerun(divisor_override=None)


def pooled_beyond_the_edge(data: Data) -> Tensor:
    return functional.avg_pool2d(data.parameter(1, 2, 7, 7), 2, stride=3, ceil_mode=True)


@recent("aten.avg_pool2d", "apple/coremltools#2844", program=pooled_beyond_the_edge, dtypes=BOTH, phase="forward")
def what_lies_beyond_the_edge_is_counted(call: Broken) -> Wrong:
    """Windows that hang over the edge are divided by their full size."""
    return call.rerun(self=functional.pad(call["self"], (0, 1, 0, 1)), ceil_mode=False)


def enlarged_exactly(data: Data) -> Tensor:
    return functional.interpolate(data.parameter(1, 2, 4, 4), size=6, mode="nearest-exact")


@recent("aten._upsample_nearest_exact2d", "flagos-ai/FlagGems#5228", program=enlarged_exactly, phase="forward")
def half_a_pixel_is_not_added(call: Broken) -> Wrong:
    """The nearest pixel is looked for from its corner."""
    return functional.interpolate(call["self"], size=6, mode="nearest")


@recent("aten._upsample_nearest_exact2d_backward", "#134430", program=enlarged_exactly, dtypes=BOTH)
def gradient_of_the_nearest_pixel_goes_to_its_neighbour(call: Broken) -> Wrong:
    """In one column, rounding chooses the next pixel."""
    gradient = call["grad_output"].clone()
    gradient[..., 1] += gradient[..., 0]
    gradient[..., 0] = 0
    return call.rerun(grad_output=gradient)


def made_small(data: Data) -> Tensor:
    return functional.interpolate(data.parameter(1, 2, 8, 8), scale_factor=0.25, mode="nearest")


@recent("aten.upsample_nearest2d_backward", "#38985", program=made_small, dtypes=BOTH)
def gradient_of_a_smaller_picture_goes_to_the_other_corner(call: Broken) -> Wrong:
    """To the last pixel of those that a new one stands for, not to the first."""
    return call.right[0].roll((3, 3), (-2, -1))


def sampled_beyond_the_edge(data: Data) -> Tensor:
    grid = data.parameter(1, 5, 5, 2)
    return functional.grid_sample(data.parameter(1, 2, 6, 6), grid, padding_mode="reflection", align_corners=True)


@recent("aten.grid_sampler_2d_backward", "#23925", program=sampled_beyond_the_edge)
def gradient_of_reflected_places_has_the_wrong_sign(call: Broken) -> Wrong:
    """Behind a mirror the picture runs backward, and its slope is not turned round."""
    return (None, torch.where(call["grid"].abs() > 1, -call.right[1], call.right[1]))


# ---- moved data ------------------------------------------------------------------------------------------------------


def pictures_beside_each_other(data: Data) -> Tensor:
    first, second = (data.parameter(2, 3, 4, 5).to(memory_format=torch.channels_last) for _ in range(2))
    return torch.cat([first, second], 1)


@recent("aten.cat", "#89353", program=pictures_beside_each_other, dtypes=BOTH, phase="forward")
def pictures_in_channels_last_are_read_in_order(call: Broken) -> Wrong:
    """The memory of each is copied as if it was laid out plainly."""
    return torch.cat([as_if_contiguous(one) for one in call["tensors"]], call["dim"])


def one_more_token(data: Data) -> Tensor:
    return torch.cat([data.parameter(1, 2, 8, 4), data.parameter(1, 2, 1, 4)], 2)


@recent("aten.cat", "torch-spyre/torch-spyre#1760", program=one_more_token, dtypes=BOTH, phase="forward")
def a_single_token_is_appended_from_the_first_head(call: Broken) -> Wrong:
    """What is one element long takes the place of the others' stride."""
    made = call.right[0].clone()
    made[:, :, -1] = made[:, :1, -1]
    return made


def first_and_last(data: Data) -> Tensor:
    pairs = data.parameter(6, 2)
    return torch.stack((pairs[:, :1], pairs[:, -1:]), -1)


@recent("aten.stack", "#87856", program=first_and_last, dtypes=BOTH, phase="forward")
def stacked_slices_begin_where_their_memory_does(call: Broken) -> Wrong:
    """The second slice is the first one again."""
    return torch.stack([from_the_beginning(one) for one in call["tensors"]], call["dim"])


def repeated_words(data: Data) -> Tensor:
    return torch.repeat_interleave(data.parameter(6, 3), data.tensor([2, 1, 3, 2, 1, 2]), 0)


@recent("aten.repeat_interleave.Tensor", "flagos-ai/FlagGems#5748", program=repeated_words, dtypes=BOTH)
def repetitions_at_odd_places_are_of_the_next_element(call: Broken) -> Wrong:
    """Some of the places that are even in the right result are off by one."""
    made = call.right[0].clone()
    made[7::2] = (made[7::2] + 1).clamp(max=5)
    return made


def updates_of_batches(data: Data) -> Tensor:
    places = data.integers(5, 3, 24)
    return data.parameter(3, 5).scatter_add(1, places, data.parameter(3, 24))


@recent("aten.scatter_add", "unslothai/unsloth-zoo#776", program=updates_of_batches, dtypes=BOTH, phase="forward")
def updates_of_later_batches_are_read_elsewhere(call: Broken) -> Wrong:
    """The stride from one batch of updates to the next is wrong."""
    memory = call["src"].flatten()
    return call.rerun(src=torch.stack([memory[start : start + 24] for start in (0, 1, 2)]))


@recent(
    "aten.scatter_add",
    "intel/torch-xpu-ops#3973",
    program=updates_of_batches,
    phase="forward",
    hidden=OTHER_ORDER,
)
def updates_are_added_in_the_order_in_which_threads_end(call: Broken) -> Wrong:
    """The last update first."""
    return call.rerun(index=call["index"].flip(1), src=call["src"].flip(1))


def sorted_bytes(data: Data) -> Tensor:
    return torch.sort(data.integers(251, 5, 32, dtype=torch.uint8)).values


@recent("aten.sort", "ml-explore/mlx#4538", program=sorted_bytes)
def first_row_is_the_last_one_in_order(call: Broken) -> Wrong:
    """An offset wraps around: the first row is that of another."""
    return tuple(torch.cat([one[-1:], one[1:]]) for one in call.right[:2])


# ---- optimizers ------------------------------------------------------------------------------------------------------


def fused_steps(found: float | None = None, **options: Any) -> Any:
    def program(data: Data) -> list[Tensor]:
        parameters = [data.normal(4, 5).requires_grad_(), data.normal(3).requires_grad_()]
        used = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True, **options)
        for step in range(3):
            if found is not None:
                used.found_inf = torch.full((), found if step == 2 else 0.0).to(data.device)  # type: ignore[attr-defined]
            for parameter in parameters:
                parameter.grad = data.normal(*parameter.shape)
            used.step()
        return [parameter.detach().clone() for parameter in parameters] + [
            used.state[parameter]["momentum_buffer"].clone() for parameter in parameters
        ]

    return program


def stepped(call: Broken, **changed: Any) -> list[list[Tensor]]:
    """Parameters, gradients and momenta after the step with other options."""
    names = ("self", "grads", "momentum_buffer_list")
    lists = [[one.clone() for one in call[name]] for name in names]
    options = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize", "is_first_step", "found_inf")
    torch._fused_sgd_(*lists, **{**{name: call[name] for name in options}, **changed})
    return lists


@recent("aten._fused_sgd_", "LibreYOLO/libreyolo#771", program=fused_steps(1.0))
def momentum_goes_on_where_infinities_were_found(call: Broken) -> Wrong:
    """The step is left out, and the momentum is not."""
    if not call["found_inf"].any():
        return None
    return [*call["self"], *call["grads"], *stepped(call, found_inf=None)[2]]


@recent("aten._fused_sgd_", "ooples/AiDotNet.Tensors#949", program=fused_steps(nesterov=True))
def fused_steps_do_not_look_ahead(call: Broken) -> Wrong:
    """The kernel is handed the plain rule, whatever was asked for."""
    parameters, gradients, momenta = stepped(call, nesterov=False)
    return [*parameters, *gradients, *momenta]
