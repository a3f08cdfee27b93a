"""Batches in parts: gradients that add up in the loss itself, flexible attention, experts in one product, policies."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


def kept_products(_context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    """Which results checkpointing keeps: those of matrix products."""
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
    return CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE


def kept() -> Any:
    return create_selective_checkpoint_contexts(kept_products)


class Accumulated(nn.Module):
    """Three parts of a batch, each with a backward of its own but the last; some products are kept, dropout returns."""

    def __init__(self, width: int = 12, words: int = 20) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Dropout(0.2), nn.Linear(3 * width, width))

    def body(self, x: Tensor) -> Tensor:
        return x + F.alpha_dropout(self.feed(self.norm(x)), 0.1, self.training)

    def part(self, words: Tensor) -> Tensor:
        x = self.words(words[:, :-1])
        for _ in range(2):
            if torch.is_autocast_enabled(words.device.type):  # its cache and a choice of results do not go together
                x = checkpoint(self.body, x, use_reentrant=False)
            else:
                x = checkpoint(self.body, x, use_reentrant=False, context_fn=kept)
        return F.cross_entropy(F.linear(x, self.words.weight).float().flatten(0, 1), words[:, 1:].flatten())

    def loss(self, words: Tensor) -> Tensor:
        first, second, last = words.chunk(3)
        for one in (first, second):
            (self.part(one) / 3).backward()
        return self.part(last) / 3


class Flexible(nn.Module):
    """Attention whose scores a function changes: slopes, a cap, documents that do not see each other."""

    def __init__(self, width: int = 16, words: int = 24) -> None:
        super().__init__()
        torch._dynamo.reset()
        self.words, self.qkv, self.out = (
            nn.Embedding(words, width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )

    def loss(self, words: Tensor, documents: Tensor) -> Tensor:
        x = self.words(words)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)

        def changed(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            score = 5 * torch.tanh((score - (query - key) * (head + 1) * 0.1) / 5)
            sees = (query >= key) & (documents[batch, query] == documents[batch, key])
            return torch.where(sees, score, -torch.inf)

        looked = flex_attention(q, k, v, score_mod=changed).transpose(1, 2).flatten(2)
        x = x + self.out(looked.to(x.dtype))
        return F.cross_entropy(F.linear(x, self.words.weight).float()[:, :-1].flatten(0, 1), words[:, 1:].flatten())


class OneProduct(nn.Module):
    """Experts by one grouped product: tokens sorted by expert, a bias that balances, a shared expert."""

    def __init__(self, width: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.router, self.shared = nn.Linear(width, experts, bias=False), nn.Linear(width, width)
        self.up = nn.Parameter(normal(experts, width, width) * 0.2)
        self.down = nn.Parameter(normal(experts, width, width, seed=5) * 0.2)
        self.register_buffer("balance", torch.zeros(experts))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.router(x).float()
        chances = scores.sigmoid()
        chosen = (chances + self.balance.float()).topk(2).indices
        weights = chances.gather(1, chosen)
        weights = weights / weights.sum(1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        count = torch.bincount(chosen.flatten(), minlength=len(self.up))
        ends = count.cumsum(0).to(torch.int32)
        with in_float32(x):
            rows = x[order // 2].bfloat16()
            made = F.silu(F.grouped_mm(rows, self.up.bfloat16(), offs=ends))
            made = F.grouped_mm(made, self.down.bfloat16(), offs=ends).float()
            joined = torch.zeros_like(x, dtype=torch.float32)
            joined = joined.index_add(0, order // 2, made * weights.flatten()[order, None])
        out = joined + self.shared(x).float()
        z = scores.logsumexp(1).square().mean()
        uneven = (count / count.sum() * chances.mean(0)).sum()
        return F.mse_loss(out, y.float()) + 1e-3 * z + 0.01 * uneven


class Clipped(nn.Module):
    """Proximal policies: actions bent by tanh, advantages from behind, clipped values, entropy."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, width), nn.Tanh())
        self.act, self.value, self.spread = nn.Linear(width, 2), nn.Linear(width, 1), nn.Parameter(torch.zeros(2))

    def loss(self, seen: Tensor, rewards: Tensor, ends: Tensor) -> Tensor:
        seen = (seen - seen.mean((0, 1))) / seen.std((0, 1), correction=0).clamp_min(1e-3)
        hidden = self.body(seen.clamp(-5, 5))
        values, mean = self.value(hidden).float().squeeze(-1), self.act(hidden).float()
        with in_float32(seen):
            alive = 1 - ends.clamp(max=1).float()
            policy = torch.distributions.Normal(mean, F.softplus(self.spread.float()) + 0.1)
            raw = policy.rsample().detach()
            likely = (policy.log_prob(raw) - 2 * (0.6931472 - raw - F.softplus(-2 * raw))).sum(-1)
            held, gains, gain = values.detach(), [], torch.zeros_like(values[0])
            for step in reversed(range(len(rewards) - 1)):
                error = rewards[step].float() + 0.99 * held[step + 1] * alive[step] - held[step]
                gain = error + 0.95 * 0.99 * alive[step] * gain
                gains.append(gain)
            gains = torch.stack(gains[::-1])
            normed = (gains - gains.mean()) / (gains.std() + 1e-8)
            ratio = torch.exp(likely[:-1] - likely[:-1].detach() - 0.1 * torch.randn_like(normed))
            clipped = torch.maximum(-normed * ratio, -normed * ratio.clamp(0.8, 1.2)).mean()
            wanted, near = gains + held[:-1], held[:-1] + (values[:-1] - held[:-1] + 0.3).clamp(-0.2, 0.2)
            worth = torch.max((values[:-1] - wanted).square(), (near - wanted).square()).mean()
            explained = 1 - (wanted - held[:-1]).var() / wanted.var()
        return clipped + 0.5 * worth - 0.01 * policy.entropy().sum(-1).mean() + 0 * explained


PROGRAMS = (
    Program("accumulated", "seventh", Accumulated, lambda: [whole(20, 6, 8)], ("checkpointed",)),
    Program("flexible attention", "seventh", Flexible, lambda: [whole(24, 2, 10), whole(2, 2, 10).cumsum(1)]),
    Program("one product", "seventh", OneProduct, lambda: [normal(14, 16), normal(14, 16, seed=3)]),
    Program("PPO", "seventh", Clipped, lambda: [normal(7, 4, 5), normal(7, 4, seed=3), whole(4, 7, 4) // 3]),
)
