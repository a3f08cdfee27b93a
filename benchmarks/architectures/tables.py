"""Tables, series, clicks and agents: numbers in pieces, neighbours that are asked, quantiles, plans, teams."""

from __future__ import annotations

import math
from typing import Any

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Columns(nn.Module):
    """FT-Transformer and TabR: numbers in pieces, ReGLU, the nearest rows' labels, ensembles, a Hopfield memory."""

    def __init__(self, numbers: int = 5, width: int = 16, bins: int = 6) -> None:
        super().__init__()
        edges = torch.quantile(normal(64, numbers), torch.linspace(0, 1, bins + 1), dim=0).t().contiguous()
        self.register_buffer("edges", edges)
        self.pieces, self.bias = (
            nn.Parameter(normal(numbers, bins, width) * 0.1),
            nn.Parameter(torch.zeros(numbers, width)),
        )
        self.kinds, self.cls = nn.Embedding(12, width), nn.Parameter(normal(1, 1, width) * 0.1)
        self.register_buffer("offsets", torch.tensor([0, 4]))
        self.attention, self.norm = nn.MultiheadAttention(width, 4, 0.1, batch_first=True), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 32), nn.Linear(16, width)
        self.key, self.label = nn.Linear(width, width), nn.Embedding(3, width)
        self.r, self.s, self.shared = nn.Parameter(torch.ones(4, width)), nn.Parameter(torch.ones(4, width)), nn.Linear(width, width)  # fmt: skip # noqa: E501
        self.stored, self.top = nn.Parameter(normal(10, width) * 0.2), nn.Parameter(normal(4, width, 3) * 0.2)

    def encoded(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        edges = self.edges.float()
        x = numbers.float().unsqueeze(-1)
        share = (x - edges[:, :-1]) / (edges[:, 1:] - edges[:, :-1])
        share = torch.cat([share[..., :1].clamp_max(1), share[..., 1:-1].clamp(0, 1), share[..., -1:].clamp_min(0)], -1)
        tokens = torch.einsum("bnk,nkd->bnd", share.to(self.pieces.dtype), self.pieces) + self.bias
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), F.relu(tokens), self.kinds(kinds + self.offsets)], 1)
        told, _ = self.attention(tokens[:, :1], self.norm(tokens).to(tokens.dtype), tokens, need_weights=False)
        row = tokens[:, 0] + told[:, 0]
        a, b = self.up(row).chunk(2, -1)
        return row + self.down(a * F.relu(b))

    def loss(self, numbers: Tensor, kinds: Tensor, y: Tensor) -> Tensor:
        row = self.encoded(numbers, kinds)
        with in_float32(numbers):
            keys = F.linear(row.float(), self.key.weight.float())
            far = -(keys.square().sum(-1, keepdim=True) - 2 * keys @ keys.t() + keys.square().sum(-1))
            far = far.fill_diagonal_(-math.inf) if not far.requires_grad else far - torch.diag(torch.full((len(y),), 1e6, device=y.device))  # fmt: skip # noqa: E501
            near, index = far.topk(4, dim=-1)
            share = F.dropout(near.softmax(-1), 0.2, self.training)
            values = self.label(y[index]).float() + (keys[:, None] - keys[index])
            row = row.float() + torch.einsum("bk,bkd->bd", share, values)
            stored = self.stored.float()
            state = row
            for _ in range(2):
                state = F.softmax(2.0 * F.layer_norm(state, state.shape[-1:]) @ stored.t(), -1) @ stored
            energy = -torch.logsumexp(2.0 * row @ stored.t(), -1) / 2 + 0.5 * row.square().sum(-1)
        many = (row + state).unsqueeze(1).to(self.r.dtype) * self.r
        many = self.shared(many) * self.s
        scores = torch.einsum("bkd,kdc->bkc", F.silu(many), self.top.to(many.dtype)).float()
        cost = F.cross_entropy(scores.flatten(0, 1), y.repeat_interleave(4))
        with torch.no_grad():
            mean = scores.softmax(-1).mean(1)
            surprise = (-(mean + 1e-9).log() * mean).sum(-1).mean()
        return cost + 1e-3 * energy.mean() + 0 * surprise


class Horizons(nn.Module):
    """TFT, N-HiTS and PatchTST: gates, chosen variables, pools of rates, patches, quantiles that do not cross."""

    def __init__(self, width: int = 12, history: int = 24, ahead: int = 6) -> None:
        super().__init__()
        self.ahead, self.width = ahead, width
        self.vary, self.weigh = nn.ModuleList(nn.Linear(1, width) for _ in range(3)), nn.Linear(3 * width, 3)
        self.eta1, self.eta2, self.gate = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.read, self.norm = nn.LSTM(width, width, batch_first=True), nn.LayerNorm(width)
        self.q, self.k, self.v = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.quantiles = nn.Linear(width, 3)
        self.pools = nn.ModuleList(nn.Linear(history // rate, 2 * (history // rate)) for rate in (2, 4))
        self.patch, self.place = nn.Linear(8, width), nn.Parameter(normal(1, 5, width) * 0.02)
        self.encode = nn.TransformerEncoderLayer(width, 3, 24, 0.0, "gelu", batch_first=True)
        self.flat = nn.Linear(5 * width, ahead)

    def residual(self, x: Tensor) -> Tensor:
        made = self.eta1(F.elu(self.eta2(x)))
        return self.norm(x + F.glu(self.gate(F.dropout(made, 0.1, self.training)), -1))

    def fused(self, x: Tensor) -> Tensor:
        each = torch.stack([layer(x[..., i : i + 1]) for i, layer in enumerate(self.vary)], -1)
        share = torch.softmax(self.weigh(each.flatten(-2)), -1)
        states, _ = self.read(self.residual((each * share.unsqueeze(-2)).sum(-1)))
        states = self.residual(states)
        q, k = self.q(states[:, -self.ahead :]), self.k(states)
        q, k = (one.view(*one.shape[:2], 2, self.width).permute(2, 0, 1, 3) for one in (q, k))
        scores = torch.einsum("hbqd,hbkd->hbqk", q, k) / self.width**0.5
        steps = torch.arange(x.shape[1], device=x.device)
        scores = scores.masked_fill(steps[-self.ahead :, None] < steps, -1e4)
        made = scores.softmax(-1, torch.float32).mean(0).to(states.dtype) @ self.v(states)
        raw = self.quantiles(made).float()
        middle = raw[..., 1:2]
        return torch.cat([middle - F.softplus(raw[..., :1]), middle, middle + F.softplus(raw[..., 2:])], -1)

    def stacked(self, x: Tensor) -> Tensor:
        total, rest = x.new_zeros(len(x), self.ahead, dtype=torch.float32), x
        for rate, layer in zip((2, 4), self.pools):
            pooled = F.max_pool1d(rest.unsqueeze(1), rate, rate, ceil_mode=True).squeeze(1)
            back, fore = layer(pooled).chunk(2, -1)
            rest = rest - F.interpolate(back.unsqueeze(1), size=x.shape[1], mode="linear").squeeze(1)
            total = total + F.interpolate(fore.unsqueeze(1), size=self.ahead, mode="linear").squeeze(1).float()
        return total

    def loss(self, x: Tensor, goal: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True).detach()
        spread = torch.sqrt(torch.var(x.float(), dim=1, keepdim=True, unbiased=False) + 1e-5).detach().to(x.dtype)
        x = (x - mean) / spread
        quantile = self.fused(x)
        pooled = self.stacked(x[..., 0])
        patches = F.pad(x.transpose(1, 2), (0, 0)).unfold(-1, 8, 4)
        hidden = self.encode((self.patch(patches) + self.place).flatten(0, 1))
        made = self.flat(hidden.flatten(1)).view(len(x), 3, -1).transpose(1, 2)
        back = (made * spread + mean).float()
        error = ((goal - mean) / spread).float()[..., :1] - quantile
        rates = torch.tensor([0.1, 0.5, 0.9], device=x.device)
        pinball = torch.max(rates * error, (rates - 1) * error).sum(-1).mean()
        with in_float32(x):
            spectrum = (torch.fft.rfft(back, dim=1) - torch.fft.rfft(goal.float(), dim=1)).abs().mean()
            smape = ((back - goal).abs() / (back.abs() + goal.abs()).detach().clamp_min(1e-2)).mean()
        near = F.mse_loss(pooled, ((goal - mean) / spread)[..., 0].float())
        return pinball + near + 0.1 * spectrum + 0.1 * smape


class Clicks(nn.Module):
    """DIN, DCN v2, MMoE: quotients and remainders, crosses, tasks' gates, corrected negatives."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.quotient, self.remainder = nn.Embedding(11, width), nn.Embedding(10, width)
        self.bags = nn.EmbeddingBag(40, width, mode="sum", include_last_offset=True)
        self.activation, self.alpha = nn.Linear(4 * width, 8), nn.Parameter(torch.zeros(8))
        self.score = nn.Linear(8, 1)
        self.u, self.v, self.b = (nn.Parameter(normal(*s) * 0.1) for s in ((2, 3, 4 * width, 4), (2, 3, 4, 4 * width), (2, 4 * width)))  # fmt: skip # noqa: E501
        self.gate = nn.ModuleList(nn.Linear(4 * width, 3) for _ in range(2))
        self.experts = nn.ModuleList(nn.Linear(4 * width, 8) for _ in range(3))
        self.tasks, self.gates = nn.ModuleList(nn.Linear(8, 1) for _ in range(2)), nn.Linear(4 * width, 6)
        self.register_buffer("mean", torch.zeros(8))

    def item(self, index: Tensor) -> Tensor:
        return self.quotient(index // 10) * self.remainder(index % 10)

    def dice(self, x: Tensor) -> Tensor:
        wide = x.float()
        share = torch.sigmoid((wide - wide.mean((0, 1))) / (wide.var((0, 1), correction=0) + 1e-8).sqrt()).to(x.dtype)
        return share * x + (1 - share) * self.alpha.to(x.dtype) * x

    def loss(self, item: Tensor, past: Tensor, bag: Tensor, clicked: Tensor) -> Tensor:
        wanted, seen = self.item(item), self.item(past)
        query = wanted.unsqueeze(1).expand_as(seen)
        told = self.score(self.dice(self.activation(torch.cat([query, seen, query - seen, query * seen], -1))))
        told = told.squeeze(-1).masked_fill(past == 0, 0.0)
        interest = torch.bmm(told.unsqueeze(1), seen.to(told.dtype)).squeeze(1)
        offsets = torch.arange(0, bag.numel() + 1, bag.shape[1], device=bag.device)
        profile = self.bags(bag.flatten(), offsets)
        x0 = torch.cat([wanted, interest.to(wanted.dtype), profile.to(wanted.dtype), wanted * interest], -1)
        x = x0
        for layer in range(2):
            mixed: Any = 0.0
            shares = self.gate[layer](x).softmax(-1)
            for one in range(3):
                low = torch.tanh(x @ self.u[layer, one])
                mixed = mixed + shares[:, one, None] * (x0 * (low @ self.v[layer, one] + self.b[layer]))
            x = mixed.to(x0.dtype) + x
        experts = torch.stack([F.relu(one(x)) for one in self.experts], 1)
        gates = self.gates(x).view(-1, 2, 3).softmax(-1)
        hidden = gates.to(experts.dtype) @ experts
        first, second = (task(hidden[:, i]).squeeze(-1).float() for i, task in enumerate(self.tasks))
        both = torch.sigmoid(first) * torch.sigmoid(second)
        with in_float32(x):
            cost = F.binary_cross_entropy(both.clamp(1e-7, 1 - 1e-7), clicked.float(), reduction="none")
            cost = cost.mean() + F.binary_cross_entropy_with_logits(
                first, clicked.float(), pos_weight=first.new_tensor(3.0)
            )
            drawn = torch.multinomial(torch.arange(1, 100, device=item.device).float().reciprocal(), 12, True)
            logq = torch.log(1 / (drawn + 1.0)).float()
            user, candidates = F.normalize(interest.float(), dim=-1), F.normalize(self.item(drawn).float(), dim=-1)
            positive = (user * F.normalize(wanted.float(), dim=-1)).sum(-1, keepdim=True) / 0.1
            negative = user @ candidates.t() / 0.1 - logq
            negative = negative.masked_fill(drawn == item[:, None], torch.finfo(torch.float32).min)
            chosen = F.cross_entropy(torch.cat([positive, negative], 1), torch.zeros_like(item))
            order = first.argsort()
            ranks = torch.empty_like(order).scatter_(0, order, torch.arange(1, len(order) + 1, device=item.device))
            won = clicked.bool()
            area = (ranks[won].sum() - won.sum() * (won.sum() + 1) / 2) / (won.sum() * (~won).sum()).clamp(min=1)
        return cost + 0.1 * chosen + 0 * area


class Team(nn.Module):
    """QMIX and offline learning: values mixed by made weights, CQL, expectiles (IQL), TD(lambda)."""

    def __init__(self, seen: int = 6, actions: int = 4, width: int = 12) -> None:
        super().__init__()
        self.agent, self.out = nn.GRUCell(seen, width), nn.Linear(width, actions)
        self.w1, self.w2 = nn.Linear(8, 3 * 5), nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 5))
        self.b1, self.b2 = nn.Linear(8, 5), nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 1))
        self.value, self.policy = nn.Linear(seen, 1), nn.Linear(seen, 2 * actions)
        self.register_buffer("target", self.out.weight.detach().clone())

    def mixed(self, values: Tensor, state: Tensor) -> Tensor:
        count, length, agents = values.shape
        flat = state.reshape(-1, state.shape[-1])
        w1 = torch.abs(self.w1(flat)).view(-1, agents, 5)
        hidden = F.elu(torch.bmm(values.reshape(-1, 1, agents).to(w1.dtype), w1) + self.b1(flat).view(-1, 1, 5))
        w2 = torch.abs(self.w2(flat)).view(-1, 5, 1)
        return (torch.bmm(hidden, w2.to(hidden.dtype)) + self.b2(flat).view(-1, 1, 1)).view(count, length).float()

    def loss(self, seen: Tensor, state: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
        count, length, agents, _ = seen.shape
        hidden, rows = seen.new_zeros(count * agents, 12), []
        for step in range(length):
            hidden = self.agent(seen[:, step].reshape(count * agents, -1), hidden)
            rows.append(hidden)
        hidden = torch.stack(rows, 1).view(count, agents, length, -1).transpose(1, 2)
        values = self.out(hidden)
        with torch.no_grad():
            self.target.mul_(1 - 0.05).add_(0.05 * self.out.weight.data)
            allowed = torch.ones_like(values, dtype=torch.bool)
            allowed[..., 0] = seen[..., 0] > 0
            best = values.detach().clone().masked_fill_(~allowed, -9999).max(dim=3, keepdim=True)[1]
            later = F.linear(hidden, self.target.to(hidden.dtype)).gather(3, best).squeeze(3)
            goals = torch.zeros(count, length, device=seen.device)
            total = self.mixed(later, state)
            goals[:, -1] = total[:, -1]
            for t in range(length - 2, -1, -1):
                goals[:, t] = rewards[:, t] + 0.95 * (0.6 * goals[:, t + 1] + 0.4 * total[:, t + 1])
        taken = torch.gather(values, dim=3, index=actions.unsqueeze(3)).squeeze(3)
        wrong = self.mixed(taken, state)[:, :-1] - goals[:, :-1].detach()
        conservative = (torch.logsumexp(values.float(), -1) - taken.float()).mean()
        v = self.value(seen).squeeze(-1).float()
        gap = taken.float().detach() - v
        expectile = (torch.where(gap > 0, 0.7, 0.3) * gap**2).mean()
        mean, log_std = self.policy(seen).float().chunk(2, -1)
        log_std = -5 + 0.5 * 7 * (torch.tanh(log_std) + 1)
        chosen = F.one_hot(actions, 4).float() * 0.8 - 0.4
        density = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1).log_prob(chosen)
        regression = -(torch.exp(3 * gap.detach()).clamp(max=100.0) * density).mean()
        return wrong.pow(2).mean() + 0.1 * conservative + expectile + 0.01 * regression


PROGRAMS = (
    Program(
        "columns", "ninth", Columns, lambda: [normal(9, 5), torch.stack([whole(4, 9), whole(8, 9)], 1), whole(3, 9)]
    ),
    Program("horizons", "ninth", Horizons, lambda: [normal(3, 24, 3), normal(3, 6, 3, seed=4)]),
    Program("clicks", "ninth", Clicks, lambda: [whole(100, 8), whole(100, 8, 5), whole(40, 8, 4), whole(2, 8)]),
    Program("a team", "ninth", Team, lambda: [normal(2, 4, 3, 6), normal(2, 4, 8), whole(4, 2, 4, 3), normal(2, 4)]),
)
