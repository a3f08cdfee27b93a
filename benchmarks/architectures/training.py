"""In which forms a program is trained: its precision, its optimizer, checkpointing."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Callable

import torch
from benchmarks import architectures
from benchmarks.architectures import schedules, stepping, updates
from benchmarks.architectures.program import Program
from torch import Tensor
from torch.utils.checkpoint import checkpoint

STEPS = 2

Optimizer = Callable[[list[Tensor]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9, nesterov=True),
    "Adam": lambda parameters: torch.optim.Adam(parameters, 1e-2, foreach=True, amsgrad=True),
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, 1e-2, fused=True),
    "Adafactor": lambda parameters: torch.optim.Adafactor(parameters, 1e-2),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, 1e-3, foreach=False, centered=True),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, 0.1, max_iter=2),
}


class Lion(torch.optim.Optimizer):
    """Steps of one size along the sign of a momentum, as it is written by hand."""

    def __init__(self, parameters: list[Tensor], rate: float) -> None:
        super().__init__(parameters, {"lr": rate, "betas": (0.9, 0.99), "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                fast, slow = group["betas"]
                update = momentum.mul(fast).add_(parameter.grad, alpha=1 - fast)
                parameter.add_(update.sign_(), alpha=-group["lr"])
                momentum.lerp_(parameter.grad, 1 - slow)


class Orthogonal(torch.optim.Optimizer):
    """Muon, as it is written by hand: a matrix's momentum, made orthogonal by Newton's iteration in bfloat16."""

    def __init__(self, parameters: list[Tensor], rate: float) -> None:
        super().__init__(parameters, {"lr": rate, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                momentum.mul_(group["momentum"]).add_(parameter.grad)
                update = parameter.grad.add(momentum, alpha=group["momentum"])
                if parameter.dim() == 2:
                    update = self.orthogonal(update).type_as(parameter)
                parameter.add_(update, alpha=-group["lr"])

    @staticmethod
    def orthogonal(update: Tensor) -> Tensor:
        a, b, c = 3.4445, -4.7750, 2.0315
        x = update.bfloat16()
        x = x.mT if update.shape[0] > update.shape[1] else x
        x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
        for _ in range(5):
            gram = x @ x.mT
            x = a * x + (b * gram + c * gram @ gram) @ x
        x = x.mT if update.shape[0] > update.shape[1] else x
        return x * max(1, update.shape[0] / update.shape[1]) ** 0.5


FURTHER_OPTIMIZERS: dict[str, Optimizer] = {
    "NAdam": lambda parameters: torch.optim.NAdam(parameters, 1e-2, decoupled_weight_decay=True, weight_decay=1e-2),
    "RAdam": lambda parameters: torch.optim.RAdam(parameters, 1e-2, foreach=True),
    "Lion": lambda parameters: Lion(parameters, 1e-3),
    "fused Adagrad": lambda parameters: torch.optim.Adagrad(parameters, 1e-2, fused=True),
    "Adamax": lambda parameters: torch.optim.Adamax(parameters, 1e-2, foreach=True),
    "Muon": lambda parameters: Orthogonal(parameters, 1e-2),
    "Adadelta": lambda parameters: torch.optim.Adadelta(parameters, foreach=False),
    "Rprop": lambda parameters: torch.optim.Rprop(parameters, 1e-3, foreach=True),
    "ASGD": lambda parameters: torch.optim.ASGD(parameters, 1e-2, foreach=True),
}

EVERY_OPTIMIZER: dict[str, Optimizer] = {
    **OPTIMIZERS,
    **FURTHER_OPTIMIZERS,
    **stepping.OPTIMIZERS,
    **schedules.OPTIMIZERS,
    **updates.OPTIMIZERS,
}

NEED_CLOSURE = ("LBFGS", "LBFGS, Wolfe", "SAM", "in backward")  # a GradScaler has no steps of this kind


@dataclass(frozen=True)
class Variant:
    """How a program is trained."""

    name: str
    autocast: torch.dtype | None = None
    scales: bool = False  # gradients, with a GradScaler
    recomputes: bool = False  # by checkpointing
    parameters: torch.dtype | None = None


VARIANTS = (
    Variant("float32"),
    Variant("autocast bfloat16", torch.bfloat16),
    Variant("autocast float16", torch.float16, scales=True),
    Variant("checkpointed", recomputes=True),
    Variant("bfloat16", parameters=torch.bfloat16),
)


def optimizer_of(program: Program, variant: Variant) -> str:
    """Each program meets another one in each of its forms."""
    of_sets = {
        "fifth": FURTHER_OPTIMIZERS,
        "seventh": stepping.OPTIMIZERS,
        "eighth": schedules.OPTIMIZERS,
        "ninth": updates.OPTIMIZERS,
        "eleventh": EVERY_OPTIMIZER,
    }
    optimizers = of_sets.get(program.half, OPTIMIZERS)
    names = [name for name in optimizers if not (variant.scales and name in NEED_CLOSURE)]
    return names[(architectures.ALL.index(program) + VARIANTS.index(variant)) % len(names)]


def train(program: Program, variant: Variant, device: str) -> list[Tensor]:
    """Two steps: the losses, and the parameters in the end."""
    torch.manual_seed(0)
    model = program.make().to(device)
    data = [part.to(device) for part in program.data()]
    if variant.parameters is not None:
        model.to(variant.parameters)
        data = [part.to(variant.parameters) if part.is_floating_point() else part for part in data]
    optimizer = EVERY_OPTIMIZER[optimizer_of(program, variant)](list(model.parameters()))
    scaler = torch.amp.GradScaler(device, init_scale=1024.0) if variant.scales else None
    losses: list[Tensor] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device, variant.autocast) if variant.autocast else contextlib.nullcontext():
            loss = checkpoint(model.loss, *data, use_reentrant=False) if variant.recomputes else model.loss(*data)
        (loss if scaler is None else scaler.scale(loss)).backward()
        losses.append(loss.detach().clone())
        return loss

    for _ in range(STEPS):
        if isinstance(optimizer, stepping.NEEDS_CLOSURE):
            optimizer.step(closure)
            continue
        closure()
        if scaler is not None:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return [one.detach().cpu() for one in (*losses, *model.parameters())]
