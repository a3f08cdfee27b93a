"""Optimizers of the last years as people write them, with schedules, groups, few bits, small ranks and averages."""

from __future__ import annotations

import math
from typing import Any, Callable

import torch
from torch import Tensor


class Own(torch.optim.Optimizer):
    """What those below have in common: a step for each parameter that has a gradient."""

    def __init__(self, parameters: list[Tensor], rate: float) -> None:
        super().__init__(parameters, {"lr": rate})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    state = self.state[one]
                    state["step"] = state.get("step", 0) + 1
                    one.add_(self.way(one, one.grad.float(), state).to(one.dtype), alpha=-group["lr"])

    def way(self, one: Tensor, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        raise NotImplementedError


class TwoMeans(Own):
    """AdEMAMix: a fast and a slow mean of gradients over one mean of squares."""

    def way(self, one: Tensor, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        fast, slow, square = (state.setdefault(name, torch.zeros_like(gradient)) for name in ("fast", "slow", "square"))
        fast.lerp_(gradient, 0.1)
        slow.mul_(0.9999).add_(gradient, alpha=1e-4)
        square.mul_(0.999).addcmul_(gradient, gradient.conj(), value=1e-3)
        bottom = (square.sqrt() / math.sqrt(1 - 0.999 ** state["step"])).add_(1e-8)
        return (fast / (1 - 0.9 ** state["step"])).add_(slow, alpha=5.0).div_(bottom).add_(one.float(), alpha=0.01)


class Nesterovs(Own):
    """Adan: means of gradients, of their differences, and of the squares of what both foretell."""

    def way(self, one: Tensor, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        before = state.setdefault("before", gradient.clone())
        mean, apart, square = (
            state.setdefault(name, torch.zeros_like(gradient)) for name in ("mean", "apart", "square")
        )
        difference = before.neg_().add_(gradient)
        mean.mul_(0.98).add_(gradient, alpha=0.02)
        apart.mul_(0.92).add_(difference, alpha=0.08)
        foretold = difference.mul_(0.92).add_(gradient)
        square.mul_(0.99).addcmul_(foretold, foretold, value=0.01)
        way = torch.addcdiv(torch.zeros_like(mean), mean, square.sqrt().add_(1e-8)).addcdiv_(
            apart, square.sqrt() + 1e-8, value=0.92
        )
        before.copy_(gradient)
        return way


class Beliefs(Own):
    """AdaBelief and Yogi: how far a gradient is from what was believed; squares that grow by signs."""

    def way(self, one: Tensor, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        mean = state.setdefault("mean", torch.zeros_like(gradient))
        doubt, square = (state.setdefault(name, torch.full_like(gradient, 1e-6)) for name in ("doubt", "square"))
        mean.mul_(0.9).add_(gradient, alpha=0.1)
        residual = gradient - mean
        doubt.mul_(0.999).addcmul_(residual, residual, value=1e-3).add_(1e-12)
        powered = gradient.pow(2)
        square.addcmul_(torch.sign(square - powered), powered, value=-1e-3)
        return mean / torch.max(doubt, square).sqrt().add(1e-6)


class FewBits(Own):
    """Adam whose means are kept in eight bits: blocks of a length, a table of levels that are near zero."""

    LEVELS = torch.cat([-torch.logspace(0, -5, 127), torch.zeros(1), torch.logspace(-5, 0, 128)])

    def packed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = torch.nn.functional.pad(x.reshape(-1), (0, -x.numel() % 16)).view(-1, 16)
        most = flat.abs().amax(1, keepdim=True).clamp_min(1e-12)
        levels = self.LEVELS.to(x.device)
        middle = (levels[1:] + levels[:-1]) / 2
        return torch.bucketize(flat / most, middle).to(torch.uint8), most

    def opened(self, kept: tuple[Tensor, Tensor], like: Tensor) -> Tensor:
        bits, most = kept
        return (self.LEVELS.to(like.device)[bits.int()] * most).view(-1)[: like.numel()].view_as(like)

    def way(self, one: Tensor, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        none = torch.zeros_like(gradient)
        mean = self.opened(state["mean"], gradient) if "mean" in state else none.clone()
        root = self.opened(state["root"], gradient) if "root" in state else none.clone()
        mean = mean.mul_(0.9).add_(gradient, alpha=0.1)
        square = root.square_().mul_(0.999).addcmul_(gradient, gradient, value=1e-3)
        state["mean"], state["root"] = self.packed(mean), self.packed(square.sqrt())
        count = state["step"]
        return (mean / (1 - 0.9**count)) / ((square / (1 - 0.999**count)).sqrt() + 1e-6)


class SmallRank(Own):
    """GaLore: a matrix's gradient in the space of its largest singular vectors, where Adam steps; Adam for others."""

    def way(self, one: Tensor, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        if gradient.dim() == 2 and min(gradient.shape) > 2:
            if "space" not in state:
                state["space"] = torch.linalg.svd(gradient, full_matrices=False).U[:, :2].contiguous()
            gradient = state["space"].mT @ gradient
        mean = state.setdefault("mean", torch.zeros_like(gradient)).lerp_(gradient, 0.1)
        square = (
            state.setdefault("square", torch.zeros_like(gradient)).mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        )
        way = mean.div(square.sqrt().add_(1e-6))
        return 0.25 * state["space"] @ way if "space" in state else way


class Rotated(Own):
    """SOAP: Adam in the eigenvectors of Shampoo's matrices, which a step of QR keeps up to date."""

    def way(self, one: Tensor, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        if gradient.dim() != 2:
            return gradient.sign() * gradient.abs().mean()
        left = state.setdefault("left", 1e-3 * torch.eye(len(gradient), device=one.device))
        left.lerp_(gradient @ gradient.mT, 0.2)
        if "basis" not in state:
            state["basis"] = torch.linalg.eigh(left)[1].flip(1).contiguous()
        else:
            along = torch.einsum("ij,jk,kl->il", state["basis"].mT, left, state["basis"]).diagonal()
            order = torch.argsort(along, descending=True)
            state["basis"] = torch.linalg.qr(left @ state["basis"][:, order])[0]
        turned = state["basis"].mT @ gradient
        square = state.setdefault("square", torch.zeros_like(turned)).mul_(0.95).add_(turned.square(), alpha=0.05)
        return state["basis"] @ (turned * square.add(1e-10).rsqrt())


class NoSchedule(torch.optim.Optimizer):
    """Schedule-free AdamW: gradients at a point between the mean and the last of the iterates."""

    def __init__(self, parameters: list[Tensor], rate: float = 1e-2) -> None:
        super().__init__(parameters, {"lr": rate})
        self.last = [one.detach().float().clone() for one in parameters]
        self.squares = [torch.zeros_like(one) for one in self.last]
        self.count = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        self.count += 1
        rate = self.param_groups[0]["lr"] * min(1.0, self.count / 2)
        for one, last, square in zip(self.param_groups[0]["params"], self.last, self.squares):
            if one.grad is None:
                continue
            gradient = one.grad.float()
            square.mul_(0.999).addcmul_(gradient, gradient, value=1e-3)
            way = gradient / square.div(1 - 0.999**self.count).sqrt_().add_(1e-8) + 0.01 * one
            mixed = torch.lerp(one.float(), last, 1 / self.count).add_(
                way, alpha=rate * (0.9 * (1 - 1 / self.count) - 1)
            )
            last.sub_(way, alpha=rate)
            one.copy_(mixed)


class Estimated(torch.optim.Optimizer):
    """Prodigy: a rate that is estimated from how far the weights have come, by products over all of them."""

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__(parameters, {"lr": 1.0})
        self.first = [one.detach().clone() for one in parameters]
        self.sums = [torch.zeros_like(one, dtype=torch.float32) for one in parameters]
        self.means = [torch.zeros_like(one, dtype=torch.float32) for one in parameters]
        self.rate = torch.full((), 1e-3, device=parameters[0].device)
        self.along = torch.zeros_like(self.rate)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        lists = zip(self.param_groups[0]["params"], self.first, self.sums, self.means)
        used = [(one, *rest) for one, *rest in lists if one.grad is not None]
        for one, first, total, mean in used:
            gradient = one.grad.float()
            self.along += self.rate * torch.dot(gradient.flatten(), (first - one).flatten().float())
            total.add_(gradient * self.rate, alpha=1.0)
            mean.mul_(0.9).add_(gradient * self.rate, alpha=0.1)
        bottom = torch.stack([total.abs().sum() for _, _, total, _ in used]).sum()
        self.rate = torch.maximum(self.rate, torch.nan_to_num(self.along / bottom).clamp(max=2 * float(self.rate)))
        for one, _, total, mean in used:
            one.sub_((self.rate * mean / (total.square().sqrt() + 1e-6)).to(one.dtype))


class Scheduled(torch.optim.Optimizer):
    """AdamW in two groups, one without decay; rates by a schedule, a running mean, adaptive clipping."""

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__(parameters, {})
        decayed, others = [one for one in parameters if one.dim() > 1], [one for one in parameters if one.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0, "lr": 3e-3}]
        self.inner = torch.optim.AdamW([one for one in groups if one["params"]], 1e-2, betas=(0.8, 0.95), foreach=False)
        warm = torch.optim.lr_scheduler.LinearLR(self.inner, 0.1, total_iters=1)
        later = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.inner, 3)
        self.schedule = torch.optim.lr_scheduler.SequentialLR(self.inner, [warm, later], [1])
        self.means = [one.detach().clone() for one in parameters]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        used = [one for one in self.param_groups[0]["params"] if one.grad is not None]
        for one in used:
            dims = tuple(range(1, one.dim())) or None
            size = torch.linalg.vector_norm(one.float(), dim=dims, keepdim=dims is not None).clamp_min(1e-3)
            length = torch.linalg.vector_norm(one.grad.float(), dim=dims, keepdim=dims is not None)
            clipped = one.grad * (0.1 * size / length.clamp(min=1e-6)).to(one.dtype)
            one.grad.copy_(torch.where(length > 0.1 * size, clipped, one.grad))
        self.inner.step()
        self.schedule.step()
        torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)(self.means, self.param_groups[0]["params"], None)


class InBackward(torch.optim.Optimizer):
    """A step for each parameter as soon as its gradient is there, which is then let go."""

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__(parameters, {})
        self.each = {one: torch.optim.SGD([one], 0.02, momentum=0.8, foreach=False) for one in parameters}
        for one in parameters:
            if one.requires_grad:
                one.register_post_accumulate_grad_hook(self.stepped)

    def stepped(self, one: Tensor) -> None:
        torch.nn.utils.clip_grad_value_(one, 0.3)
        self.each[one].step()
        one.grad = None

    def step(self, closure: None = None) -> None:
        """All was done in the backward pass."""


class Lookahead(torch.optim.Optimizer):
    """Signs of a momentum by lists, what was rounded off is kept for later; weights that follow slowly."""

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__(parameters, {})
        self.slow = [one.detach().clone() for one in parameters]
        self.errors = [torch.zeros_like(one) for one in parameters]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        parameters = self.param_groups[0]["params"]
        arrived = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        wanted = torch._foreach_add(self.errors, arrived)
        lengths = torch._foreach_norm(wanted, 1)
        sizes = [length / one.numel() for length, one in zip(lengths, wanted)]
        sent = torch._foreach_mul(torch._foreach_sign(wanted), sizes)
        torch._foreach_copy_(self.errors, torch._foreach_sub(wanted, sent))
        torch._foreach_clamp_max_(sent, 0.05)
        torch._foreach_add_(parameters, sent, alpha=-0.1)
        torch._foreach_lerp_(self.slow, parameters, torch.tensor(0.5).item())
        torch._foreach_copy_(parameters, self.slow)


OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "AdEMAMix": lambda parameters: TwoMeans(parameters, 1e-3),
    "Adan": lambda parameters: Nesterovs(parameters, 1e-3),
    "AdaBelief": lambda parameters: Beliefs(parameters, 1e-3),
    "Adam in eight bits": lambda parameters: FewBits(parameters, 1e-3),
    "GaLore": lambda parameters: SmallRank(parameters, 1e-2),
    "SOAP": lambda parameters: Rotated(parameters, 1e-2),
    "schedule-free": NoSchedule,
    "Prodigy": Estimated,
    "groups and a schedule": Scheduled,
    "in backward": InBackward,
    "signs, lookahead": Lookahead,
    "decoupled Adam": lambda parameters: torch.optim.Adam(
        parameters, torch.tensor(1e-2), foreach=False, decoupled_weight_decay=True, weight_decay=0.01
    ),
    "differentiable SGD": lambda parameters: torch.optim.SGD(
        parameters, 0.02, momentum=0.5, foreach=False, nesterov=True
    ),
}
