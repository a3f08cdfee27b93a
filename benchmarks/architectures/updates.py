"""Optimizers of the ninth set: factored squares, estimated Hessians, cautious signs, blocks, averages."""

from __future__ import annotations

import math
from typing import Any, Callable

import torch
from benchmarks.architectures.schedules import Own
from torch import Tensor

Parameters = list[Tensor]


class Cautious(Own):
    """AdamW that steps only where its direction agrees with the gradient, after the gradient was made central."""

    def way(self, one: Tensor, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        if gradient.dim() > 1:
            gradient = gradient - gradient.mean(dim=tuple(range(1, gradient.dim())), keepdim=True)
        mean, square = (state.setdefault(name, torch.zeros_like(gradient)) for name in ("exp_avg", "exp_avg_sq"))
        mean.mul_(0.9).add_(gradient, alpha=0.1)
        square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        count = state["step"]
        bottom = (square.sqrt() / math.sqrt(1 - 0.99**count)).add_(1e-8)
        way = mean / bottom / (1 - 0.9**count)
        mask = (way * gradient > 0).to(gradient.dtype)
        mask.div_(mask.mean().clamp_(min=1e-3))
        return way * mask + 0.01 * one.float()


class Curved(Own):
    """Sophia: squares of gradients as a Hessian's diagonal, what is larger is clipped."""

    def way(self, one: Tensor, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        mean, curve = (state.setdefault(name, torch.zeros_like(gradient)) for name in ("exp_avg", "hessian"))
        mean.mul_(0.965).add_(gradient, alpha=1 - 0.965)
        if state["step"] % 2 == 1:
            curve.mul_(0.99).addcmul_(gradient, gradient, value=1 - 0.99)
        ratio = (mean.abs() / (0.04 * 16 * curve + 1e-15)).clamp(None, 1)
        return torch.sign(mean) * ratio


class Confident(Own):
    """CAME: rows and columns of squares, and of how unstable the step is."""

    @staticmethod
    def factored(row: Tensor, column: Tensor) -> Tensor:
        r = (row / row.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
        return torch.mul(r, column.unsqueeze(-2).rsqrt())

    def way(self, one: Tensor, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        squared = gradient.square().add_(1e-30)
        if gradient.dim() < 2:
            square = state.setdefault("sq", torch.zeros_like(gradient)).lerp_(squared, 0.01)
            way = square.rsqrt().mul_(gradient)
            return way.div_((way.norm(2) / way.numel() ** 0.5).clamp_(min=1.0))
        row = state.setdefault("row", squared.mean(-1)).mul_(0.99).add_(squared.mean(dim=-1), alpha=0.01)
        column = state.setdefault("column", squared.mean(-2)).mul_(0.99).add_(squared.mean(dim=-2), alpha=0.01)
        way = self.factored(row, column).mul_(gradient)
        way.div_((way.norm(2) / way.numel() ** 0.5).clamp_(min=1.0))
        mean = state.setdefault("mean", torch.zeros_like(way)).mul_(0.9).add_(way, alpha=0.1)
        unsure = (way - mean) ** 2 + 1e-16
        rows = state.setdefault("rows", unsure.mean(-1)).mul_(0.9999).add_(unsure.mean(dim=-1), alpha=1e-4)
        columns = state.setdefault("columns", unsure.mean(-2)).mul_(0.9999).add_(unsure.mean(dim=-2), alpha=1e-4)
        return self.factored(rows, columns).mul_(mean).clamp_(-1, 1)


class Blocks(Own):
    """Adam-mini: one square for each row; MARS' corrected gradients, clipped to a length of one."""

    def way(self, one: Tensor, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        last = state.get("last", gradient)
        fixed = torch.sub(gradient, last).mul_(0.025 * 0.95 / 0.05).add_(gradient)
        state["last"] = gradient.clone()
        length = torch.norm(fixed)
        if length > 1.0:
            fixed = fixed / length
        mean = state.setdefault("mean", torch.zeros_like(fixed)).lerp_(fixed, weight=0.05)
        each = fixed.pow(2).mean() if fixed.dim() < 2 else fixed.flatten(1).pow(2).mean(dim=1).view(-1, *[1] * (fixed.dim() - 1))  # fmt: skip # noqa: E501
        square = state.setdefault("square", torch.zeros_like(each)).mul_(0.99).add_(each, alpha=0.01)
        bottom = (square / (1 - 0.99 ** state["step"])).sqrt() + 1e-8
        return mean.div(bottom) / (1 - 0.95 ** state["step"])


class Layers(Own):
    """LARS: as long as the layer's weights are."""

    def way(self, one: Tensor, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        weights, length = one.float().norm(), gradient.norm()
        gradient = gradient.add(one.float(), alpha=1e-4)
        if one.dim() > 1:
            unit = torch.ones_like(weights)
            trust = torch.where(weights > 0, torch.where(length > 0, 0.02 * weights / length, unit), unit)
            gradient = gradient.mul(trust)
        momentum = state.setdefault("mu", torch.zeros_like(gradient))
        return momentum.mul_(0.9).add_(gradient)


class Kronecker(Own):
    """PSGD by Kronecker's factors: triangles that whiten the gradient, moved by a step of their own."""

    def way(self, one: Tensor, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        if gradient.dim() != 2 or max(gradient.shape) > 64:
            square = state.setdefault("square", torch.ones_like(gradient)).lerp_(gradient * gradient, 0.1)
            return gradient / (square.sqrt() + 1e-6)
        left = state.setdefault("left", torch.eye(gradient.shape[0], device=one.device))
        right = state.setdefault("right", torch.eye(gradient.shape[1], device=one.device))
        noise = torch.sign(gradient) + gradient
        a = torch.einsum("ij,jk,lk->il", left, noise, right)
        b = torch.linalg.solve_triangular(left, noise, upper=True, left=False) if left.shape[0] == noise.shape[1] else None  # fmt: skip # noqa: E501
        first = a @ a.t() - (torch.eye(len(left), device=one.device) if b is None else b.t() @ b)
        second = a.t() @ a - torch.eye(len(right), device=one.device)
        state["left"] = left - 0.05 / (first.abs().max() + 1e-8) * torch.triu(first) @ left
        state["right"] = right - 0.05 / (second.norm(float("inf")) + 1e-8) * torch.triu(second) @ right
        way = state["left"].t() @ (state["left"] @ gradient @ state["right"].t()) @ state["right"]
        return way / way.square().mean().sqrt().clamp(min=1.0)


class Averaged(torch.optim.Optimizer):
    """SGD by lists with gradients clipped by value, noise added, EMA and SWA beside each other."""

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters, {})
        self.inner = torch.optim.SGD(parameters, 0.02, momentum=0.9, weight_decay=1e-3, foreach=True)
        self.ema = [one.detach().clone() for one in parameters]
        self.swa = [torch.zeros_like(one, dtype=torch.float64) for one in parameters]
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.inner, 0.05, total_steps=8)
        self.count = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        parameters = self.param_groups[0]["params"]
        arrived = [one.grad for one in parameters if one.grad is not None]
        torch.nn.utils.clip_grad_value_(parameters, 0.2)
        torch._foreach_add_(arrived, [torch.randn_like(one).mul_(1e-3) for one in arrived])
        self.inner.step()
        self.schedule.step()
        self.count += 1
        torch._foreach_mul_(self.ema, 0.9)
        torch._foreach_add_(self.ema, [one.detach() for one in parameters], alpha=0.1)
        for mean, one in zip(self.swa, parameters):
            mean += (one.double() - mean) / self.count


class Halves(torch.optim.Optimizer):
    """Weights in bfloat16 with Kahan's compensation, and rounding by chance, as in training without masters."""

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters, {"lr": 1e-2})
        self.lost = [torch.zeros_like(one) for one in parameters]
        self.means = [torch.zeros_like(one, dtype=torch.bfloat16) for one in parameters]

    @staticmethod
    def rounded(x: Tensor) -> Tensor:
        bits = x.view(torch.int32) + torch.randint_like(x, 1 << 16, dtype=torch.int32)
        return bits.bitwise_and_(-65536).view(torch.float32).bfloat16()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for one, lost, mean in zip(self.param_groups[0]["params"], self.lost, self.means):
            if one.grad is None:
                continue
            mean.copy_(self.rounded((mean.float() * 0.9 + one.grad.float() * 0.1).contiguous()))
            update = (mean.float().sign() * -1e-3).to(one.dtype)
            lost.add_(update)
            before = one.detach().clone()
            one.add_(lost)
            lost.add_(before.sub_(one))


OPTIMIZERS: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
    "cautious": lambda parameters: Cautious(parameters, 1e-3),
    "Sophia": lambda parameters: Curved(parameters, 1e-3),
    "fused AdamW, amsgrad": lambda parameters: torch.optim.AdamW(
        parameters, 3e-3, (0.9, 0.95), amsgrad=True, fused=True
    ),
    "CAME": lambda parameters: Confident(parameters, 1e-3),
    "Adam-mini": lambda parameters: Blocks(parameters, 1e-3),
    "LARS": lambda parameters: Layers(parameters, 0.5),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 1e-3, weight_decay=0.1),
    "Kronecker": lambda parameters: Kronecker(parameters, 1e-3),
    "SGD, averages": Averaged,
    "Kahan": Halves,
    "NAdam by lists": lambda parameters: torch.optim.NAdam(parameters, 2e-3, foreach=True),
    "Adam, L2": lambda parameters: torch.optim.Adam(parameters, 1e-3, weight_decay=1e-2, foreach=False, amsgrad=True),
    "fused SGD, Nesterov": lambda parameters: torch.optim.SGD(
        parameters, 0.02, 0.9, nesterov=True, weight_decay=5e-4, fused=True
    ),
}
