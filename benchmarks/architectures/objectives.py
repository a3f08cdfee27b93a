"""What models are trained for today: preferences, teachers, likeness without labels, curved spaces."""

from __future__ import annotations

import copy
import math

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Preferences(nn.Module):
    """DPO with small added matrices: a policy against its frozen first state, by pairs of answers."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.words, self.first, self.last = (
            nn.Embedding(24, width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, 24),
        )
        self.requires_grad_(False)
        self.down = nn.ParameterList(
            [nn.Parameter(normal(4, width, seed=3) * 0.2), nn.Parameter(normal(4, 2 * width, seed=4) * 0.2)]
        )
        self.up = nn.ParameterList(
            [nn.Parameter(normal(2 * width, 4, seed=5) * 0.05), nn.Parameter(normal(24, 4, seed=6) * 0.05)]
        )

    def likely(self, words: Tensor, with_added: bool) -> tuple[Tensor, Tensor]:
        hidden = self.words(words)
        if with_added and self.training:  # noise on what is read
            hidden = hidden + torch.empty_like(hidden).uniform_(-1, 1) * 5 / math.sqrt(hidden[0].numel())
        hidden = hidden.cumsum(1) / torch.arange(1, words.shape[1] + 1, device=words.device)[:, None]
        for number, layer in enumerate((self.first, self.last)):
            hidden = F.silu(hidden) if number else hidden.to(layer.weight.dtype)
            made = layer(hidden)
            if with_added:
                made = made + 2 * F.dropout(hidden, 0.05, self.training) @ self.down[number].t() @ self.up[number].t()
            hidden = made
        log = hidden[:, :-1].float().log_softmax(-1).gather(-1, words[:, 1:, None]).squeeze(-1)
        mask = words[:, 1:] != 0
        return (log * mask).sum(-1), mask.sum(-1)

    def loss(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        good, lengths = self.likely(chosen, True)
        bad, _ = self.likely(rejected, True)
        with torch.no_grad():
            good_before, _ = self.likely(chosen, False)
            bad_before, _ = self.likely(rejected, False)
        margin = (good - good_before) - (bad - bad_before)
        odds = (good / lengths) - torch.log1p(-torch.exp((good / lengths).clamp(max=-1e-4)))
        return (
            -(0.9 * F.logsigmoid(0.5 * margin) + 0.1 * F.logsigmoid(-0.5 * margin)).mean()
            - 0.1 * odds.mean()
            + 0.05 * F.relu(bad_before - bad).mean()
            - 0.1 * (good / lengths.clamp(min=1)).mean()
        )


class Teacher(nn.Module):
    """Distillation: softened scores, hints in the middle, attention that is handed over, a teacher that is averaged."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.small = nn.ModuleList([nn.Linear(8, width), nn.Linear(width, 6)])
        self.large = copy.deepcopy(self.small).requires_grad_(False)
        self.hint, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width, affine=False)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        noisy = x + 0.1 * torch.randn_like(x)
        middle = F.selu(self.small[0](noisy))
        scores = self.small[1](F.alpha_dropout(middle, 0.1, self.training)).float()
        with torch.no_grad():
            for slow, fast in zip(self.large.parameters(), self.small.parameters()):
                slow.mul_(0.99).add_(fast, alpha=0.01)
            above = F.selu(self.large[0](x))
            wanted = self.large[1](above).float()
            share = torch.rand((), device=x.device)
            mixed = share * x + (1 - share) * x.flip(0)
        soft = F.kl_div(
            F.log_softmax(scores / 4, -1), F.log_softmax(wanted / 4, -1), reduction="batchmean", log_target=True
        )
        reverse = F.kl_div(F.log_softmax(wanted, -1), F.softmax(scores, -1), reduction="sum") / len(x)
        near = F.cosine_embedding_loss(self.hint(middle).float(), above.float(), torch.ones(len(x), device=x.device))
        maps = [F.normalize(one.float() @ one.float().t(), dim=-1) for one in (self.norm(middle), above)]
        again = self.small[1](F.selu(self.small[0](mixed))).float()
        labels = share * F.one_hot(y, 6) + (1 - share) * F.one_hot(y.flip(0), 6)
        poly = F.cross_entropy(scores, y, reduction="none", label_smoothing=0.1)
        return (
            16 * soft + 0.1 * reverse + near + F.mse_loss(*maps) + F.cross_entropy(again, labels)
            + (poly + 1 - torch.exp(-poly)).mean()
        )  # fmt: skip


class WithoutLabels(nn.Module):
    """VICReg, Barlow Twins, NT-Xent and a queue of keys: two views of the same must be near, all others not."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, width, bias=False))
        self.guess = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width))
        self.register_buffer("queue", F.normalize(normal(20, width), dim=-1))
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def loss(self, x: Tensor) -> Tensor:
        some, others = (self.body(x + 0.2 * torch.randn_like(x)).float() for _ in range(2))
        count, width = some.shape
        even = (
            F.relu(1 - (some.var(0) + 1e-4).sqrt()).mean() + F.relu(1 - torch.sqrt(others.var(0) + 1e-4)).mean()
        ) / 2
        centred = some - some.mean(0)
        shared = (centred.t() @ centred) / (count - 1)
        apart = shared.flatten()[:-1].view(width - 1, width + 1)[:, 1:].square().sum() / width
        cross = (
            ((some - some.mean(0)) / (some.std(0) + 1e-5)).t()
            @ ((others - others.mean(0)) / (others.std(0) + 1e-5))
            / count
        )
        twins = (cross.diagonal() - 1).square().sum() + 0.005 * cross.fill_diagonal_(0).square().sum()
        both = F.normalize(torch.cat([some, others]), dim=-1)
        scores = (both @ both.t() * self.temperature.float().exp().clamp(max=100)).masked_fill(
            torch.eye(2 * count, dtype=torch.bool, device=x.device), -1e4
        )
        pairs = F.cross_entropy(scores, (torch.arange(2 * count, device=x.device) + count) % (2 * count))
        keys = F.normalize(others, dim=-1).detach()
        positive = torch.einsum("nc,nc->n", both[:count], keys).unsqueeze(-1)
        negative = torch.einsum("nc,kc->nk", both[:count], self.queue.float().clone())
        memory = F.cross_entropy(
            torch.cat([positive, negative], 1) / 0.1, torch.zeros(count, dtype=torch.long, device=x.device)
        )
        with torch.no_grad():
            self.queue.copy_(torch.cat([keys.to(self.queue.dtype), self.queue])[: len(self.queue)])
        asked = F.cosine_similarity(self.guess(some.to(x.dtype)).float(), others.detach(), dim=-1)
        return F.mse_loss(some, others) + even + 0.04 * apart + 0.1 * twins + pairs + 0.2 * memory - asked.mean()


class Curved(nn.Module):
    """Embeddings on a hyperbolic ball and on a sphere: sums by Möbius, maps to the tangent, Busemann's function."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.map = nn.Embedding(20, 5), nn.Linear(5, 5, bias=False)
        nn.init.uniform_(self.table.weight, -0.3, 0.3)
        self.curvature = nn.Parameter(torch.tensor(0.5))

    def loss(self, some: Tensor, others: Tensor) -> Tensor:
        c = F.softplus(self.curvature.float())
        x, y = (self.table(one).float() for one in (some, others))
        x, y = (one / torch.clamp(one.norm(dim=-1, keepdim=True) * c.sqrt() / 0.95, min=1) for one in (x, y))
        sum_ = self.add(-x, y, c)
        size = (c.sqrt() * sum_.norm(dim=-1)).clamp(max=1 - 1e-5)
        far = 2 / c.sqrt() * torch.atanh(size)
        inner = 2 * (x - y).square().sum(-1) / ((1 - x.square().sum(-1)) * (1 - y.square().sum(-1))).clamp(min=1e-5)
        other = torch.acosh(1 + inner + 1e-7)
        norm = x.norm(dim=-1, keepdim=True).clamp(min=1e-6)
        tangent = torch.atanh((c.sqrt() * norm).clamp(max=1 - 1e-5)) * x / norm / c.sqrt()
        turned = self.map(tangent.to(self.map.weight.dtype)).float()
        length = turned.norm(dim=-1, keepdim=True).clamp(min=1e-6)
        back = torch.tanh(c.sqrt() * length) * turned / (length * c.sqrt())
        level = torch.log(
            (F.normalize(y, dim=-1) - back).square().sum(-1) / (1 - back.square().sum(-1)).clamp(min=1e-5)
        )
        angle = torch.acos((F.normalize(x, dim=-1) * F.normalize(y, dim=-1)).sum(-1).clamp(-1 + 1e-6, 1 - 1e-6))
        return F.binary_cross_entropy_with_logits(2 - 2 * far, (some % 2 == others % 2).float()) + 0.1 * (
            other.mean() + level.mean() + angle.mean()
        )

    def add(self, x: Tensor, y: Tensor, c: Tensor) -> Tensor:
        xy, xx, yy = ((one * other).sum(-1, keepdim=True) for one, other in ((x, y), (x, x), (y, y)))
        return ((1 + 2 * c * xy + c * yy) * x + (1 - c * xx) * y) / (1 + 2 * c * xy + c**2 * xx * yy).clamp(min=1e-9)


PROGRAMS = (
    Program("preferences", "fourth", Preferences, lambda: [whole(24, 4, 8), whole(24, 4, 8, seed=7)]),
    Program("teacher", "fourth", Teacher, lambda: [normal(10, 8), whole(6, 10)]),
    Program("without labels", "fourth", WithoutLabels, lambda: [normal(8, 10)]),
    Program("curved space", "fourth", Curved, lambda: [whole(20, 12), whole(20, 12, seed=8)]),
)
