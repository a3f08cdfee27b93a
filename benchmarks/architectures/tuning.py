"""Fine-tuning as it is done today: adapters, packed answers, rewards, sentence vectors, what must not be forgotten."""

from __future__ import annotations

import math
from typing import Any

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def rope(x: Tensor, places: Tensor, base: float = 10_000.0, scale: float = 1.0) -> Tensor:
    """As GPT-NeoX's: halves are turned against each other; `scale` stretches the positions."""
    half = x.shape[-1] // 2
    turns = 1.0 / base ** (torch.arange(0, half, device=x.device, dtype=torch.float32) / half)
    angle = places[..., None].float() / scale * turns
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def padded(words: int, count: int, length: int, seed: int = 2) -> Tensor:
    """Texts of several lengths; zeros behind them."""
    lengths = length - torch.arange(count) % 4
    return (whole(words - 1, count, length, seed=seed) + 1) * (torch.arange(length) < lengths[:, None])


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.weight.to(x.dtype)


class Adapter(nn.Module):
    """DoRA over LoRA, scaled by the root of the rank; the base is frozen."""

    def __init__(self, base: nn.Linear, rank: int = 4, alpha: float = 8.0) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        nn.init.normal_(self.lora_b, std=0.02)
        self.magnitude = nn.Parameter(torch.linalg.norm(base.weight.detach(), dim=1))
        self.scaling, self.dropout = alpha / math.sqrt(rank), nn.Dropout(0.1)

    def merged(self) -> Tensor:
        return self.base.weight + self.scaling * self.lora_b @ self.lora_a

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            length = torch.linalg.norm(self.base.weight + self.scaling * self.lora_b @ self.lora_a, dim=1)
        factor = (self.magnitude / length).view(1, -1)
        low = F.linear(F.linear(self.dropout(x), self.lora_a), self.lora_b)
        plain = F.linear(x, self.base.weight)
        out = plain + (factor - 1) * plain + factor * low * self.scaling
        return out if self.base.bias is None else out + self.base.bias


class Decoder(nn.Module):
    """A block of Llama's kind whose projections may be wrapped."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = RMSNorm(width), RMSNorm(width)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate_proj, self.up_proj = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down_proj = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, places: Tensor, mask: Tensor | None) -> Tensor:
        seen = self.before(x)
        count, length, _ = x.shape
        q, k, v = (
            part(seen).view(count, length, self.heads, -1).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rope(q, places), rope(k, places)
        if mask is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o_proj(out.transpose(1, 2).reshape(count, length, -1))
        seen = self.after(x)
        return x + self.down_proj(F.silu(self.gate_proj(seen)) * self.up_proj(seen))


class Packed(nn.Module):
    """SFT with DoRA on packed documents: positions start again, a block-diagonal mask, prompts have label -100."""

    def __init__(self, words: int = 40, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Decoder(width, 3) for _ in range(2))
        self.norm, self.head = RMSNorm(width), nn.Linear(width, words, bias=False)
        self.requires_grad_(False)
        for layer in self.layers:
            for name in ("q_proj", "v_proj", "down_proj"):
                setattr(layer, name, Adapter(getattr(layer, name)))
        self.noise = 5.0  # NEFTune's

    def loss(self, words: Tensor, lengths: Tensor) -> Tensor:
        total = words.shape[1]
        ends = lengths.cumsum(0)
        document = torch.bucketize(torch.arange(total, device=words.device), ends, right=True)
        starts = F.pad(ends, (1, 0))[document]
        places = torch.arange(total, device=words.device) - starts
        causal = torch.ones(total, total, dtype=torch.bool, device=words.device).tril()
        mask = causal & (document[:, None] == document[None])
        x = self.embed(words)
        if self.training:
            size = self.noise / math.sqrt(total * x.shape[-1])
            x = x + torch.empty_like(x).uniform_(-size, size)
        for layer in self.layers:
            x = layer(x, places, mask)
        scores = self.head(self.norm(x))
        labels = words.masked_fill(places < 2, -100)
        shifted = labels[:, 1:].masked_fill(document[1:] != document[:-1], -100)
        loss = F.cross_entropy(scores[:, :-1].float().flatten(0, 1), shifted.flatten(), reduction="sum")
        with torch.no_grad():
            hits = (scores[:, :-1].argmax(-1) == shifted)[shifted != -100].float().mean()
            drift = [layer.q_proj.merged().float().sub(layer.q_proj.base.weight).norm() for layer in self.layers]
        return loss / (shifted != -100).sum() + 0 * (hits + torch.stack(drift).sum())


class Rewards(nn.Module):
    """RLHF: a reward model by pairs with margins, then ORPO, SimPO and KTO on the same texts, and z-losses."""

    def __init__(self, words: int = 30, width: int = 18) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(words, width, padding_idx=0), Decoder(width, 3)
        self.score, self.norm = nn.Linear(width, 1, bias=False), nn.LayerNorm(width, eps=1e-6)
        nn.init.normal_(self.score.weight, std=1 / math.sqrt(width + 1))

    def hidden(self, words: Tensor) -> Tensor:
        length = words.shape[1]
        keep = (words != 0)[:, None, None, :] & torch.ones(length, length, device=words.device).tril().bool()
        bias = torch.zeros(keep.shape, device=words.device).masked_fill(~keep, torch.finfo(torch.float32).min)
        x = self.embed(words)
        return self.norm(self.body(x, torch.arange(length, device=words.device), bias.to(x.dtype)))

    def chances(self, hidden: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = F.linear(hidden[:, :-1], self.embed.weight).float()
        labels, mask = words[:, 1:], (words[:, 1:] != 0)
        each = torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
        return (each * mask).sum(-1), mask.sum(-1), logits

    def loss(self, good: Tensor, bad: Tensor, margin: Tensor) -> Tensor:
        both = torch.cat([good, bad])
        hidden = self.hidden(both)
        last = torch.eq(both, 0).int().argmax(-1) - 1
        last = last % both.shape[-1]
        rewards = self.score(hidden)[torch.arange(len(both), device=both.device), last].squeeze(-1).float()
        won, lost = rewards.chunk(2)
        pairs = -F.logsigmoid(won - lost - margin.float().abs()).mean() + 0.01 * (won + lost).square().mean()
        total, count, logits = self.chances(hidden, both)
        mean_won, mean_lost = (total / count).chunk(2)
        odds = (mean_won - mean_lost) - (
            torch.log1p(-torch.exp(mean_won).clamp(max=1 - 1e-6)) - torch.log1p(-torch.exp(mean_lost))
        )
        orpo = -mean_won.mean() - 0.1 * F.logsigmoid(odds).mean()
        simpo = -F.logsigmoid(2.0 * (mean_won - mean_lost) - 0.5).mean()
        far = (total.detach() * 0.01).mean().clamp(min=0)
        kto = torch.cat([1 - torch.sigmoid(0.1 * (mean_won - far)), 1 - torch.sigmoid(0.1 * (far - mean_lost))]).mean()
        z = torch.logsumexp(logits, -1).pow(2).mean()
        return pairs + orpo + simpo + kto + 1e-4 * z


class Sentences(nn.Module):
    """Vectors of sentences: means over words, nested widths, in-batch negatives in a cached gradient, CoSENT."""

    def __init__(self, words: int = 50, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 4, 48, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.places, self.scale = nn.Embedding(16, width), nn.Parameter(torch.tensor(math.log(20.0)))

    def encode(self, words: Tensor) -> Tensor:
        mask = words.ne(0)
        x = self.embed(words) + self.places.weight[: words.shape[1]]
        x = self.encoder(x, src_key_padding_mask=~mask)
        share = mask.unsqueeze(-1).to(x.dtype)
        return (x * share).sum(1) / share.sum(1).clamp(min=1e-9)

    def contrast(self, query: Tensor, text: Tensor) -> Tensor:
        labels = torch.arange(len(query), device=query.device)
        total = query.new_zeros(())
        for width in (32, 16, 8):
            a, b = F.normalize(query[:, :width], p=2, dim=1), F.normalize(text[:, :width], p=2, dim=1)
            scores = self.scale.float().exp().clamp(max=100) * a @ b.t()
            total = total + (F.cross_entropy(scores, labels) + F.cross_entropy(scores.t(), labels)) / 2
        return total / 3

    def loss(self, query: Tensor, text: Tensor, likeness: Tensor) -> Tensor:
        parts = [(self.encode(a), self.encode(b)) for a, b in zip(query.split(3), text.split(3))]
        with torch.autocast(query.device.type, enabled=False):
            first = torch.cat([a for a, _ in parts]).float()
            second = torch.cat([b for _, b in parts]).float()
            kept_first, kept_second = first.detach().requires_grad_(), second.detach().requires_grad_()
            with torch.enable_grad():
                value = self.contrast(kept_first, kept_second)
                one, other = torch.autograd.grad(value, [kept_first, kept_second], retain_graph=True)
            surrogate = (first * one).sum() + (second * other).sum()
            cosine = 20 * F.cosine_similarity(first, second)
            apart = cosine[:, None] - cosine[None, :]
            order = (likeness[:, None] < likeness[None, :]).float()
            apart = (apart - (1 - order) * 1e12).view(-1)
            cosent = torch.logsumexp(torch.cat([torch.zeros(1, device=apart.device), apart]), dim=0)
        return surrogate - surrogate.detach() + value.detach() + 0.1 * cosent


class Prefixed(nn.Module):
    """A frozen decoder that is told apart by prefixes of keys, learnt scales and biases; then it decodes greedily."""

    def __init__(self, words: int = 24, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.embed = heads, nn.Embedding(words, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 32), nn.Linear(32, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(3))
        for name, one in self.named_parameters():
            one.requires_grad_(name.endswith("bias"))
        self.prefix, self.widen = nn.Embedding(3, 12), nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 32))
        self.scales = nn.ParameterDict({"k": torch.ones(width), "v": torch.ones(width), "ff": torch.ones(32)})

    def step(self, x: Tensor, cache: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        count, length, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        k, v = k * self.scales["k"].to(k.dtype), v * self.scales["v"].to(v.dtype)
        q, k, v = (one.view(count, length, self.heads, -1).permute(0, 2, 1, 3) for one in (q, k, v))
        k, v = torch.cat([cache[0].to(k.dtype), k], 2), torch.cat([cache[1].to(v.dtype), v], 2)
        past = k.shape[2] - length
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        block = torch.ones(length, k.shape[2], dtype=torch.bool, device=x.device).triu(past + 1)
        scores = scores.masked_fill(block, float("-inf"))
        shares = F.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)
        x = x + self.out((shares @ v).permute(0, 2, 1, 3).contiguous().view(count, length, -1))
        inner = F.gelu(self.up(self.norms[1](x)), approximate="tanh")
        return x + self.down(inner * self.scales["ff"].to(inner.dtype)), (k, v)

    def start(self, count: int) -> tuple[Tensor, Tensor]:
        learnt = self.widen(self.prefix.weight).view(3, 2, self.heads, -1).permute(1, 2, 0, 3)
        keys, values = learnt.unsqueeze(1).expand(-1, count, -1, -1, -1)
        return keys, values

    @torch.no_grad()
    def generate(self, words: Tensor, more: int) -> Tensor:
        x, cache = self.step(self.embed(words), self.start(len(words)))
        done = torch.zeros(len(words), dtype=torch.bool, device=words.device)
        for _ in range(more):
            scores = F.linear(self.norms[2](x[:, -1]), self.embed.weight).float()
            seen = torch.gather(scores, 1, words)
            scores = scores.scatter(1, words, torch.where(seen < 0, seen * 1.2, seen / 1.2))
            following = scores.argmax(-1, keepdim=True).masked_fill(done[:, None], 0)
            done |= following.squeeze(1).eq(0)
            words = torch.cat([words, following], 1)
            x, cache = self.step(self.embed(following), cache)
        return words

    def loss(self, words: Tensor) -> Tensor:
        self.eval()
        made = self.generate(words[:, :4], 4)
        self.train()
        x, _ = self.step(self.embed(torch.cat([words, made])), self.start(2 * len(words)))
        scores = F.linear(self.norms[2](x), self.embed.weight)
        labels = torch.cat([words[:, 1:], made[:, 1:]])
        each = F.cross_entropy(scores[:, :-1].transpose(1, 2).float(), labels, reduction="none", label_smoothing=0.05)
        weight = torch.ones_like(each)
        weight[len(words) :, :3] = 0
        weight[len(words) :] *= -0.1
        return (each * weight).sum() / weight.abs().sum()


class Remembered(nn.Module):
    """Learning one task after another: Fisher's weights, a teacher of the old task, a reservoir, merged ways."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, width), nn.ReLU(inplace=True), nn.Linear(width, width), nn.GELU())
        self.heads = nn.ModuleList([nn.Linear(width, 3), nn.Linear(width, 3)])
        self.old: dict[str, Tensor] = {}
        self.fisher: dict[str, Tensor] = {}
        self.memory: list[tuple[Tensor, Tensor, Tensor]] = []

    def begin(self, x: Tensor, y: Tensor) -> None:
        self.old = {name: one.detach().clone() for name, one in self.body.named_parameters()}
        self.fisher = {name: torch.zeros_like(one, dtype=torch.float32) for name, one in self.old.items()}
        for row, label in zip(x.split(1), y.split(1)):
            with torch.enable_grad():
                cost = F.nll_loss(F.log_softmax(self.heads[0](self.body(row)).float(), 1), label)
                found = torch.autograd.grad(cost, list(self.body.parameters()))
            for name, part in zip(self.fisher, found):
                self.fisher[name] += part.detach().float() ** 2 / len(x)
        with torch.no_grad():
            self.memory = [(x[:4], y[:4], self.heads[0](self.body(x[:4])).float())]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.memory:
            self.begin(x, y)
        rows, labels, told = self.memory[0]
        hidden = self.body(torch.cat([x, rows]))
        new = F.cross_entropy(self.heads[1](hidden[: len(x)]).float(), y)
        again = self.heads[0](hidden[len(x) :]).float()
        kept = F.mse_loss(again, told) + F.cross_entropy(again, labels)
        heat = F.kl_div(F.log_softmax(again / 2, -1), F.softmax(told / 2, -1), reduction="batchmean") * 4
        pull: Any = 0.0
        for name, one in self.body.named_parameters():
            pull = pull + (self.fisher[name] * (one.float() - self.old[name].float()).pow(2)).sum()
        with torch.no_grad():
            for name, one in self.body.named_parameters():
                way = one.float() - self.old[name].float()
                edge = way.abs().flatten().kthvalue(max(1, int(0.8 * way.numel()))).values
                trimmed = torch.where(way.abs() >= edge, way, torch.zeros_like(way))
                signs = torch.sign(trimmed.sum(0, keepdim=True))
                agreed = trimmed * (trimmed.sign() == signs)
                self.old[name].lerp_((self.old[name].float() + agreed).to(one.dtype), 0.01)
        return new + 0.5 * kept + 0.1 * heat + 50.0 * pull


PROGRAMS = (
    Program("packed answers", "ninth", Packed, lambda: [whole(40, 2, 14), torch.tensor([5, 6, 3])]),
    Program("rewards", "ninth", Rewards, lambda: [padded(30, 3, 9), padded(30, 3, 9, seed=5), normal(3) * 0.2]),
    Program("sentences", "ninth", Sentences, lambda: [padded(50, 6, 8), padded(50, 6, 8, seed=6), normal(6)]),
    Program("prefixes", "ninth", Prefixed, lambda: [whole(23, 3, 8) + 1]),
    Program("remembered", "ninth", Remembered, lambda: [normal(8, 8), whole(3, 8)], ("checkpointed",)),
)
