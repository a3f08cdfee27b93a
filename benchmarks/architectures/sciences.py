"""Sciences: forces of molecules, sequences for backbones, weather by frequencies, mechanics, graphs."""

from __future__ import annotations

import math
from typing import Any

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Forces(nn.Module):
    """PaiNN: scalars and vectors along the edges within a cutoff, forces as slopes, energies scaled by the atoms."""

    def __init__(self, width: int = 12, waves: int = 6) -> None:
        super().__init__()
        self.width, self.waves, self.cutoff = width, waves, 3.0
        self.atoms, self.shifts = nn.Embedding(9, width, padding_idx=0), nn.Embedding(9, 1)
        self.filters = nn.ModuleList(nn.Linear(waves, 3 * width) for _ in range(2))
        self.inner = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3 * width)) for _ in range(2)
        )
        self.u, self.v = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, 3 * width))
        self.top = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.register_buffer("scale", torch.tensor(1.7))

    def energy(self, kinds: Tensor, places: Tensor, batch: Tensor) -> Tensor:
        with torch.no_grad():
            near = torch.cdist(places, places) < self.cutoff
            near &= batch[:, None] == batch[None]
            near.fill_diagonal_(False)
            to, source = near.nonzero(as_tuple=True)
        way = places[source] - places[to]
        length = way.pow(2).sum(-1, keepdim=True).sqrt()
        unit = way / length
        n = torch.arange(1, self.waves + 1, device=places.device)
        radial = torch.sin(length * n * math.pi / self.cutoff) / length
        fade = 0.5 * (torch.cos(math.pi * length / self.cutoff) + 1.0)
        s, v = self.atoms(kinds).float(), places.new_zeros(len(kinds), 3, self.width)
        for filtered, inner in zip(self.filters, self.inner):
            weight = F.linear(radial, filtered.weight.float(), filtered.bias.float()) * fade
            told = self.wide(inner, s)[source] * weight
            ds, dv, du = torch.split(told, self.width, dim=-1)
            s = s.index_add(0, to, ds)
            moved = v[source] * dv.unsqueeze(1) + du.unsqueeze(1) * unit.unsqueeze(-1)
            v = v + torch.zeros_like(v).index_add_(0, to, moved)
            a, b = v @ self.u.weight.float().t(), v @ self.v.weight.float().t()
            size = torch.sqrt(torch.sum(b**2, dim=-2) + 1e-8)
            avv, asv, ass = self.wide(self.update, torch.cat([s, size], -1)).chunk(3, -1)
            v, s = v + a * avv.unsqueeze(1), s + (a * b).sum(1) * asv + ass
        each = self.wide(self.top, s) * self.scale.float() + self.shifts(kinds).float()
        return torch.zeros(int(batch[-1]) + 1, device=places.device).scatter_add_(0, batch, each.squeeze(-1))

    @staticmethod
    def wide(layers: nn.Sequential, x: Tensor) -> Tensor:
        x = F.silu(F.linear(x, layers[0].weight.float(), layers[0].bias.float()))
        return F.linear(x, layers[2].weight.float(), layers[2].bias.float())

    def loss(self, kinds: Tensor, places: Tensor, batch: Tensor, pulls: Tensor) -> Tensor:
        with in_float32(places):
            places = places.detach().float().requires_grad_(True)
            energy = self.energy(kinds, places, batch)
            (slope,) = torch.autograd.grad(energy, places, torch.ones_like(energy), create_graph=True)
            forces = -slope
            apart = (forces - pulls.float()).norm(p=2, dim=-1)
            return 0.01 * energy.square().mean() + apart.mean() + F.huber_loss(forces, pulls.float(), delta=0.5)


class Backbones(nn.Module):
    """ProteinMPNN: the nearest residues, distances in Gaussians, frames of atoms, an order that is drawn."""

    def __init__(self, width: int = 16, near: int = 5) -> None:
        super().__init__()
        self.near, self.width = near, width
        self.edge, self.relative = nn.Linear(16 * 4 + 3, width, bias=False), nn.Embedding(12, 16)
        self.join = nn.Linear(width + 16, width)
        self.words, self.out = nn.Embedding(21, width), nn.Linear(width, 21)
        self.encode = nn.ModuleList(nn.Linear(3 * width, width) for _ in range(3))
        self.decode, self.norms = nn.Linear(4 * width, width), nn.ModuleList(nn.LayerNorm(width) for _ in range(5))

    @staticmethod
    def picked(x: Tensor, index: Tensor) -> Tensor:
        flat = index.flatten(1).unsqueeze(-1).expand(-1, -1, x.shape[-1])
        return torch.gather(x, 1, flat).view(*index.shape, -1)

    def edges(self, atoms: Tensor) -> tuple[Tensor, Tensor]:
        n, ca, c = atoms.unbind(2)
        first, second = ca - n, c - ca
        side = -0.58273431 * torch.cross(first, second, dim=-1) + 0.56802827 * first - 0.54067466 * second + ca
        apart = torch.sqrt((ca[:, :, None] - ca[:, None]).square().sum(-1) + 1e-6)
        near, index = torch.topk(apart, self.near, dim=-1, largest=False)
        centres = torch.linspace(2, 22, 16, device=atoms.device).view(1, 1, 1, -1) / 8
        parts = [torch.exp(-(((near.unsqueeze(-1) - centres) / 0.2) ** 2))]
        for one, other in ((n, c), (side, ca), (side, side)):
            far = ((one[:, :, None] - self.picked(other, index)).square().sum(-1) + 1e-6).sqrt()
            parts.append(torch.exp(-(((far.unsqueeze(-1) - centres) / 0.2) ** 2)))
        x, y = F.normalize(first, dim=-1), F.normalize(torch.linalg.cross(first, second), dim=-1)
        frame = torch.stack([x, y, torch.linalg.cross(x, y)], -2)
        way = F.normalize(self.picked(ca, index) - ca.unsqueeze(2), dim=-1)
        parts.append(torch.matmul(frame.unsqueeze(2), way.unsqueeze(-1)).squeeze(-1))
        return torch.cat(parts, -1), index

    def loss(self, atoms: Tensor, words: Tensor) -> Tensor:
        count, length = words.shape
        kind = self.edge.weight.dtype
        with in_float32(atoms):
            noisy = atoms.float() + 0.02 * torch.randn(atoms.shape, device=atoms.device)
            shaped, index = self.edges(noisy)
        offset = torch.arange(length, device=words.device)[None, :, None] - index
        e = self.edge(shaped.to(kind))
        e = self.join(torch.cat([e, self.relative(offset.clip(-5, 6) + 5).to(e.dtype)], -1))
        h = torch.zeros(count, length, self.width, device=words.device, dtype=e.dtype)
        for layer, norm in zip(self.encode, self.norms):
            both = torch.cat([h.unsqueeze(2).expand(-1, -1, self.near, -1), e, self.picked(h, index)], -1)
            told = F.gelu(layer(both))
            h = norm(h + told.sum(-2) / 30)
            e = self.norms[3](e + told).to(e.dtype)
            h = h.to(e.dtype)
        order = torch.argsort(torch.randn(count, length, device=words.device).abs())
        ahead = F.one_hot(order, length).float()
        lower = 1 - torch.triu(torch.ones(length, length, device=words.device))
        mask = torch.einsum("ij,biq,bjp->bqp", lower, ahead, ahead)
        seen = torch.gather(mask, 2, index).unsqueeze(-1).to(e.dtype)
        text = self.picked(self.words(words).to(e.dtype), index)
        told = seen * torch.cat([text, self.picked(h, index)], -1)
        both = torch.cat([h.unsqueeze(2).expand(-1, -1, self.near, -1), e, told], -1)
        h = self.norms[4](h + F.gelu(self.decode(both)).mean(2))
        scores = F.log_softmax(self.out(h.to(kind)).float(), dim=-1)
        soft = F.one_hot(words, 21).float() * 0.9 + 0.1 / 21
        return -(soft * scores).sum(-1).sum() / 20 + 0 * torch.exp(F.nll_loss(scores.flatten(0, 1), words.flatten()))


class Weather(nn.Module):
    """AFNO: complex blocks on frequencies, shrunk softly, rows weighted by latitude, two steps ahead."""

    def __init__(self, width: int = 16, blocks: int = 4) -> None:
        super().__init__()
        self.blocks, size = blocks, width // blocks
        self.patch, self.places = nn.Conv2d(3, width, 2, 2), nn.Parameter(normal(1, 4, 8, width) * 0.02)
        self.w1, self.w2 = nn.Parameter(0.1 * normal(2, blocks, size, size)), nn.Parameter(0.1 * normal(2, blocks, size, size, seed=3))  # fmt: skip # noqa: E501
        self.b1, self.b2 = nn.Parameter(0.1 * normal(2, blocks, size)), nn.Parameter(0.1 * normal(2, blocks, size))
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))
        self.head = nn.Linear(width, 12, bias=False)
        latitude = torch.cos(torch.deg2rad(torch.linspace(-80, 80, 8)))
        self.register_buffer("weight", (latitude / latitude.mean()).view(1, 1, -1, 1))

    def filtered(self, x: Tensor) -> Tensor:
        kind, (count, high, wide, width) = x.dtype, x.shape
        z = torch.fft.rfft2(x.float(), dim=(1, 2), norm="ortho")
        z = z.reshape(count, high, wide // 2 + 1, self.blocks, -1)
        w1, w2, b1, b2 = (one.float() for one in (self.w1, self.w2, self.b1, self.b2))
        mul = lambda a, w: torch.einsum("...bi,bio->...bo", a, w)  # noqa: E731
        real = F.relu(mul(z.real, w1[0]) - mul(z.imag, w1[1]) + b1[0])
        imag = F.relu(mul(z.imag, w1[0]) + mul(z.real, w1[1]) + b1[1])
        out = torch.stack(
            [mul(real, w2[0]) - mul(imag, w2[1]) + b2[0], mul(imag, w2[0]) + mul(real, w2[1]) + b2[1]], -1
        )
        z = torch.view_as_complex(F.softshrink(out, lambd=0.01)).reshape(count, high, wide // 2 + 1, width)
        return torch.fft.irfft2(z, s=(high, wide), dim=(1, 2), norm="ortho").type(kind)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).permute(0, 2, 3, 1)
        h = h + self.places.to(h.dtype)
        h = h + self.filtered(self.norms[0](h).to(h.dtype))
        h = h + self.mlp(self.norms[1](h))
        return x + self.head(h).unflatten(-1, (2, 2, 3)).permute(0, 5, 1, 3, 2, 4).reshape(x.shape)

    def loss(self, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        x = torch.cat([x[..., -2:], x, x[..., :2]], -1)[..., 2:-2]
        one = self(x)
        two = self(one.to(x.dtype))
        with in_float32(x):
            total = x.new_zeros((), dtype=torch.float32)
            for made, goal in ((one, first), (two, second)):
                made, goal = made.float(), goal.float()
                total = total + (self.weight.float() * (made - goal).square()).mean().sqrt()
                a, b = (torch.fft.rfft(part, dim=-1, norm="forward").abs().square().mean(-2) for part in (made, goal))
                total = total + 0.05 * F.l1_loss((a + 1e-4).log10(), (b + 1e-4).log10())
                anomaly, truth = made - made.mean((-1, -2), True), goal - goal.mean((-1, -2), True)
                acc = (self.weight * anomaly * truth).sum() / torch.sqrt(
                    (self.weight * anomaly**2).sum() * (self.weight * truth**2).sum()
                )
                total = total - 0.1 * acc
        return total


class Mechanics(nn.Module):
    """Hamiltonian and Lagrangian nets: vmap over grad, leapfrog, Hessians solved, an operator (DeepONet) by jvp."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.h1, self.h2 = nn.Parameter(normal(4, width) * 0.5), nn.Parameter(normal(width, seed=4) * 0.5)
        self.l1, self.l2 = nn.Parameter(normal(4, width, seed=5) * 0.5), nn.Parameter(normal(width, seed=6) * 0.5)
        self.branch, self.trunk = nn.Linear(6, 8), nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 8))

    def hamiltonian(self, state: Tensor) -> Tensor:
        return torch.dot(torch.tanh(state @ self.h1.float()), self.h2.float()) + 0.5 * state.dot(state)

    def lagrangian(self, q: Tensor, dq: Tensor) -> Tensor:
        return F.softplus(torch.cat([q, dq]) @ self.l1.float()) @ self.l2.float().abs() + 0.5 * dq @ dq

    def loss(self, states: Tensor, after: Tensor, sensed: Tensor) -> Tensor:
        with in_float32(states):
            slope = torch.func.vmap(torch.func.grad(self.hamiltonian))
            q, p = states.float().chunk(2, -1)
            for _ in range(3):
                p = p - 0.05 * slope(torch.cat([q, p], -1))[:, :2]
                q = q + 0.1 * slope(torch.cat([q, p], -1))[:, 2:]
                p = p - 0.05 * slope(torch.cat([q, p], -1))[:, :2]
            made = torch.cat([q, p], -1)
            kept = torch.func.vmap(self.hamiltonian)(made) - torch.func.vmap(self.hamiltonian)(states.float())

            def acceleration(q: Tensor, dq: Tensor) -> Tensor:
                mass = torch.func.hessian(self.lagrangian, argnums=1)(q, dq) + 0.1 * torch.eye(2, device=q.device)
                force = torch.func.grad(self.lagrangian, argnums=0)(q, dq)
                mixed = torch.func.jacfwd(torch.func.grad(self.lagrangian, argnums=1), argnums=0)(q, dq)
                return torch.linalg.solve(mass, force - mixed @ dq)

            ddq = torch.func.vmap(acceleration)(*states.float().chunk(2, -1))
            told = F.linear(sensed.float(), self.branch.weight.float(), self.branch.bias.float())

            def field(t: Tensor) -> Tensor:
                hidden = F.linear(t, self.trunk[0].weight.float(), self.trunk[0].bias.float()).tanh()
                return F.linear(hidden, self.trunk[2].weight.float()) @ told.t()

            t = torch.linspace(0, 1, 7, device=states.device).unsqueeze(1)
            value, rate = torch.func.jvp(field, (t,), (torch.ones_like(t),))
            residual = rate + value - sensed.float().mean(1)
        return (
            F.mse_loss(made, after.float()) + kept.square().mean() + 0.1 * ddq.square().mean() + residual.abs().mean()
        )


class Flows(nn.Module):
    """A graph transformer: a Laplacian's eigenvectors, walks, GATv2, many aggregators, balanced flows."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.into, self.walks, self.edge = nn.Linear(5, width), nn.Linear(4, width), nn.Linear(width, width, bias=False)
        self.left, self.right, self.ask = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.Parameter(normal(2, 6) * 0.3),
        )
        self.many, self.bn = nn.Linear(13 * width, width), nn.BatchNorm1d(width)
        self.forward_policy, self.back = nn.Linear(width, 1), nn.Linear(width, 1)
        self.log_z, self.top = nn.Parameter(torch.tensor(1.0)), nn.Linear(width, 3)

    def softmaxed(self, scores: Tensor, to: Tensor, count: int) -> Tensor:
        index = to.unsqueeze(-1).expand_as(scores)
        top = scores.new_full((count, scores.shape[1]), -math.inf).scatter_reduce(0, index, scores.detach(), "amax")
        share = (scores - top[to]).exp()
        return share / (torch.zeros_like(top).scatter_add(0, index, share)[to] + 1e-16)

    def loss(self, edges: Tensor, kinds: Tensor) -> Tensor:
        count, device = len(kinds), edges.device
        pairs = torch.unique(torch.cat([edges, edges.flip(0)], 1), dim=1)
        source, to = pairs[:, pairs[0] != pairs[1]]
        dense = torch.zeros(count, count, device=device).index_put_((source, to), torch.ones((), device=device))
        degree = dense.sum(1)
        inverse = degree.pow(-0.5).masked_fill_(degree == 0, 0.0)
        laplace = torch.eye(count, device=device) - inverse[:, None] * dense * inverse
        with torch.no_grad(), in_float32(dense):
            vectors = torch.linalg.eigh(laplace).eigenvectors[:, 1:6]
            vectors = vectors * (torch.randint(0, 2, (5,), device=device) * 2 - 1)
            walk, landing, parts = dense / degree.clamp(min=1)[:, None], dense, []
            for _ in range(4):
                landing = walk @ landing if parts else walk
                parts.append(landing.diagonal())
        kind = self.into.weight.dtype
        h = self.into(vectors.to(kind)) + self.walks(torch.stack(parts, 1).to(kind))
        a, b = self.left(h).unflatten(-1, (2, 6)), self.right(h).unflatten(-1, (2, 6))
        scores = (F.leaky_relu(a[source] + b[to], 0.2) * self.ask.to(a.dtype)).sum(-1)
        share = F.dropout(self.softmaxed(scores.float(), to, count), 0.1, self.training)
        told = (a[source].float() * share.unsqueeze(-1)).flatten(1)
        index = to.unsqueeze(-1).expand_as(told)
        zero, size = told.new_zeros(count, told.shape[1]), degree.clamp(min=1).unsqueeze(-1)
        mean = zero.scatter_add(0, index, told) / size
        square = zero.scatter_add(0, index, told.square()) / size
        deviation = torch.sqrt(F.relu(square - mean.square()) + 1e-5)
        most, least = (zero.scatter_reduce(0, index, told, how, include_self=False) for how in ("amax", "amin"))
        every = torch.cat([mean, most, least, deviation], -1)
        scaler = torch.log(size + 1) / torch.log(size + 1).mean()
        h = self.bn(self.many(torch.cat([h.float(), every, every * scaler, every / scaler], -1).to(kind))) + h
        state, visited = (
            torch.zeros(2, dtype=torch.long, device=device),
            torch.zeros(2, count, dtype=torch.bool, device=device),
        )
        flow: Any = self.log_z.float().expand(2)
        logits = self.forward_policy(F.elu(h)).squeeze(-1).float()
        for _ in range(3):
            visited = visited.scatter(1, state[:, None], True)
            allowed = logits.expand(2, -1).masked_fill(visited, -1e9)
            state = torch.multinomial(torch.softmax(allowed, -1).detach(), 1).squeeze(1)
            flow = flow + allowed.log_softmax(-1).gather(1, state[:, None]).squeeze(1)
            flow = flow - F.logsigmoid(self.back(F.elu(h[state])).squeeze(-1).float())
        reward = kinds[state].float().add(1).log()
        return (flow - reward).pow(2).mean() + F.cross_entropy(self.top(h.to(kind)).float(), kinds)


def graph() -> list[Tensor]:
    ring = torch.arange(10)
    return [torch.cat([torch.stack([ring, (ring + 1) % 10]), whole(10, 2, 9)], 1), whole(3, 10, seed=7)]


PROGRAMS = (
    Program(
        "forces", "ninth", Forces,
        lambda: [whole(8, 9) + 1, 1.5 * normal(9, 3), torch.tensor([0] * 5 + [1] * 4), normal(9, 3, seed=5)],
        ("checkpointed",),
    ),
    Program("backbones", "ninth", Backbones, lambda: [normal(2, 9, 3, 3), whole(21, 2, 9)]),
    Program("weather", "ninth", Weather, lambda: [normal(2, 3, 8, 16, seed=seed) for seed in (1, 2, 3)]),
    Program(
        "mechanics of states", "ninth", Mechanics,
        lambda: [normal(5, 4), normal(5, 4, seed=2), normal(3, 6)], ("checkpointed",),
    ),
    Program("graphs and flows", "ninth", Flows, graph),
)  # fmt: skip
