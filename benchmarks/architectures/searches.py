"""Words that were replaced, texts that are searched, pictures between words."""

from __future__ import annotations

import math

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

LENGTHS = torch.tensor([12, 7, 1, 10])


class Replaced(nn.Module):
    """ELECTRA over DeBERTa: words and distances apart, a generator's draws, who was replaced; shared embeddings."""

    def __init__(self, words: int = 60, width: int = 24, reach: int = 4) -> None:
        super().__init__()
        self.reach, self.words = reach, nn.Embedding(words, width, padding_idx=0)
        self.far = nn.Embedding(2 * reach, width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.small = nn.TransformerEncoderLayer(width, 2, 32, 0.1, F.gelu, batch_first=True, norm_first=True)
        self.down, self.norm = nn.Linear(width, width), nn.LayerNorm(width, 1e-7)
        self.bias, self.judge = nn.Parameter(torch.zeros(words)), nn.Linear(width, 1)

    def disentangled(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (3, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q_far, k_far = (part(self.far.weight).unflatten(-1, (3, -1)).transpose(0, 1) for part in (self.q, self.k))
        length = x.shape[1]
        apart = torch.arange(length, device=x.device)[:, None] - torch.arange(length, device=x.device)
        bucket = (apart + self.reach).clamp(0, 2 * self.reach - 1).expand(*q.shape[:2], -1, -1)
        scale = 1 / math.sqrt(q.shape[-1] * 3)
        scores = torch.matmul(q, k.transpose(-1, -2) * scale)
        scores = scores + torch.gather(q @ k_far.mT * scale, -1, bucket)
        scores = scores + torch.gather(k @ q_far.mT * scale, -1, bucket).transpose(-1, -2)
        both = mask[:, None, None] * mask[:, None, :, None]
        shares = scores.float().masked_fill(~both, torch.finfo(torch.float32).min).softmax(-1).masked_fill(~both, 0.0)
        return (F.dropout(shares.to(v.dtype), 0.1) @ v).transpose(1, 2).flatten(2)

    def loss(self, words: Tensor) -> Tensor:
        mask = words != 0
        chosen = torch.rand(words.shape, device=words.device).masked_fill(~mask, 2.0)
        place = chosen.topk(2, dim=1, largest=False).indices
        goals = words.gather(1, place)
        masked = words.scatter(1, place, torch.full_like(place, 59))
        guess = self.small(self.words(masked), src_key_padding_mask=~mask)
        picked = guess.gather(1, place.unsqueeze(-1).expand(-1, -1, guess.shape[-1]))
        scores = F.linear(picked, self.words.weight, self.bias).float()
        known = goals != 0
        generator = F.cross_entropy(scores[known], goals[known])
        noise = -torch.empty_like(scores).exponential_().add_(1e-9).log()
        drawn = torch.where(known, (scores.detach() + noise).argmax(-1), goals)
        changed = words.scatter(1, place, drawn)
        is_new = (changed != words).float()
        x = self.words(changed)
        x = self.norm(x + self.down(F.dropout(self.disentangled(x, mask), 0.1)))
        told = self.judge(F.gelu(x)).squeeze(-1).float()
        return generator + 5.0 * F.binary_cross_entropy_with_logits(told[mask], is_new[mask])


class Retrieval(nn.Module):
    """ColBERT, SPLADE and a ranker: best matches by word, sparse words, margins of a teacher, lists by LambdaRank."""

    def __init__(self, words: int = 80, width: int = 24) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width, padding_idx=0), nn.Embedding(16, width)
        self.encode = nn.TransformerEncoderLayer(width, 3, 48, 0.0, "gelu", batch_first=True)
        self.late, self.bias = nn.Linear(width, 8, bias=False), nn.Parameter(torch.zeros(words))
        self.temperature = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def encoded(self, words: Tensor) -> Tensor:
        return self.encode(self.embed(words) + self.place.weight[: words.shape[1]], src_key_padding_mask=words == 0)

    def sparse(self, hidden: Tensor, words: Tensor) -> Tensor:
        scores = F.linear(hidden, self.embed.weight, self.bias).float()
        told = torch.log1p(F.relu(scores)) * (words != 0).unsqueeze(-1)
        return told.max(1).values

    def loss(self, asked: Tensor, found: Tensor, gains: Tensor) -> Tensor:
        many, each, length = found.shape
        questions, texts = self.encoded(asked), self.encoded(found.flatten(0, 1))
        q = F.normalize(self.late(questions).float(), dim=-1)
        d = F.normalize(self.late(texts).float(), dim=-1) * (found.flatten(0, 1) != 0).unsqueeze(-1)
        alike = torch.einsum("qie,dje->qdij", q, d)
        alike = alike.masked_fill((found.flatten(0, 1) == 0)[None, :, None], -9999.0)
        late = (alike.amax(-1) * (asked != 0).unsqueeze(1)).sum(-1)
        goals = torch.arange(many, device=asked.device) * each
        contrast = F.cross_entropy(late * self.temperature.float().exp().clamp(max=100.0) / length, goals)
        sparse_q, sparse_d = self.sparse(questions, asked), self.sparse(texts, found.flatten(0, 1))
        flops = sparse_q.mean(0).square().sum() + sparse_d.mean(0).square().sum()
        lists = torch.einsum("qv,qnv->qn", sparse_q, sparse_d.view(many, each, -1))
        margin = F.mse_loss(lists[:, :1] - lists[:, 1:], (gains[:, :1] - gains[:, 1:]).float())
        order = lists.detach().argsort(1, descending=True).argsort(1)
        discount = 1 / torch.log2(order.float() + 2)
        weight = (gains[:, :, None] - gains[:, None]).abs() * (discount[:, :, None] - discount[:, None]).abs()
        pairs = (gains[:, :, None] > gains[:, None]).float()
        swapped = F.softplus(-(lists[:, :, None] - lists[:, None])) * weight.float() * pairs
        return contrast + 0.05 * margin + 3e-3 * flops + swapped.sum() / pairs.sum().clamp_min(1)


class Spliced(nn.Module):
    """LLaVA and BLIP-2: queries ask a frozen picture, tokens put where the text has room, gates from zero."""

    def __init__(self, words: int = 40, width: int = 24, slots: int = 4) -> None:
        super().__init__()
        self.slots, self.embed = slots, nn.Embedding(words, width)
        self.patch = nn.Conv2d(3, 16, 4, 4, bias=False).requires_grad_(False)
        self.queries = nn.Parameter(torch.zeros(1, slots, 16).normal_(std=0.02))
        self.ask = nn.MultiheadAttention(16, 2, batch_first=True)
        self.project = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, width))
        self.decode = nn.TransformerEncoderLayer(width, 4, 48, 0.0, F.silu, batch_first=True, norm_first=True)
        self.cross, self.gate = (
            nn.MultiheadAttention(width, 2, kdim=16, vdim=16, batch_first=True),
            nn.Parameter(torch.zeros(1)),
        )
        self.match, self.scale = nn.Linear(width, 2), nn.Parameter(torch.tensor(2.6592))

    def loss(self, words: Tensor, pictures: Tensor, goals: Tensor) -> Tensor:
        with torch.no_grad():
            patches = self.patch(pictures).flatten(2).transpose(1, 2)
        asked = self.ask(self.queries.expand(len(words), -1, -1), patches, patches)[0]
        tokens = self.project(asked)
        text = self.embed(words.clamp(min=0))
        room = (words == -1).unsqueeze(-1).expand_as(text)
        x = text.masked_scatter(room, tokens.to(text.dtype))
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=x.dtype)
        x = self.decode(x, src_mask=causal, is_causal=True)
        x = x + torch.tanh(self.gate) * self.cross(x, patches.to(x.dtype), patches.to(x.dtype))[0]
        scores = F.linear(x, self.embed.weight)[:, :-1].float()
        said = F.cross_entropy(scores.transpose(1, 2), goals[:, 1:], ignore_index=-100)
        a, b = (F.normalize(one.float(), dim=-1) for one in (tokens, text[:, -1]))
        alike = torch.einsum("nqe,me->nmq", a, b).amax(-1) * self.scale.float().exp()
        signs = 2 * torch.eye(len(words), device=x.device) - 1
        sigmoid = -F.logsigmoid(signs * (alike - 10.0)).sum(-1).mean()
        with torch.no_grad():
            chances = alike.softmax(1).clone()
            chances.fill_diagonal_(0)
            others = torch.multinomial(chances.clamp_min(1e-6), 1).squeeze(1)
        pairs = torch.cat([tokens.mean(1) * text.mean(1), tokens.mean(1) * text[others].mean(1)])
        is_pair = torch.arange(2 * len(words), device=x.device) < len(words)
        return (
            said
            + 0.1 * sigmoid
            + F.cross_entropy(self.match(pairs.to(self.match.weight.dtype)).float(), is_pair.long())
        )


def spliced() -> list[Tensor]:
    words = whole(40, 3, 12)
    words[0, 1:5], words[1, 3:7], words[2, 0:4] = -1, -1, -1
    goals = words.masked_fill(words < 0, -100)
    goals[:, :7] = -100
    return [words, normal(3, 3, 16, 16), goals]


def asked() -> list[Tensor]:
    found = whole(79, 3, 4, 9, seed=5) + 1
    found[..., 6:] *= whole(2, 3, 4, 3, seed=6)
    return [whole(79, 3, 5) + 1, found, normal(3, 4, seed=8).abs().round(decimals=1)]


PADDED = whole(58, 4, 12) + 1
PROGRAMS = (
    Program("replaced words", "eleventh", Replaced, lambda: [PADDED * (torch.arange(12) < LENGTHS[:, None])]),
    Program("searched texts", "eleventh", Retrieval, asked),
    Program("spliced pictures", "eleventh", Spliced, spliced),
)
