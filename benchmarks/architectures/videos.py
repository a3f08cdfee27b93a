"""Layers that are searched, videos and pictures that are restored."""

from __future__ import annotations

import math
from typing import Any

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Searched(nn.Module):
    """DARTS and slim nets: every layer at once by softmax and by Gumbel's draws, a kernel cut from another, FLOPs."""

    def __init__(self, width: int = 8, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.ops = nn.ModuleList(nn.ModuleList(self.layers(width)) for _ in range(5))
        self.alpha, self.log_rate = nn.Parameter(1e-3 * normal(5, 6)), nn.Parameter(torch.zeros(()))
        self.large = nn.Parameter(normal(width, width, 5, 5) * 0.05)
        self.turn = nn.Linear(9, 9, bias=False)
        self.head = nn.Linear(width, classes)
        self.register_buffer("costs", torch.tensor([0.0, 0.0, 0.1, 0.1, 0.9, 0.6]))

    @staticmethod
    def layers(width: int) -> list[nn.Module]:
        depthwise = nn.Conv2d(width, width, 3, padding=2, dilation=2, groups=width, bias=False)
        pointwise = nn.Conv2d(width, width, 1, bias=False)
        return [
            nn.Identity(),
            nn.AvgPool2d(3, 1, 1, count_include_pad=False),
            nn.MaxPool2d(3, 1, 1),
            nn.Sequential(nn.ReLU(), depthwise, nn.BatchNorm2d(width, affine=False)),
            nn.Sequential(nn.ReLU(), pointwise, nn.BatchNorm2d(width, track_running_stats=False)),
        ]

    def edge(self, number: int, x: Tensor, shares: Tensor) -> Tensor:
        made = torch.zeros_like(x)
        for share, op in zip(shares[1:], self.ops[number]):
            if share.detach() == 0:
                continue
            made = made + share.to(x.dtype) * op(x).to(x.dtype)
        return made

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        soft = self.alpha.float().softmax(-1)
        hard = F.gumbel_softmax(self.alpha.float(), 0.1 + F.softplus(self.log_rate.float()), hard=True)
        x = self.stem(x)
        total = x.new_zeros((), dtype=torch.float32)
        for shares in (soft, hard):
            first = self.edge(0, x, shares[0])
            second = self.edge(1, x, shares[1]) + self.edge(2, first, shares[2])
            third = self.edge(3, first, shares[3]) + self.edge(4, second, shares[4])
            small = self.turn(self.large[:, :, 1:4, 1:4].flatten(2)).unflatten(2, (3, 3))
            for wide in (8, 4):
                some = F.conv2d(third, small[:wide].to(third.dtype), padding=1)
                some = F.pad(some, (0, 0, 0, 0, 0, 8 - wide)) + F.conv2d(third, self.large.to(third.dtype), padding=2)
                scores = F.linear(some.mean((2, 3))[:, :wide], self.head.weight[:, :wide], self.head.bias)
                total = total + F.cross_entropy(scores.float(), y)
        entropy = -(soft * soft.clamp_min(1e-12).log()).sum(-1).mean()
        return total + 0.1 * (hard @ self.costs.float()).sum() + 0.01 * entropy


class Video(nn.Module):
    """TSM, R(2+1)D, TimeSformer and slow-fast paths: shifted channels, split kernels, tubes, frames that must order."""

    def __init__(self, width: int = 12, classes: int = 5) -> None:
        super().__init__()
        self.slow = nn.Conv3d(3, width, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False)
        self.fast = nn.Conv3d(3, 4, (3, 3, 3), (1, 2, 2), (1, 1, 1), bias=False)
        self.lateral = nn.Conv3d(4, 8, (3, 1, 1), (2, 1, 1), (1, 0, 0), bias=False)
        self.space, self.time = (
            nn.Conv3d(20, 18, (1, 3, 3), padding=(0, 1, 1)),
            nn.Conv3d(18, 20, (3, 1, 1), padding=(1, 0, 0)),
        )
        self.norms = nn.ModuleList((nn.BatchNorm3d(width), nn.BatchNorm3d(18), nn.BatchNorm3d(20)))
        self.tubes = nn.Conv3d(20, 24, (1, 2, 2), (1, 2, 2))
        self.along, self.across = (nn.MultiheadAttention(24, 3, 0.1, batch_first=True) for _ in range(2))
        self.layers, self.gate = nn.ModuleList(nn.LayerNorm(24) for _ in range(3)), nn.Linear(24, 24)
        self.head, self.order = nn.Linear(24, classes), nn.Linear(48, 1)

    @staticmethod
    def shifted(x: Tensor, fold: int = 3) -> Tensor:
        made = torch.zeros_like(x)
        made[:, :fold, :-1] = x[:, :fold, 1:]
        made[:, fold : 2 * fold, 1:] = x[:, fold : 2 * fold, :-1]
        made[:, 2 * fold :] = x[:, 2 * fold :]
        return made

    def loss(self, frames: Tensor, y: Tensor) -> Tensor:
        pixels = (frames.float() / 255 - 0.45).div(0.225).to(self.slow.weight.dtype)
        fast = F.relu(self.fast(pixels))
        slow = F.relu(self.norms[0](self.slow(self.shifted(pixels, 1)[:, :, ::2])))
        x = torch.cat([slow, self.lateral(fast).to(slow.dtype)], 1)
        x = x + F.relu(self.norms[2](self.time(F.relu(self.norms[1](self.space(self.shifted(x)))))))
        x = F.max_pool3d(x, (1, 3, 3), (1, 2, 2), (0, 1, 1))
        x = self.tubes(x).flatten(3).permute(0, 2, 3, 1)
        count, steps, places = x.shape[:3]
        line = self.layers[0](x).transpose(1, 2).flatten(0, 1)
        line = self.along(line, line, line, need_weights=False)[0]
        x = x + line.unflatten(0, (count, places)).transpose(1, 2)
        plane = self.layers[1](x).flatten(0, 1)
        x = x + self.across(plane, plane, plane)[0].unflatten(0, (count, steps))
        by_frame = self.layers[2](x).mean(2)
        by_frame = by_frame * self.gate(by_frame.mean(1, keepdim=True)).sigmoid()
        scores = self.head(by_frame.mean(1)).float()
        with torch.no_grad():
            mix = torch.distributions.Beta(0.8, 0.8).sample().to(frames.device)
        said = mix * F.cross_entropy(scores, y) + (1 - mix) * F.cross_entropy(scores, y.flip(0))
        i, j = torch.triu_indices(steps, steps, 1, device=frames.device)
        flip = torch.rand(len(i), device=frames.device) < 0.5
        first, last = torch.where(flip, j, i), torch.where(flip, i, j)
        pairs = torch.cat([by_frame[:, first], by_frame[:, last]], -1)
        told = self.order(pairs).squeeze(-1).float()
        hinge = F.soft_margin_loss(told, (1 - 2 * flip.float()).expand_as(told))
        return said + 0.1 * hinge


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return a * b


class Channels(torch.autograd.Function):
    """A norm over channels, with its gradient by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        y = (x - mean) / (var + eps).sqrt()
        ctx.eps = eps
        ctx.save_for_backward(y, var, weight)
        return weight.view(1, -1, 1, 1) * y + bias.view(1, -1, 1, 1)

    @staticmethod
    def backward(ctx: Any, *arrived: Tensor) -> tuple[Tensor | None, ...]:
        y, var, weight = ctx.saved_tensors
        slope = arrived[0] * weight.view(1, -1, 1, 1)
        mean = slope.mean(1, keepdim=True)
        product = (slope * y).mean(1, keepdim=True)
        x = 1.0 / torch.sqrt(var + ctx.eps) * (slope - y * product - mean)
        return x, (arrived[0] * y).sum((0, 2, 3)), arrived[0].sum((0, 2, 3)), None


class Restored(nn.Module):
    """NAFNet, Restormer and ESRGAN: gates by halves, attention over channels, dense blocks, wavelets, PSNR, edges."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.into, self.wide = nn.Conv2d(12, width, 3, padding=1), nn.Conv2d(width, 2 * width, 1)
        self.deep, self.gate = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width), Gate()
        self.sca, self.out = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.beta, self.gamma = (nn.Parameter(torch.zeros(1, width, 1, 1)) for _ in range(2))
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.qkv, self.heat = nn.Conv2d(width, 3 * width, 1, bias=False), nn.Parameter(torch.ones(3, 1, 1))
        self.dense = nn.ModuleList(nn.Conv2d(width + 4 * n, 4, 3, padding=1) for n in range(3))
        self.fuse, self.up = (
            nn.Conv2d(width + 12, width, 1),
            nn.Sequential(nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2)),
        )

    @staticmethod
    def wavelets(x: Tensor) -> Tensor:
        a, b, c, d = x[..., ::2, ::2] / 2, x[..., 1::2, ::2] / 2, x[..., ::2, 1::2] / 2, x[..., 1::2, 1::2] / 2
        return torch.cat((a + b + c + d, -a - b + c + d, -a + b - c + d, a - b - c + d), 1)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (one.unflatten(1, (3, -1)).flatten(3) for one in self.qkv(x).chunk(3, 1))
        q, k = F.normalize(q.float(), dim=-1), F.normalize(k.float(), dim=-1)
        shares = (q @ k.mT * self.heat.float()).softmax(-1).to(v.dtype)
        return (shares @ v).flatten(1, 2).view_as(x)

    def loss(self, clean: Tensor) -> Tensor:
        clean = torch.sigmoid(clean)
        level = torch.rand(len(clean), 1, 1, 1, device=clean.device, dtype=clean.dtype) * 0.2
        noisy = (clean + level * torch.randn_like(clean)).clamp(0, 1)
        noisy = noisy + ((noisy * 255).round() / 255 - noisy).detach()
        x = self.into(self.wavelets(noisy))
        y = Channels.apply(x.to(self.scale.dtype), self.scale, self.shift, 1e-6)
        y = self.gate(self.deep(self.wide(y)))
        y = y * self.sca(F.adaptive_avg_pool2d(y, 1))
        x = x + self.out(F.dropout(y, 0.1)) * (self.beta + 0.1)
        x = x + self.attend(x) * (self.gamma + 0.1)
        parts = [x]
        for layer in self.dense:
            parts.append(F.leaky_relu(layer(torch.cat(parts, 1)), 0.2).to(x.dtype))
        x = torch.add(x, self.fuse(torch.cat(parts, 1)).to(x.dtype), alpha=0.2)
        made = (noisy + self.up(x)).float()
        goal = clean.float()
        psnr = 10 * torch.log10((made - goal).square().mean((1, 2, 3)) + 1e-8)
        charbonnier = torch.sqrt((made - goal).square() + 1e-3**2).mean()
        with in_float32(clean):
            away = torch.fft.rfft2(made, norm="backward") - torch.fft.rfft2(goal, norm="backward")
            bands = torch.view_as_real(away).abs().mean()
        sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]], device=made.device).expand(3, 1, 3, 3)
        edges = F.l1_loss(F.conv2d(made, sobel, groups=3), F.conv2d(goal, sobel, groups=3))
        thin = (made[..., 1:] - made[..., :-1]).abs().mean() + (made[..., 1:, :] - made[..., :-1, :]).abs().mean()
        return charbonnier + 0.01 * psnr.mean() + 0.01 * bands + 0.1 * edges + 1e-3 * thin * math.sqrt(2)


def frames() -> list[Tensor]:
    return [whole(256, 3, 3, 6, 16, 16).to(torch.uint8), whole(5, 3)]


PROGRAMS = (
    Program("searched layers", "eleventh", Searched, lambda: [normal(4, 3, 10, 10), whole(4, 4)]),
    Program("videos", "eleventh", Video, frames),
    Program("restored", "eleventh", Restored, lambda: [normal(2, 3, 12, 12)]),
)
