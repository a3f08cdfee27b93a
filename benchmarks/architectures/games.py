"""Games: tours, trees of moves, recordings."""

from __future__ import annotations

import math

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Tour(nn.Module):
    """Neural solvers of tours: a pointer with clipped scores, what is visited is barred, many starts, REINFORCE."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.embed = heads, nn.Linear(2, width)
        self.layer, self.norm = (
            nn.MultiheadAttention(width, heads, batch_first=True),
            nn.InstanceNorm1d(width, affine=True),
        )
        self.feed = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, width))
        self.q_first, self.q_last = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(3))

    def loss(self, towns: Tensor) -> Tensor:
        towns = towns.sigmoid()
        x = self.embed(towns)
        x = self.norm((x + self.layer(x, x, x, need_weights=False)[0]).transpose(1, 2)).transpose(1, 2)
        x = x + self.feed(x)
        count, many, width = x.shape
        k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.k, self.v))
        at = torch.arange(many, device=x.device).expand(count, -1)
        first, visited = (
            at,
            torch.zeros(count, many, many, dtype=torch.bool, device=x.device).scatter(2, at.unsqueeze(-1), True),
        )
        path, likely = [at], []
        for _ in range(many - 1):
            here = x.gather(1, at.unsqueeze(-1).expand(-1, -1, width))
            start = x.gather(1, first.unsqueeze(-1).expand(-1, -1, width))
            query = (self.q_first(start) + self.q_last(here)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            mask = torch.zeros(visited.shape, device=x.device).masked_fill(visited, float("-inf")).unsqueeze(1)
            glimpse = F.scaled_dot_product_attention(query, k, v, attn_mask=mask.to(query.dtype))
            told = self.out(glimpse.transpose(1, 2).flatten(2)) @ x.transpose(1, 2) / width**0.5
            scores = (10 * torch.tanh(told.float())).masked_fill(visited, float("-inf"))
            chances = scores.softmax(-1)
            with torch.no_grad():
                at = torch.multinomial(chances.flatten(0, 1), 1).view(count, many)
            likely.append(chances.gather(2, at.unsqueeze(-1)).squeeze(-1).clamp_min(1e-10).log())
            visited = visited.scatter(2, at.unsqueeze(-1), True)
            path.append(at)
        order = torch.stack(path, -1)
        wide = towns.float().unsqueeze(1).expand(-1, many, -1, -1).gather(2, order.unsqueeze(-1).expand(-1, -1, -1, 2))
        length = (wide - wide.roll(-1, 2)).norm(p=2, dim=-1).sum(-1)
        advantage = (length.mean(1, keepdim=True) - length).detach()
        best = order.gather(1, length.argmin(1)[:, None, None].expand(-1, 1, many))
        short = torch.stack(likely, -1).gather(1, length.argmin(1)[:, None, None].expand(-1, 1, many - 1))
        return -(advantage * torch.stack(likely, -1).sum(-1)).mean() - 0.01 * short.mean() + 0 * best.float().mean()


class Moves(nn.Module):
    """AlphaZero and MuZero: illegal moves barred, visits as goals, values as two of many bins, a model unrolled."""

    def __init__(self, width: int = 8, moves: int = 10, bins: int = 11) -> None:
        super().__init__()
        self.moves, self.bins = moves, bins
        self.see = nn.Sequential(nn.Conv2d(4, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True))
        self.step = nn.Sequential(nn.Conv2d(width + 1, width, 3, padding=1), nn.BatchNorm2d(width))
        self.gate = nn.Linear(width, 2 * width)
        self.policy, self.value, self.reward = (nn.Linear(width * 9, n) for n in (moves, bins, bins))
        for one in (self.value, self.reward):
            nn.init.zeros_(one.weight)
        self.project = nn.Sequential(nn.Linear(width * 9, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16))
        self.guess = nn.Linear(16, 16)

    @staticmethod
    def squeezed(x: Tensor, eps: float = 1e-3) -> Tensor:
        return x.sign() * ((x.abs() + 1).sqrt() - 1) + eps * x

    def two_bins(self, x: Tensor) -> Tensor:
        half = self.bins // 2
        x = self.squeezed(x.float()).clamp(-half, half)
        low = x.floor()
        share = x - low
        made = torch.zeros(*x.shape, self.bins, device=x.device)
        made.scatter_(-1, (low.long() + half).unsqueeze(-1), (1 - share).unsqueeze(-1))
        return made.scatter_add_(
            -1, (low.long() + half + 1).clamp(max=self.bins - 1).unsqueeze(-1), share.unsqueeze(-1)
        )

    @staticmethod
    def unit(x: Tensor) -> Tensor:
        low, high = x.flatten(1).amin(1), x.flatten(1).amax(1)
        size = (high - low).clamp(min=1e-5)
        return (x - low.view(-1, 1, 1, 1)) / size.view(-1, 1, 1, 1)

    def loss(self, board: Tensor, moves: Tensor, visits: Tensor, rewards: Tensor) -> Tensor:
        count, steps = moves.shape
        values = torch.zeros_like(rewards, dtype=torch.float32)
        last = torch.zeros(count, device=board.device)
        for step in reversed(range(steps)):
            last = rewards[:, step].float() + 0.997 * last
            values[:, step] = last
        state = self.unit(self.see(board))
        legal = visits > 0
        total = board.new_zeros((), dtype=torch.float32)
        weight = torch.linspace(0.5, 1.0, count, device=board.device).pow(-0.4)
        weight = weight / weight.max()
        for step in range(steps):
            flat = state.flatten(1)
            policy = self.policy(flat).float().masked_fill(~legal[:, step], torch.finfo(torch.float32).min)
            goal = visits[:, step].float() / visits[:, step].float().sum(-1, keepdim=True)
            told = -(goal * policy.log_softmax(-1)).sum(-1)
            told = told + 0.25 * -(self.two_bins(values[:, step]) * self.value(flat).float().log_softmax(-1)).sum(-1)
            plane = (moves[:, step].view(-1, 1, 1, 1) / self.moves).to(state.dtype).expand(-1, 1, 3, 3)
            before = state
            state = self.step(torch.cat([state, plane], 1))
            scale, shift = self.gate(before.mean((2, 3))).chunk(2, -1)
            state = self.unit(F.relu(state * (1 + scale[..., None, None]) + shift[..., None, None] + before))
            told = told - (self.two_bins(rewards[:, step]) * self.reward(state.flatten(1)).float().log_softmax(-1)).sum(
                -1
            )
            with torch.no_grad():
                follow = self.project(self.unit(self.see(board.roll(step + 1, -1))).flatten(1)).float()
            ahead = self.guess(self.project(state.flatten(1))).float()
            told = told - F.cosine_similarity(ahead, follow, dim=-1)
            total = total + (told * weight).mean() / steps
            if state.requires_grad:
                state.register_hook(lambda slope: slope * 0.5)
        return total


class Recorded(nn.Module):
    """Learning from recordings: a decision transformer, V-trace, TD3 with BC, curiosity by a frozen net."""

    def __init__(self, seen: int = 5, acts: int = 3, width: int = 18, longest: int = 16) -> None:
        super().__init__()
        self.acts, self.time = acts, nn.Embedding(longest, width)
        self.returns, self.states, self.actions = nn.Linear(1, width), nn.Linear(seen, width), nn.Embedding(acts, width)
        self.body = nn.TransformerEncoderLayer(width, 3, 36, 0.1, "gelu", batch_first=True, norm_first=True)
        self.norm, self.act, self.value = nn.LayerNorm(width), nn.Linear(width, acts), nn.Linear(width, 1)
        self.twin = nn.ModuleList(nn.Sequential(nn.Linear(seen + 2, 12), nn.Mish(), nn.Linear(12, 1)) for _ in range(4))
        self.actor = nn.Sequential(nn.Linear(seen, 12), nn.ReLU(), nn.Linear(12, 2), nn.Tanh())
        self.fixed, self.told = nn.Linear(seen, 8).requires_grad_(False), nn.Linear(seen, 8)
        self.twin[2].load_state_dict(self.twin[0].state_dict())
        self.twin[3].load_state_dict(self.twin[1].state_dict())
        self.register_buffer("mean", torch.zeros(seen))
        self.register_buffer("square", torch.ones(seen))

    def loss(self, states: Tensor, acted: Tensor, rewards: Tensor, lengths: Tensor) -> Tensor:
        steps = states.shape[1]
        seen = torch.arange(steps, device=states.device) < lengths[:, None]
        with torch.no_grad():
            real = states[seen].float()
            self.mean.lerp_(real.mean(0).to(self.mean.dtype), 0.1)
            self.square.lerp_(real.var(0, unbiased=len(real) > 1).to(self.square.dtype), 0.1)
        states = ((states - self.mean) / (self.square + 1e-8).sqrt()).clamp(-5, 5) * seen.unsqueeze(-1)
        gains = rewards * seen
        togo = gains.flip(1).cumsum(1).flip(1)
        at = self.time(torch.arange(steps, device=states.device))
        parts = [self.returns(togo.unsqueeze(-1)), self.states(states), self.actions(acted)]
        tokens = torch.stack([part + at for part in parts], 2).flatten(1, 2)
        causal = torch.ones(3 * steps, 3 * steps, dtype=torch.bool, device=states.device).triu(1)
        hidden = self.norm(self.body(tokens, causal, ~seen.repeat_interleave(3, 1)))[:, 1::3]
        scores, values = self.act(hidden).float(), self.value(hidden).squeeze(-1).float()
        copied = F.cross_entropy(scores.transpose(1, 2), acted.masked_fill(~seen, -1), ignore_index=-1)
        with torch.no_grad():
            ours = scores.log_softmax(-1).gather(-1, acted.unsqueeze(-1)).squeeze(-1)
            ratio = (ours - math.log(1 / self.acts)).exp()
            rho, c = ratio.clamp(max=1.0), ratio.clamp(max=1.0) * 0.95
            ahead = F.pad(values[:, 1:], (0, 1)) * 0.99
            deltas = rho * (gains.float() + ahead - values) * seen
            sums, trace = [], torch.zeros_like(deltas[:, 0])
            for step in reversed(range(steps)):
                trace = deltas[:, step] + 0.99 * c[:, step] * trace
                sums.append(trace)
            goals = torch.stack(sums[::-1], 1) + values
            advantage = rho * (gains.float() + F.pad(goals[:, 1:], (0, 1)) * 0.99 - values)
        wrong = 0.5 * ((values - goals).square() * seen).sum() / seen.sum()
        policy = (
            -(scores.log_softmax(-1).gather(-1, acted.unsqueeze(-1)).squeeze(-1) * advantage * seen).sum() / seen.sum()
        )
        flat, follow = states[:, :-1][seen[:, 1:]], states[:, 1:][seen[:, 1:]]
        tried = torch.tanh(flat[:, :2])
        with torch.no_grad():
            noise = (torch.randn_like(tried) * 0.2).clamp(-0.5, 0.5)
            smooth = (self.actor(follow) + noise).clamp(-1, 1)
            both = torch.cat([follow, smooth.to(follow.dtype)], -1)
            goal = gains[:, :-1][seen[:, 1:]].unsqueeze(-1) + 0.99 * torch.minimum(
                self.twin[2](both), self.twin[3](both)
            )
            for ours_, theirs in ((0, 2), (1, 3)):
                for one, other in zip(self.twin[ours_].parameters(), self.twin[theirs].parameters()):
                    other.data.lerp_(one.data, 0.005)
        critic = sum(F.mse_loss(self.twin[i](torch.cat([flat, tried], -1)).float(), goal.float()) for i in (0, 1))
        made = self.actor(flat)
        q = self.twin[0](torch.cat([flat, made.to(flat.dtype)], -1)).float()
        bounded = -(2.5 / q.abs().mean().detach().clamp(min=1e-6)) * q.mean() + F.mse_loss(made.float(), tried.float())
        curious = (self.told(follow) - self.fixed(follow)).float().square().mean(-1)
        surprise = (curious * (curious.detach() / (curious.detach().std() + 1e-8) < 3)).mean()
        return copied + wrong + 0.1 * policy + critic + 0.1 * bounded + surprise


def played() -> list[Tensor]:
    visits = whole(20, 4, 3, 10, seed=4) * whole(2, 4, 3, 10, seed=5)
    visits[..., 0] += 1
    return [normal(4, 4, 3, 3), whole(10, 4, 3), visits, normal(4, 3, seed=6) * 3]


PROGRAMS = (
    Program("tours", "eleventh", Tour, lambda: [normal(3, 7, 2)]),
    Program("moves", "eleventh", Moves, played),
    Program("recorded", "eleventh", Recorded,
            lambda: [normal(4, 8, 5), whole(3, 4, 8), normal(4, 8, seed=4), torch.tensor([8, 1, 5, 7])]),
)  # fmt: skip
