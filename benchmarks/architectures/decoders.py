"""Language models of today: latent keys, sparse blocks, experts that overflow, states, words that are denoised."""

from __future__ import annotations

import math

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from benchmarks.architectures.tuning import RMSNorm, rope
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Latent(nn.Module):
    """Attention over a latent (MLA) with stretched positions, a sink, two tokens foretold, a static cache."""

    def __init__(self, words: int = 48, width: int = 24, heads: int = 3, rank: int = 8) -> None:
        super().__init__()
        self.heads, self.content, self.turned, self.value = heads, 8, 4, 8
        self.embed, self.norm = nn.Embedding(words, width), RMSNorm(width)
        self.q_down, self.q_norm = nn.Linear(width, 12, bias=False), RMSNorm(12)
        self.q_up = nn.Linear(12, heads * (self.content + self.turned), bias=False)
        self.kv_down, self.kv_norm = nn.Linear(width, rank + self.turned, bias=False), RMSNorm(rank)
        self.kv_up = nn.Linear(rank, heads * (self.content + self.value), bias=False)
        self.out, self.sink = nn.Linear(heads * self.value, width, bias=False), nn.Parameter(torch.zeros(heads))
        self.ahead, self.ahead_norm = nn.Linear(2 * width, width, bias=False), RMSNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 48), nn.GELU("tanh"), nn.Linear(48, width))

    def attend(self, x: Tensor, start: int = 0, cache: tuple[Tensor, Tensor] | None = None) -> Tensor:
        count, length, _ = x.shape
        places = torch.arange(start, start + length, device=x.device)
        q = self.q_up(self.q_norm(self.q_down(x))).view(count, length, self.heads, -1).transpose(1, 2)
        q_content, q_turned = q.split([self.content, self.turned], dim=-1)
        latent, k_turned = self.kv_down(x).split([self.kv_norm.weight.numel(), self.turned], dim=-1)
        latent, k_turned = self.kv_norm(latent), rope(k_turned, places, 5e5, 4.0)
        if cache is not None:
            cache[0].index_copy_(1, places, latent.to(cache[0].dtype))
            cache[1].index_copy_(1, places, k_turned.to(cache[1].dtype))
            latent, k_turned = (one[:, : start + length].to(x.dtype) for one in cache)
        kv = self.kv_up(latent).view(count, -1, self.heads, self.content + self.value).transpose(1, 2)
        k_content, v = kv.split([self.content, self.value], dim=-1)
        keys = torch.cat([k_content, k_turned.unsqueeze(1).expand(-1, self.heads, -1, -1).to(kv.dtype)], -1)
        queries = torch.cat([q_content, rope(q_turned, places, 5e5, 4.0)], -1)
        stretch = 0.1 * math.log(4.0) + 1.0
        scores = torch.einsum("bhqd,bhkd->bhqk", queries, keys) * (stretch**2 / math.sqrt(queries.shape[-1]))
        far = places[:, None] - torch.arange(keys.shape[2], device=x.device)
        scores = scores.float().masked_fill((far < 0) | (far >= 6), -torch.inf)
        sink = self.sink.float().view(1, -1, 1, 1).expand(count, -1, length, 1)
        scores = torch.cat([scores, sink], -1)
        scores = scores - scores.amax(-1, keepdim=True)
        shares = scores.softmax(-1)[..., :-1].to(v.dtype)
        return self.out(torch.einsum("bhqk,bhkd->bqhd", shares, v).reshape(count, length, -1))

    def body(self, x: Tensor, start: int = 0, cache: tuple[Tensor, Tensor] | None = None) -> Tensor:
        x = x + self.attend(self.norm(x), start, cache)
        return x + self.feed(self.norm(x))

    @torch.inference_mode()
    def draws(self, words: Tensor) -> Tensor:
        kept = words.new_zeros(len(words), 16, 8, dtype=torch.float32), words.new_zeros(len(words), 16, 4).float()
        scores = F.linear(self.body(self.embed(words), 0, kept)[:, -1], self.embed.weight)
        for place in range(words.shape[1], words.shape[1] + 3):
            chances = (scores.float() / 0.8).softmax(-1)
            order, index = chances.sort(-1, descending=True)
            order[order.cumsum(-1) - order > 0.9] = 0.0
            drawn = index.gather(-1, torch.multinomial(order.div_(order.sum(-1, keepdim=True)), 1))
            words = torch.cat([words, drawn], -1)
            scores = F.linear(self.body(self.embed(drawn), place, kept)[:, -1], self.embed.weight)
        return words

    def loss(self, words: Tensor) -> Tensor:
        with torch.no_grad():
            more = self.draws(words[:, :5]).clone()
        words = torch.cat([words, F.pad(more, (0, words.shape[1] - more.shape[1]), value=1)])
        hidden = self.body(self.embed(words))
        scores = F.linear(hidden, self.embed.weight).float()
        near = F.cross_entropy(scores[:, :-1].reshape(-1, scores.shape[-1]), words[:, 1:].reshape(-1))
        following = self.embed(words[:, 1:-1])
        both = torch.cat([self.ahead_norm(hidden[:, :-2]), self.norm(following)], -1)
        far = F.linear(self.body(self.ahead(both)), self.embed.weight).float()
        return near + 0.3 * F.cross_entropy(far.reshape(-1, far.shape[-1]), words[:, 2:].reshape(-1))


class SparseBlocks(nn.Module):
    """Native sparse attention: pooled blocks, the best of them, a window; gates mix. Two maps that are subtracted."""

    def __init__(self, words: int = 32, width: int = 16, block: int = 4) -> None:
        super().__init__()
        self.block, self.embed = block, nn.Embedding(words, width)
        self.wq, self.wk, self.wv = (nn.Linear(width, width) for _ in range(3))
        self.pool_k, self.pool_v = nn.Linear(block * 8, 8), nn.Linear(block * 8, 8)
        self.gates, self.proj, self.norm = nn.Linear(width, 6), nn.Linear(width, width), nn.LayerNorm(width)
        self.lambdas, self.sub = nn.Parameter(normal(4, 4) * 0.1), nn.RMSNorm(8, eps=1e-5, elementwise_affine=False)
        self.size = nn.Parameter(torch.ones(width))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (2, 8)).transpose(1, 2)

    def sparse(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(part(x)) for part in (self.wq, self.wk, self.wv))
        length = q.shape[2]
        blocks = k.unfold(2, self.block, self.block).transpose(-1, -2), v.unfold(2, self.block, self.block).mT
        pooled_k, pooled_v = self.pool_k(blocks[0].flatten(-2)), self.pool_v(blocks[1].flatten(-2))
        steps = torch.arange(length, device=x.device)
        ended = (steps[:, None] + 1) // self.block > torch.arange(length // self.block, device=x.device)
        coarse = (q @ pooled_k.mT / 8**0.5).float().masked_fill(~ended, -1e4)
        shares = coarse.softmax(-1) * ended.any(-1, keepdim=True)
        from_blocks = shares.to(v.dtype) @ pooled_v
        best = (shares.sum(1) + torch.eye(length // self.block, device=x.device).repeat_interleave(self.block, 0)).topk(
            2, dim=-1
        )[1]
        chosen = torch.zeros(len(x), length, length // self.block, dtype=torch.bool, device=x.device)
        chosen.scatter_(-1, best, True)
        fine = chosen.repeat_interleave(self.block, dim=-1) & (steps[:, None] >= steps)
        near = (steps[:, None] >= steps) & (steps[:, None] - steps < self.block)
        from_best = F.scaled_dot_product_attention(q, k, v, attn_mask=fine[:, None])
        from_near = F.scaled_dot_product_attention(q, k, v, attn_mask=near)
        gate = torch.sigmoid(self.gates(x)).unflatten(-1, (2, 3)).transpose(1, 2).unsqueeze(-2)
        parts = torch.stack([from_blocks, from_best.to(v.dtype), from_near.to(v.dtype)], -1)
        return (parts * gate).sum(-1).transpose(1, 2).flatten(2)

    def difference(self, x: Tensor) -> Tensor:
        q, k, v = self.wq(x), self.wk(x), self.split(self.wv(x))
        q, k = (one.unflatten(-1, (4, 4)).transpose(1, 2) for one in (q, k))
        q, k = (F.normalize(one.float(), dim=-1).to(v.dtype) for one in (q, k))
        bar = torch.full((x.shape[1], x.shape[1]), float("-inf"), device=x.device).triu(1)
        maps = torch.softmax((q @ k.mT * 2.0).float() + bar, -1).unflatten(1, (2, 2))
        first, second = (self.lambdas[i].float().dot(self.lambdas[i + 1].float()).exp() for i in (0, 2))
        share = first - second + 0.2
        apart = (maps[:, :, 0] - share * maps[:, :, 1]).to(v.dtype)
        return (self.sub(apart @ v) * 0.8).transpose(1, 2).flatten(2)

    def loss(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        x = x + self.proj(self.sparse(self.norm(x)))
        x = F.normalize(torch.lerp(x, self.proj(self.difference(self.norm(x))).to(x.dtype), 0.3), dim=-1)
        scores = (x * self.size) @ F.normalize(self.embed.weight, dim=-1).t().to(x.dtype) * 5
        return F.cross_entropy(30 * torch.tanh(scores[:, :-1].flatten(0, 1).float() / 30), words[:, 1:].flatten())


class Overflow(nn.Module):
    """Switch and DeepSeek's experts: places by cumsum, tokens over capacity dropped, groups, a bias, z-losses."""

    def __init__(self, words: int = 40, width: int = 16, experts: int = 8) -> None:
        super().__init__()
        self.experts, self.embed = experts, nn.Embedding(words, width)
        self.router, self.second = nn.Linear(width, experts, bias=False), nn.Linear(width, 4)
        self.w1, self.w2 = nn.Parameter(normal(4, width, 24) * 0.2), nn.Parameter(normal(4, 24, width, seed=4) * 0.2)
        self.ffn = nn.ModuleList(nn.Sequential(nn.Linear(width, 12), nn.SiLU(), nn.Linear(12, width)) for _ in range(8))
        self.mix, self.norm = nn.LSTM(width, width, batch_first=True), nn.LayerNorm(width)
        self.register_buffer("correction", torch.zeros(experts))

    def switched(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Switch Transformers: one expert each, at most so many tokens."""
        flat = x.reshape(-1, x.shape[-1])
        logits = self.second(flat * torch.empty_like(flat).uniform_(0.99, 1.01)).float()
        chances = F.softmax(logits, dim=-1)
        gate, expert = chances.max(-1)
        onehot = F.one_hot(expert, 4)
        place = (torch.cumsum(onehot, 0) * onehot).sum(-1) - 1
        capacity = math.ceil(len(flat) / 4)
        kept = place < capacity
        buffer = flat.new_zeros(4 * capacity + 1, flat.shape[-1])
        slot = torch.where(kept, expert * capacity + place, 4 * capacity)
        buffer = buffer.index_put((slot,), flat * kept.unsqueeze(-1).to(flat.dtype))
        inner = torch.baddbmm(
            torch.zeros(4, 1, 24, device=x.device, dtype=x.dtype), buffer[:-1].view(4, capacity, -1), self.w1
        )
        made = torch.bmm(F.relu(inner).square(), self.w2.to(inner.dtype)).reshape(4 * capacity, -1)
        back = F.pad(made, (0, 0, 0, 1))[slot] * (gate * kept).unsqueeze(-1).to(made.dtype)
        balance = 4 * (onehot.float().mean(0) * chances.mean(0)).sum()
        return back.view_as(x), 0.01 * balance + 1e-3 * logits.logsumexp(-1).square().mean()

    def grouped(self, x: Tensor) -> Tensor:
        """DeepSeek-V3: sigmoids, two of four groups, two of their experts, a bias that only chooses."""
        flat = x.reshape(-1, x.shape[-1])
        scores = F.linear(flat.float(), self.router.weight.float()).sigmoid()
        choice = scores.detach() + self.correction.float()
        groups = choice.view(-1, 4, 2).topk(2, dim=-1)[0].sum(-1)
        mask = torch.zeros_like(groups).scatter_(1, groups.topk(2, dim=-1, sorted=False)[1], 1)
        allowed = mask.unsqueeze(-1).expand(-1, -1, 2).reshape(-1, 8)
        index = torch.topk(choice.masked_fill(~allowed.bool(), 0.0), k=2, dim=-1, sorted=False)[1]
        weight = scores.gather(1, index)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * 2.5
        total = torch.zeros(flat.shape, device=x.device, dtype=torch.float32)
        counts = torch.bincount(index.flatten(), minlength=self.experts)
        for number, count in enumerate(counts.tolist()):
            if not count:
                continue
            token, place = torch.where(index == number)
            total.index_add_(0, token, self.ffn[number](flat[token]).float() * weight[token, place, None])
        if self.training:
            load = counts.float()
            self.correction.add_(torch.sign(load.mean() - load).to(self.correction.dtype), alpha=1e-3)
        return total.to(x.dtype).view_as(x)

    def loss(self, words: Tensor) -> Tensor:
        x = self.mix(self.embed(words))[0]
        made, extra = self.switched(self.norm(x))
        x = x + made.to(x.dtype)
        x = x + self.grouped(self.norm(x).to(x.dtype))
        scores = (x @ self.embed.weight.t().to(x.dtype)).float()
        return F.cross_entropy(scores[:, :-1].flatten(end_dim=1), words[:, 1:].flatten()) + extra


class States(nn.Module):
    """RWKV 7's rule, RG-LRU by an associative scan, a memory that is trained while it reads, gated outer products."""

    def __init__(self, words: int = 28, width: int = 16, head: int = 8) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(words, width), head
        self.shift = nn.ParameterList(torch.rand(width, generator=torch.Generator().manual_seed(i)) for i in range(6))
        self.r, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.w1, self.w2 = nn.Linear(width, 4, bias=False), nn.Linear(4, width)
        self.a, self.g, self.group = nn.Linear(width, width), nn.Linear(width, width), nn.GroupNorm(2, width, eps=64e-5)
        self.gate_x, self.gate_a = nn.Linear(width, width), nn.Linear(width, width)
        self.decay, self.conv = nn.Parameter(torch.linspace(-4.3, -2.0, width)), nn.Conv1d(width, width, 4, groups=16)
        self.learn, self.start = nn.Linear(width, 1), nn.Parameter(normal(width, width) * 0.1)

    def rwkv(self, x: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 1, -1)) - x
        r, w, k, v, a, g = (x + before * share for share in self.shift)
        r, k, v = self.r(r), self.k(k), self.v(v)
        decay = torch.exp(-0.606531 * torch.sigmoid(self.w2(torch.tanh(self.w1(w))).float()))
        rate, gate = torch.sigmoid(self.a(a)), torch.sigmoid(self.g(g))
        r, w, k, v, a = (one.float().unflatten(-1, (-1, self.head)) for one in (r, decay, k, v, rate))
        kk = F.normalize(k, dim=-1, p=2.0)
        state, made = torch.zeros(len(x), 2, self.head, self.head, device=x.device), []
        for t in range(x.shape[1]):
            removed = (state @ kk[:, t, :, :, None]) @ (kk[:, t] * a[:, t]).unsqueeze(-2)
            state = state * w[:, t, :, None] - removed + v[:, t, :, :, None] @ k[:, t, :, None]
            made.append((state @ r[:, t, :, :, None]).squeeze(-1))
        out = torch.stack(made, 1).flatten(2).to(self.group.weight.dtype)
        return self.o(self.group(out.flatten(0, 1)).view_as(x).to(x.dtype) * gate.to(x.dtype))

    @staticmethod
    def scanned(a: Tensor, b: Tensor) -> Tensor:
        """Hillis and Steele: each step reaches twice as far."""
        reach = 1
        while reach < a.shape[1]:
            b = torch.cat([b[:, :reach], torch.addcmul(b[:, reach:], a[:, reach:], b[:, :-reach])], 1)
            a = torch.cat([a[:, :reach], a[:, reach:] * a[:, :-reach]], 1)
            reach *= 2
        return b

    def lru(self, x: Tensor) -> Tensor:
        x = self.conv(F.pad(x.transpose(1, 2), (3, 0))).transpose(1, 2)
        rate = -8.0 * torch.sigmoid(self.gate_a(x).float()) * F.softplus(self.decay.float())
        entering = torch.sigmoid(self.gate_x(x).float()) * x.float()
        return self.scanned(rate.exp(), entering * torch.sqrt(-torch.expm1(2 * rate))).to(x.dtype)

    def trained(self, x: Tensor) -> Tensor:
        """TTT: the state is a linear model, and each mini-batch of words a step of its gradient."""
        q, k, v = (part(x).float() for part in (self.r, self.k, self.v))
        rate, weight = 0.1 * torch.sigmoid(self.learn(x).float()), self.start.float().expand(len(x), -1, -1)
        parts = []
        for places in torch.arange(x.shape[1], device=x.device).split(4):
            wrong = k[:, places] @ weight - v[:, places]
            weight = weight - torch.einsum("btd,bte->bde", k[:, places], wrong * rate[:, places])
            parts.append(q[:, places] @ weight)
        return F.layer_norm(torch.cat(parts, 1), x.shape[-1:]).to(x.dtype)

    def loss(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        x = x + self.rwkv(F.layer_norm(x, x.shape[-1:]).to(x.dtype)).to(x.dtype)
        x = x + self.lru(F.rms_norm(x, x.shape[-1:]).to(x.dtype)).to(x.dtype)
        x = x + self.trained(F.layer_norm(x, x.shape[-1:]).to(x.dtype))
        scores = F.linear(x, self.embed.weight).float()
        return F.cross_entropy(scores[:, :-1].permute(0, 2, 1), words[:, 1:])


class Denoised(nn.Module):
    """Discrete diffusion: transition matrices, posteriors by Bayes, hybrid losses, a sampler; scores' entropy."""

    def __init__(self, words: int = 12, width: int = 24, steps: int = 8) -> None:
        super().__init__()
        self.words, self.embed, self.time = words, nn.Embedding(words, width), nn.Embedding(steps + 1, width)
        layer = nn.TransformerEncoderLayer(width, 4, 32, 0.0, batch_first=True, norm_first=True)
        self.body, self.out = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(width, words)
        rates = torch.linspace(0.05, 0.6, steps, dtype=torch.float64)
        one = [(1 - rate) * torch.eye(words, dtype=torch.float64) + rate / words for rate in rates]
        sums = [torch.eye(words, dtype=torch.float64)]
        for part in one:
            sums.append(sums[-1] @ part)
        self.register_buffer("one", torch.stack([torch.eye(words, dtype=torch.float64), *one]).float())
        self.register_buffer("sums", torch.stack(sums).float())

    def posterior(self, clean: Tensor, noisy: Tensor, t: Tensor) -> Tensor:
        """The logarithm of q(x_{t-1} | x_t, x_0), where x_0 is a distribution."""
        left = self.one[t].float().mT[torch.arange(len(t), device=t.device)[:, None], noisy]
        right = torch.einsum("blv,bvw->blw", clean, self.sums[t - 1].float())
        return torch.log(left + 1e-6) + torch.log(right + 1e-6)

    def guess(self, words: Tensor, t: Tensor) -> Tensor:
        return self.out(self.body(self.embed(words) + self.time(t)[:, None])).float()

    def loss(self, words: Tensor) -> Tensor:
        t = torch.randint(1, len(self.sums), (len(words),), device=words.device)
        chances = self.sums[t].float()[torch.arange(len(t), device=t.device)[:, None], words]
        noise = torch.rand(chances.shape, device=words.device).clamp(1e-6, 1.0)
        noisy = torch.argmax(torch.log(chances + 1e-6) - torch.log(-torch.log(noise)), -1)
        guess = self.guess(noisy, t)
        with in_float32(guess):
            true = self.posterior(F.one_hot(words, self.words).float(), noisy, t)
            ours = self.posterior(guess.softmax(-1), noisy, t)
            apart = torch.distributions.kl_divergence(
                torch.distributions.Categorical(logits=true), torch.distributions.Categorical(logits=ours)
            )
            first = F.cross_entropy(guess.transpose(1, 2), words, reduction="none")
            bound = torch.where(t[:, None] == 1, first, apart)
        with torch.no_grad():
            made = torch.randint(self.words, words.shape, device=words.device)
            for step in range(3, 0, -1):
                now = torch.full((len(words),), step, device=words.device)
                logits = self.posterior(self.guess(made, now).softmax(-1), made, now)
                made = torch.distributions.Categorical(logits=logits).sample()
        return bound.mean() + 0.05 * first.mean() + 0 * made.float().mean()


PROGRAMS = (
    Program("latent keys", "ninth", Latent, lambda: [whole(48, 2, 10)]),
    Program("sparse blocks", "ninth", SparseBlocks, lambda: [whole(32, 2, 16)]),
    Program("overflow", "ninth", Overflow, lambda: [whole(40, 3, 9)], ("checkpointed",)),
    Program("states", "ninth", States, lambda: [whole(28, 2, 9)]),
    Program("denoised words", "ninth", Denoised, lambda: [whole(12, 4, 7)]),
)
