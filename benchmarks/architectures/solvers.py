"""Programs that solve, sample, align and compare: differential equations, physics, energies, survival, codes."""

from __future__ import annotations

import math
from typing import Any

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def _speed(state: Tensor, first: Tensor, last: Tensor) -> Tensor:
    return torch.tanh(state @ first) @ last - 0.1 * state


class Adjoint(torch.autograd.Function):
    """Steps of chosen length by an embedded pair; backward the same equation is solved from the end."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, first: Tensor, last: Tensor) -> Tensor:
        time, step, times = 0.0, 0.25, []
        while time < 1:
            step = min(step, 1 - time)
            one = _speed(state, first, last)
            two = _speed(state + step * one, first, last)
            error = (0.5 * step * (two - one)).abs().max().item()
            if error < 0.2 or step < 0.02:
                state, time = state + 0.5 * step * (one + two), time + step
                times.append(step)
            step *= min(2.0, max(0.3, 0.9 * math.sqrt(0.05 / max(error, 1e-6))))
        ctx.save_for_backward(state, first, last)
        ctx.times = times
        return state

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        state, first, last = ctx.saved_tensors
        adjoint, totals = gradients[0], [torch.zeros_like(first), torch.zeros_like(last)]
        for step in reversed(ctx.times):
            with torch.enable_grad():
                at, *weights = (one.detach().requires_grad_() for one in (state, first, last))
                speed = _speed(at, *weights)
            slopes = torch.autograd.grad(speed, (at, *weights), adjoint)
            totals = [total + step * slope for total, slope in zip(totals, slopes[1:])]
            state, adjoint = state - step * speed.detach(), adjoint + step * slopes[0]
        return (adjoint, *totals)


class ContinuousDepth(nn.Module):
    """A neural differential equation whose gradient comes by the adjoint method; an augmented state."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first, self.last = nn.Parameter(normal(width, 12) * 0.4), nn.Parameter(normal(12, width, seed=4) * 0.4)
        self.read = nn.Linear(width, 3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with in_float32(x):
            state = F.pad(x.float(), (0, 2))
            made = Adjoint.apply(state, self.first.float(), self.last.float())
        return F.multi_margin_loss(self.read(made.to(self.read.weight.dtype)).float(), y, p=2)


class Springs(nn.Module):
    """A cloth: forces of springs, an implicit step by conjugate gradients, contacts, a material that is learnt."""

    def __init__(self, side: int = 4) -> None:
        super().__init__()
        index = torch.arange(side * side).view(side, side)
        pairs = [(index[:, :-1], index[:, 1:]), (index[:-1], index[1:]), (index[:-1, :-1], index[1:, 1:])]
        self.register_buffer("ends", torch.stack([torch.cat([part[i].flatten() for part in pairs]) for i in (0, 1)]))
        self.stiff, self.wind = nn.Parameter(torch.tensor([2.0, 1.5, 1.0])), nn.Parameter(normal(3) * 0.2)
        self.press = nn.Sequential(nn.Linear(6, 8), nn.Softsign(), nn.Linear(8, 3))
        self.counts = [part[0].numel() for part in pairs]

    def forces(self, places: Tensor, rest: Tensor) -> Tensor:
        stiff = self.stiff.float().repeat_interleave(torch.tensor(self.counts, device=places.device))
        apart = places[self.ends[1]] - places[self.ends[0]]
        length = torch.linalg.vector_norm(apart, dim=-1, keepdim=True).clamp_min(1e-6)
        pull = stiff[:, None] * (length - rest) * apart / length
        return torch.zeros_like(places).index_add(0, self.ends[0], pull).index_add(0, self.ends[1], pull, alpha=-1)

    def solved(self, b: Tensor, stiffness: Tensor) -> Tensor:
        """(1 + k L) x = b, L the springs' Laplacian."""

        def product(x: Tensor) -> Tensor:
            flow = x.index_select(0, self.ends[1]) - x.index_select(0, self.ends[0])
            out = torch.zeros_like(x).index_add_(0, self.ends[0], flow).index_add_(0, self.ends[1], flow, alpha=-1)
            return torch.sub(x, stiffness * out)

        x = torch.zeros_like(b)
        rest = b - product(x)
        way, size = rest, rest.square().sum()
        for _ in range(5):
            moved = product(way)
            rate = size / (way * moved).sum().clamp_min(1e-12)
            x, rest = x + rate * way, rest - rate * moved
            fresh = rest.square().sum()
            way, size = torch.addcmul(rest, fresh / size.clamp_min(1e-12), way), fresh
        return x

    def loss(self, places: Tensor, wanted: Tensor) -> Tensor:
        with in_float32(places):
            at = places.float()
            speed = torch.zeros_like(at)
            rest = torch.linalg.vector_norm(at[self.ends[1]] - at[self.ends[0]], dim=-1, keepdim=True)
        for _ in range(2):
            pressed = self.press(torch.cat([at, speed], -1).to(self.press[0].weight.dtype)).float()
            with in_float32(places):
                force = self.forces(at, rest) + self.wind.float() + 0.1 * pressed
                speed = self.solved(speed + 0.1 * force, 0.01 * self.stiff.float().mean())
                at = at + 0.1 * speed
                under = at[:, 2] < -1.5
                at = torch.cat([at[:, :2], at[:, 2:].clamp(min=-1.5)], -1)
                speed = speed * torch.where(under, 0.5, 1.0)[:, None]
        return F.huber_loss(at, wanted.float(), delta=0.5) + 1e-2 * speed.norm(dim=-1).mean()


class Energies(nn.Module):
    """An energy: samples by Langevin's steps, the two phases' difference, scores by sliced and denoising matching."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Softplus(2), nn.Linear(width, 1)
        )

    def energy(self, x: Tensor) -> Tensor:
        return self.net(x.to(self.net[0].weight.dtype)).float().squeeze(-1) + 0.05 * x.float().square().sum(-1)

    def score(self, x: Tensor, create_graph: bool) -> Tensor:
        at = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.energy(at).sum(), at, create_graph=create_graph)
        return -slope

    def loss(self, x: Tensor) -> Tensor:
        real = x.float()
        drawn = torch.empty_like(real).uniform_(-1, 1)
        for _ in range(3):
            drawn = drawn + 0.05 * self.score(drawn, False) + 0.05 * torch.randn_like(drawn)
        difference = self.energy(real).mean() - self.energy(drawn.detach()).mean()
        size = self.energy(real).square().mean()
        noise = torch.randn_like(real) * 0.3
        denoised = (self.score(real + noise, True) * 0.3 + noise / 0.3).square().sum(-1).mean()
        at = real.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.energy(at).sum(), at, create_graph=True)
        way = torch.randn_like(real).sign()
        (curve,) = torch.autograd.grad((slope * way).sum(), at, create_graph=True)
        sliced = 0.5 * slope.square().sum(-1).mean() - (curve * way).sum(-1).mean()
        return difference + 0.1 * size + 0.1 * denoised + 0.01 * sliced


class Alignments(nn.Module):
    """Soft alignments: time warping along diagonals, Smith and Waterman's in logarithms, a monotone one by cumsum."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.one, self.other = nn.GRU(4, width, batch_first=True), nn.Linear(4, width)
        self.gap = nn.Parameter(torch.tensor(0.5))

    @staticmethod
    def soft_minimum(*values: Tensor, rate: float = 0.3) -> Tensor:
        return -rate * torch.logsumexp(-torch.stack(values, -1) / rate, -1)

    def warped(self, costs: Tensor) -> Tensor:
        count, high, wide = costs.shape
        skewed = costs.new_full((count, high + wide - 1, high), 1e6)
        for row in range(high):
            skewed[:, row : row + wide, row] = costs[:, row]
        far = costs.new_full((count, high), 1e6)
        before, last = far, torch.cat([skewed[:, 0, :1], far[:, 1:]], 1)
        for number in range(1, high + wide - 1):
            shifted, corner = (F.pad(one[:, :-1], (1, 0), value=1e6) for one in (last, before))
            before, last = last, skewed[:, number] + self.soft_minimum(last, shifted, corner)
        return last[:, -1]

    def local(self, likeness: Tensor) -> Tensor:
        rows = [torch.zeros_like(likeness[:, 0])]
        for row in likeness.unbind(1):
            above = rows[-1]
            corner = F.pad(above[:, :-1], (1, 0))
            here = torch.logaddexp(torch.logaddexp(corner + row, above - self.gap.float()), torch.zeros_like(row))
            rows.append(here.logcumsumexp(-1) - torch.arange(1, here.shape[-1] + 1, device=row.device).log())
        return torch.stack(rows[1:], 1).flatten(1).logsumexp(-1)

    def loss(self, first: Tensor, second: Tensor) -> Tensor:
        left, right = self.one(first)[0].float(), torch.tanh(self.other(second)).float()
        with in_float32(first):
            costs = (left[:, :, None] - right[:, None]).square().sum(-1)
            likeness = torch.einsum("bic,bjc->bij", F.normalize(left, dim=-1), F.normalize(right, dim=-1))
            stops = torch.sigmoid(4 * likeness)
            reached = torch.cumprod(1 - stops.clamp(1e-4, 1 - 1e-4), -1).roll(1, -1)
            reached = torch.cat([torch.ones_like(reached[..., :1]), reached[..., 1:]], -1)
            expected = (stops * reached).cumsum(-1)
            steady = F.relu(expected[:, 1:] - expected[:, :-1]).mean()
            best = likeness.cummax(-1).values.mean() - likeness.cummin(1).values.mean()
        return self.warped(costs).mean() / 10 - 0.1 * self.local(likeness).mean() + steady - 0.1 * best


class Ensemble(nn.Module):
    """Several networks as one by vmap over stacked weights; slopes forward, curvature by a product with a vector."""

    def __init__(self, members: int = 3) -> None:
        super().__init__()
        self.first = nn.Parameter(normal(members, 8, 4) * 0.5)
        self.middle = nn.Parameter(normal(members, 8, 8, seed=5) * 0.3)
        self.last, self.offset = (
            nn.Parameter(normal(members, 2, 8, seed=6) * 0.5),
            nn.Parameter(torch.zeros(members, 2)),
        )

    @staticmethod
    def one(weights: tuple[Tensor, ...], x: Tensor) -> Tensor:
        first, middle, last, offset = weights
        hidden = F.softplus(x @ first.mT)
        return (hidden + torch.sin(hidden @ middle.mT)) @ last.mT + offset

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with in_float32(x):
            weights = tuple(one.float() for one in self.parameters())
            data, way = x.float(), torch.randn_like(x.float())
            made = torch.func.vmap(self.one, (0, None))(weights, data)
            mean, spread = made.unbind(-1)
            likely = F.gaussian_nll_loss(mean, y.float().expand_as(mean), F.softplus(spread) + 1e-3)
            alone = tuple(one[0] for one in weights)
            _, slope = torch.func.jvp(lambda at: self.one(alone, at), (data,), (way,))
            slopes = torch.func.vmap(torch.func.jacrev(lambda at: self.one(alone, at)))(data)
            _, pull = torch.func.vjp(lambda at: self.one(alone, at).square().mean(), data)
            (pulled,) = pull(torch.ones((), device=x.device))
            apart = torch.pdist(mean).neg().exp().mean()
            mixed = torch.var_mean(mean, 0, correction=0)[0].mean()
        rough = slope.square().mean() + slopes.square().sum((-2, -1)).add(1e-6).sqrt().mean()
        return likely + 0.01 * (rough + pulled.abs().sum()) + 0.1 * apart - 0.01 * mixed


class LowerBound(torch.autograd.Function):
    """Not below a bound; a gradient passes where it leads away from it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.clamp_min(bound)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradients[0] * ((x >= ctx.bound) | (gradients[0] < 0)), None


class Compression(nn.Module):
    """Pictures by learnt codes: divisive normalization, noise for rounding, likelihoods as differences of tails."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.analyse, self.make = nn.Conv2d(3, width, 5, 2, 2), nn.ConvTranspose2d(width, 3, 5, 2, 2, output_padding=1)
        self.beta, self.gamma = nn.Parameter(torch.ones(width)), nn.Parameter(0.1 * torch.eye(width))
        self.down, self.up = nn.Conv2d(width, 4, 3, 2, 1), nn.ConvTranspose2d(4, 2 * width, 4, 2, 1)
        self.steep, self.shift = nn.Parameter(normal(4, 3, 1) * 0.3), nn.Parameter(normal(4, 3, 1, seed=4) * 0.3)
        self.bend = nn.Parameter(normal(4, 3, 1, seed=5) * 0.1)

    def normed(self, x: Tensor) -> Tensor:
        gamma = LowerBound.apply(self.gamma, 1e-3)[..., None, None]
        return x * torch.rsqrt(F.conv2d(x.square(), gamma.to(x.dtype), LowerBound.apply(self.beta, 1e-2).to(x.dtype)))

    def tail(self, x: Tensor) -> Tensor:
        flat = x.transpose(0, 1).flatten(1)[:, None]
        scores = F.softplus(self.steep.float()) * flat + self.shift.float()
        scores = scores + torch.tanh(self.bend.float()) * torch.tanh(scores)
        return scores.sum(1)

    def loss(self, picture: Tensor) -> Tensor:
        code = self.normed(self.analyse(picture))
        summary = self.down(code.abs()).float()
        noisy = summary + torch.empty_like(summary).uniform_(-0.5, 0.5)
        mean, scale = self.up(noisy.to(picture.dtype)).float().chunk(2, 1)
        rounded = code.float() + (torch.round(code.float() - mean) + mean - code.float()).detach()
        with in_float32(picture):
            scale = LowerBound.apply(F.softplus(scale), 0.11)
            distance = (rounded - mean).abs()
            upper, lower = (0.5 * torch.erfc(-(side - distance) / scale * 2**-0.5) for side in (0.5, -0.5))
            bits = -LowerBound.apply(upper - lower, 1e-9).log2().sum()
            low, high = self.tail(noisy - 0.5), self.tail(noisy + 0.5)
            sign = -torch.sign(low + high).detach()
            likely = (torch.sigmoid(sign * high) - torch.sigmoid(sign * low)).abs()
            bits = bits - LowerBound.apply(likely, 1e-9).log2().sum()
        made = self.make(self.normed(rounded.to(picture.dtype))).float()
        return 0.01 * bits / picture.numel() + F.mse_loss(made, picture.float())


class Survival(nn.Module):
    """Times of events: Cox's partial likelihood over those at risk, hazards by interval, ranks, a Weibull tail."""

    def __init__(self, width: int = 6, intervals: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 10), nn.BatchNorm1d(10), nn.SELU(), nn.AlphaDropout(0.1))
        self.risk, self.hazards, self.shape = nn.Linear(10, 1), nn.Linear(10, intervals), nn.Linear(10, 2)

    def loss(self, x: Tensor, times: Tensor, seen: Tensor) -> Tensor:
        hidden = self.body(x)
        risk, hazards = self.risk(hidden).float().squeeze(-1), self.hazards(hidden).float()
        tail = self.shape(hidden).float()
        with in_float32(x):
            times = times.float().abs() + 0.1
            order = times.argsort(descending=True, stable=True)
            at_risk = risk[order].logcumsumexp(0)
            cox = -((risk[order] - at_risk) * seen[order]).sum() / seen.sum().clamp_min(1)
            edges = torch.quantile(times, torch.linspace(0, 1, 6, device=x.device))[1:-1]
            place = torch.searchsorted(edges, times)
            event = F.one_hot(place, 5).float() * seen[:, None]
            alive = torch.arange(5, device=x.device) <= place[:, None]
            discrete = F.binary_cross_entropy_with_logits(hazards, event, reduction="none")
            survived = torch.cumprod(1 - hazards.sigmoid(), -1)
            earlier = (times[:, None] < times) & seen[:, None].bool()
            ranks = torch.exp(-(survived[:, -1][None] - survived[:, -1][:, None]) / 0.5) * earlier
            scale, power = F.softplus(tail + 0.5).unbind(-1)
            log_hazard = power.log() - power * scale.log() + torch.xlogy(power - 1, times)
            weibull = -(seen * log_hazard - (times / scale).pow(power)).mean()
            brier = (survived - alive.float()).square().nanmean()
        return cox + (discrete * alive).sum(-1).mean() + 0.1 * (ranks.mean() + weibull + brier)


class Bags(nn.Module):
    """Recommendations by bags: sums with weights, means with padding, maxima; factorization, rows that are shared."""

    def __init__(self, rows: int = 20, width: int = 6) -> None:
        super().__init__()
        self.sums = nn.EmbeddingBag(rows, width, mode="sum", include_last_offset=True)
        self.means = nn.EmbeddingBag(rows, width, mode="mean", padding_idx=0)
        self.most = nn.EmbeddingBag(rows, width, mode="max")
        self.remainder = nn.EmbeddingBag(5, width)
        self.line = nn.Embedding(rows, 1)
        self.cross, self.top = nn.Linear(3 * width, 3 * width), nn.Linear(3 * width, 1)

    def loss(self, items: Tensor, weights: Tensor, clicks: Tensor) -> Tensor:
        count, length = items.shape
        offsets = torch.arange(0, count * length + 1, length, device=items.device)
        shares = weights.softmax(-1).flatten().to(self.sums.weight.dtype)
        bags = [self.sums(items.flatten(), offsets, per_sample_weights=shares), self.means(items), self.most(items)]
        bags[0] = bags[0] * self.remainder(items % 5) + self.remainder(items // 5)
        x = torch.cat(bags, -1)
        crossed = torch.addcmul(x, x, self.cross(x).to(x.dtype))
        fields = torch.stack([one.float() for one in bags], 1)
        pairs = 0.5 * (fields.sum(1).square() - fields.square().sum(1)).sum(-1)
        score = self.top(crossed).squeeze(-1).float() + pairs + self.line(items).sum((1, 2)).float()
        chance = torch.sigmoid(score.detach()).clamp(0.05, 0.95)
        inverse = torch.where(clicks > 0, 1 / chance, 1 / (1 - chance)).clamp(max=5)
        weighed = F.binary_cross_entropy_with_logits(score, clicks.float(), inverse, pos_weight=score.new_tensor(2.0))
        ranks = F.margin_ranking_loss(score, score.flip(0), torch.sign(clicks.float() - clicks.flip(0).float()), 0.1)
        return weighed + 0.1 * ranks + 1e-3 * fields.norm(p=1, dim=-1).mean()


PROGRAMS = (
    Program("adjoint", "sixth", ContinuousDepth, lambda: [normal(7, 4), whole(3, 7)]),
    Program("springs", "sixth", Springs, lambda: [normal(16, 3), normal(16, 3, seed=3)]),
    Program("energies", "sixth", Energies, lambda: [normal(8, 4)], ("checkpointed",)),
    Program("alignments", "sixth", Alignments, lambda: [normal(2, 6, 4), normal(2, 7, 4, seed=3)]),
    Program("ensemble", "sixth", Ensemble, lambda: [normal(6, 4), normal(6, seed=3)], ("checkpointed",)),
    Program("compression", "sixth", Compression, lambda: [normal(2, 3, 16, 16).sigmoid()]),
    Program(
        "survival", "sixth", Survival, lambda: [normal(10, 6), normal(10, seed=3), whole(3, 10, seed=4).clamp(max=1)]
    ),
    Program("bags", "sixth", Bags, lambda: [whole(20, 6, 5), normal(6, 5), whole(2, 6, seed=4)]),
)
