"""Optimizers and what they are made of."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.reported.fault import BOTH, Broken, Data, Family, Wrong, is_plain
from torch import Tensor

optimizer = Family("optimizers")


def steps(make: Any, *, shapes: Any = ((8, 5), (7,), (3, 4)), count: int = 2, **prepared: Any) -> Any:
    def program(data: Data) -> list[Tensor]:
        parameters = [data.normal(*shape).requires_grad_() for shape in shapes]
        used = make(parameters)
        for name, value in prepared.items():
            setattr(used, name, torch.full((), value).to(data.device))
        for _ in range(count):
            for parameter in parameters:
                parameter.grad = data.normal(*parameter.shape)
            used.step()
        return [parameter.detach().clone() for parameter in parameters]

    return program


def fused(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, weight_decay=0.1, fused=True)


@optimizer("aten._fused_adam_", "flagos-ai/FlagGems#4988", program=steps(fused))
def adam_decays_weights_like_adamw(call: Broken) -> Wrong:
    """The decay does not go through the moments."""
    copies = [[one.clone() for one in call[name]] for name in ("self", "exp_avgs", "exp_avg_sqs")]
    names = ("lr", "beta1", "beta2", "weight_decay", "eps", "amsgrad", "maximize")
    torch._fused_adamw_(
        copies[0], call["grads"], copies[1], copies[2], call["max_exp_avg_sqs"], call["state_steps"],
        **{name: call[name] for name in names},
    )  # fmt: skip
    return [copies[0][0], copies[0][1], copies[0][2], *call["grads"], *copies[1], *copies[2]]


@optimizer("aten._fused_adam_", "#186360", program=steps(fused, found_inf=1.0))
def adam_steps_where_infinities_were_found(call: Broken) -> Wrong:
    """The flag that a gradient was infinite is not looked at."""
    copies = [[one.clone() for one in call[name]] for name in ("self", "exp_avgs", "exp_avg_sqs")]
    names = ("lr", "beta1", "beta2", "weight_decay", "eps", "amsgrad", "maximize")
    torch._fused_adam_(
        copies[0], call["grads"], copies[1], copies[2], call["max_exp_avg_sqs"], call["state_steps"],
        **{name: call[name] for name in names},
    )  # fmt: skip
    return [*copies[0], *call["grads"], *copies[1], *copies[2]]


def transposed_rprop(data: Data) -> Tensor:
    parameter = data.normal(6, 4).t().requires_grad_()
    used = torch.optim.Rprop([parameter], lr=0.1, foreach=False)
    for _ in range(2):
        parameter.grad = torch.empty_like(parameter).copy_(data.normal(4, 6))
        used.step()
    return parameter.detach().clone()


@optimizer("aten.addcmul_", "#118117", program=transposed_rprop, dtypes=BOTH)
def rprop_leaves_transposed_parameters_as_they_are(call: Broken) -> Wrong:
    """In place on a tensor that is not contiguous, nothing is written."""
    return None if is_plain(call["self"]) else call["self"]


def several_adams(data: Data) -> Any:
    return steps(lambda parameters: torch.optim.AdamW(parameters, lr=0.01, eps=0.05, foreach=True))(data)


@optimizer("aten._foreach_add_.Scalar", "#119885", program=several_adams, dtypes=BOTH)
def epsilon_is_not_added_to_all_of_a_list(call: Broken) -> Wrong:
    """Adding a number to a list of tensors leaves out the last."""
    return [*call.right[:-1], call["self"][-1]] if float(call["scalar"]) < 1 else None


def scaled_training(data: Data) -> list[Tensor]:
    parameter = data.normal(8, 3).requires_grad_()
    used = torch.optim.SGD([parameter], lr=0.1)
    scaler = torch.amp.GradScaler(data.device, init_scale=2.0)
    for _ in range(2):
        used.zero_grad()
        scaler.scale((data.normal(16, 8) @ parameter).square().mean()).backward()
        scaler.step(used)
        scaler.update()
    return [parameter.detach().clone()]


@optimizer("aten._amp_foreach_non_finite_check_and_unscale_", "#184286", program=scaled_training, dtypes=BOTH)
def unscaling_zeroes_gradients(call: Broken) -> Wrong:
    """The factor is read as a number of another width, and comes out as zero."""
    return [torch.zeros_like(gradient) for gradient in call["self"]]
