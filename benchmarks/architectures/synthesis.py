"""Models that make pictures, sounds and forecasts, and what they are measured by."""

from __future__ import annotations

import math

import torch
from benchmarks.architectures.program import Program, normal
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Likeness(nn.Module):
    """A style transfer: Gram matrices, structural similarity, total variation, a soft histogram."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"),
            nn.InstanceNorm2d(8),
            nn.GELU("tanh"),
            nn.Conv2d(8, 3, 3, padding=1, padding_mode="circular"),
        )
        self.see = nn.ModuleList(
            [nn.Conv2d(3, 6, 3, stride=2, bias=False), nn.Conv2d(6, 8, 3, stride=2, bias=False)]
        ).requires_grad_(False)
        line = torch.exp(-torch.arange(-3.0, 4).square() / 4.5)
        self.register_buffer("window", (line[:, None] * line / line.sum() ** 2).expand(3, 1, 7, 7).clone())

    def loss(self, x: Tensor, style: Tensor) -> Tensor:
        made = torch.sigmoid(self.make(x))
        one, other, total = made, style, made.new_zeros((), dtype=torch.float32)
        for layer in self.see:
            one, other = F.relu(layer(one)), F.relu(layer(other))
            grams = [torch.einsum("bchw,bdhw->bcd", each, each).float() / each[0].numel() for each in (one, other)]
            total = total + F.mse_loss(*grams)
        a, b, window = made.float(), x.float().sigmoid(), self.window.float()
        mean_a, mean_b = (F.conv2d(each, window, groups=3) for each in (a, b))
        var_a, var_b = F.conv2d(a * a, window, groups=3) - mean_a**2, F.conv2d(b * b, window, groups=3) - mean_b**2
        both = F.conv2d(a * b, window, groups=3) - mean_a * mean_b
        alike = (
            (2 * mean_a * mean_b + 1e-4) * (2 * both + 9e-4) / ((mean_a**2 + mean_b**2 + 1e-4) * (var_a + var_b + 9e-4))
        )
        rough = a.diff(dim=-1).abs().mean() + a.diff(dim=-2).abs().mean()
        middles = torch.linspace(0.05, 0.95, 8, device=x.device)
        shares = [
            torch.sigmoid(20 * (each.flatten(1)[..., None] - middles)).mean(1) for each in (a, style.float().sigmoid())
        ]
        return 10 * total + 1 - alike.mean() + 0.1 * rough + F.smooth_l1_loss(*shares, beta=0.1)


class Vocoder(nn.Module):
    """HiFi-GAN: weight norm, transposed convolutions, judges at several rates, features that must match."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.into, self.up = norm(nn.Conv1d(6, 12, 7, padding=3)), norm(nn.ConvTranspose1d(12, 6, 8, 4, 2))
        self.near = nn.ModuleList(norm(nn.Conv1d(6, 6, 3, dilation=step, padding=step)) for step in (1, 3))
        self.out = norm(nn.Conv1d(6, 1, 7, padding=3))
        self.judges = nn.ModuleList(nn.Conv2d(1, 4, (5, 1), (3, 1), (2, 0)) for _ in range(2))
        self.last = nn.Conv2d(4, 1, (3, 1), padding=(1, 0))

    def loss(self, mel: Tensor, wave: Tensor) -> Tensor:
        hidden = self.up(F.leaky_relu(self.into(mel), 0.1))
        hidden = sum(layer(F.leaky_relu(hidden, 0.1)) + hidden for layer in self.near) / 2
        made = torch.tanh(self.out(F.leaky_relu(hidden)))
        total = (made - wave).float().abs().mean()
        for period, judge in zip((2, 3), self.judges):
            features = []
            for one in (wave, made):
                short = F.avg_pool1d(one, 4, 2, 1)
                padded = F.pad(short, (0, -short.shape[-1] % period), "reflect")
                features.append(F.leaky_relu(judge(padded.unflatten(-1, (-1, period))), 0.1))
            real, fake = (self.last(one).float() for one in features)
            total = (
                total
                + (1 - real).square().mean()
                + fake.square().mean()
                + F.l1_loss(features[1].float(), features[0].float().detach())
            )
        return total


class Forecast(nn.Module):
    """Time series: reversible scaling, trends by moving means, delays by correlation, likelihoods of counts."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(3, width) for _ in range(3))
        self.memory, self.out = nn.GRU(width + 3, width, batch_first=True), nn.Linear(width, 6)
        self.scale, self.shift = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

    def loss(self, x: Tensor) -> Tensor:
        past, future = x[:, :16], x[:, 16:].float()
        mean, spread = (
            past.float().mean(1, keepdim=True),
            (past.float().var(1, keepdim=True, unbiased=False) + 1e-5).sqrt(),
        )
        scaled = ((past.float() - mean) / spread * self.scale.float() + self.shift.float()).to(x.dtype)
        trend = F.avg_pool1d(F.pad(scaled.mT, (2, 2), "replicate"), 5, 1).mT
        season = scaled - trend
        query, key, value = (layer(season).float() for layer in (self.query, self.key, self.value))
        alike = torch.fft.irfft(torch.fft.rfft(query, dim=1) * torch.fft.rfft(key, dim=1).conj(), 16, dim=1)
        weights, delays = alike.mean(-1).topk(3, -1)
        places = (torch.arange(16, device=x.device)[None, None] + delays[..., None]) % 16
        moved = value[:, None].expand(-1, 3, -1, -1).gather(2, places[..., None].expand(-1, -1, -1, value.shape[-1]))
        mixed = (moved * weights.softmax(-1)[..., None, None]).sum(1)
        hidden, _ = self.memory(torch.cat([mixed.to(x.dtype), trend], -1))
        made = self.out(hidden[:, -8:]).float()
        level, width = made[..., :3] * spread + mean, F.softplus(made[..., 3:]) + 1e-3
        error = (future - level) / (width * spread)
        student = torch.lgamma(torch.tensor(2.5)) - torch.lgamma(torch.tensor(2.0)) - 0.5 * math.log(4 * math.pi)
        student = -student.to(x.device) + width.log() + 2.5 * torch.log1p(error.square() / 4)
        counts = future.abs().mul(3).round()
        poisson = F.poisson_nll_loss(level.clamp(-3, 3), counts, log_input=True, full=True)
        pinball = torch.stack(
            [torch.maximum(q * (future - level), (q - 1) * (future - level)) for q in (0.1, 0.5, 0.9)]
        ).mean()
        scaled_error = (future - level).abs().mean() / past.float().diff(dim=1).abs().mean()
        return student.mean() + 0.1 * poisson + pinball + 0.1 * scaled_error + F.gaussian_nll_loss(level, future, width)


PROGRAMS = (
    Program("style", "fourth", Likeness, lambda: [normal(2, 3, 20, 20), normal(2, 3, 20, 20, seed=5)]),
    Program("HiFi-GAN", "fourth", Vocoder, lambda: [normal(2, 6, 12), normal(2, 1, 48, seed=6) * 0.3]),
    Program("forecast", "fourth", Forecast, lambda: [normal(3, 24, 3).cumsum(1)]),
)
