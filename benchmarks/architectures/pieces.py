"""Texts as bytes that a model cuts, and attention in tiles whose gradient is written by hand."""

from __future__ import annotations

import math
from typing import Any

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Bytes(nn.Module):
    """Bytes in pieces that the model cuts (H-Net, BLT): a boundary where neighbours differ, pooled, spread again."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed, self.hashes = nn.Embedding(64, width), nn.Embedding(31, width)
        self.reader, self.writer = nn.GRU(width, width, batch_first=True), nn.GRU(width, width, batch_first=True)
        self.q, self.k, self.out = nn.Linear(width, width, False), nn.Linear(width, width, False), nn.Linear(width, 64)
        self.main = nn.TransformerEncoderLayer(width, 2, 32, 0.0, batch_first=True, bias=False)

    def loss(self, text: Tensor) -> Tensor:
        grams = F.pad(text, (2, 0)).unfold(1, 3, 1)
        hashed = (grams * torch.tensor([1, 257, 66049], device=text.device)).sum(-1).remainder(31)
        x = self.reader(self.embed(text) + self.hashes(hashed))[0]
        likeness = F.cosine_similarity(self.q(x[:, 1:]), self.k(x[:, :-1]), dim=-1).float()
        chance = F.pad((1 - likeness).div(2).clamp(0, 1), (1, 0), value=1.0)
        cut = chance > 0.5
        piece = cut.long().cumsum(1) - 1
        most = int(piece.max()) + 1
        pooled = x.new_zeros(len(x), most, x.shape[-1]).scatter_reduce(
            1, piece.unsqueeze(-1).expand_as(x), x, "mean", include_self=False
        )
        first = torch.full((len(x), most), text.shape[1], device=text.device).scatter_reduce(
            1, piece, torch.arange(text.shape[1], device=text.device).expand_as(piece), "amin"
        )
        empty = first == text.shape[1]
        bars = torch.ones(most, most, dtype=torch.bool, device=text.device).triu(1)
        seen = self.main(pooled, src_mask=bars, src_key_padding_mask=empty).masked_fill(empty.unsqueeze(-1), 0)
        sure = torch.where(cut, chance, 1 - chance)
        straight = sure + (1.0 - sure).detach()
        spread = torch.take_along_dim(seen, piece.unsqueeze(-1), 1).float() * straight.unsqueeze(-1)
        made = self.writer((spread + x.float()).to(x.dtype))[0]
        share, mean = cut.float().mean(), chance.mean()
        ratio = 4 / 3 * (3 * share * mean + (1 - share) * (1 - mean))
        _, runs = torch.unique_consecutive(piece.flatten(), return_counts=True)
        cost = F.cross_entropy(self.out(made)[:, :-1].flatten(0, 1).float(), text[:, 1:].flatten())
        return cost + 0.03 * ratio + 0 * runs.float().std()


class Tiles(torch.autograd.Function):
    """Flash attention as it is taught: tiles, a running maximum and sum, probabilities made again in backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tile: int) -> Tensor:
        scale, length = q.shape[-1] ** -0.5, q.shape[-2]
        out, top = torch.zeros_like(q, dtype=torch.float32), q.new_full(q.shape[:-1], -math.inf, dtype=torch.float32)
        total = torch.zeros_like(top)
        for start in range(0, length, tile):
            rows = torch.arange(start, min(start + tile, length), device=q.device)
            for other in range(0, start + 1, tile):
                columns = torch.arange(other, min(other + tile, length), device=q.device)
                scores = (q[..., rows, :] @ k[..., columns, :].mT).float() * scale
                scores.masked_fill_(rows[:, None] < columns, -math.inf)
                new = torch.maximum(top[..., rows], scores.amax(-1))
                shares, fade = torch.exp(scores - new[..., None]), torch.exp(top[..., rows] - new)
                total[..., rows] = total[..., rows] * fade + shares.sum(-1)
                out[..., rows, :] = out[..., rows, :] * fade[..., None] + shares @ v[..., columns, :].float()
                top[..., rows] = new
        out = (out / total[..., None]).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, top + total.log())
        ctx.tile = tile
        return out

    @staticmethod
    def backward(ctx: Any, arrived: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, log_sum = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        for_q, for_k, for_v = (torch.zeros_like(one, dtype=torch.float32) for one in (q, k, v))
        delta = (out.float() * arrived.float()).sum(-1, keepdim=True)
        for start in range(0, q.shape[-2], ctx.tile):
            rows = slice(start, start + ctx.tile)
            scores = (q[..., rows, :] @ k.mT).float() * scale
            steps = torch.arange(q.shape[-2], device=q.device)
            shares = torch.exp(scores - log_sum[..., rows, None]).tril_(start) * (steps[rows, None] >= steps)
            back = arrived[..., rows, :].float()
            for_v += shares.mT @ back
            wrong = shares * (back @ v.float().mT - delta[..., rows, :]) * scale
            for_q[..., rows, :] = wrong @ k.float()
            for_k += wrong.mT @ q[..., rows, :].float()
        return for_q.to(q.dtype), for_k.to(k.dtype), for_v.to(v.dtype), None


class Tiled(nn.Module):
    """A block that uses it, with a position embedding that is cut and a logit that is scaled."""

    def __init__(self, words: int = 30, width: int = 16) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(words, width), nn.Parameter(normal(1, 20, width) * 0.02)
        self.qkv, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, words), nn.LayerNorm(width)

    def loss(self, words: Tensor) -> Tensor:
        x = self.embed(words) + self.places[:, : words.shape[1]]
        q, k, v = self.qkv(self.norm(x)).reshape(*words.shape, 3, 2, -1).permute(2, 0, 3, 1, 4)
        made = Tiles.apply(q, k, v, 4)
        x = x + made.transpose(1, 2).reshape(x.shape)
        return F.cross_entropy(self.out(self.norm(x))[:, :-1].flatten(0, 1).float(), words[:, 1:].flatten())


PROGRAMS = (
    Program("bytes", "ninth", Bytes, lambda: [whole(64, 3, 18)]),
    Program("tiles", "ninth", Tiled, lambda: [whole(30, 2, 11)]),
)
