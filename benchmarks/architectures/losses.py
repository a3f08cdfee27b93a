"""Objectives that are programs of their own: transport, mining, quantiles, chains of labels, mixtures, curvature."""

from __future__ import annotations

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Transport(nn.Module):
    """The cost of moving one cloud of points onto another, by Sinkhorn's steps on logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.GELU(approximate="tanh"), nn.Linear(16, 4))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        cost = torch.cdist(self.body(x).float(), y.float()).square()
        left, right = (torch.zeros(len(part), device=x.device) for part in (x, y))
        for _ in range(4):
            left = -torch.logsumexp((right[None, :] - cost) / 0.5, 1) * 0.5
            right = -torch.logsumexp((left[:, None] - cost) / 0.5, 0) * 0.5
        plan = torch.exp((left[:, None] + right[None, :] - cost) / 0.5)
        return (plan * cost).sum() / plan.sum()


class Triplets(nn.Module):
    """The hardest negatives of a batch, and the nearest positives."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.PReLU(24), nn.Linear(24, 6))

    def loss(self, x: Tensor, label: Tensor) -> Tensor:
        embedded = F.normalize(self.body(x).float(), dim=-1)
        alike = embedded @ embedded.t()
        same = label[:, None] == label[None, :]
        hard = alike.masked_fill(same, -2.0).topk(2, dim=1).values
        near = alike.masked_fill(~same | torch.eye(len(x), dtype=torch.bool, device=x.device), 2.0)
        near = near.kthvalue(1, dim=1).values.clamp(max=1.0)
        mined = F.softplus((hard - near[:, None]) * 4).mean()
        negative = embedded[(alike - 4 * same.float()).argmax(1)]
        return mined + F.triplet_margin_loss(embedded, embedded.roll(1, 0), negative, margin=0.3)


class Quantiles(nn.Module):
    """Several quantiles at once, sums along a line, and errors in order."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.Hardswish(), nn.Linear(24, 5))
        self.register_buffer("levels", torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95]))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        steps = self.body(x).float()
        found = torch.cat([steps[:, :1], F.softplus(steps[:, 1:])], 1).cumsum(1)
        error = y.float()[:, None] - found
        levels = self.levels.to(error.dtype)
        pinball = torch.maximum(levels * error, (levels - 1) * error)
        worst = error.abs().flatten().sort(descending=True).values[:8]
        survival = torch.cumprod(torch.sigmoid(-steps), 1)
        spread = torch.logcumsumexp(steps, 1).std(1) + torch.quantile(error, 0.9, dim=0).mean()
        huber = F.huber_loss(found[:, 2], y.float(), delta=0.7)
        return pinball.mean() + huber + 0.1 * worst.mean() + 0.1 * survival.mean() + 0.05 * spread.mean()


class Chain(nn.Module):
    """A conditional random field: all paths by the forward algorithm, the best one by Viterbi's."""

    def __init__(self, labels: int = 5) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(20, 12), nn.GRU(12, 8, batch_first=True, bidirectional=True)
        self.scores, self.moves = nn.Linear(16, labels), nn.Parameter(normal(labels, labels) * 0.1)

    def loss(self, words: Tensor, labels: Tensor) -> Tensor:
        scores = self.scores(self.body(self.words(words))[0]).float()
        moves = self.moves.float()
        total, best = scores[:, 0], scores[:, 0]
        for place in range(1, words.shape[1]):
            total = torch.logsumexp(total[:, :, None] + moves, 1) + scores[:, place]
            best = (best[:, :, None] + moves).max(1).values + scores[:, place]
        gold = scores.gather(2, labels[:, :, None]).squeeze(-1).sum(1) + moves[labels[:, :-1], labels[:, 1:]].sum(1)
        return (torch.logsumexp(total, 1) - gold).mean() + 0.1 * (best.amax(1) - gold).clamp(min=0).mean()


class Mixture(nn.Module):
    """A mixture-density network: normal distributions and Student's, by torch.distributions."""

    def __init__(self, parts: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 32), nn.SELU(), nn.Linear(32, 4 * parts))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        weight, mean, spread, freedom = self.body(x).float().chunk(4, -1)
        y = y.float()
        kinds = torch.distributions.Categorical(logits=weight)
        normals = torch.distributions.Normal(mean, F.softplus(spread) + 1e-3)
        mixed = torch.distributions.MixtureSameFamily(kinds, normals)
        student = torch.distributions.StudentT(2.0 + freedom.exp().clamp(max=20.0), mean, 0.5 + spread.square())
        return -(mixed.log_prob(y) + 0.1 * student.log_prob(y[:, None]).mean(-1)).mean() - 0.01 * kinds.entropy().mean()


class Curvature(nn.Module):
    """Products of the Hessian with a vector, and a network of tensors that is contracted by einsum."""

    def __init__(self, rank: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Parameter(normal(3, rank) * 0.5), nn.Parameter(normal(rank, 3, seed=3) * 0.5)
        self.cores = nn.Parameter(normal(4, rank, 3, rank, seed=4) * 0.5)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        features = torch.stack([torch.ones_like(x), torch.sin(x), torch.cos(x)], -1)
        state = torch.einsum("bi,ij->bj", features[:, 0], self.first)
        for core, feature in zip(self.cores, features[:, 1:-1].unbind(1)):
            state = torch.einsum("bj,bi,jik->bk", state, feature, core)
        found = torch.einsum("bj,bi,ji->b", state, features[:, -1], self.last)
        error = F.mse_loss(found.float(), y.float())
        (gradient,) = torch.autograd.grad(error, self.cores, create_graph=True)
        vector = torch.ones_like(gradient) / gradient.numel()
        (product,) = torch.autograd.grad((gradient * vector).sum(), self.cores, create_graph=True)
        return error + 0.1 * product.square().sum() + 0.01 * gradient.norm()


class Search(nn.Module):
    """A beam search whose scores are trained: choices by topk, states that are picked and put back by masks."""

    def __init__(self, words: int = 16, width: int = 12) -> None:
        super().__init__()
        self.words, self.cell, self.out = nn.Embedding(words, width), nn.LSTMCell(width, width), nn.Linear(width, words)

    def loss(self, start: Tensor, wanted: Tensor) -> Tensor:
        beams = 3
        hidden = self.words(start).repeat_interleave(beams, 0)
        state = (torch.tanh(hidden), torch.zeros_like(hidden))
        word, score = start.repeat_interleave(beams, 0), None
        total = hidden.new_zeros((), dtype=torch.float32)
        for place in range(wanted.shape[1]):
            state = self.cell(self.words(word).to(state[0].dtype), state)
            likely = F.log_softmax(self.out(state[0]).float(), -1)
            total = total + F.nll_loss(likely, wanted[:, place].repeat_interleave(beams, 0))
            sums = likely if score is None else likely + score[:, None]
            best, chosen = sums.view(len(start), -1).topk(beams, 1)
            score, word = best.flatten(), (chosen % likely.shape[1]).flatten()
            row = (torch.arange(len(start), device=start.device)[:, None] * beams + chosen // likely.shape[1]).flatten()
            state = (state[0][row], state[1][row])
            score = score.masked_fill(word == 0, -20.0)
        return total / wanted.shape[1] - 0.01 * score.mean()


class Ranks(nn.Module):
    """Lovász's hinge, a soft order by pairwise differences, and connectionist labels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(4, 16, 3, padding=1), nn.LocalResponseNorm(3), nn.Conv1d(16, 7, 3, padding=1)
        )

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        scores = self.body(x).float()
        truth = (x[:, 0] > 0).float()
        errors, order = (1 - scores[:, 0] * (2 * truth - 1)).sort(1, descending=True)
        ordered = truth.gather(1, order)
        union = ordered.sum(1, keepdim=True) + (1 - ordered).cumsum(1)
        jaccard = 1 - (ordered.sum(1, keepdim=True) - ordered.cumsum(1)) / union
        jaccard = torch.cat([jaccard[:, :1], jaccard[:, 1:] - jaccard[:, :-1]], 1)
        soft = torch.sigmoid((scores[:, 1, :, None] - scores[:, 1, None, :]) / 0.3).sum(-1)
        length = (
            torch.full((len(x),), x.shape[2], device=x.device),
            torch.full((len(x),), labels.shape[1], device=x.device),
        )
        likely = scores.permute(2, 0, 1).log_softmax(-1)
        return (
            (F.relu(errors) * jaccard).sum(1).mean()
            + F.smooth_l1_loss(soft, torch.argsort(torch.argsort(x[:, 1].float(), 1), 1).float()) * 0.1
            + F.ctc_loss(likely, labels, *length)
        )


class Tracker(nn.Module):
    """A Kalman filter with learnt noise: gains by a solver, likelihoods by factors of a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.move, self.seen = nn.Parameter(torch.eye(3) * 0.9), nn.Parameter(normal(2, 3) * 0.5)
        self.noise = nn.Parameter(torch.zeros(2, 3))

    def loss(self, track: Tensor, _: Tensor) -> Tensor:
        track = track.float()
        state, spread = track.new_zeros(len(track), 3), torch.eye(3, device=track.device).expand(len(track), 3, 3)
        move, seen = self.move.float(), self.seen.float()
        process, measured = torch.diag(self.noise[0].float().exp()), torch.diag(self.noise[1, :2].float().exp())
        total = track.new_zeros(())
        for point in track.unbind(1):
            state, spread = state @ move.t(), move @ spread @ move.t() + process
            expected = seen @ spread @ seen.t() + measured
            factor = torch.linalg.cholesky(expected)
            missed = point - state @ seen.t()
            solved = torch.cholesky_solve(missed.unsqueeze(-1), factor).squeeze(-1)
            gain = torch.linalg.solve(expected, seen @ spread).transpose(1, 2)
            state = state + (gain @ missed.unsqueeze(-1)).squeeze(-1)
            spread = spread - gain @ seen @ spread
            total = total + 0.5 * ((missed * solved).sum(-1) + torch.logdet(expected)).mean()
        return total


PROGRAMS = (
    Program("transport", "tuned", Transport, lambda: [normal(10, 4), normal(12, 4, seed=4)]),
    Program("triplets", "tuned", Triplets, lambda: [normal(16, 8), whole(4, 16)]),
    Program("quantiles", "tuned", Quantiles, lambda: [normal(24, 6), normal(24, seed=4)]),
    Program("chain of labels", "tuned", Chain, lambda: [whole(20, 3, 7), whole(5, 3, 7, seed=4)]),
    Program("mixture of densities", "tuned", Mixture, lambda: [normal(16, 5), normal(16, seed=4)]),
    Program("curvature", "tuned", Curvature, lambda: [normal(12, 6), normal(12, seed=4)], ("checkpointed",)),
    Program("beam search", "held-out", Search, lambda: [whole(15, 4) + 1, whole(15, 4, 5, seed=4) + 1]),
    Program("ranks and labels", "held-out", Ranks, lambda: [normal(3, 4, 14), whole(6, 3, 4) + 1]),
    Program("Kalman filter", "held-out", Tracker, lambda: [normal(4, 6, 2), whole(2, 4)]),
)
