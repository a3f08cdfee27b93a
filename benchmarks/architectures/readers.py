"""Models that read long texts, and decide how long: latents, bands, buckets, pointers, pondering, segments."""

from __future__ import annotations

import math

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Latents(nn.Module):
    """Perceiver IO: few latents ask many bytes, with keys of another width, one learnt key and one of zeros."""

    def __init__(self, width: int = 16, seen: int = 12) -> None:
        super().__init__()
        self.words, self.latents = nn.Embedding(30, 8), nn.Parameter(nn.init.trunc_normal_(torch.empty(5, width)))
        shape = {"kdim": seen, "vdim": seen, "batch_first": True, "add_bias_kv": True, "add_zero_attn": True}
        self.ask = nn.MultiheadAttention(width, 2, **shape)
        self.think = nn.TransformerDecoderLayer(width, 2, 24, 0.0, nn.SiLU(), batch_first=True, bias=False)
        self.query, self.read = nn.Embedding(20, width), nn.MultiheadAttention(width, 4, 0.1, batch_first=True)
        self.top = nn.Linear(width, 30)

    def loss(self, words: Tensor) -> Tensor:
        count, length = words.shape
        steps = torch.linspace(-1, 1, length, device=words.device)[:, None] * torch.logspace(
            0, 1, 2, device=words.device
        )
        places = torch.cat([(math.pi * steps).sin(), (math.pi * steps).cos()], -1)
        x = self.words(words)
        x = torch.cat([x, places.to(x.dtype).expand(count, -1, -1)], -1)
        hidden = self.latents.expand(count, -1, -1)
        padded = words.eq(0)
        told, weights = self.ask(hidden, x, x, key_padding_mask=padded, average_attn_weights=False)
        hidden = self.think(hidden + told.to(hidden.dtype), hidden)
        answers, shares = self.read(self.query.weight[:length].expand(count, -1, -1).to(hidden.dtype), hidden, hidden)
        scores = self.top(answers).float().masked_fill(padded[..., None], 0)
        even = (weights.float().mean((1, 2)) * shares.new_tensor(0.5).float()).square().sum()
        return F.cross_entropy(scores.transpose(1, 2), words, ignore_index=0) + 0.01 * even


class Bands(nn.Module):
    """Longformer and Reformer: overlapping chunks by strides, the least finite number as mask, buckets by hashing."""

    def __init__(self, width: int = 16, words: int = 26, window: int = 4) -> None:
        super().__init__()
        self.window = window
        self.words, self.norm = nn.Embedding(words, width), nn.LayerNorm(width)
        self.qkv, self.both, self.out = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, words),
        )
        self.register_buffer("turns", normal(width, 3))

    def chunks(self, x: Tensor) -> Tensor:
        """Each of `window` words, with those before and behind."""
        padded = F.pad(x, (0, 0, self.window, self.window))
        rows, words, width = padded.shape
        size = (rows, words // self.window - 2, 3 * self.window, width)
        strides = padded.stride()
        return padded.as_strided(size, (strides[0], strides[1] * self.window, strides[1], strides[2]))

    def band(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q = (q / math.sqrt(q.shape[-1])).unflatten(1, (-1, self.window))
        scores = torch.einsum("bcxd,bcyd->bcxy", q, self.chunks(k))
        there = self.chunks(x.new_ones(len(x), x.shape[1], 1)).squeeze(-1) > 0
        far = torch.ones(self.window, 3 * self.window, device=x.device).triu(2 * self.window + 1).bool()
        hidden = ~there[:, :, None] | far
        scores.masked_fill_(hidden, torch.finfo(scores.dtype).min)
        shares = scores.softmax(-1, dtype=torch.float32).to(v.dtype)
        return torch.einsum("bcxy,bcyd->bcxd", shares, self.chunks(v)).flatten(1, 2)

    def buckets(self, x: Tensor) -> Tensor:
        shared, values = self.both(x).chunk(2, -1)
        turned = (shared.detach().float() @ self.turns.float()).clone()
        place = torch.cat([turned, -turned], -1).argmax(-1)
        order = (place * x.shape[1] + torch.arange(x.shape[1], device=x.device)).argsort(-1)
        back = torch.empty_like(order).scatter_(1, order, torch.arange(x.shape[1], device=x.device).expand_as(order))
        near, held, bucket = (
            one.gather(1, order[..., None].expand(-1, -1, one.shape[-1])).unflatten(1, (-1, self.window))
            for one in (shared, values, place[..., None])
        )
        keys = F.normalize(near.float(), dim=-1).to(near.dtype)
        scores = (near @ keys.mT).float() / near.shape[-1] ** 0.5
        scores = scores.where(bucket == bucket.mT, -1e9)
        scores.diagonal(dim1=-2, dim2=-1).fill_(-5e4)
        total = scores.logsumexp(-1, keepdim=True)
        made = (torch.exp(scores - total).to(held.dtype) @ held).flatten(1, 2)
        return made.gather(1, back[..., None].expand_as(made))

    def loss(self, words: Tensor) -> Tensor:
        x = self.words(words)
        x = x + self.band(self.norm(x))
        x = x + self.buckets(self.norm(x))
        first = x[:, :1] * x.mean(1, keepdim=True)
        x = torch.where(torch.arange(x.shape[1], device=x.device)[:, None] == 0, first, x)
        return F.cross_entropy(self.out(x)[:, :-1].flatten(0, 1).float(), words[:, 1:].flatten())


class Pointers(nn.Module):
    """A summarizer that may copy: words that only the text has, coverage, draws against the best."""

    def __init__(self, words: int = 16, width: int = 12) -> None:
        super().__init__()
        self.known = words
        self.words = nn.Embedding(words, width)
        self.read, self.cell = nn.GRU(width, width, batch_first=True, bidirectional=True), nn.LSTMCell(2 * width, width)
        self.keys, self.query, self.covered = (
            nn.Linear(2 * width, width),
            nn.Linear(width, width, False),
            nn.Linear(1, width),
        )
        self.energy, self.squeeze = nn.Linear(width, 1, bias=False), nn.Linear(2 * width, width)
        self.out, self.copies = nn.Linear(2 * width, words), nn.Linear(3 * width, 1)

    def step(
        self, word: Tensor, state: tuple[Tensor, Tensor], seen: Tensor, keys: Tensor, text: Tensor, before: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        at = self.words(word.where(word < self.known, 1))
        told = self.query(state[0]).unsqueeze(1) + keys + self.covered(before.unsqueeze(-1).to(keys.dtype))
        energy = self.energy(torch.tanh(told)).squeeze(-1).float().masked_fill(text == 0, -math.inf)
        shares = energy.softmax(-1)
        context = self.squeeze(torch.bmm(shares.unsqueeze(1).to(seen.dtype), seen).squeeze(1))
        state = self.cell(torch.cat([at, context.to(at.dtype)], -1), tuple(one.to(at.dtype) for one in state))
        both = torch.cat([state[0], context.to(state[0].dtype)], -1)
        copies = torch.sigmoid(self.copies(torch.cat([both, at.to(both.dtype)], -1)).float())
        likely = F.pad((1 - copies) * self.out(both).float().softmax(-1), (0, 6))
        return likely.scatter_add(1, text, copies * shares), state, shares

    def loss(self, text: Tensor, wanted: Tensor) -> Tensor:
        seen, last = self.read(self.words(text.where(text < self.known, 1)))
        keys, state = self.keys(seen), (last[0], last.new_zeros(last[0].shape))
        before, word, costs, drawn = torch.zeros_like(text, dtype=torch.float32), wanted[:, 0], [], []
        for place in range(1, wanted.shape[1]):
            likely, state, shares = self.step(word, state, seen, keys, text, before)
            cost = -likely.gather(1, wanted[:, place, None]).add(1e-8).log().squeeze(1)
            costs.append(cost + torch.minimum(shares, before).sum(-1))
            before = before + shares
            chances = torch.distributions.Categorical(probs=likely)
            sample = chances.sample()
            reward = (sample == wanted[:, place]).float() - (likely.argmax(-1) == wanted[:, place]).float()
            drawn.append(-chances.log_prob(sample) * reward)
            word = torch.where(torch.rand(len(word), device=word.device) < 0.75, wanted[:, place], sample)
        return torch.stack(costs, 1).mean() + 0.1 * torch.vstack(drawn).sum(0).mean()


class Pondering(nn.Module):
    """Adaptive computation time: words halt when they have thought enough; the loop waits for the last."""

    def __init__(self, width: int = 12, words: int = 20) -> None:
        super().__init__()
        self.words, self.halt, self.norm = nn.Embedding(words, width), nn.Linear(width, 1), nn.LayerNorm(width)
        self.mix, self.feed = nn.Conv1d(width, width, 3, padding=1, padding_mode="circular"), nn.Linear(width, width)
        nn.init.constant_(self.halt.bias, 0.3)

    @staticmethod
    def signal(length: int, width: int, time: int, like: Tensor) -> Tensor:
        scale = torch.exp(torch.arange(width // 2, device=like.device) * -(math.log(1e4) / (width // 2 - 1)))
        angle = torch.outer(torch.arange(length, device=like.device) + time, scale)
        return torch.hstack([angle.sin(), angle.cos()])

    def loss(self, words: Tensor) -> Tensor:
        state = self.words(words)
        halting, remaining = (torch.zeros_like(state[..., 0], dtype=torch.float32) for _ in range(2))
        updates, before, time = torch.zeros_like(halting), torch.zeros_like(state, dtype=torch.float32), 0
        while bool(((halting < 0.99) & (updates < 6)).any()):
            state = state + self.signal(*state.shape[1:], time, state).to(state.dtype)
            chance = torch.sigmoid(self.halt(state).float()).squeeze(-1)
            running = halting.lt(1.0).float()
            stops = (halting + chance * running).gt(0.99).float() * running
            running = (halting + chance * running).le(0.99).float() * running
            halting = halting + chance * running
            remaining = remaining + stops * (1 - halting)
            halting = halting + stops * remaining
            updates = updates + running + stops
            weight = (chance * running + stops * remaining).unsqueeze(-1)
            state = self.norm(state + F.relu(self.mix(state.mT)).mT)
            state = state + F.hardtanh(self.feed(state), -0.5, 0.5)
            before, time = state.float() * weight + before * (1 - weight), time + 1
        scores = F.linear(before.to(self.words.weight.dtype), self.words.weight).float()
        ponder = (remaining + updates).mean()
        return F.cross_entropy(scores.flatten(0, 1), words.roll(-1, 1).flatten()) + 0.01 * ponder


class Segments(nn.Module):
    """Transformer-XL: states of the segment before, distances by a shifted view, tables by frequency, retention."""

    def __init__(self, width: int = 16, words: int = 40) -> None:
        super().__init__()
        self.edges = (0, 12, words)
        self.tables = nn.ModuleList([nn.Embedding(12, width), nn.Embedding(words - 12, width // 4)])
        self.wider = nn.Linear(width // 4, width, bias=False)
        self.qkv, self.far = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.u, self.v = (nn.Parameter(normal(2, width // 2, seed=seed) * 0.1) for seed in (3, 4))
        self.group, self.gate, self.out = nn.GroupNorm(2, width), nn.Linear(width, width), nn.Linear(width, words)
        self.register_buffer("memory", torch.zeros(2, 5, width))

    def embedded(self, words: Tensor) -> Tensor:
        flat = words.flatten()
        made = torch.zeros(len(flat), 16, device=words.device, dtype=self.wider.weight.dtype)
        for number, table in enumerate(self.tables):
            chosen = (flat >= self.edges[number]) & (flat < self.edges[number + 1])
            rows = table(flat[chosen] - self.edges[number])
            made[chosen.nonzero().squeeze(1)] = (self.wider(rows) if number else rows).to(made.dtype)
        return made.view(*words.shape, -1) * 4

    @staticmethod
    def shifted(scores: Tensor) -> Tensor:
        count, heads, queries, keys = scores.shape
        padded = torch.cat([scores.new_zeros(count, heads, queries, 1), scores], -1)
        return padded.view(count, heads, keys + 1, queries)[:, :, 1:].view_as(scores)

    def retained(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[2]
        decay = torch.log(1 - torch.exp2(-5.0 - torch.arange(2, device=q.device)))[:, None, None]
        gap = (torch.arange(length, device=q.device)[:, None] - torch.arange(length, device=q.device)).clamp(min=-1)
        mask = torch.where(gap >= 0, torch.exp(gap * decay), 0)
        mask = mask / mask.sum(-1, keepdim=True).sqrt()
        made = (q.float() @ k.float().mT) * mask
        return (made / made.detach().abs().sum(-1, keepdim=True).clamp(min=1, max=5e4)) @ v.float()

    def loss(self, words: Tensor) -> Tensor:
        x = self.embedded(words)
        length, whole_length = x.shape[1], x.shape[1] + self.memory.shape[1]
        seen = torch.cat([self.memory.to(x.dtype).detach(), x], 1)
        q, k, v = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in self.qkv(seen).tensor_split(3, -1))
        q = q[:, :, -length:]
        steps = torch.arange(whole_length - 1, -1, -1.0, device=x.device)
        angle = torch.ger(steps, 1 / 1e4 ** (torch.arange(0, 16, 2.0, device=x.device) / 16))
        far = self.far(torch.cat([angle.sin(), angle.cos()], -1).to(x.dtype)).unflatten(-1, (2, -1))
        content = torch.einsum("bhid,bhjd->bhij", q + self.u[:, None].to(q.dtype), k)
        place = torch.einsum("bhid,jhd->bhij", q + self.v[:, None].to(q.dtype), far)
        scores = (content + self.shifted(place)).float().mul_(8**-0.5)
        scores = scores + torch.full_like(scores[0, 0], -math.inf).triu(1 + whole_length - length)
        looked = (scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2)
        kept = self.retained(q, k[:, :, -length:], v[:, :, -length:]).transpose(1, 2).flatten(2)
        kept = self.group(kept.flatten(0, 1).to(self.group.weight.dtype)).view_as(looked)
        x = x + looked + F.silu(self.gate(x)) * kept
        with torch.no_grad():
            self.memory.copy_(torch.cat([self.memory, x.to(self.memory.dtype)], 1)[:, -self.memory.shape[1] :])
        return F.cross_entropy(self.out(x)[:, :-1].flatten(0, 1).float(), words[:, 1:].flatten())


class Guessing(nn.Module):
    """Words behind masks at a random rate, as diffusion; a small model's draft is taken or refused by a larger one."""

    def __init__(self, words: int = 14, width: int = 12) -> None:
        super().__init__()
        self.mask = words
        self.words, self.time = nn.Embedding(words + 1, width), nn.Linear(1, width)
        self.layer = nn.TransformerEncoderLayer(width, 3, 20, 0.0, F.mish, batch_first=True, norm_first=True)
        self.top, self.draft = nn.Linear(width, words), nn.Linear(width, words, bias=False)

    @torch.no_grad()
    def accepted(self, likely: Tensor, guess: Tensor) -> tuple[Tensor, Tensor]:
        """Speculative sampling: how many drawn words stay, and the word that follows them."""
        drawn = torch.multinomial(guess.flatten(0, 1), 1).view(guess.shape[:2])
        p, q = (one.gather(-1, drawn.unsqueeze(-1)).squeeze(-1) for one in (likely, guess))
        stays = torch.rand_like(p).lt((p / q).clamp_max(1.0)).long().cumprod(-1)
        count = stays.sum(-1)
        at = count.clamp(max=guess.shape[1] - 1)[:, None, None].expand(-1, 1, guess.shape[-1])
        rest = (likely - guess).clamp_(min=0).gather(1, at).squeeze(1) + 1e-6
        return count, torch.distributions.Categorical(rest / rest.sum(-1, True)).sample()

    def loss(self, words: Tensor) -> Tensor:
        rate = torch.empty(len(words), 1, device=words.device).uniform_(0.2, 0.9)
        hidden = torch.rand(words.shape, device=words.device) < rate
        x = self.words(torch.where(hidden, self.mask, words))
        x = self.layer(x + self.time(torch.special.logit(rate).to(x.dtype))[:, None])
        scores = self.top(x).float()
        cost = F.cross_entropy(scores.mT, words, reduction="none").mul(hidden) / rate
        with in_float32(x):
            small = F.linear(x.detach().float(), self.draft.weight.float()).log_softmax(-1)
            teacher = scores.detach().log_softmax(-1)
            middle = torch.logsumexp(torch.stack([small, teacher]) - math.log(2), 0)
            js = F.kl_div(middle, teacher, reduction="batchmean", log_target=True) / 2
            js = js + F.kl_div(middle, small, reduction="batchmean", log_target=True) / 2
        count, following = self.accepted(teacher.exp(), small.exp())
        again = F.nll_loss(small[:, -1], following)
        return cost.sum() / words.numel() + 0.1 * js + 0.05 * again + 0 * count.float().mean()


PROGRAMS = (
    Program("latents", "eighth", Latents, lambda: [whole(29, 3, 14) * (torch.arange(14) < 11)]),
    Program("bands and buckets", "eighth", Bands, lambda: [whole(26, 2, 16)]),
    Program("pointers", "eighth", Pointers, lambda: [whole(21, 3, 8) + 1, whole(15, 3, 6) + 1]),
    Program("pondering", "eighth", Pondering, lambda: [whole(20, 2, 7)]),
    Program("segments", "eighth", Segments, lambda: [whole(40, 2, 9)]),
    Program("guessing", "eighth", Guessing, lambda: [whole(14, 3, 10)]),
)
