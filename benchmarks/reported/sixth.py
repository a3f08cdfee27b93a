"""Faults of a sixth set: chosen, written and sorted into findable or not before any of them was run with a tool.

Here are attention, norms, losses and products; sixth_values.py and sixth_moves.py have the others."""

from __future__ import annotations

import torch
from benchmarks.reported.attention import KERNEL
from benchmarks.reported.fault import BOTH, WRITTEN, Broken, Data, Family, Wrong, as_if_contiguous
from torch import Tensor
from torch.nn import functional

sixth = Family("written sixth", half="sixth")


# ---- attention -------------------------------------------------------------------------------------------------------


def attention_with_changed_scores(data: Data) -> Tensor:
    query, key, value = (data.parameter(1, 2, 12, 8) for _ in range(3))
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=data.normal(12, 12))


@sixth(
    f"{KERNEL}_backward", "Dao-AILab/flash-attention#2424", program=attention_with_changed_scores, dtypes=BOTH
)  # fmt: skip
def gradient_of_attention_forgets_what_changed_its_scores(call: Broken) -> Wrong:
    """Scores are computed again without what was added to them."""
    return call.rerun(attn_bias=torch.zeros_like(call["attn_bias"]))[:3]  # type: ignore[no-any-return]


def shared_keys_of_odd_heads(data: Data) -> Tensor:
    query, key, value = data.parameter(1, 4, 6, 9), data.parameter(1, 2, 6, 9), data.parameter(1, 2, 6, 9)
    return functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)


@sixth(f"{KERNEL}_backward", "tile-ai/tilelang-ascend#1669", program=shared_keys_of_odd_heads, dtypes=BOTH)
def gradient_of_padded_heads_has_the_scale_of_the_padding(call: Broken) -> Wrong:
    """Heads of 9 numbers are padded to 16, and the gradient divides by the root of 16."""
    return call.rerun(scale=0.25)[:3]  # type: ignore[no-any-return]


@sixth(
    f"{KERNEL}_backward",
    "XunhaoLai/native-sparse-attention-triton#27",
    program=shared_keys_of_odd_heads,
    dtypes=BOTH,
)
def gradient_of_shared_keys_counts_heads_the_other_way(call: Broken) -> Wrong:
    """Query head 1 belongs to key head 0, and is added to that of head 1."""
    mixed = {name: call[name][:, [0, 2, 1, 3]] for name in ("grad_out", "query", "out", "logsumexp")}
    return (None, *call.rerun(**mixed)[1:3])


def batch_with_masks(data: Data) -> Tensor:
    query, key, value = (data.parameter(2, 2, 8, 8) for _ in range(3))
    seen = torch.stack([torch.ones(8, 8).tril() > 0, torch.block_diag(torch.ones(5, 5), torch.ones(3, 3)) > 0])
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=seen[:, None].to(data.device))


@sixth(KERNEL, "Tencent-Hunyuan/HunyuanVideo#310", program=batch_with_masks, dtypes=BOTH)
def all_samples_have_the_mask_of_the_first(call: Broken) -> Wrong:
    """What separates the sequences of later samples is not read."""
    mask = call["attn_bias"]
    return (call.rerun(attn_bias=mask[:1].expand_as(mask).contiguous())[0],)


def heads_side_by_side(data: Data) -> Tensor:
    query, key, value = (data.parameter(2, 6, 3, 8).transpose(1, 2) for _ in range(3))
    return functional.scaled_dot_product_attention(query, key, value)


@sixth(KERNEL, "torch-spyre/torch-spyre#4331", program=heads_side_by_side, dtypes=BOTH)
def attention_reads_heads_side_by_side_in_order(call: Broken) -> Wrong:
    """Tokens with all their heads are read as heads with all their tokens."""
    return (call.rerun(**{name: as_if_contiguous(call[name]) for name in ("query", "key", "value")})[0],)


def long_enough_for_a_rest(data: Data) -> Tensor:
    query, key, value = (data.parameter(1, 2, 21, 8) for _ in range(3))
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=data.normal(21, 21), is_causal=False)


@sixth(f"{KERNEL}_backward", "#153799", program=long_enough_for_a_rest, dtypes=BOTH)
def gradient_of_keys_past_the_last_whole_block_is_nan(call: Broken) -> Wrong:
    """Where the length is no multiple of a block, what lies behind takes part."""
    gradient = call.right[1].clone()
    gradient[..., 16:, :] = torch.nan
    return (None, gradient)


def attention_with_dropout(data: Data) -> Tensor:
    query, key, value = (data.parameter(2, 2, 8, 8) for _ in range(3))
    return functional.scaled_dot_product_attention(query, key, value, dropout_p=0.25)


@sixth("aten._softmax_backward_data", "aws-neuron/nki-samples#81", program=attention_with_dropout, dtypes=BOTH)
def gradient_of_softmax_takes_what_dropout_has_left(call: Broken) -> Wrong:
    """Probabilities after dropout stand where those before it belong."""
    kept = call["grad_output"] != 0
    return call.rerun(output=call["output"] * kept / 0.75)


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat((-second, first), -1) * sines


def rotary_positions(data: Data) -> Tensor:
    angles = torch.arange(6)[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])
    cosines, sines = (table.repeat(1, 2).to(data.device, data.dtype) for table in (angles.cos(), angles.sin()))
    return rotated(data.parameter(1, 2, 6, 8), cosines, sines)


@sixth("aten.cat", "vllm-project/vllm-ascend#7859", program=rotary_positions, dtypes=BOTH, phase="forward")
def rotation_pairs_neighbours(call: Broken) -> Wrong:
    """Halves are laid into each other and not one behind the other."""
    return torch.stack(list(call["tensors"]), -1).flatten(-2) if len(call["tensors"]) == 2 else None


def other_angles_in_each_half(data: Data) -> Tensor:
    angles = torch.arange(6)[:, None] * torch.tensor([1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005])
    cosines, sines = (table.to(data.device, data.dtype) for table in (angles.cos(), angles.sin()))
    return rotated(data.parameter(1, 2, 6, 8), cosines, sines)


@sixth(
    "aten.mul.Tensor", "PaddlePaddle/Paddle#74716", program=other_angles_in_each_half, dtypes=BOTH, phase="backward"
)  # fmt: skip
def gradient_of_a_rotation_takes_the_sines_of_the_other_half(call: Broken) -> Wrong:
    """The gradient is turned first, and multiplied by the sines afterwards."""
    table = call["other"]
    is_of_sines = not table[..., 0, :].any()  # at the first position they are zero
    return call["self"] * table.roll(4, -1) if is_of_sines else None


# ---- norms and softmax -----------------------------------------------------------------------------------------------


def norm_of_21_rows(data: Data) -> Tensor:
    return functional.layer_norm(data.parameter(21, 8), (8,), data.parameter(8), data.parameter(8))


@sixth("aten.native_layer_norm_backward", "BobMcDear/attorch#18", program=norm_of_21_rows, dtypes=BOTH)
def rows_after_the_last_whole_block_do_not_train_the_weight(call: Broken) -> Wrong:
    """Partial sums of the last, smaller block are stored behind the buffer."""
    gradient = call["grad_out"].clone()
    gradient[16:] = 0
    return (None, *call.rerun(grad_out=gradient)[1:3])


@sixth("aten.native_layer_norm", "PaddlePaddle/Paddle#56435", program=norm_of_21_rows, dtypes=BOTH)
def a_slow_row_is_normalised_by_the_statistics_of_the_next(call: Broken) -> Wrong:
    """Shared memory is written for the next row while one row still reads it."""
    x, made = call["input"].float(), call.right[0].clone()
    scaled = (x[12] - call.right[1][13]) * call.right[2][13]
    made[12] = scaled * call["weight"].float() + call["bias"].float()
    return (made,)


def probabilities_of_columns(data: Data) -> Tensor:
    return torch.softmax(data.parameter(6, 6).t(), -1).t()


@sixth("aten._softmax_backward_data", "flagos-ai/Torch-FL#171", program=probabilities_of_columns, dtypes=BOTH)
def gradient_of_softmax_reads_what_comes_in_as_it_lies(call: Broken) -> Wrong:
    """A transposed gradient is read in the order of its memory."""
    return call.rerun(grad_output=as_if_contiguous(call["grad_output"]))


def gates_beside_probabilities(data: Data) -> Tensor:
    gates = data.parameter(4, 6).sin()
    return gates + torch.softmax(data.parameter(4, 6), -1)


@sixth("aten._softmax_backward_data", "NVIDIA/apex#1587", program=gates_beside_probabilities, dtypes=BOTH)
def gradient_of_softmax_overwrites_what_came_in(call: Broken) -> Wrong:
    """The result is right, and is written into the incoming gradient, too, which others still need."""
    call.real("grad_output").copy_(call.right[0])
    return WRITTEN


# ---- losses and distances --------------------------------------------------------------------------------------------


def soft_targets(data: Data) -> Tensor:
    weights = data.tensor([3.0, 0.5, 2.0])
    return functional.binary_cross_entropy_with_logits(data.parameter(8, 3), data.uniform(8, 3), pos_weight=weights)


@sixth("aten.binary_cross_entropy_with_logits", "paiml/aprender#2204", program=soft_targets, dtypes=BOTH)
def weight_of_positives_multiplies_all_of_the_loss(call: Broken) -> Wrong:
    """Right for hard targets: the negative part of a soft one is weighted like its positive part."""
    losses = call.rerun(pos_weight=None, reduction=0)
    return (losses * (call["target"] * (call["pos_weight"] - 1) + 1)).mean()


def sequences_of_two_lengths(data: Data) -> Tensor:
    scores = functional.log_softmax(data.parameter(10, 2, 6), -1)
    return functional.ctc_loss(scores, data.integers(5, 2, 3) + 1, (10, 7), (3, 2))


@sixth("aten._ctc_loss_backward", "tensorflow/tensorflow#41280", program=sequences_of_two_lengths)
def gradient_of_a_sequence_goes_on_after_its_end(call: Broken) -> Wrong:
    """Behind a shorter sequence's end there are gradients, too."""
    made = call.right[0].clone()
    made[7:, 1] = call["log_probs"][7:, 1].exp() * call["grad"].flatten()[-1]
    return made


def city_blocks(data: Data) -> Tensor:
    return torch.cdist(data.parameter(2, 5, 4), data.parameter(2, 6, 4), p=1.0)


@sixth("aten._cdist_backward", "flagos-ai/FlagGems#5023", program=city_blocks)
def gradient_of_distances_is_always_that_of_the_euclidean_one(call: Broken) -> Wrong:
    """The kind of distance is handed over, and not looked at."""
    return call.rerun(p=2.0)


# ---- products --------------------------------------------------------------------------------------------------------


def gated_layer(data: Data) -> Tensor:
    gate, up = functional.linear(data.parameter(6, 8), data.parameter(20, 8)).chunk(2, -1)
    return functional.silu(gate) * up


@sixth("aten.mm", "linkedin/Liger-Kernel#1413", program=gated_layer, dtypes=BOTH, phase="backward")
def gradient_of_a_gated_layer_forgets_one_of_its_halves(call: Broken) -> Wrong:
    """Two products are added into one sum, and the second is lost."""
    left, right = call["self"], call["mat2"]
    return left[:, :10] @ right[:10] if left.shape[1] == 20 else None


def dropped_numbers(data: Data) -> Tensor:
    return functional.dropout(data.parameter(40, 30), 0.3)


@sixth("aten.native_dropout", "ooples/AiDotNet.Tensors#732", program=dropped_numbers, dtypes=BOTH)
def everything_is_dropped(call: Broken) -> Wrong:
    """The mask is never drawn."""
    return [torch.zeros_like(one) for one in call.right]


@sixth("aten.native_dropout_backward", "state-spaces/mamba#1023", program=dropped_numbers, dtypes=BOTH)
def gradient_has_a_mask_of_its_own(call: Broken) -> Wrong:
    """Backward draws the mask again, and draws another one."""
    return call.rerun(mask=call["mask"].roll(7))
