"""Code that is no model: choices among equals, data that is moved about, matrices that are taken apart."""

from __future__ import annotations

import functools
from typing import Callable

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Loss = Callable[..., Tensor]


def in_float32(loss: Loss) -> Loss:
    """Factors of matrices have no 16 bits: people leave autocast around them."""

    @functools.wraps(loss)
    def run(self: nn.Module, *data: Tensor) -> Tensor:
        with torch.autocast(data[0].device.type, enabled=False):
            return loss(self, *data)

    return run


class Choices(nn.Module):
    """Sorting, searching and picking where many values are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(8, 12))

    def loss(self, levels: Tensor, _: Tensor) -> Tensor:
        scores = torch.round(2 * self.weight) + 0 * self.weight + levels
        values, places = scores.sort(-1)
        top, which = scores.topk(3, -1, sorted=False)
        first, _ = scores.sort(stable=True, dim=-1, descending=True)
        most, where = scores.mode(-1)
        middle, _ = scores.median(-1)
        third, _ = scores.kthvalue(3, -1)
        kinds, inverse, counts = torch.unique(levels, sorted=False, return_inverse=True, return_counts=True)
        runs, lengths = torch.unique_consecutive(levels.flatten(), return_counts=True)
        best = scores.argmax(-1)
        pooled = F.max_pool1d(F.relu(scores).unsqueeze(0), 3, 2)
        largest, _ = scores.cummax(-1)
        picked = scores.gather(-1, which).sum() + torch.take_along_dim(scores, best.unsqueeze(-1), -1).sum()
        moved = torch.zeros_like(scores).scatter(1, places % 5, values)
        written = torch.zeros(6, device=levels.device).index_put(
            (levels.flatten().long() % 6,), values.flatten().float()
        )
        counted = kinds[inverse].sum() + counts.max() + lengths.max() + runs[0] + where.sum() * 0
        total = (values * torch.arange(12, device=levels.device)).sum() + top.sum() + first[:, :4].prod(-1).sum() * 0.01
        total = total + most.sum() + middle.sum() + third.sum() + picked + pooled.sum() + largest.sum()
        return (total + moved.detach().abs().sum() * 0 + written.detach().sum() * 0 + counted.detach() * 0.01) / 100


class Ranking(nn.Module):
    """A ranker: buckets, floors, remainders, comparisons, sorted gains."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.SELU(), nn.Linear(16, 1))
        self.table = nn.Embedding(12, 6)

    def loss(self, x: Tensor, clicks: Tensor) -> Tensor:
        edges = torch.linspace(-2, 2, 11, device=x.device)
        bucket = torch.bucketize(x[..., 0].contiguous(), edges)
        step = torch.floor(x[..., 1] * 4) % 3 + torch.remainder(torch.round(x[..., 2] * 8), 5) + torch.sign(x[..., 3])
        scores = self.layers(x + self.table(bucket) + step.unsqueeze(-1) * 0.1).squeeze(-1).float()
        order = scores.argsort(-1, descending=True)
        gains = (2.0 ** clicks.gather(1, order) - 1) / torch.log2(torch.arange(clicks.shape[1], device=x.device) + 2.0)
        left, right = scores.unsqueeze(1), scores.unsqueeze(2)
        is_better = clicks.unsqueeze(1) > clicks.unsqueeze(2)
        pairs = F.softplus(right - left)[is_better].mean()
        listed = -(F.log_softmax(scores, -1) * F.softmax(clicks, -1)).sum(-1).mean()
        return (
            pairs + listed + gains.sum(-1).mean().detach() * 0.01 + torch.where(scores > 0, scores, 0.1 * scores).mean()
        )


class Moving(nn.Module):
    """Gather, scatter and their like, forward and backward, with repeated indices and masks."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(normal(16, 6))

    def loss(self, places: Tensor, numbers: Tensor) -> Tensor:
        rows = self.rows[places]
        spread = torch.zeros_like(self.rows).index_put((places,), rows * numbers, accumulate=True)
        smallest = torch.full_like(self.rows, 9.0).scatter_reduce(0, places[:, None].expand_as(rows), rows, "amin")
        means = torch.zeros_like(self.rows).index_reduce(0, places, rows, "mean", include_self=False)
        chosen = torch.masked_select(rows, numbers > 0)
        filled = rows.masked_fill(numbers > 1, 0.5).index_select(1, places[:4] % 6)
        padded = F.pad(rows.unsqueeze(0), (1, 1), mode="circular").squeeze(0)
        cut = rows.unfold(0, 4, 2).flip(1).roll(1, 0)
        folded = F.fold(F.unfold(rows.view(1, 1, 8, -1), 3, padding=1), (8, rows.numel() // 8), 3, padding=1)
        mixed = torch.cat([rows.tril(), torch.stack([rows, rows * 2]).sum(0), torch.diag_embed(rows[0, :6])[:, :6]], 0)
        taken = torch.take(rows, places[:5]) + rows.diagonal()[:5] + torch.repeat_interleave(rows[0, :5], 1)
        spread = spread.masked_scatter(spread > 1, chosen.new_ones(spread.numel()))
        parts = (spread.square(), smallest, means, chosen, filled, padded, cut, folded, mixed, taken)
        return sum((one.float().square().mean() for one in parts), torch.zeros((), device=rows.device))


class Regression(nn.Module):
    """A Gaussian process: a kernel matrix, its Cholesky factor, solutions and determinants."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.noise = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.tensor(-1.0))

    @in_float32
    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        scaled = (x / F.softplus(self.scale)).float()
        kernel = torch.exp(-0.5 * torch.cdist(scaled, scaled).square())
        kernel = kernel + (F.softplus(self.noise) + 1e-4) * torch.eye(len(x), device=x.device)
        factor = torch.linalg.cholesky(kernel)
        weights = torch.cholesky_solve(y, factor)
        solved = torch.linalg.solve_triangular(factor, y, upper=False)
        return ((y * weights).sum() + 2 * factor.diagonal().log().sum() + solved.square().sum() * 0.1) / len(x)


class Factors(nn.Module):
    """Matrices taken apart: svd, eigenvectors, qr, inverses, powers, exponentials."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(normal(6, 6) * 0.3 + torch.diag(torch.arange(1.0, 7.0)))

    @in_float32
    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        matrix = self.matrix.float()
        left, sizes, right = torch.linalg.svd(matrix)
        whitened = left[:, :3] * sizes[:3] @ right[:3]
        values, vectors = torch.linalg.eigh(matrix @ matrix.t() + torch.eye(6, device=x.device))
        root = vectors * values.sqrt() @ vectors.t()
        straight, _ = torch.linalg.qr(x[:, :4])
        solved = torch.linalg.solve(root, y.t()).t()
        inverse = torch.linalg.inv(matrix) @ x.t()
        grown = torch.linalg.matrix_exp(0.1 * matrix) + torch.linalg.matrix_power(matrix * 0.2, 3)
        fitted = torch.linalg.lstsq(x, y).solution.detach()  # its last bits differ from run to run, on the CPU, too
        parts = (
            whitened,
            straight @ straight.t(),
            solved,
            inverse,
            grown,
            torch.linalg.pinv(x @ matrix),
        )
        size = (
            torch.linalg.det(matrix * 0.3)
            + torch.linalg.slogdet(matrix)[1]
            + torch.linalg.matrix_norm(matrix, "nuc")
            + 0 * fitted.sum()
        )
        return sum((one.square().mean() for one in parts), size * 0.01)


PROGRAMS = (
    Program("choices", "held-out", Choices, lambda: [whole(3, 8, 12).float(), whole(2, 2)]),
    Program("ranking", "tuned", Ranking, lambda: [normal(4, 10, 6), whole(3, 4, 10).float()]),
    Program("gather and scatter", "tuned", Moving, lambda: [whole(16, 24), normal(24, 6)]),
    Program("Gaussian process", "held-out", Regression, lambda: [normal(20, 3), normal(20, 1, seed=4)]),
    Program("linear algebra", "tuned", Factors, lambda: [normal(10, 6), normal(10, 6, seed=4)]),
)
