"""Texts once more: parallel recurrences, ternary weights, kernels for a softmax, drafts."""

from __future__ import annotations

import math
from typing import Any

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

LENGTHS = torch.tensor([12, 7, 1, 10])


class MinimalGRU(nn.Module):
    """minGRU and minLSTM: gates that do not see the state, all steps at once by sums of logarithms; chunked losses."""

    def __init__(self, words: int = 50, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.gru = nn.Linear(width, 2 * width)
        self.lstm = nn.Linear(width, 3 * width, bias=False)
        self.conv = nn.Conv1d(width, width, 3, groups=width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)

    @staticmethod
    def log_g(x: Tensor) -> Tensor:
        return torch.where(x >= 0, (F.relu(x) + 0.5).log(), -F.softplus(-x))

    @staticmethod
    def scanned(log_decay: Tensor, log_values: Tensor) -> Tensor:
        so_far = F.pad(torch.cumsum(log_decay, 1), (0, 0, 1, 0))
        return (so_far + torch.logcumsumexp(log_values - so_far, 1))[:, 1:].exp()

    def loss(self, words: Tensor, lengths: Tensor) -> Tensor:
        x = self.embed(words)
        x = x + self.conv(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        hidden, gate = self.gru(self.norms[0](x)).float().chunk(2, -1)
        start = torch.full_like(hidden[:, :1], math.log(0.5))
        x = x + self.scanned(-F.softplus(gate), torch.cat([start, -F.softplus(-gate) + self.log_g(hidden)], 1)).to(
            x.dtype
        )
        forget, into, hidden = self.lstm(self.norms[1](x)).float().chunk(3, -1)
        apart = F.softplus(-forget) - F.softplus(-into)
        decay, gain = -F.softplus(apart), -F.softplus(-apart)
        x = x + self.scanned(decay, torch.cat([start, gain + self.log_g(hidden)], 1)).to(x.dtype)
        seen = torch.arange(words.shape[1] - 1, device=words.device) < lengths[:, None] - 1
        goals = words[:, 1:].masked_fill(~seen, -100)
        total, count = x.new_zeros((), dtype=torch.float32), (goals != -100).sum()
        for some, their in zip(self.norms[2](x[:, :-1]).flatten(0, 1).split(13), goals.flatten().split(13)):
            scores = self.head(some).float()
            total = total + F.cross_entropy(scores, their, ignore_index=-100, reduction="sum")
            total = total + 1e-4 * (scores.logsumexp(-1).square() * (their != -100)).sum()
        return total / count.clamp(min=1)


class Ternary(torch.autograd.Function):
    """Weights of three values and activations in eight bits: gradients as if nothing had been rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        scale = weight.abs().mean().clamp(min=1e-5)
        three = (weight / scale).round().clamp(-1, 1)
        range_ = 127.0 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
        eight = (x * range_).round().clamp(-128, 127)
        ctx.save_for_backward(eight / range_, three * scale)
        return F.linear(eight, three) * (scale / range_)

    @staticmethod
    def backward(ctx: Any, *arrived: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        slope = arrived[0].to(x.dtype)
        return slope @ weight.to(x.dtype), slope.flatten(0, -2).t() @ x.flatten(0, -2)


class BitBlock(nn.Module):
    """BitNet: squared relus, sub-norms, hidden vectors with NEFTune's noise, KV in four bits by group."""

    def __init__(self, words: int = 40, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.embed = heads, nn.Embedding(words, width)
        self.qkv = nn.Parameter(torch.empty(3 * width, width))
        self.proj, self.up, self.down = (
            nn.Parameter(torch.empty(*shape)) for shape in ((width, width), (2 * width, width), (width, 2 * width))
        )
        for one in (self.qkv, self.proj, self.up, self.down):
            nn.init.trunc_normal_(one, std=0.02, a=-0.06, b=0.06)
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-5, bias=False) for _ in range(3))
        self.wide, self.head = nn.LayerNorm(2 * width, bias=False), nn.Linear(width, words)

    @staticmethod
    def four_bits(x: Tensor, group: int = 4) -> Tensor:
        parts = x.detach().float().unflatten(-1, (-1, group))
        low, high = parts.amin(-1, keepdim=True), parts.amax(-1, keepdim=True)
        step = (high - low).div(15).clamp_min(1e-6)
        codes = torch.round((parts - low) / step).to(torch.uint8)
        packed = codes[..., ::2] | (codes[..., 1::2] << 4)
        again = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
        kept = (again.float() * step + low).flatten(-2).to(x.dtype)
        return x + (kept - x).detach()

    def loss(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        noise = torch.zeros_like(x).uniform_(-1, 1) * (5.0 / math.sqrt(x.shape[1] * x.shape[2]))
        x = x + noise
        q, k, v = Ternary.apply(self.norms[0](x).to(self.qkv.dtype), self.qkv).chunk(3, -1)
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (q, k, v))
        made = F.scaled_dot_product_attention(q, self.four_bits(k), self.four_bits(v), is_causal=True)
        made = self.norms[1](made.transpose(1, 2).flatten(2))
        x = x + Ternary.apply(made.to(self.proj.dtype), self.proj).to(x.dtype)
        inner = F.relu(Ternary.apply(self.norms[2](x).to(self.up.dtype), self.up)).square()
        x = x + Ternary.apply(self.wide(inner).to(self.down.dtype), self.down).to(x.dtype)
        return F.cross_entropy(self.head(x[:, :-1]).flatten(0, 1).float(), words[:, 1:].flatten(), label_smoothing=0.05)


class Kernelized(nn.Module):
    """Performer, Nyström and Taylor attention: random orthogonal features, an inverse by iteration, second orders."""

    def __init__(self, width: int = 16, heads: int = 2, features: int = 12, classes: int = 5) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.into = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(3))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        blocks = [torch.linalg.qr(normal(self.size, self.size, seed=10 + one))[0] for one in range(2)]
        rows = torch.cat(blocks)[:features] * normal(features, self.size, seed=9).norm(dim=1, keepdim=True)
        self.register_buffer("features", rows)
        self.depth, self.head = nn.Conv2d(heads, heads, (5, 1), padding=(2, 0), groups=heads), nn.Linear(width, classes)

    def heads_of(self, x: Tensor, number: int) -> list[Tensor]:
        parts = self.into[number](self.norms[number](x)).chunk(3, -1)
        return [one.unflatten(-1, (self.heads, self.size)).transpose(1, 2).float() for one in parts]

    def positive(self, x: Tensor, is_query: bool) -> Tensor:
        x = x * self.size**-0.25
        seen = x @ self.features.float().mT
        least = seen.amax(-1, keepdim=True) if is_query else seen.amax((-1, -2), keepdim=True)
        return self.features.shape[0] ** -0.5 * (
            torch.exp(seen - x.square().sum(-1, keepdim=True) / 2 - least.detach()) + 1e-4
        )

    def performer(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = self.heads_of(x, 0)
        q, k = self.positive(q, True), self.positive(k, False) * seen[:, None, :, None]
        norm = 1.0 / (torch.einsum("bhnm,bhm->bhn", q, k.sum(2)) + 1e-8)
        return torch.einsum("bhnm,bhme,bhn->bhne", q, torch.einsum("bhnm,bhne->bhme", k, v), norm)

    def nystrom(self, x: Tensor, marks: int = 4) -> Tensor:
        q, k, v = self.heads_of(x, 1)
        q = q * self.size**-0.5
        q_marks, k_marks = (one.unflatten(2, (marks, -1)).mean(3) for one in (q, k))
        first, middle, last = ((a @ b.mT).softmax(-1) for a, b in ((q, k_marks), (q_marks, k_marks), (q_marks, k)))
        eye = torch.eye(marks, device=x.device)
        inverse = middle.mT / (middle.abs().sum(-2).max() * middle.abs().sum(-1).max())
        for _ in range(4):
            product = middle @ inverse
            inverse = 0.25 * inverse @ (13 * eye - product @ (15 * eye - product @ (7 * eye - product)))
        conv = F.conv2d(v, self.depth.weight.float(), self.depth.bias.float(), padding=(2, 0), groups=self.heads)
        return first @ inverse @ (last @ v) + conv

    def taylor(self, x: Tensor) -> Tensor:
        q, k, v = self.heads_of(x, 2)
        q, k = ((F.elu(one) * self.size**-0.5)[..., :4] for one in (q, k))

        def features(one: Tensor) -> Tensor:
            second = (one.unsqueeze(-1) * one.unsqueeze(-2)).flatten(-2) / math.sqrt(2)
            return torch.cat([torch.ones_like(one[..., :1]), one, second], -1)

        q, k = features(q), features(k)
        state = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2)
        below = (q * k.cumsum(2)).sum(-1, keepdim=True).clamp_min(1e-6)
        return (q.unsqueeze(-2) @ state).squeeze(-2) / below

    def loss(self, x: Tensor, lengths: Tensor, y: Tensor) -> Tensor:
        seen = (torch.arange(x.shape[1], device=x.device) < lengths[:, None]).float()
        dtype = self.head.weight.dtype
        for number, attend in enumerate((lambda at: self.performer(at, seen), self.nystrom, self.taylor)):
            with in_float32(x):
                x = x.to(dtype)
                made = attend(x)
            x = x + self.outs[number](made.transpose(1, 2).flatten(2).to(dtype))
        pooled = (x.float() * seen.unsqueeze(-1)).sum(1) / seen.sum(1, keepdim=True)
        return F.cross_entropy(self.head(pooled.to(dtype)).float(), y)


class LinearCrossEntropy(torch.autograd.Function):
    """Scores and their loss in pieces, whose gradients are made in the forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, goals: Tensor, size: int) -> Tensor:
        for_x, for_weight = torch.zeros_like(x), torch.zeros_like(weight, dtype=torch.float32)
        total, count = x.new_zeros((), dtype=torch.float32), (goals != -100).sum().clamp(min=1)
        for start in range(0, len(x), size):
            some, their = x[start : start + size], goals[start : start + size]
            scores = (some @ weight.t()).float()
            kept = their != -100
            likely = scores.log_softmax(-1)
            safe = their.clamp(min=0)
            total -= (likely.gather(1, safe[:, None]).squeeze(1) * kept).sum()
            slope = likely.exp_()
            slope[torch.arange(len(safe), device=x.device), safe] -= 1.0
            slope *= (kept / count)[:, None]
            for_x[start : start + size] = slope.to(x.dtype) @ weight
            torch.addmm(for_weight, slope.t(), some.float(), out=for_weight)
        ctx.save_for_backward(for_x, for_weight.to(weight.dtype))
        return total / count

    @staticmethod
    def backward(ctx: Any, *arrived: Tensor) -> tuple[Tensor | None, ...]:
        for_x, for_weight = ctx.saved_tensors
        return for_x * arrived[0], for_weight * arrived[0], None, None


class Drafts(nn.Module):
    """Medusa's heads with a loss in pieces, JSD to a teacher, a tree of drafts that is verified by one masked pass."""

    def __init__(self, words: int = 36, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.embed, self.teach = nn.Embedding(words, width), nn.Linear(width, words).requires_grad_(False)
        self.attn = nn.MultiheadAttention(width, 4, batch_first=True, bias=False)
        self.heads = nn.ModuleList(nn.Linear(width, width) for _ in range(heads))
        for one in self.heads:
            nn.init.zeros_(one.weight)
        self.norm, self.weight = nn.LayerNorm(width), nn.Parameter(normal(words, width) * width**-0.5)

    def body(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.norm(x + self.attn(x, x, x, attn_mask=mask, need_weights=False)[0])

    @torch.no_grad()
    def verified(self, words: Tensor) -> Tensor:
        """How many words of each path of the tree would be taken."""
        length = words.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=words.device).triu(1)
        last = self.body(self.embed(words), causal)[:, -1]
        first = (last @ self.weight.t()).topk(2, dim=-1).indices
        second = ((last + F.silu(self.heads[0](last))) @ self.weight.t()).topk(2, -1).indices
        tree = torch.cat([first, second.repeat(1, 2)], 1)
        parents = torch.tensor([-1, -1, 0, 0, 1, 1], device=words.device)
        mask = F.pad(causal, (0, 6, 0, 6), value=True)
        mask[length:, :length] = False
        mask[range(length, length + 6), range(length, length + 6)] = False
        mask[torch.arange(length + 2, length + 6), parents[2:] + length] = False
        likely = (self.body(self.embed(torch.cat([words, tree], 1)), mask) @ self.weight.t()).float()
        best = likely[:, length - 1 :].argmax(-1)
        taken = tree[:, :2] == best[:, :1]
        deep = (tree[:, 2:] == best.gather(1, parents[2:].add(1).expand(len(words), -1))) & taken.repeat_interleave(
            2, 1
        )
        return taken.any(1).long() + deep.any(1)

    def loss(self, words: Tensor) -> Tensor:
        length = words.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=words.device).triu(1)
        hidden = self.body(self.embed(words), causal)
        total = hidden.new_zeros((), dtype=torch.float32)
        for number, head in enumerate(self.heads):
            ahead = number + 1
            goals = F.pad(words[:, ahead:], (0, ahead), value=-100)
            some = hidden if number == 0 else hidden + F.silu(head(hidden))
            some = some.to(self.weight.dtype).flatten(0, 1)
            total = total + 0.8**number * LinearCrossEntropy.apply(some, self.weight, goals.flatten(), 9)
        p = self.teach(hidden.detach()).float().log_softmax(-1)
        q = F.linear(hidden, self.weight).float().log_softmax(-1)
        mixed = torch.logsumexp(torch.stack([p + math.log(0.1), q + math.log(0.9)]), 0)
        apart = 0.1 * F.kl_div(mixed, p, log_target=True, reduction="none")
        apart = apart + 0.9 * F.kl_div(mixed, q, log_target=True, reduction="none")
        return total + apart.sum(-1).mean() + 0 * self.verified(words[:, :5]).float().mean()


PROGRAMS = (
    Program("minimal gates", "eleventh", MinimalGRU, lambda: [whole(49, 4, 12) + 1, LENGTHS.clone()]),
    Program("three weights", "eleventh", BitBlock, lambda: [whole(40, 3, 10)]),
    Program("kernels for softmax", "eleventh", Kernelized, lambda: [normal(4, 12, 16), LENGTHS.clone(), whole(5, 4)]),
    Program("drafts", "eleventh", Drafts, lambda: [whole(36, 3, 11)]),
)
