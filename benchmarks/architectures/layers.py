"""Layers that few models have: capsules, bounded weights, spectra, warped pictures, volumes, fake quantization."""

from __future__ import annotations

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations


class Capsules(nn.Module):
    """Routing by agreement: a softmax of products, again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 5, stride=2)
        self.weight = nn.Parameter(normal(36, 4, 6, 4) * 0.2)

    @staticmethod
    def squashed(x: Tensor) -> Tensor:
        square = x.square().sum(-1, keepdim=True)
        return square / (1 + square) * x / (square + 1e-8).sqrt()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.squashed(self.first(x).float().view(len(x), -1, 4))
        votes = torch.einsum("bni,njoi->bnjo", hidden, self.weight.float().view(36, 4, 6, 4)[..., :4])
        route = torch.zeros(votes.shape[:3], device=x.device)
        for number in range(3):
            output = self.squashed((F.softmax(route, 2).unsqueeze(-1) * votes).sum(1))
            if number < 2:
                route = route + (votes * output[:, None].detach()).sum(-1)
        length = output.norm(dim=-1)
        truth = F.one_hot(y, 4).float()
        return (truth * F.relu(0.9 - length).square() + 0.5 * (1 - truth) * F.relu(length - 0.1).square()).sum(1).mean()


class Bounded(nn.Module):
    """Weights with a spectral norm, with a length apart from their direction, and orthogonal ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.spectral_norm(nn.Linear(8, 24))
        self.second = parametrizations.weight_norm(nn.Conv1d(4, 6, 3))
        self.third = parametrizations.orthogonal(nn.Linear(24, 8, bias=False), use_trivialization=False)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = F.leaky_relu(self.first(x), 0.1)
        hidden = F.glu(self.second(hidden.view(len(x), 4, 6)), 1).flatten(1)
        return F.multilabel_soft_margin_loss(F.linear(self.third.weight[:, :12].float(), hidden.float()).t(), y.float())


class Spectra(nn.Module):
    """A long convolution by Fourier transforms, a spectrogram, and complex weights."""

    def __init__(self, length: int = 48) -> None:
        super().__init__()
        self.kernel, self.mixed = nn.Parameter(normal(4, length) * 0.1), nn.Parameter(normal(5, 9, 2, seed=3) * 0.2)
        self.head = nn.Linear(13, 3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        length = x.shape[-1]
        kernel = torch.fft.rfft(self.kernel.float(), n=2 * length)
        long = torch.fft.irfft(torch.fft.rfft(x.float(), n=2 * length).unsqueeze(1) * kernel, n=2 * length)[
            ..., :length
        ]
        window = torch.hann_window(16, device=x.device)
        seen = torch.stft(x.float(), 16, 8, window=window, return_complex=True, center=False)
        mixed = torch.einsum("bft,of->bot", seen, torch.view_as_complex(self.mixed.float().contiguous()))
        loud = torch.log1p(mixed.abs()).mean(-1)
        turned = torch.stack([mixed.real, mixed.imag], -1).square().mean((2, 3)).sqrt()[:, :4]
        features = torch.cat([long.tanh().mean(-1), loud, turned], 1)
        return F.cross_entropy(self.head(features), y)


class Warped(nn.Module):
    """A picture that is turned by a learnt map, made larger and smaller in every way, and mixed by groups."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Linear(3 * 64, 6)
        self.deep = nn.Conv2d(3, 6, 3, padding=2, dilation=2, groups=3)
        self.grown = nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.head = nn.Conv2d(4, 8, 1)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        turn = 0.1 * self.where(x.flatten(1)).float().tanh().view(-1, 2, 3)
        turn = turn + torch.eye(2, 3, device=x.device)
        grid = F.affine_grid(turn, list(x.shape), align_corners=False)
        warped = F.grid_sample(x.float(), grid, padding_mode="reflection", align_corners=False)
        hidden = F.rrelu(self.grown(F.mish(self.deep(warped.to(x.dtype)))), training=False)
        small = F.interpolate(hidden.float(), size=(5, 7), mode="bilinear", antialias=True)
        large = F.interpolate(small, scale_factor=2, mode="bicubic", align_corners=True)
        even = F.adaptive_avg_pool2d(large, (3, 4)) + F.lp_pool2d(hidden.float().abs(), 2, 4)[..., :3, :4]
        shuffled = F.pixel_shuffle(self.head(hidden), 2).flatten(2).amax(-1)
        return F.cross_entropy(torch.cat([shuffled.float(), even.flatten(2).mean(-1)], 1), y)


class Quantized(nn.Module):
    """Numbers of eight bits in training, small added matrices, weights that are averaged."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(width, width), nn.Linear(width, 4)
        self.base.weight.requires_grad_(False)
        self.down, self.up = nn.Parameter(normal(4, width) * 0.2), nn.Parameter(normal(width, 4, seed=3) * 0.2)
        self.register_buffer("average", torch.zeros(width, 4))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        scale = (x.detach().abs().amax() / 127).float()
        rounded = torch.fake_quantize_per_tensor_affine(x.float(), 0.02, 0, -128, 127)
        passed = x + (torch.round(x / scale.to(x.dtype)) * scale.to(x.dtype) - x).detach()
        hidden = self.base(passed) + F.linear(F.linear(rounded.to(x.dtype), self.down), self.up)
        keep = torch.arange(hidden.shape[1], device=x.device) < torch.randint(4, hidden.shape[1], (1,)).to(x.device)
        hidden = torch.where(keep, F.hardtanh(hidden), 0.0)
        with torch.no_grad():
            self.average.lerp_(self.up.detach().to(self.average.dtype), 0.01)
        nearer = (self.up.float() - self.average.detach().float()).square().mean()
        return F.cross_entropy(self.head(hidden), y) + 0.1 * nearer


class Messages(nn.Module):
    """What neighbours say, put together in every way that there is."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(6, width), nn.Linear(5 * width, 3)

    def loss(self, nodes: Tensor, edges: Tensor) -> Tensor:
        hidden, (source, target) = torch.tanh(self.into(nodes)).float(), edges
        said, place = hidden[source], target[:, None].expand(-1, hidden.shape[1])
        zeros = torch.zeros_like(hidden)
        gathered = [
            zeros.scatter_reduce(0, place, said, kind, include_self=kind != "amin") for kind in ("mean", "amax", "amin")
        ]
        gathered.append(torch.ones_like(hidden).scatter_reduce(0, place, 1 + 0.1 * said, "prod"))
        gathered.append(zeros.index_reduce(0, target, said, "mean"))
        together = torch.cat([one.clamp(-10, 10) for one in gathered], 1)
        degree = torch.zeros(len(nodes), device=nodes.device).scatter_add(
            0, target, torch.ones(len(target), device=nodes.device)
        )
        weight = torch.rsqrt(degree.clamp(min=1.0))
        return F.cross_entropy(
            self.out(together.to(nodes.dtype)).float() * weight[:, None],
            torch.arange(len(nodes), device=nodes.device) % 3,
        )


class Capacity(nn.Module):
    """Experts with room for so many words: places by running sums, dispatch and return by einsum."""

    def __init__(self, width: int = 12, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.inner, self.outer = (
            nn.Parameter(normal(experts, width, 16) * 0.2),
            nn.Parameter(normal(experts, 16, width) * 0.2),
        )
        self.head = nn.Linear(width, 8)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        room = 6
        likely = F.softmax(self.gate(x).float(), -1)
        strength, chosen = likely.max(-1)
        taken = F.one_hot(chosen, likely.shape[1])
        place = (taken.cumsum(0) * taken).sum(-1) - 1
        fits = place < room
        slot = F.one_hot(place.clamp(0, room - 1), room).float() * fits[:, None]
        dispatch = torch.einsum("ne,nc->nec", taken.float(), slot)
        inside = torch.einsum("nec,nd->ecd", dispatch.to(x.dtype), x)
        hidden = torch.bmm(F.relu(torch.bmm(inside, self.inner.to(inside.dtype))).square(), self.outer.to(inside.dtype))
        back = torch.einsum("nec,ecd->nd", (dispatch * strength[:, None, None]).to(hidden.dtype), hidden)
        balance = (taken.float().mean(0) * likely.mean(0)).sum() * likely.shape[1]
        return F.cross_entropy(self.head(x + back.to(x.dtype)), y) + 0.01 * balance


class Volumes(nn.Module):
    """Segmentation of a volume: pooled and put back at the same places, with Dice's coefficient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv3d(1, 6, 3, padding=1), nn.Conv3d(6, 6, 3, padding=1, groups=2)
        self.norm, self.out = nn.InstanceNorm3d(6, affine=True), nn.ConvTranspose3d(6, 2, 1)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = F.celu(self.norm(self.first(x)))
        small, places = F.max_pool3d(hidden, 2, return_indices=True)
        back = F.max_unpool3d(self.second(small).to(small.dtype), places, 2)
        likely = torch.softmax(self.out(F.dropout3d(back + hidden, 0.1)).float(), 1)
        truth = F.one_hot(y, 2).permute(0, 4, 1, 2, 3).float()
        common = (likely * truth).sum((2, 3, 4))
        dice = 1 - (2 * common + 1) / (likely.sum((2, 3, 4)) + truth.sum((2, 3, 4)) + 1)
        return dice.mean() + F.binary_cross_entropy(likely.clamp(1e-6, 1 - 1e-6), truth)


class Waves(nn.Module):
    """A state space model with complex poles, run as a convolution and as a recurrence."""

    def __init__(self, states: int = 6) -> None:
        super().__init__()
        self.decay, self.turn = nn.Parameter(normal(states) * 0.3), nn.Parameter(normal(states, seed=3))
        self.into, self.out = nn.Parameter(normal(states, seed=4)), nn.Parameter(normal(states, 2, seed=5) * 0.3)
        self.head = nn.Linear(2, 1)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        pole = torch.polar(torch.exp(-F.softplus(self.decay.float())), self.turn.float())
        out = torch.complex(self.out[:, 0].float(), self.out[:, 1].float())
        steps = torch.arange(x.shape[1], device=x.device)
        kernel = torch.einsum("s,s,st->t", out, self.into.float().to(pole.dtype), pole[:, None] ** steps).real
        spectrum = torch.fft.rfft(x.float(), 2 * x.shape[1]) * torch.fft.rfft(kernel, 2 * x.shape[1])
        long = torch.fft.irfft(spectrum, 2 * x.shape[1])[:, : x.shape[1]]
        state = torch.zeros(len(x), len(pole), dtype=pole.dtype, device=x.device)
        last = []
        for one in x.float().unbind(1):
            state = state * pole + one[:, None] * self.into.float()
            last.append((state * out).sum(-1).real)
        again = torch.stack(last, 1)
        made = self.head(torch.stack([long, again], -1).to(self.head.weight.dtype)).squeeze(-1).float()
        return F.l1_loss(made, y.float()) + 0.1 * torch.angle(pole).square().mean() + (long - again).abs().mean()


PROGRAMS = (
    Program("capsules", "tuned", Capsules, lambda: [normal(3, 1, 10, 10), whole(4, 3)]),
    Program("bounded weights", "tuned", Bounded, lambda: [normal(6, 8), whole(2, 6, 8).float()]),
    Program("spectra", "tuned", Spectra, lambda: [normal(4, 48), whole(3, 4)]),
    Program("warped pictures", "tuned", Warped, lambda: [normal(3, 3, 8, 8), whole(6, 3)]),
    Program("eight bits", "tuned", Quantized, lambda: [normal(12, 16), whole(4, 12)]),
    Program("messages", "tuned", Messages, lambda: [normal(12, 6), whole(12, 2, 40)]),
    Program("experts with room", "held-out", Capacity, lambda: [normal(20, 12), whole(8, 20)]),
    Program("volumes", "held-out", Volumes, lambda: [normal(2, 1, 4, 6, 6), whole(2, 2, 4, 6, 6)]),
    Program("complex waves", "held-out", Waves, lambda: [normal(4, 12), normal(4, 12, seed=6)]),
)
