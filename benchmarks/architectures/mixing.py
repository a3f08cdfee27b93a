"""Ways to look at other places: capped and deformed attention, experts that choose, Fourier transforms."""

from __future__ import annotations

import math

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Capped(nn.Module):
    """Gemma 2: local and global attention in turns, capped scores, norms of queries, a parallel block with ALiBi."""

    def __init__(self, width: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.words = nn.Embedding(32, width)
        self.query, self.both = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * self.size, bias=False)
        self.wide, self.back = nn.Linear(width, 2 * 40, bias=False), nn.Linear(40 + width, width, bias=False)
        self.scales = nn.ParameterList(torch.zeros(size) for size in (width, self.size, self.size, width))

    def loss(self, words: Tensor) -> Tensor:
        hidden = self.words(words) * math.sqrt(self.words.embedding_dim)
        place = torch.arange(words.shape[1], device=words.device)
        apart = place[:, None] - place
        slopes = 2.0 ** -torch.arange(1, self.heads + 1, device=words.device)
        for number in range(2):
            seen = self.norm(hidden, 0)
            query = self.norm(self.query(seen).unflatten(-1, (self.heads, -1)), 1).transpose(1, 2)
            key, value = self.both(seen).chunk(2, -1)
            scores = query @ self.norm(key, 2)[:, None].mT * self.size**-0.5
            scores = 20 * torch.tanh(scores / 20) - (slopes[:, None, None] * apart).to(scores.dtype)
            hidden_from = (apart < 0) | ((apart > 3) if number == 0 else torch.zeros_like(apart, dtype=torch.bool))
            scores = scores.masked_fill(hidden_from, torch.finfo(scores.dtype).min)
            looked = (
                (scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value[:, None]).transpose(1, 2).flatten(2)
            )
            gate, wide = self.wide(seen).chunk(2, -1)
            hidden = hidden + self.back(torch.cat([F.gelu(gate, approximate="tanh") * wide, looked], -1))
        logits = F.linear(self.norm(hidden, 3), self.words.weight)[:, :-1]
        logits = 30 * torch.tanh(logits.float() / 30)
        size = logits.logsumexp(-1)
        return F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()) + 1e-3 * size.square().mean()

    def norm(self, x: Tensor, number: int) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], 1 + self.scales[number].float(), 1e-6).to(x.dtype)


class Chosen(nn.Module):
    """Experts that choose their words, words that leave early, and a router with noise and a loss of its own."""

    def __init__(self, width: int = 12, experts: int = 4) -> None:
        super().__init__()
        self.words, self.router = nn.Embedding(30, width), nn.Linear(width, experts, bias=False)
        self.first, self.second = (
            nn.Parameter(normal(experts, width, 20) * 0.2),
            nn.Parameter(normal(experts, 20, width, seed=3) * 0.2),
        )
        self.leave, self.out = nn.Linear(width, 1), nn.Linear(width, 30)

    def loss(self, words: Tensor) -> Tensor:
        hidden = self.words(words).flatten(0, 1)
        scores = self.router(hidden * torch.empty_like(hidden).uniform_(0.98, 1.02)).float()
        likely = scores.softmax(-1)
        gates, chosen = likely.t().topk(len(hidden) // 2, -1)
        taken = hidden[chosen]
        made = torch.bmm(F.gelu(torch.bmm(taken, self.first.to(taken.dtype))), self.second.to(taken.dtype))
        total = torch.zeros_like(hidden, dtype=torch.float32)
        total.index_add_(0, chosen.flatten(), (made.float() * gates[..., None]).flatten(0, 1))
        hidden = hidden + total.to(hidden.dtype)
        stay = torch.sigmoid(self.leave(hidden).float()).squeeze(-1)
        top = stay.topk(len(stay) // 2).indices.sort().values
        deeper = torch.tanh(self.out(hidden[top]).float())
        both = self.out(hidden).float().index_copy(0, top, deeper * stay[top, None] + self.out(hidden[top]).float())
        hard = F.gumbel_softmax(scores, tau=0.7, hard=True)
        balance = (hard.mean(0) * likely.mean(0)).sum() * 4
        losses = F.cross_entropy(
            both.view(*words.shape, -1)[:, :-1].flatten(0, 1), words[:, 1:].flatten(), reduction="none"
        )
        return (
            losses.sort(descending=True).values[:8].mean() + 0.1 * balance + 1e-3 * scores.logsumexp(-1).square().mean()
        )


class Deformed(nn.Module):
    """Deformable attention over several scales, a pooled pyramid, an axial pair, and a mixer by Fourier transform."""

    def __init__(self, width: int = 16, heads: int = 2, points: int = 3) -> None:
        super().__init__()
        self.heads, self.points = heads, points
        self.pixels = nn.Conv2d(3, width, 3, padding=1)
        self.offsets, self.weights = nn.Linear(width, heads * 2 * points * 2), nn.Linear(width, heads * 2 * points)
        self.mix, self.norm, self.out = nn.Linear(width, width), nn.LayerNorm(width), nn.Linear(2 * width, 4)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        pixels = self.pixels(x)
        scales = [pixels, F.adaptive_avg_pool2d(pixels, 4)]
        queries = scales[1].flatten(2).mT
        line = (torch.arange(4, device=x.device) + 0.5) / 4
        base = torch.stack(torch.meshgrid(line, line, indexing="ij")[::-1], -1).view(1, 16, 1, 1, 1, 2)
        offsets = self.offsets(queries).float().view(len(x), 16, self.heads, 2, self.points, 2) * 0.1
        weights = (
            self.weights(queries)
            .float()
            .view(len(x), 16, self.heads, -1)
            .softmax(-1)
            .view(len(x), 16, self.heads, 2, -1)
        )
        places = (2 * (base + offsets) - 1).transpose(1, 2).flatten(0, 1)
        taken = []
        for number, scale in enumerate(scales):
            value = (
                self.mix(scale.movedim(1, -1))
                .float()
                .unflatten(-1, (self.heads, -1))
                .permute(0, 3, 4, 1, 2)
                .flatten(0, 1)
            )
            taken.append(F.grid_sample(value, places[:, :, number], align_corners=False, padding_mode="zeros"))
        looked = (torch.stack(taken, -2) * weights.transpose(1, 2).flatten(0, 1)[:, None]).sum((-1, -2))
        looked = looked.unflatten(0, (len(x), self.heads)).flatten(1, 2).mT
        mixed = torch.fft.fft2(self.norm(queries + looked.to(queries.dtype)).float()).real
        square = mixed.view(len(x), 4, 4, -1)
        axial = sum(torch.softmax(one @ one.mT / 16, -1) @ one for one in (square, square.transpose(1, 2)))
        pooled = torch.cat([axial.amax((1, 2)), axial.mean((1, 2))], -1).to(x.dtype)
        return F.multi_margin_loss(self.out(pooled).float(), y) + F.cross_entropy(self.out(pooled).float(), y)


PROGRAMS = (
    Program("Gemma 2", "fourth", Capped, lambda: [whole(32, 2, 9)]),
    Program("chosen experts", "fourth", Chosen, lambda: [whole(30, 2, 10)]),
    Program("deformed attention", "fourth", Deformed, lambda: [normal(2, 3, 8, 8), whole(4, 2)]),
)
