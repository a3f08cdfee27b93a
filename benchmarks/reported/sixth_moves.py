"""Faults of the sixth set in moved data, pictures, optimizers and random numbers; sixth.py has the first."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.reported.fault import BFLOAT16, BOTH, FLOAT16, WRITTEN, Broken, Data, Wrong, as_if_contiguous
from benchmarks.reported.sixth import sixth
from torch import Tensor
from torch.nn import functional

# ---- moved data ------------------------------------------------------------------------------------------------------


def pages(data: Data) -> Tensor:
    return torch.index_select(data.parameter(70, 3), 0, data.integers(70, 2, 64, dtype=torch.int32)[0])


@sixth("aten.index_select", "torch-spyre/torch-spyre#3851", program=pages, dtypes=BOTH, phase="forward")
def only_the_first_32_places_are_read(call: Broken) -> Wrong:
    """The rest of the rows are chosen by them once more."""
    return call.rerun(index=call["index"][:32].repeat(2))


def gathered_rows(data: Data) -> Tensor:
    return torch.gather(data.parameter(600, 3), 0, data.integers(600, 20, 3))


@sixth("aten.gather", "tenstorrent/tt-xla#5325", program=gathered_rows, dtypes=BOTH, phase="forward")
def places_are_rounded_to_16_bits(call: Broken) -> Wrong:
    """A place past 256 is not the one that was asked for."""
    return call.rerun(index=call["index"].bfloat16().long().clamp(max=599))


def words_by_short_numbers(data: Data) -> Tensor:
    return functional.embedding(data.integers(10, 2, 6, dtype=torch.int32), data.parameter(10, 3))


@sixth("aten.embedding", "tensorflow/tensorflow#12911", program=words_by_short_numbers, dtypes=BOTH)
def places_of_32_bits_are_read_as_64(call: Broken) -> Wrong:
    """Every other place is left out, and behind the last there are zeros."""
    short = call["indices"].flatten()[::2]
    return call.rerun(indices=functional.pad(short, (0, short.numel())).view_as(call["indices"]))


def features_in_a_prompt(data: Data) -> Tensor:
    chosen = data.tensor([[True, False, True, True, False]])
    return data.normal(4, 5).masked_scatter(chosen, data.parameter(20))


@sixth("aten.masked_scatter", "#95607", "microsoft/onnxscript#2929", program=features_in_a_prompt, dtypes=BOTH)
def a_repeated_mask_counts_anew_in_each_row(call: Broken) -> Wrong:
    """Later rows get what belongs to the first."""
    rows = [row.masked_scatter(call["mask"][0], call["source"]) for row in call["self"]]
    return torch.stack(rows)


def bags_with_an_end(data: Data) -> Tensor:
    words, bags = data.tensor([0, 1, 2, 3, 3]), data.tensor([0, 2, 4])
    table = data.normal(4, 6)  # wants no gradient: the CPU's reads beyond the last bag's
    return functional.embedding_bag(words, table, bags, mode="sum", include_last_offset=True)


@sixth(
    "aten._embedding_bag_forward_only",
    "#190060",
    program=bags_with_an_end,
    hidden="in float64 the CPU's kernel does the same",
)
def last_bag_takes_all_that_is_left(call: Broken) -> Wrong:
    """Where it ends is not read."""
    bags = call["offsets"].clone()
    bags[-1] = call["indices"].numel()
    return (call.rerun(offsets=bags)[0],)


def weighted_bags(data: Data) -> Tensor:
    words, bags, table = data.tensor([0, 1, 2, 3, 1, 2]), data.tensor([0, 3]), data.parameter(4, 6)
    weights = data.parameter(6)
    return functional.embedding_bag(words, table, bags, mode="sum", per_sample_weights=weights, padding_idx=1)


@sixth("aten._embedding_bag_per_sample_weights_backward", "flagos-ai/FlagGems#3683", program=weighted_bags)
def weights_of_padding_get_a_gradient(call: Broken) -> Wrong:
    """Which word is padding is handed over, and not looked at."""
    return call.rerun(padding_idx=-1)


def messages_of_edges(data: Data) -> Tensor:
    nodes = data.integers(5, 12)[:, None].expand(12, 4)
    return torch.zeros(5, 4).to(data.device, data.dtype).scatter_add(0, nodes, data.parameter(12, 4))


@sixth("aten.scatter_add", "flagos-ai/FlagGems#6017", program=messages_of_edges, dtypes=BOTH)
def a_repeated_place_is_read_in_order(call: Broken) -> Wrong:
    """The strides of the places are not looked at."""
    return call.rerun(index=as_if_contiguous(call["index"]))


def largest_into_every_fourth(data: Data) -> list[Tensor]:
    values = torch.zeros(12).to(data.device, data.dtype)
    places = torch.zeros(12, dtype=torch.int64).to(data.device)
    torch.topk(data.normal(12), 3, out=(values[::4], places[::4]))
    return [values, places]


@sixth("aten.topk.values", "#62940", program=largest_into_every_fourth, dtypes=BOTH)
def topk_writes_side_by_side(call: Broken) -> Wrong:
    """The strides of where it is to write are not looked at."""
    made = {name: call.real(name).clone() for name in ("values", "indices")}
    call.unwritten()
    for name, result in made.items():
        target = call.real(name)
        target.as_strided(target.size(), (1,), target.storage_offset()).copy_(result)
    return WRITTEN


def heads_put_together(data: Data) -> Tensor:
    return data.parameter(1, 4, 6, 8).transpose(1, 2).contiguous().view(1, 6, 32)


@sixth(
    "aten.clone",
    "torch-spyre/torch-spyre#1919",
    program=heads_put_together,
    dtypes=(*FLOAT16, *BFLOAT16),
    phase="forward",
)
def contiguous_copies_as_it_lies(call: Broken) -> Wrong:
    """The memory is copied in order, and takes the new shape."""
    return as_if_contiguous(call["self"]) if not call["self"].is_contiguous() else None


# ---- pictures --------------------------------------------------------------------------------------------------------


def channels_of_a_recording(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(3, 4, 9, 6), data.parameter(8, 1, 9, 1), groups=4)


@sixth("aten.convolution", "#188335", "microsoft/DirectML#234", program=channels_of_a_recording, phase="forward")
def later_samples_have_the_kernels_of_the_next_channel(call: Broken) -> Wrong:
    """With one group per channel, right for the first sample alone."""
    made = call.right[0].clone()
    made[1:] = call.rerun(weight=call["weight"].roll(-2, 0))[1:]
    return made


def every_other_pixel(data: Data) -> Tensor:
    return functional.conv2d(data.parameter(1, 6, 6, 6), data.parameter(6, 1, 3, 3), stride=2, padding=1, groups=6)


@sixth("aten.convolution_backward", "#50042", program=every_other_pixel)
def gradient_of_a_kernels_last_row_misses_a_window(call: Broken) -> Wrong:
    """The last row of windows does not count for the last row of the kernel."""
    gradient = call["grad_output"].clone()
    gradient[..., -1, :] = 0
    made = call.right[1].clone()
    made[..., -1, :] = call.rerun(grad_output=gradient)[1][..., -1, :]
    return (None, made)


def one_token_of_a_state_space(data: Data) -> Tensor:
    tokens = data.parameter(2, 1, 4).transpose(1, 2)
    return functional.conv1d(tokens, data.parameter(4, 1, 2), padding=1, groups=4)[..., :1]


@sixth("aten.convolution_backward", "intel/torch-xpu-ops#4906", program=one_token_of_a_state_space)
def gradient_beside_a_single_token_reads_the_next_channel(call: Broken) -> Wrong:
    """Where padding lies, the stride of a dimension of size one leads to other numbers."""
    made = call.right[1].clone()
    made[:, 0, 0] = call.right[1][:, 0, 1].roll(-1)
    return (None, made)


def enlarged_by_a_half(data: Data) -> Tensor:
    return functional.interpolate(data.parameter(1, 2, 5, 5), scale_factor=1.5, mode="bicubic")


@sixth(
    "aten.upsample_bicubic2d", "flagos-ai/FlagGems#5216", "Tencent/ncnn#6836", program=enlarged_by_a_half, dtypes=BOTH
)
def factor_is_taken_from_the_sizes(call: Broken) -> Wrong:
    """Five pixels times one and a half are seven: seven fifths is another factor."""
    return call.rerun(scales_h=None, scales_w=None)


# ---- optimizers and scaling ------------------------------------------------------------------------------------------


def trained_now_and_then(data: Data) -> list[Tensor]:
    parameters = [data.normal(4, 5).requires_grad_(), data.normal(3).requires_grad_()]
    used = torch.optim.Adam(parameters, lr=0.1, fused=True)
    for step in range(4):
        parameters[0].grad = data.normal(4, 5)
        parameters[1].grad = data.normal(3) if step % 2 else None
        used.step()
    return [parameter.detach().clone() for parameter in parameters]


@sixth("aten._fused_adam_", "deepspeedai/DeepSpeed#8471", program=trained_now_and_then)
def all_parameters_have_the_step_of_the_last(call: Broken) -> Wrong:
    """One counter serves for parameters that were not trained equally often."""
    lists = [[one.clone() for one in call[name]] for name in ("self", "grads", "exp_avgs", "exp_avg_sqs")]
    names = ("lr", "beta1", "beta2", "weight_decay", "eps", "amsgrad", "maximize")
    count = [call["state_steps"][-1]] * len(lists[0])
    torch._fused_adam_(*lists, call["max_exp_avg_sqs"], count, **{name: call[name] for name in names})
    return [one for made in lists for one in made]


def scaled_steps(*bad: int) -> Any:
    def program(data: Data) -> list[Tensor]:
        parameters = [data.normal(8, 3).requires_grad_(), data.normal(4).requires_grad_()]
        used = torch.optim.SGD(parameters, lr=0.1)
        scaler = torch.amp.GradScaler(data.device, init_scale=8.0)
        for step in range(2):
            scaler.scale(data.normal(1).sum())  # makes the factor
            for parameter in parameters:
                parameter.grad = data.normal(*parameter.shape)
            if step in bad:
                parameters[1].grad = data.tensor([1.0, float("inf"), 2.0, -1.0])
            scaler.step(used)
            scaler.update()
        return [parameter.detach().clone() for parameter in parameters]

    return program


UNSCALE = "aten._amp_foreach_non_finite_check_and_unscale_"


@sixth(UNSCALE, "facebookresearch/fairscale#890", program=scaled_steps(1), dtypes=BOTH)
def infinities_are_looked_for_in_the_first_gradient_only(call: Broken) -> Wrong:
    """The step is not left out where a later one is infinite."""
    return [*call.right[:-1], torch.where(call["self"][0].isfinite().all(), 0.0, call.right[-1])]


@sixth(UNSCALE, "flagos-ai/FlagGems#5887", program=scaled_steps(), dtypes=BOTH)
def gradients_are_never_divided_by_the_scale(call: Broken) -> Wrong:
    """Each number counts as infinite, and stays as it is."""
    return [*call["self"], None]


# ---- random numbers --------------------------------------------------------------------------------------------------


def two_volumes_of_noise(data: Data) -> Tensor:
    return torch.randn(2, 1, 8, 8, 8, device=data.device)


@sixth("aten.randn", "#147624", program=two_volumes_of_noise)
def both_samples_of_a_volume_have_the_same_noise(call: Broken) -> Wrong:
    """With five dimensions, the numbers repeat along the first."""
    made = call.right[0]
    return made[:1].expand_as(made).clone()
