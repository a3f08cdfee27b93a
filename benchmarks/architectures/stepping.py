"""Optimizers that are composed, averaged, of second order, or keep weights in another precision."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor


class Split(torch.optim.Optimizer):
    """torch.optim.Muon for matrices, AdamW for all others, as its authors recommend."""

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__(parameters, {})
        matrices = [one for one in parameters if one.dim() == 2]
        others = [one for one in parameters if one.dim() != 2]
        self.parts: list[Any] = [torch.optim.Muon(matrices, 1e-2)] if matrices else []
        if others:
            self.parts.append(torch.optim.AdamW(others, 1e-2, foreach=True))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for part in self.parts:
            part.step()


class Masters(torch.optim.Optimizer):
    """AdamW on copies in float32, which are rounded into the weights; a running mean of them is kept."""

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__(parameters, {})
        self.copies = [one.detach().float().clone().requires_grad_() for one in parameters]
        self.means = [one.detach().clone() for one in self.copies]
        self.inner = torch.optim.AdamW(self.copies, 1e-2, weight_decay=0.1, foreach=True)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        parameters = self.param_groups[0]["params"]
        for mine, one in zip(self.copies, parameters):
            mine.grad = None if one.grad is None else one.grad.to(torch.float32, copy=True)
        arrived = [one.grad for one in self.copies if one.grad is not None]
        sizes = torch.stack(torch._foreach_norm(arrived, 2))
        torch._foreach_mul_(arrived, (0.5 / (sizes.norm() + 1e-6)).clamp(max=1.0))
        self.inner.step()
        torch._foreach_copy_(parameters, self.copies)
        torch._foreach_lerp_(self.means, [one.detach() for one in self.copies], 0.1)


class Layerwise(torch.optim.Optimizer):
    """LAMB by lists: Adam's direction, as long as the weights of its layer."""

    def __init__(self, parameters: list[Tensor], rate: float = 1e-2) -> None:
        super().__init__(parameters, {"lr": rate})
        self.first = [torch.zeros_like(one) for one in parameters]
        self.second = [torch.zeros_like(one) for one in parameters]
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        self.steps += 1
        parameters = self.param_groups[0]["params"]
        arrived = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        torch._foreach_lerp_(self.first, arrived, 0.1)
        torch._foreach_mul_(self.second, 0.99)
        torch._foreach_addcmul_(self.second, arrived, arrived, 0.01)
        bottom = torch._foreach_sqrt(torch._foreach_div(self.second, 1 - 0.99**self.steps))
        torch._foreach_maximum_(bottom, 1e-6)
        way = torch._foreach_div(torch._foreach_div(self.first, 1 - 0.9**self.steps), bottom)
        torch._foreach_add_(way, parameters, alpha=0.01)
        for one, size, length in zip(way, torch._foreach_norm(parameters), torch._foreach_norm(way)):
            one.mul_(torch.where((size > 0) & (length > 0), size / length, 1.0).clamp(max=10))
        torch._foreach_add_(parameters, way, alpha=-self.param_groups[0]["lr"])


class Shampoo(torch.optim.Optimizer):
    """A preconditioner for each side of a matrix: roots by eigenvalues, signs for what is no matrix."""

    def __init__(self, parameters: list[Tensor], rate: float = 1e-2) -> None:
        super().__init__(parameters, {"lr": rate})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None:
                continue
            gradient = parameter.grad.float()
            if gradient.dim() != 2:
                parameter.sub_(gradient.sign().to(parameter.dtype), alpha=1e-3)
                continue
            state = self.state[parameter]
            for side, matrix in (("left", gradient @ gradient.mT), ("right", gradient.mT @ gradient)):
                held = state.setdefault(side, 1e-2 * torch.eye(len(matrix), device=matrix.device))
                held.mul_(0.95).add_(matrix, alpha=0.05)
                values, vectors = torch.linalg.eigh(held)
                root = (vectors * values.clamp_min(1e-4).pow(-0.25)) @ vectors.mT
                gradient = root @ gradient if side == "left" else gradient @ root
            parameter.add_(gradient.to(parameter.dtype), alpha=-self.param_groups[0]["lr"])


class Sharpness(torch.optim.Optimizer):
    """SAM: up along the gradient, and a step with the gradient found there."""

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__(parameters, {})
        self.inner = torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=1e-3, foreach=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        assert closure is not None
        with torch.enable_grad():
            closure()
        moved = [one for one in self.param_groups[0]["params"] if one.grad is not None]
        size = torch.nn.utils.get_total_norm([one.grad for one in moved])
        before = [one.clone() for one in moved]
        torch._foreach_add_(moved, torch._foreach_mul([one.grad for one in moved], 0.05 / (size + 1e-12)))
        with torch.enable_grad():
            closure()
        torch._foreach_copy_(moved, before)
        torch.nn.utils.clip_grad_value_(moved, 0.5)
        self.inner.step()


OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "fused SGD": lambda parameters: torch.optim.SGD(
        parameters, 0.05, 0.9, weight_decay=1e-2, nesterov=True, fused=True
    ),
    "Muon and AdamW": Split,
    "float32 masters": Masters,
    "LAMB by lists": Layerwise,
    "fused Adam": lambda parameters: torch.optim.Adam(parameters, torch.tensor(1e-2), weight_decay=1e-2, fused=True),
    "Shampoo": Shampoo,
    "AdamW, maximized": lambda parameters: torch.optim.AdamW(
        parameters, 1e-4, maximize=True, amsgrad=True, foreach=True
    ),
    "SAM": Sharpness,
    "LBFGS, Wolfe": lambda parameters: torch.optim.LBFGS(parameters, 0.5, max_iter=2, line_search_fn="strong_wolfe"),
    "Adafactor by lists": lambda parameters: torch.optim.Adafactor(parameters, 1e-2, foreach=True, weight_decay=0.1),
    "SGD by hand": lambda parameters: torch.optim.SGD(parameters, 0.05, dampening=0.1, momentum=0.9, foreach=False),
}
NEEDS_CLOSURE = (torch.optim.LBFGS, Sharpness)
