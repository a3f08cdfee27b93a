"""Things in relation: facts, graphs with spectra as places, clicks."""

from __future__ import annotations

import math

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Knowledge(nn.Module):
    """RotatE, ComplEx and R-GCN: phases as relations, negatives that weigh themselves, bases shared by relations."""

    def __init__(self, things: int = 24, relations: int = 4, width: int = 8, gamma: float = 9.0) -> None:
        super().__init__()
        self.gamma, self.reach = gamma, (gamma + 2.0) / width
        self.things, self.relations = nn.Embedding(things, 2 * width), nn.Embedding(relations, width)
        nn.init.uniform_(self.things.weight, -self.reach, self.reach)
        nn.init.uniform_(self.relations.weight, -self.reach, self.reach)
        self.bases, self.mix = nn.Parameter(normal(2, 2 * width, 2 * width) * 0.1), nn.Parameter(normal(relations, 2))
        self.own = nn.Linear(2 * width, 2 * width, bias=False)

    def convolved(self, facts: Tensor) -> Tensor:
        source, kind, goal = facts.unbind(-1)
        things = self.things.weight
        weights = torch.einsum("rb,bij->rij", self.mix, self.bases.to(self.mix.dtype))
        sent = torch.zeros(things.shape, device=things.device)
        for number in range(len(weights)):
            some = kind == number
            made = (things[source[some]] @ weights[number].to(things.dtype)).float()
            count = torch.bincount(goal[some], minlength=len(things)).clamp(min=1)
            sent = sent.index_add(0, goal[some], made / count[goal[some], None])
        return F.relu(sent + self.own(things).float())

    def rotated(self, head: Tensor, kind: Tensor, tail: Tensor) -> Tensor:
        phase = self.relations(kind).float() / (self.reach / math.pi)
        turn = torch.polar(torch.ones_like(phase), phase)
        a, b = (torch.complex(*one.float().chunk(2, -1)) for one in (head, tail))
        return self.gamma - torch.view_as_real(a * turn - b).norm(dim=-1).sum(-1)

    def loss(self, facts: Tensor) -> Tensor:
        things = self.things.weight.float() + 0.1 * self.convolved(facts)
        source, kind, goal = facts.unbind(-1)
        others = torch.randint(len(things), (len(facts), 6), device=facts.device)
        with in_float32(things):
            good = self.rotated(things[source], kind, things[goal])
            bad = self.rotated(things[source].unsqueeze(1), kind.unsqueeze(1), things[others])
            weight = (bad * 0.5).softmax(1).detach()
            ours = -F.logsigmoid(good).mean() - (weight * F.logsigmoid(-bad)).sum(1).mean()
            a, b = (torch.view_as_complex(things[one].unflatten(-1, (-1, 2)).contiguous()) for one in (source, goal))
            phase = self.relations(kind).float()
            all_ = torch.view_as_complex(things.unflatten(-1, (-1, 2)))
            scores = ((a * torch.polar(torch.ones_like(phase), phase)) @ all_.conj().t()).real
            n3 = (a.abs() ** 3).sum(-1).mean() + (b.abs() ** 3).sum(-1).mean()
        return ours + F.cross_entropy(scores, goal) + 1e-3 * n3


class Spectral(nn.Module):
    """A graph transformer: signs of eigenvectors, walks that return, biases by distance, GATv2, pools, pairs' links."""

    def __init__(self, inputs: int = 5, width: int = 16, heads: int = 2, classes: int = 3) -> None:
        super().__init__()
        self.heads, self.embed = heads, nn.Linear(inputs + 4 + 3, width)
        self.far, self.degree = nn.Embedding(6, heads, padding_idx=0), nn.Embedding(8, width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)
        self.attend = nn.Parameter(torch.empty(heads, width // heads))
        nn.init.xavier_uniform_(self.attend)
        self.norm, self.keep, self.head = nn.BatchNorm1d(width), nn.Linear(width, 1), nn.Linear(2 * width, classes)
        self.mean, self.spread = nn.Linear(width, 4), nn.Linear(width, 4)

    @torch.no_grad()
    def places(self, adjacent: Tensor) -> tuple[Tensor, Tensor]:
        with in_float32(adjacent):
            adjacent = adjacent.float()
            degree = adjacent.sum(-1)
            root = torch.where(degree > 0, degree.rsqrt(), torch.zeros_like(degree))
            laplace = torch.eye(adjacent.shape[-1], device=adjacent.device) - root[:, None] * adjacent * root
            vectors = torch.linalg.eigh(laplace.cpu().double())[1][:, 1:5].float().to(adjacent.device)
            vectors = vectors * torch.where(vectors.abs().amax(0) == vectors.amax(0), 1.0, -1.0)
            vectors = vectors * (torch.randint(2, (1, 4), device=adjacent.device) * 2 - 1)
            walk, returns = adjacent / degree.clamp(min=1)[:, None], []
            power = walk
            for _ in range(3):
                power = power @ walk
                returns.append(power.diagonal())
            far, near = torch.full_like(adjacent, 5), torch.eye(adjacent.shape[-1], device=adjacent.device)
            for step in range(1, 5):
                far = torch.where((near > 0) & (far == 5), torch.full_like(far, step), far)
                near = (near @ adjacent + near).clamp(max=1)
            return torch.cat([vectors, torch.stack(returns, -1)], -1), far.long()

    def loss(self, x: Tensor, edges: Tensor, batch: Tensor, y: Tensor) -> Tensor:
        count = len(x)
        adjacent = torch.zeros(count, count, device=x.device)
        adjacent[edges[0], edges[1]] = 1.0
        places, far = self.places(adjacent)
        hidden = self.embed(torch.cat([x, places.to(x.dtype)], -1)) + self.degree(adjacent.sum(-1).long().clamp(max=7))
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(0, 1) for one in self.qkv(hidden).chunk(3, -1))
        bias = self.far(far).permute(2, 0, 1).masked_fill(batch[:, None] != batch, float("-inf"))
        made = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=bias[None].to(q.dtype))[0]
        hidden = hidden + self.proj(made.transpose(0, 1).flatten(1))
        source, goal = edges
        left, right = (one(hidden).unflatten(-1, (self.heads, -1)) for one in (self.left, self.right))
        score = (F.leaky_relu(left[source] + right[goal], 0.2) * self.attend).sum(-1).float()
        index = goal.unsqueeze(-1).expand_as(score)
        most = score.new_full((count, self.heads), -math.inf).scatter_reduce(0, index, score.detach(), "amax")
        share = (score - most[goal]).exp()
        share = share / (score.new_zeros(count, self.heads).scatter_add(0, index, share)[goal] + 1e-16)
        share = F.dropout(share, 0.2)
        sent = (left[source].float() * share.unsqueeze(-1)).flatten(1)
        sent = torch.zeros(count, sent.shape[-1], device=x.device).index_add_(0, goal, sent)
        hidden = F.elu(self.norm(hidden + sent.to(hidden.dtype)))
        told = self.keep(hidden).squeeze(-1).float()
        order = (told.detach().tanh() / 2 - 2 * batch).argsort(descending=True, stable=True)
        sizes = torch.bincount(batch)
        starts = sizes.cumsum(0) - sizes
        rank = torch.arange(count, device=x.device) - starts[batch[order]]
        kept = order[rank < (sizes[batch[order]] * 0.5).ceil()]
        pooled = hidden[kept] * told[kept].tanh().unsqueeze(-1).to(hidden.dtype)
        graphs = len(sizes)
        sums = pooled.new_zeros(graphs, pooled.shape[-1]).index_add(0, batch[kept], pooled)
        peaks = torch.segment_reduce(pooled.float().index_select(0, batch[kept].argsort(stable=True)), "max",
                                     lengths=torch.bincount(batch[kept], minlength=graphs))  # fmt: skip
        scores = self.head(torch.cat([sums, peaks.to(sums.dtype)], -1)).float()
        mean, spread = self.mean(hidden).float(), self.spread(hidden).float().clamp(max=10)
        z = mean + torch.randn_like(spread) * spread.exp()
        link, loss = z @ z.t(), 0.0
        weight = torch.where(adjacent > 0, (count**2 - adjacent.sum()) / adjacent.sum(), 1.0)
        loss = F.binary_cross_entropy_with_logits(link, adjacent, weight=weight)
        loss = loss - 0.5 / count * (1 + 2 * spread - mean**2 - spread.exp() ** 2).sum(1).mean()
        return F.cross_entropy(scores, y) + 0.1 * loss


class Liked(nn.Module):
    """LightGCN, two towers and DeepFM: BPR, logQ, bags with weights by sample, calibration."""

    def __init__(self, users: int = 10, things: int = 18, width: int = 12) -> None:
        super().__init__()
        self.users, self.things = nn.Embedding(users, width), nn.Embedding(things, width)
        for one in (self.users, self.things):
            nn.init.normal_(one.weight, std=0.1)
        self.bag = nn.EmbeddingBag(things + 1, width, mode="sum", padding_idx=things, include_last_offset=True)
        self.most = nn.EmbeddingBag(things, width, mode="max")
        self.first, self.factors = nn.Embedding(30, 1), nn.Embedding(30, 6)
        self.deep = nn.Sequential(nn.Linear(24, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.PReLU(), nn.Linear(16, 1))
        self.tower, self.cold = nn.Linear(2 * width, width), nn.Parameter(torch.tensor(0.0))

    def propagated(self, liked: Tensor) -> Tensor:
        users, things = len(self.users.weight), len(self.things.weight)
        both = torch.cat([self.users.weight, self.things.weight]).float()
        rows = torch.cat([liked[0], liked[1] + users])
        columns = torch.cat([liked[1] + users, liked[0]])
        degree = torch.zeros(users + things, device=both.device).scatter_add_(0, rows, torch.ones_like(rows).float())
        root = degree.pow(-0.5).masked_fill(degree == 0, 0.0)
        layers = [both]
        for _ in range(2):
            sent = layers[-1][columns] * (root[rows] * root[columns]).unsqueeze(-1)
            layers.append(torch.zeros_like(both).index_add(0, rows, sent))
        return torch.stack(layers).mean(0)

    def loss(self, liked: Tensor, seen: Tensor, offsets: Tensor, fields: Tensor, y: Tensor) -> Tensor:
        both = self.propagated(liked)
        users, things = both.split([len(self.users.weight), len(self.things.weight)])
        drawn = torch.randint(len(things), liked[1].shape, device=liked.device)
        a, good, bad = users[liked[0]], things[liked[1]], things[drawn]
        bpr = -F.logsigmoid((a * good).sum(-1) - (a * bad).sum(-1)).mean()
        bpr = bpr + 1e-4 * (a.norm(2).pow(2) + good.norm(2).pow(2) + bad.norm(2).pow(2)) / len(drawn)
        age = torch.arange(len(seen), device=seen.device, dtype=self.bag.weight.dtype).neg().mul(0.1).exp()
        history = self.bag(seen, offsets, per_sample_weights=age)
        recent = self.most(seen.clamp(max=len(things) - 1).view(len(history), -1))
        query = F.normalize(self.tower(torch.cat([history, recent], -1)).float(), dim=-1)
        goal = liked[1][: len(query)]
        often = torch.bincount(liked[1], minlength=len(things)).float() / liked.shape[1]
        scores = query @ F.normalize(good[: len(query)], dim=-1).t() / 0.05 - often[goal].clamp_min(1e-6).log()
        same = (goal[:, None] == goal) & ~torch.eye(len(goal), dtype=torch.bool, device=goal.device)
        tower = F.cross_entropy(
            scores.masked_fill(same, torch.finfo(scores.dtype).min), torch.arange(len(goal), device=goal.device)
        )
        factors = self.factors(fields)
        crossed = 0.5 * (factors.sum(1).square() - factors.square().sum(1)).sum(-1)
        click = self.first(fields).sum((1, 2)) + crossed + self.deep(factors.flatten(1)).squeeze(-1)
        click = click.float() / F.softplus(self.cold.float() + 0.5413)
        wrong = F.binary_cross_entropy_with_logits(click, y.float())
        bins = torch.bucketize(click.sigmoid().detach(), torch.linspace(0, 1, 6, device=y.device)[1:-1])
        gap = torch.zeros(5, device=y.device).index_add(0, bins, click.sigmoid() - y.float())
        pairs = F.softplus(-(click[:, None] - click)[(y[:, None] > y)])
        return bpr + 0.1 * tower + wrong + 0.1 * gap.abs().sum() / len(y) + 0.1 * pairs.sum() / max(1, len(pairs))


def facts() -> list[Tensor]:
    return [torch.stack([whole(24, 20), whole(3, 20, seed=3), whole(24, 20, seed=4)], -1)]


def graphs() -> list[Tensor]:
    ring = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 5, 6, 7, 8, 5], [1, 2, 3, 4, 0, 2, 4, 6, 7, 8, 5, 7]])
    batch = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 2])
    return [normal(10, 5), torch.cat([ring, ring.flip(0), torch.arange(10).expand(2, -1)], 1), batch, whole(3, 3)]


def clicks() -> list[Tensor]:
    seen = whole(19, 12)
    return [
        torch.stack([whole(10, 24), whole(17, 24, seed=3)]),
        seen,
        torch.tensor([0, 3, 6, 9, 12]),
        whole(30, 8, 4),
        whole(2, 8),
    ]


PROGRAMS = (
    Program("known facts", "eleventh", Knowledge, facts),
    Program("spectral graphs", "eleventh", Spectral, graphs),
    Program("liked", "eleventh", Liked, clicks),
)  # fmt: skip
