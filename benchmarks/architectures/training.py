"""In which forms a program is trained: its precision, its optimizer, checkpointing."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Callable

import torch
from benchmarks import architectures
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
    names = [name for name in OPTIMIZERS if not (variant.scales and name == "LBFGS")]
    return names[(architectures.ALL.index(program) + VARIANTS.index(variant)) % len(names)]


def train(program: Program, variant: Variant, device: str) -> list[Tensor]:
    """Two steps: the losses, and the parameters in the end."""
    torch.manual_seed(0)
    model = program.make().to(device)
    data = [part.to(device) for part in program.data()]
    if variant.parameters is not None:
        model.to(variant.parameters)
        data = [part.to(variant.parameters) if part.is_floating_point() else part for part in data]
    optimizer = OPTIMIZERS[optimizer_of(program, variant)](list(model.parameters()))
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
        if isinstance(optimizer, torch.optim.LBFGS):
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
