"""Chances once more: counts of cells, hidden states, particles, machines without a clock, few steps, treatments."""

from __future__ import annotations

import math

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Cells(nn.Module):
    """scVI: counts with too many zeros by lgamma, sizes of libraries, batches that a turned gradient hides."""

    def __init__(self, genes: int = 20, width: int = 16, latent: int = 5) -> None:
        super().__init__()
        layer = lambda n, m: nn.Sequential(nn.Linear(n, m), nn.BatchNorm1d(m, 1e-3, 0.01), nn.ReLU(), nn.Dropout(0.1))  # noqa: E731
        self.encode, self.library, self.decode = layer(genes, width), layer(genes, width), layer(latent + 3, width)
        self.mean, self.logvar = nn.Linear(width, latent), nn.Linear(width, latent)
        self.size, self.scale, self.none = nn.Linear(width, 2), nn.Linear(width, genes), nn.Linear(width, genes)
        self.dispersion = nn.Parameter(torch.randn(genes, generator=torch.Generator().manual_seed(3)))
        self.judge = nn.Linear(latent, 3)

    @staticmethod
    def likely(x: Tensor, mean: Tensor, theta: Tensor, none: Tensor, eps: float = 1e-8) -> Tensor:
        plain = F.softplus(-none)
        together = (theta + mean + eps).log()
        zero = -none + theta * ((theta + eps).log() - together)
        at_zero = (x < eps).to(x.dtype) * (F.softplus(zero) - plain)
        counted = -plain + zero + x * ((mean + eps).log() - together)
        counted = counted + torch.lgamma(x + theta) - torch.lgamma(theta) - torch.lgamma(x + 1)
        return at_zero + (x > eps).to(x.dtype) * counted

    def loss(self, counts: Tensor, batch: Tensor) -> Tensor:
        x = torch.log1p(counts.float()).to(self.mean.weight.dtype)
        hidden = self.encode(x)
        mean, spread = self.mean(hidden).float(), F.softplus(self.logvar(hidden).float()) + 1e-4
        z = mean + spread.sqrt() * torch.randn_like(mean)
        level, wide = self.size(self.library(x)).float().unbind(-1)
        many = torch.distributions.Normal(level, wide.clamp(-5, 3).exp().sqrt())
        logs = counts.float().sum(-1).log()
        prior = torch.distributions.Normal(logs.mean().expand_as(level), logs.std().clamp(min=0.1).expand_as(level))
        library = many.rsample().clamp(max=8.0)
        onehot = F.one_hot(batch, 3)
        out = self.decode(torch.cat([z, onehot.to(z.dtype)], -1).to(self.mean.weight.dtype))
        rate = library.exp().unsqueeze(-1) * self.scale(out).float().softmax(-1)
        rebuilt = -self.likely(counts.float(), rate, self.dispersion.float().exp(), self.none(out).float()).sum(-1)
        away = 0.5 * (mean.square() + spread - spread.log() - 1).sum(-1)
        kl = torch.distributions.kl_divergence(many, prior)
        turned = z.detach() * 2 - z
        told = F.cross_entropy(self.judge(turned.to(self.judge.weight.dtype)).float(), batch)
        chances = rate.detach() / (rate.detach() + self.dispersion.float().exp())
        topic = -torch.xlogy(counts.float(), chances.clamp_min(1e-6)).mean()
        return (rebuilt + away + kl).mean() + told + 0.01 * topic


class Observed(nn.Module):
    """A hidden Markov model by autograd of its partition, Viterbi, a chain of segments; masks of lengths."""

    def __init__(self, states: int = 5, symbols: int = 12, width: int = 8, longest: int = 3) -> None:
        super().__init__()
        self.longest = longest
        self.start, self.names = nn.Parameter(torch.zeros(states)), nn.Parameter(normal(states, width))
        self.into, self.out = nn.Linear(width, width), nn.Linear(width, symbols)
        self.long = nn.Parameter(torch.zeros(states, longest))

    def loss(self, words: Tensor, lengths: Tensor) -> Tensor:
        with in_float32(self.names):
            names = self.names.float()
            moves = (F.linear(names, self.into.weight.float()) @ names.t()).log_softmax(-1)
            told = F.linear(names, self.out.weight.float(), self.out.bias.float()).log_softmax(-1)
            seen = told.t()[words]
            alpha = self.start.float().log_softmax(0) + seen[:, 0]
            best, back = alpha.detach(), []
            for step in range(1, words.shape[1]):
                live = (step < lengths).unsqueeze(-1)
                new = torch.logsumexp(alpha.unsqueeze(-1) + moves, 1) + seen[:, step]
                alpha = torch.where(live, new, alpha)
                value, index = (best.unsqueeze(-1) + moves.detach()).max(1)
                best = torch.where(live, value + seen[:, step].detach(), best)
                back.append(index)
            path = best.argmax(-1)
            for index in reversed(back):
                path = index.gather(1, path.unsqueeze(1)).squeeze(1)
            segments = F.pad(seen, (0, 0, 1, 0)).cumsum(1)
            long, tables = self.long.float().log_softmax(-1), [self.start.float().log_softmax(0).expand(len(words), -1)]
            for step in range(1, words.shape[1] + 1):
                ways = []
                for size in range(1, min(self.longest, step) + 1):
                    before = tables[step - size]
                    moved = before if step == size else torch.logsumexp(before.unsqueeze(-1) + moves, 1)
                    ways.append(moved + segments[:, step] - segments[:, step - size] + long[:, size - 1])
                tables.append(torch.logsumexp(torch.stack(ways), 0))
            ends = torch.stack(tables, 1)[torch.arange(len(words), device=words.device), lengths]
            total = torch.logsumexp(alpha, -1) + torch.logsumexp(ends, -1)
            return -(total / lengths).mean() + 0 * path.float().mean()


class Particles(nn.Module):
    """A filter of particles: weights in logarithms, systematic draws, a bound; a deep Markov model beside it."""

    def __init__(self, width: int = 8, latent: int = 3, particles: int = 16) -> None:
        super().__init__()
        self.particles = particles
        self.cell, self.guess = nn.GRUCell(4 + latent, width), nn.Linear(width + 4, 2 * latent)
        self.prior, self.seen = nn.Linear(width, 2 * latent), nn.Linear(width + latent, 8)
        self.back = nn.RNN(4, width, nonlinearity="relu", batch_first=True)
        for name, one in self.cell.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(one)

    @staticmethod
    def normal_log(x: Tensor, told: Tensor) -> Tensor:
        mean, scale = told.float().chunk(2, -1)
        scale = F.softplus(scale) + 1e-3
        return (-0.5 * ((x.float() - mean) / scale).square() - scale.log() - 0.5 * math.log(2 * math.pi)).sum(-1)

    def loss(self, x: Tensor) -> Tensor:
        count, steps, _ = x.shape
        dtype = self.guess.weight.dtype
        hidden = x.new_zeros(count, self.particles, self.cell.hidden_size, dtype=dtype)
        weights = x.new_full((count, self.particles), -math.log(self.particles), dtype=torch.float32)
        bound, later = x.new_zeros(count, dtype=torch.float32), self.back(x.flip(1).to(dtype))[0].flip(1)
        for step in range(steps):
            here = x[:, step].to(dtype)
            wide = here.unsqueeze(1).expand(-1, self.particles, -1)
            told = self.guess(torch.cat([hidden + later[:, step].unsqueeze(1).to(dtype), wide], -1))
            mean, scale = told.float().chunk(2, -1)
            z = mean + (F.softplus(scale) + 1e-3) * torch.randn_like(mean)
            prior = self.prior(hidden)
            likely = self.normal_log(wide, self.seen(torch.cat([hidden, z.to(dtype)], -1)))
            weights = weights + likely + self.normal_log(z, prior) - self.normal_log(z, told)
            step_total = torch.logsumexp(weights, 1, keepdim=True)
            bound = bound + step_total.squeeze(1)
            weights = weights - step_total
            effective = (-torch.logsumexp(2 * weights.detach(), 1)).exp()
            start = torch.rand(count, 1, device=x.device)
            points = (start + torch.arange(self.particles, device=x.device)) / self.particles
            chosen = torch.searchsorted(weights.detach().exp().cumsum(1), points).clamp(max=self.particles - 1)
            few = (effective < self.particles / 2).unsqueeze(1)
            chosen = torch.where(few, chosen, torch.arange(self.particles, device=x.device))
            weights = torch.where(few, -math.log(self.particles), weights)
            both = torch.cat([wide, z.to(dtype)], -1).flatten(0, 1)
            hidden = self.cell(both, hidden.flatten(0, 1).to(dtype)).unflatten(0, (count, -1)).to(dtype)
            hidden = hidden.gather(1, chosen.unsqueeze(-1).expand_as(hidden))
        return -bound.mean() / steps


class Boltzmann(nn.Module):
    """A restricted Boltzmann machine by contrastive divergence, a deep energy by Langevin's walk, JEM."""

    def __init__(self, seen: int = 16, hidden: int = 10, classes: int = 4) -> None:
        super().__init__()
        self.w = nn.Parameter(normal(hidden, seen) * 0.01)
        self.v, self.h = nn.Parameter(torch.zeros(seen)), nn.Parameter(torch.zeros(hidden))
        self.net = nn.Sequential(nn.Linear(seen, 24), nn.SiLU(), nn.Linear(24, 24), nn.ELU(), nn.Linear(24, classes))
        self.register_buffer("buffer", normal(32, seen, seed=8))

    def free(self, v: Tensor) -> Tensor:
        return -(v @ self.v) - F.softplus(F.linear(v, self.w, self.h)).sum(-1)

    @torch.no_grad()
    def gibbs(self, v: Tensor) -> Tensor:
        for _ in range(3):
            h = torch.bernoulli(F.linear(v, self.w, self.h).sigmoid())
            v = torch.bernoulli(F.linear(h.to(self.w.dtype), self.w.t(), self.v).sigmoid())
        return v

    def walked(self, count: int) -> tuple[Tensor, Tensor]:
        index = torch.randint(len(self.buffer), (count,), device=self.buffer.device)
        fresh = (torch.rand(count, device=self.buffer.device) < 0.05).to(self.w.dtype).unsqueeze(-1)
        x = self.buffer[index].to(self.w.dtype)
        x = fresh * torch.rand_like(x).mul_(2).sub_(1) + (1 - fresh) * x
        for _ in range(4):
            x = x.detach().requires_grad_()
            with torch.enable_grad():
                energy = self.net(x).float().logsumexp(1).sum()
            (slope,) = torch.autograd.grad(energy, x)
            x = x + slope.clamp(-0.03, 0.03) + 0.01 * torch.randn_like(x)
        with torch.no_grad():
            self.buffer[index] = x.detach().to(self.buffer.dtype)
        return x.detach(), index

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        bits = (x > 0).to(self.w.dtype)
        machine = (self.free(bits) - self.free(self.gibbs(bits))).float().mean()
        fake, _ = self.walked(len(x))
        scores, made = self.net(x + 0.03 * torch.randn_like(x)).float(), self.net(fake).float()
        apart = made.logsumexp(1).mean() - scores.logsumexp(1).mean()
        size = made.logsumexp(1).square().mean() + scores.logsumexp(1).square().mean()
        return machine + F.cross_entropy(scores, y) + apart + 0.1 * size


class FewSteps(nn.Module):
    """EDM and consistency: preconditioned nets, pseudo-Huber, an average, likelihoods of 256 levels."""

    def __init__(self, size: int = 12, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Linear(16, width)
        self.net = nn.ModuleList((nn.Linear(size, width), nn.Linear(width, width), nn.Linear(width, 2 * size)))
        self.norm = nn.GroupNorm(4, width)
        self.classes = nn.Embedding(4, width)
        self.register_buffer("waves", normal(8, seed=12) * 16)
        self.register_buffer("average", torch.cat([one.detach().flatten() for one in self.net.parameters()]))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        nn.init.zeros_(self.net[2].weight)

    def scaled(self, x: Tensor, sigma: Tensor, label: Tensor, data: float = 0.5) -> tuple[Tensor, Tensor]:
        sigma = sigma.float().unsqueeze(-1)
        skip, out = data**2 / (sigma**2 + data**2), sigma * data / (sigma**2 + data**2).sqrt()
        into, noise = 1 / (sigma**2 + data**2).sqrt(), sigma.log() / 4
        angle = noise * self.waves.float() * 2 * math.pi
        dtype = self.embed.weight.dtype
        at = F.silu(self.embed(torch.cat([angle.cos(), angle.sin()], -1).to(dtype)) + self.classes(label))
        hidden = self.norm(self.net[0]((into * x.float()).to(dtype))) + at
        hidden = hidden + F.dropout(self.net[1](F.silu(hidden)), 0.1)
        told, wide = self.net[2](F.silu(hidden)).float().chunk(2, -1)
        return skip * x.float() + out * told, wide

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.float() * 0.5
        label = y.masked_fill(torch.rand(y.shape, device=y.device) < 0.1, 3)
        noise = torch.randn_like(x)
        sigma = (torch.randn(len(x), device=x.device) * 1.2 - 1.2).exp()
        clean, wide = self.scaled(x + noise * sigma.unsqueeze(-1), sigma, label)
        weight = (sigma**2 + 0.25) / (sigma * 0.5) ** 2
        edm = (weight.unsqueeze(-1) * (clean - x).square()).mean()
        steps = 10 * 2 ** int(self.count)
        edges = (torch.linspace(0.002 ** (1 / 7), 80 ** (1 / 7), steps, device=x.device)) ** 7
        with torch.no_grad():
            chances = torch.erf((edges[1:].log() + 1.1) / (2**0.5 * 2)) - torch.erf(
                (edges[:-1].log() + 1.1) / (2**0.5 * 2)
            )
            at = torch.multinomial(chances, len(x), replacement=True)
        low, high = edges[at], edges[at + 1]
        ours, _ = self.scaled(x + high.unsqueeze(-1) * noise, high, label)
        with torch.no_grad():
            theirs, _ = self.scaled(x + low.unsqueeze(-1) * noise, low, label)
            parts = torch.cat([one.detach().flatten() for one in self.net.parameters()])
            self.average.lerp_(parts.to(self.average.dtype), 1 - 0.95)
            self.count.add_(1).clamp_(max=3)
        c = 0.00054 * math.sqrt(x.shape[-1])
        huber = ((ours - theirs).square().sum(-1) + c**2).sqrt() - c
        consistent = (huber / (high - low)).mean()
        codes = ((x.clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1
        logs = wide.clamp(-7, 2)
        middle, inverse = codes - clean, torch.exp(-logs)
        cdf = lambda at: 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (at + 0.044715 * at**3)))  # noqa: E731
        above, below = cdf(inverse * (middle + 1 / 255)), cdf(inverse * (middle - 1 / 255))
        inside = (above - below).clamp(min=1e-12).log()
        left, right = above.clamp(min=1e-12).log(), (1 - below).clamp(min=1e-12).log()
        likely = torch.where(codes < -0.999, left, torch.where(codes > 0.999, right, inside))
        return edm + 0.1 * consistent - 1e-3 * likely.mean()


class Treated(nn.Module):
    """TARNet and DragonNet, IRM, Group DRO and NOTEARS: two heads, kernels between groups, penalties, one graph."""

    def __init__(self, inputs: int = 8, width: int = 16, groups: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.ELU(), nn.Linear(width, width), nn.ELU())
        self.heads = nn.ModuleList(nn.Sequential(nn.Linear(width, 8), nn.ELU(), nn.Linear(8, 1)) for _ in range(2))
        self.chance, self.epsilon = nn.Linear(width, 1), nn.Parameter(torch.full((1,), 0.1))
        self.graph = nn.Parameter(normal(inputs, inputs) * 0.1)
        self.register_buffer("weights", torch.full((groups,), 1.0 / groups))

    @staticmethod
    def kernels(a: Tensor, b: Tensor) -> Tensor:
        both = torch.cat([a, b])
        away = (both[:, None] - both[None]).square().sum(-1)
        band = away.detach().sum() / max(1, len(both) ** 2 - len(both))
        alike = sum(torch.exp(-away / (band * 2.0**power + 1e-8)) for power in range(-2, 3))
        n = len(a)
        if n == 0 or n == len(both):
            return alike.sum() * 0
        return alike[:n, :n].mean() + alike[n:, n:].mean() - 2 * alike[:n, n:].mean()

    def loss(self, x: Tensor, treated: Tensor, y: Tensor, group: Tensor) -> Tensor:
        code = self.body(x)
        first, second = (head(code).squeeze(-1).float() for head in self.heads)
        told = torch.where(treated.bool(), second, first)
        chance = (self.chance(code).squeeze(-1).float().sigmoid() + 0.01) / 1.02
        goal = y.float()
        each = F.mse_loss(told, goal, reduction="none")
        with in_float32(x):
            share = F.binary_cross_entropy(chance.double(), treated.double()).float()
        factor = treated / chance - (1 - treated) / (1 - chance)
        targeted = (goal - told - self.epsilon.float() * factor).square().mean()
        apart = self.kernels(code[treated.bool()].float(), code[~treated.bool()].float())
        count = torch.zeros(len(self.weights), device=x.device).index_add(0, group, torch.ones_like(each))
        means = torch.zeros_like(count).index_add(0, group, each) / count.clamp(min=1)
        with torch.no_grad():
            self.weights.mul_(torch.exp(0.1 * means).to(self.weights.dtype))
            self.weights.div_(self.weights.sum())
        scale = torch.ones((), device=x.device, requires_grad=True)
        penalty = x.new_zeros((), dtype=torch.float32)
        for number in range(len(self.weights)):
            some = group == number
            if not some.any():
                continue
            risk = F.mse_loss(told[some] * scale, goal[some])
            (slope,) = torch.autograd.grad(risk, [scale], create_graph=True)
            penalty = penalty + slope.square()
        with in_float32(x):
            graph = self.graph.float() * (1 - torch.eye(len(self.graph), device=x.device))
            square = graph * graph
            cycle = torch.trace(torch.linalg.matrix_exp(square)) - len(square)
            sign, determinant = torch.linalg.slogdet(torch.eye(len(square), device=x.device) - 0.1 * square)
            wide = x.float()
            fit = 0.5 / len(x) * (wide - wide @ graph).square().sum()
            order = fit + 0.1 * graph.abs().sum() + 0.5 * 1.0 * cycle**2 + cycle - sign.detach() * determinant
        robust = (self.weights.float() * means).sum()
        return robust + share + targeted + apart + 0.1 * penalty + 0.1 * order


def observed() -> list[Tensor]:
    return [whole(12, 4, 9), torch.tensor([9, 1, 5, 7])]


def treated() -> list[Tensor]:
    return [normal(12, 8), whole(2, 12), normal(12, seed=5), whole(2, 12, seed=9)]


PROGRAMS = (
    Program("counted cells", "eleventh", Cells, lambda: [whole(9, 8, 20) * whole(2, 8, 20, seed=4), whole(3, 8)]),
    Program("hidden states", "eleventh", Observed, observed),
    Program("particles", "eleventh", Particles, lambda: [normal(3, 5, 4)]),
    Program("machines", "eleventh", Boltzmann, lambda: [normal(8, 16), whole(4, 8)], ("checkpointed",)),
    Program("few steps", "eleventh", FewSteps, lambda: [normal(8, 12), whole(3, 8)]),
    Program("treatments", "eleventh", Treated, treated),
)
