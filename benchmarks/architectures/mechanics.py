"""Programs that go about their tensors in other ways: in place, by views, by collisions, by hand-written gradients."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import rnn


class InPlace(nn.Module):
    """Writes into views, slices and memory that nobody has written before."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 4)
        self.register_buffer("queue", torch.zeros(16, width))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.first(x)
        work = torch.empty_like(hidden)
        work[:, ::2], work[:, 1::2] = hidden[:, 1::2], hidden[:, ::2].neg()
        work[2:5].mul_(1.5)
        work.t()[3:6].add_(0.25)
        work.view(-1).narrow(0, 4, 8).clamp_(-0.5, 0.5)
        hidden = self.second(F.silu(work).add_(hidden.detach(), alpha=0.1))
        hidden = F.leaky_relu_(hidden.clone(), 0.1).clone().masked_fill_(hidden > 2, 2.0)
        hidden.diagonal().copy_(hidden.diagonal().flip(0) * 0.5)
        last = hidden.new_empty(len(x), 4).copy_(hidden[:, -4:]).sub_(hidden[:, :4]).div_(2)
        with torch.no_grad():
            where = (self.place + torch.arange(len(x), device=x.device)) % len(self.queue)
            self.queue.index_copy_(0, where, hidden.to(self.queue.dtype))
            self.queue[0].addcmul_(self.queue[1], self.queue[2], value=0.5)
            self.place.add_(len(x)).remainder_(len(self.queue))
        near = hidden.float() @ self.queue.float().clone().t()
        window = hidden.unfold(1, 4, 3).as_strided((len(x), 3), (hidden.shape[1], 3))
        return (
            F.cross_entropy(self.out(hidden), y)
            + last.float().square().mean()
            + 0.01 * near.logsumexp(-1).mean()
            + window.float().mean()
        )


class Collisions(nn.Module):
    """Many numbers added up at few places, in the dtype of the data."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.table, self.weight = nn.Embedding(5, width), nn.Parameter(normal(width, width) * 0.3)
        self.out = nn.Linear(width, 3)

    def loss(self, words: Tensor, y: Tensor) -> Tensor:
        rows = self.table(words)
        mixed = torch.tanh(rows @ self.weight)
        place = (words * 7 % 3)[:, None].expand(-1, mixed.shape[1])
        sums = mixed.new_zeros(3, mixed.shape[1])
        one = sums.scatter_add(0, place, mixed)
        two = sums.index_add(0, place[:, 0], mixed, alpha=0.5)
        three = sums.index_put((place[:, 0],), mixed, accumulate=True)
        four = sums.scatter_reduce(0, place, mixed, "sum") + sums.scatter_reduce(0, place, mixed, "amax")
        parts = torch.segment_reduce(mixed.float(), "mean", lengths=torch.tensor([40, 0, 60, 100], device=words.device))
        often = torch.bincount(words, weights=mixed.float().detach().mean(-1), minlength=5)
        pooled = F.embedding_bag(words.view(8, -1), self.table.weight.float(), mode="mean")
        gathered = (one + two + three + four)[place[:, 0]] / len(words)
        many = self.out((gathered + mixed).to(self.out.weight.dtype)).float()
        return (
            F.cross_entropy(many, y)
            + 0.1 * (parts.nan_to_num().square().mean() + pooled.square().mean())
            + 0.0 * often.sum()
        )


class Distances(nn.Module):
    """Nearest neighbours and clusters: distances, some of them zero."""

    def __init__(self) -> None:
        super().__init__()
        self.map, self.centres = nn.Linear(6, 5), nn.Parameter(normal(4, 5))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        points = self.map(torch.cat([x, x[:2]])).float()
        centres = self.centres.float()
        far = torch.cdist(points, centres)
        by_sum, by_most = torch.cdist(points, centres, p=1), torch.cdist(points, centres, p=float("inf"))
        itself = torch.cdist(points, points)  # zero on the diagonal, and for the points that come twice
        pairs = F.pdist(points[: len(x)])
        near = itself.detach().topk(3, largest=False).indices
        smooth = (points[near] - points[:, None]).norm(dim=-1).mean() + F.pairwise_distance(
            points, points.roll(1, 0)
        ).mean()
        alike = F.cosine_similarity(points[:, None], centres[None], -1)
        triplet = F.triplet_margin_loss(points, points.roll(2, 0), points.roll(1, 0), p=2)
        chosen = F.one_hot(far.argmin(-1), 4).float()
        moved = (chosen.t() @ points.detach()) / chosen.sum(0).clamp(min=1)[:, None]
        soft = F.softmin(far, -1) * by_sum + 0.1 * by_most
        energy = torch.exp(-itself.square() / 2).mean() + 0.1 * pairs.mean()
        return (
            soft.mean()
            + smooth * 0.1
            + triplet
            + F.mse_loss(centres, moved)
            + energy
            - 0.1 * alike.amax(-1).mean()
            + itself.mean() * 0.1
        )


class Flow(nn.Module):
    """Optical flow: warping, correlation, pyramids, every way to make a picture larger or smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.flow = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(25, 2, 3, padding=1)
        self.fine = nn.ConvTranspose2d(2, 2, 4, stride=2, padding=1)

    def loss(self, first: Tensor, second: Tensor) -> Tensor:
        a, b = (F.elu(self.features(one)) for one in (first, second))
        windows = F.unfold(F.pad(b, (2, 2, 2, 2), mode="replicate").float(), 5).view(len(b), 6, 25, -1)
        match = (a.float().flatten(2).unsqueeze(2) * windows).mean(1).view(len(a), 25, *a.shape[-2:])
        flow = self.flow(match.to(first.dtype)).float()
        size = a.shape[-1]
        line = torch.linspace(-1, 1, size, device=first.device)
        grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1) + 0.2 * flow.tanh().permute(0, 2, 3, 1)
        pair = second.float()
        warped = F.grid_sample(pair, grid, mode="bicubic", padding_mode="border", align_corners=True)
        nearest = F.grid_sample(pair, grid.detach(), mode="nearest", align_corners=False)
        large = F.interpolate(flow, scale_factor=2, mode="bicubic", align_corners=False) + F.interpolate(
            flow, scale_factor=2, mode="bilinear"
        )
        large = (
            large + self.fine(flow.to(first.dtype)).float() + F.interpolate(flow, size=2 * size, mode="nearest-exact")
        )
        small = F.interpolate(large, size=(5, 3), mode="area") + F.interpolate(
            large, size=(5, 3), mode="bicubic", antialias=True
        )
        deep = F.interpolate(large[None], size=(2, 7, 9), mode="trilinear").mean()
        top, places = F.max_pool2d(a.float(), 2, return_indices=True)
        back = F.max_unpool2d(top, places, 2) + F.pixel_shuffle(F.pixel_unshuffle(a.float(), 2), 2)
        even = F.adaptive_max_pool2d(back, (3, 2)).mean() + F.avg_pool2d(back, 3, 2, 1, count_include_pad=False).mean()
        return (
            (warped - first.float()).abs().mean()
            + 0.1 * (small.square().mean() + deep + even + nearest.mean())
            + flow.diff(dim=-1).square().mean()
        )


class Sound(nn.Module):
    """A vocoder's loss: spectrograms of several sizes, there and back, and an alignment by CTC."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.letters = nn.Conv1d(1, 4, 9, padding=4), nn.Conv1d(4, 6, 5, stride=4)
        self.register_buffer("bank", normal(10, 17).abs() / 17)

    def loss(self, wave: Tensor, letters: Tensor) -> Tensor:
        hidden = torch.tanh(self.filter(wave.unsqueeze(1)))
        made = hidden.float().mean(1)
        total = 0.0
        for size in (16, 32):
            window = torch.hann_window(size, device=wave.device)
            spectrum = [
                torch.stft(one, size, size // 4, window=window, return_complex=True) for one in (made, wave.float())
            ]
            loud = [one.abs().clamp(min=1e-5).log() for one in spectrum]
            total = total + F.l1_loss(*loud) + (spectrum[0] - spectrum[1]).abs().square().mean().sqrt()
            again = torch.istft(spectrum[0], size, size // 4, window=window, length=wave.shape[-1])
            total = total + F.mse_loss(again, made.detach())
            if size == 32:
                mel = torch.log10((self.bank.float() @ spectrum[0].abs().square()).clamp(min=1e-6))
                total = (
                    total + 0.1 * torch.fft.dct(mel).mean() if hasattr(torch.fft, "dct") else total + 0.1 * mel.mean()
                )
        likely = F.log_softmax(self.letters(hidden).float(), 1).permute(2, 0, 1)
        lengths = torch.tensor([3, 0, 5], device=wave.device)
        steps = torch.full((3,), likely.shape[0], device=wave.device)
        steps[2] = 4  # too short for its letters
        return total + 0.1 * F.ctc_loss(likely, letters, steps, lengths, zero_infinity=True)


class ByHand(torch.autograd.Function):
    """A clipped straight-through rounding, with a gradient that can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1) + 0.01 * gradient * x


class Penalties(nn.Module):
    """Gradients of gradients, hand-written ones, hooks, and gradients for each sample by torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 12), nn.LayerNorm(12), nn.Linear(12, 1)

    def score(self, x: Tensor) -> Tensor:
        hidden = F.softplus(self.norm(self.first(x)), beta=2)
        return self.second(ByHand.apply(hidden) * torch.sigmoid(hidden)).float().squeeze(-1)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        given = x.detach().clone().requires_grad_()
        scores = self.score(given)
        (slope,) = torch.autograd.grad(scores.sum(), given, create_graph=True)
        (bend,) = torch.autograd.grad((slope.float() * y.float()).sum(), given, create_graph=True)
        weight, bias = self.first.weight.float(), self.first.bias.float()
        each = torch.func.vmap(torch.func.grad(lambda one: torch.tanh(F.linear(one, weight, bias)).square().sum()))(
            x.float()
        )
        if scores.requires_grad:
            scores.register_hook(lambda gradient: gradient.clamp(-0.5, 0.5))
        penalty = (slope.float().norm(2, -1) - 1).square().mean() + 0.1 * bend.float().square().mean()
        return F.softplus(-scores).mean() + penalty + 0.1 * each.norm(dim=-1).mean()


class Sequences(nn.Module):
    """Cells that are called by hand, packed sequences, and state that is kept from one step to the next."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.packed = nn.GRU(6, width, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.cell, self.other, self.out = nn.LSTMCell(2 * width, width), nn.RNNCell(width, width), nn.Linear(width, 5)
        self.register_buffer("memory", torch.zeros(4, width))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        lengths = torch.tensor([7, 5, 2, 1])
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=True)
        hidden, _ = rnn.pad_packed_sequence(self.packed(packed)[0], batch_first=True)
        state = (self.memory.clone().to(hidden.dtype), torch.zeros_like(self.memory, dtype=hidden.dtype))
        losses = []
        for step in range(hidden.shape[1]):
            state = self.cell(hidden[:, step], state)
            scores = self.out(self.other(state[0]))
            losses.append(F.cross_entropy(scores.float(), y[:, step], reduction="none", label_smoothing=0.1))
        self.memory.copy_(state[0].detach())
        real = torch.arange(hidden.shape[1], device=x.device)[:, None] < lengths.to(x.device)
        return (torch.stack(losses) * real).sum() / real.sum()


PROGRAMS = (
    Program("in place", "fresh", InPlace, lambda: [normal(12, 8), whole(4, 12)]),
    Program("collisions", "fresh", Collisions, lambda: [whole(5, 200), whole(3, 200)]),
    Program("distances", "fresh", Distances, lambda: [normal(14, 6), whole(4, 14)]),
    Program("optical flow", "fresh", Flow, lambda: [normal(2, 2, 8, 8), normal(2, 2, 8, 8, seed=3)]),
    Program("sound", "fresh", Sound, lambda: [normal(3, 96), 1 + whole(5, 3, 5)]),
    Program("penalties", "fresh", Penalties, lambda: [normal(7, 6), normal(7, 6, seed=4)]),
    Program("sequences", "fresh", Sequences, lambda: [normal(4, 7, 6), whole(5, 4, 7)]),
)
