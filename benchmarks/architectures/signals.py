"""Pictures, volumes, waves and physics by the ops that few models have: old pools, turned volumes, Bessel functions."""

from __future__ import annotations

import math

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class OldPictures(nn.Module):
    """Networks of the first years: local response norms, fractional pools, pools undone, shuffled channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3), nn.PReLU(8), nn.LocalResponseNorm(3, 1e-2, 0.75, 2.0))
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2, dilation=1, padding_mode="replicate")
        self.drop, self.whole = nn.Dropout2d(0.2), nn.FeatureAlphaDropout(0.1)
        self.back = nn.ConvTranspose2d(8, 4, 3, stride=2, groups=2, output_padding=1)
        self.power, self.top = nn.LPPool2d(2, 2, ceil_mode=True), nn.Linear(8, 6)

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.first(x)
        share = torch.rand(len(x), x.shape[1], 2, device=x.device, dtype=x.dtype)
        x = F.fractional_max_pool2d(x, 3, output_size=(8, 8), _random_samples=share)
        x = F.channel_shuffle(self.drop(self.grouped(x)), 2)
        small, places = F.max_pool2d(x, 2, return_indices=True)
        x = F.max_unpool2d(F.softshrink(small, 0.05), places, 2) + F.tanhshrink(x) + F.hardshrink(x, 0.1)
        painted = F.interpolate(self.back(x), scale_factor=0.5, mode="bicubic", align_corners=False)
        painted = painted + F.pixel_unshuffle(F.interpolate(x[:, :1], size=tuple(2 * s for s in painted.shape[-2:])), 2)
        scores = self.top(self.power(self.whole(x.abs() + 0.1)).mean((-2, -1)))
        several = F.multilabel_margin_loss(scores.float(), labels)
        signs = torch.where(labels >= 0, 1.0, -1.0)
        return several + F.hinge_embedding_loss(scores.float(), signs) + painted.float().square().mean()


class Volumes(nn.Module):
    """Volumes: convolutions and pools in three dimensions, pools undone, a learnt turn, masks that overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.ReplicationPad3d(1), nn.Conv3d(1, 4, 3), nn.InstanceNorm3d(4, affine=True), nn.CELU()
        )
        self.middle, self.drop = nn.Conv3d(4, 4, (1, 3, 3), padding="same"), nn.Dropout3d(0.2)
        self.up = nn.ConvTranspose3d(4, 3, 2, stride=2)
        self.turn = nn.Linear(4, 12)
        nn.init.zeros_(self.turn.weight)
        self.turn.bias.data.copy_(torch.eye(3, 4).flatten())

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        seen = self.down(x)
        pooled, places = F.max_pool3d(seen, 2, return_indices=True)
        inside = self.drop(F.hardswish(self.middle(pooled)))
        undone = F.max_unpool3d(inside, places, 2)
        moved = self.turn(F.adaptive_avg_pool3d(inside, 1).flatten(1) + F.adaptive_max_pool3d(seen, 1).flatten(1))
        grid = F.affine_grid(moved.float().unflatten(1, (3, 4)), list(x.shape), align_corners=True)
        warped = F.grid_sample(x.float(), grid, padding_mode="border", align_corners=True)
        likeness = F.mse_loss(warped, F.avg_pool3d(x.float(), 3, stride=1, padding=1, count_include_pad=False))
        scores = self.up(inside).float() + F.interpolate(undone[:, :3], scale_factor=1.0, mode="trilinear").float()
        chances = scores.softmax(1)
        truth = F.one_hot(labels, 3).movedim(-1, 1).float()
        both = torch.einsum("bcdhw,bcdhw->bc", chances, truth)
        dice = 1 - (2 * both + 1) / (chances.sum((2, 3, 4)) + truth.sum((2, 3, 4)) + 1)
        tversky = (both + 1) / (
            both + 0.3 * (chances - chances * truth).sum((2, 3, 4)) + 0.7 * truth.sum((2, 3, 4)) + 1
        )
        rough = sum(chances.diff(dim=axis).square().mean() for axis in (2, 3, 4))
        return dice.mean() + (1 - tversky).pow(0.75).mean() + F.cross_entropy(scores, labels) + likeness + 0.1 * rough


class Augmented(nn.Module):
    """Augmentation that learns: hues by angles, turns, homographies, kernels of blur, medians, mixed pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.bend, self.blur = nn.Parameter(normal(8) * 0.02), nn.Parameter(torch.tensor(0.8))
        self.gain = nn.Parameter(torch.tensor([0.1, -0.1, 0.05]))
        self.see, self.top = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 4)

    @staticmethod
    def hue(x: Tensor) -> Tensor:
        red, green, blue = x.unbind(1)
        angle = torch.atan2(math.sqrt(3) * (green - blue), 2 * red - green - blue + 1e-3)
        low, high = x.amin(1), x.amax(1)
        return torch.stack([torch.remainder(angle, 2 * math.pi), 1 - low / (high + 1e-3), high], 1)

    def warped(self, x: Tensor) -> Tensor:
        matrix = torch.cat([self.bend.float(), self.bend.new_zeros(1).float()]).view(3, 3) + torch.eye(
            3, device=x.device
        )
        axes = [torch.linspace(-1, 1, size, device=x.device) for size in x.shape[-2:]]
        high, wide = torch.meshgrid(*axes, indexing="ij")
        places = torch.stack([wide, high, torch.ones_like(wide)], -1) @ matrix.mT
        return F.grid_sample(
            x, (places[..., :2] / places[..., 2:]).expand(len(x), -1, -1, -1), "bicubic", "reflection", False
        )

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        with in_float32(x):
            picture = torch.sigmoid(x.float())
            curve = picture.clamp(0.01, 1).pow(torch.exp2(self.gain.float()).view(3, 1, 1))
            line = torch.signal.windows.gaussian(5, std=1.0, device=x.device)
            line = torch.pow(line, F.softplus(self.blur.float()))
            kernel = (torch.outer(line, line) / line.sum().square()).tile(3, 1, 1, 1)
            soft = F.conv2d(F.pad(curve, (2, 2, 2, 2), "reflect"), kernel, groups=3)
            middle = F.unfold(soft, 3, padding=1).unflatten(1, (3, 9)).median(2).values.view_as(soft)
            warped = self.warped(soft.rot90(1, (2, 3)).flipud().fliplr() + 0.2 * middle)
            mixed = self.hue(warped)
            mixed = torch.slice_scatter(mixed, warped[:, :, 2:6], 2, 2, 6)
            small = F.interpolate(mixed, size=(5, 5), mode="bilinear", antialias=True)
            sharp = torch.hypot(mixed.diff(dim=2)[..., 1:], mixed.diff(dim=3)[:, :, 1:])
        part = torch.distributions.Beta(*(torch.full((len(x), 1), 2.0, device=x.device) for _ in range(2))).sample()
        scores = self.top(F.adaptive_max_pool2d(F.mish(self.see(mixed.to(x.dtype))), 1).flatten(1)).float()
        wanted = F.one_hot(labels, 4).float()
        loss = F.cross_entropy(scores, part * wanted + (1 - part) * wanted.flip(0))
        return loss + 0.01 * sharp.mean() + 0.1 * small.var()


class Waves(nn.Module):
    """Long filters by Fourier transforms: implicit kernels, shrunk spectra, analytic signals, a cosine transform."""

    def __init__(self, width: int = 6, length: int = 24) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.filters = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, width))
        self.weight = nn.Parameter(normal(2, width, width) * 0.2)
        self.phase, self.decay = nn.Parameter(normal(width, 4)), nn.Parameter(normal(width, 4, seed=8) * 0.2)
        t = torch.linspace(0, 1, length)[:, None]
        self.register_buffer(
            "times", torch.cat([t, *(f(2 * math.pi * n * t) for n in (1, 2) for f in (torch.cos, torch.sin))], 1)
        )

    def long(self, x: Tensor, kernel: Tensor) -> Tensor:
        size = 2 * x.shape[1]
        return torch.fft.irfft(torch.fft.rfft(x, size, 1) * torch.fft.rfft(kernel, size, 0), size, 1)[:, : x.shape[1]]

    @staticmethod
    def cosines(x: Tensor) -> Tensor:
        turned = torch.cat([x[..., ::2], x[..., 1::2].flip(-1)], -1)
        count = x.shape[-1]
        angle = -torch.arange(count, device=x.device) * math.pi / (2 * count)
        return (torch.fft.fft(turned) * torch.polar(torch.ones_like(angle), angle)).real

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        gate, left, right = self.into(x).float().chunk(3, -1)
        kernel = self.filters(self.times).float()
        with in_float32(x):
            kernel = kernel * torch.exp(-self.times[:, :1].float() * 4)
            poles = torch.polar(torch.sigmoid(self.decay.float()), self.phase.float())
            steps = torch.arange(x.shape[1], device=x.device)
            states = (poles[..., None].log() * steps).exp().sum(1).real.mT
            made = self.long(left * right, kernel + 0.1 * states) * gate.sigmoid()
            spectrum = torch.fft.fftshift(torch.fft.fftn(made, dim=(1, 2), norm="ortho"), 1)
            real, imaginary = self.weight.float()
            mixed = torch.complex(
                spectrum.real @ real - spectrum.imag @ imaginary, spectrum.imag @ real + spectrum.real @ imaginary
            )
            mixed = torch.view_as_complex(F.softshrink(torch.view_as_real(mixed), 0.01))
            made = torch.fft.ifftn(torch.fft.ifftshift(mixed, 1), dim=(1, 2), norm="ortho").real
            whole_spectrum = torch.fft.fft(made, dim=1)
            half = torch.zeros(x.shape[1], 1, device=x.device)
            half[0], half[x.shape[1] // 2], half[1 : x.shape[1] // 2] = 1, 1, 2
            analytic = torch.fft.ifft(whole_spectrum * half, dim=1)
            envelope, turned = analytic.abs(), torch.sgn(analytic[:, 1:] * analytic[:, :-1].conj())
            cepstrum = torch.fft.hfft(torch.log1p(torch.fft.ihfft(made, dim=1).abs()).to(torch.complex64), dim=1)
        error = F.mse_loss(self.out(made.to(x.dtype)).float(), y.float())
        sparse = self.cosines(made.mT).abs().mean() + 1e-3 * cepstrum.square().mean()
        return error + 0.01 * (envelope.mean() + turned.real.mean() + sparse)


class Directions(nn.Module):
    """Physics and directions: Bessel functions, incomplete gammas, polynomials, hyperbolic angles, tails, mantissas."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body, self.heads = nn.Sequential(nn.Linear(5, width), nn.Softsign()), nn.Linear(width, 8)
        self.shape = nn.Parameter(torch.tensor([0.5, 1.5]))

    def loss(self, x: Tensor, angles: Tensor) -> Tensor:
        heads = self.heads(self.body(x)).float()
        with in_float32(x):
            angles, special = angles.float(), torch.special
            a, b, c, d, e, f, g, h = heads.unbind(-1)
            strength = torch.exp2(a)
            mises = -(strength * torch.cos(angles - b)) + torch.log(special.i0e(strength)) + strength
            ratio = special.i1e(strength) / special.i0e(strength)
            tails = (
                special.log_ndtr(c)
                + special.ndtr(d).clamp(1e-4, 1 - 1e-4).logit()
                - special.ndtri(e.sigmoid()).square()
            )
            wide = (
                torch.asinh(f)
                + torch.acosh(1.1 + f.square())
                + torch.atanh(0.9 * torch.tanh(f))
                + torch.sinh(f).cosh().log()
            )
            waves = special.bessel_j0(g.detach()) * g + special.bessel_j1(d.detach()) * h + torch.sinc(g)
            waves = waves + special.spherical_bessel_j0(h.detach()) * special.modified_bessel_k0(
                strength.detach() + 0.1
            )
            orders = torch.arange(4, device=x.device)
            basis = special.chebyshev_polynomial_t(torch.tanh(h.detach())[:, None], orders) * h[:, None]
            basis = basis + special.hermite_polynomial_he(g.detach()[:, None], orders) * 0.1 * g[:, None]
            counts = torch.poisson(F.softplus(self.shape.float()).sum() * torch.ones_like(a))
            share = special.gammainc(counts.detach() + 1, F.softplus(b)) + special.gammaincc(
                counts.detach() + 2, F.softplus(c)
            )
            likely = special.gammaln(counts + F.softplus(d)) - special.multigammaln(F.softplus(e) + 2, 3)
            likely = (
                likely
                + special.zeta(F.softplus(f.detach()) + 1.5, torch.ones_like(f)) * f
                + special.digamma(strength + 1)
            )
            mantissa, exponent = torch.frexp(g.detach() + 3)
            whole_again = (
                torch.ldexp(mantissa * g, exponent) + torch.copysign(h, angles) + torch.nextafter(h, angles).detach()
            )
            soft = torch.logaddexp2(g, h) + special.erfcx(F.softplus(g)) + special.xlog1py(h, F.softplus(a))
            rest = (
                torch.fmod(angles, 0.7) * h
                + torch.float_power(F.softplus(h) + 0.1, 1.5).float()
                + torch.frac(angles) * g
            )
            angle = torch.rad2deg(torch.atan2(torch.sin(b), torch.cos(b) + 2)).deg2rad() + torch.tan(
                0.3 * torch.tanh(c)
            )
        parts = (mises, ratio, tails, wide, waves, share, likely, whole_again, soft, rest, angle)
        return sum(torch.tanh(part).mean() for part in parts) + mises.mean() + 0.1 * basis.tanh().mean()


class Modulated(nn.Module):
    """StyleGAN 2: weights that a style modulates, one group for each sample, filtered sampling, the length of paths."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.start, self.style = nn.Parameter(normal(1, width, 4, 4)), nn.Linear(5, width)
        self.weight, self.noise = nn.Parameter(normal(width, width, 3, 3) * 0.3), nn.Parameter(torch.tensor([0.1]))
        self.paint, self.judge = nn.Conv2d(width, 3, 1), nn.Sequential(nn.Conv2d(3, 6, 3), nn.LeakyReLU(0.2))
        self.last = nn.Linear(7, 1)
        line = torch.tensor([1.0, 3.0, 3.0, 1.0])
        self.register_buffer("filter", torch.outer(line, line) / 64 * 4)

    def made(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        codes = codes * torch.rsqrt(codes.float().square().mean(1, keepdim=True) + 1e-8).to(codes.dtype)
        style = self.style(codes).float()
        weight = self.weight.float() * (style + 1)[:, None, :, None, None]
        weight = weight * torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
        count, width = weight.shape[:2]
        x = self.start.float().expand(count, -1, -1, -1).reshape(1, -1, 4, 4)
        x = F.conv2d(x, weight.flatten(0, 1), padding=1, groups=count).view(count, width, 4, 4)
        up = F.pad(x[..., None, :, None], (0, 1, 0, 0, 0, 1)).reshape(count, width, 8, 8)
        kernel = self.filter.float().expand(width, 1, 4, 4)
        x = F.conv2d(F.pad(up, (2, 1, 2, 1)), kernel, groups=width)
        x = F.leaky_relu(x + self.noise.float() * torch.randn_like(x[:, :1]), 0.2) * 2**0.5
        return self.paint(x.to(self.paint.weight.dtype)), style

    def judged(self, picture: Tensor) -> Tensor:
        seen = self.judge(picture).float()
        spread = torch.sqrt(seen.unflatten(0, (-1, 2)).var(1, correction=0) + 1e-8).mean((1, 2, 3)).repeat_interleave(2)
        return self.last(torch.cat([seen.mean((2, 3)), spread[:, None]], 1).to(self.last.weight.dtype)).float()

    def loss(self, real: Tensor, codes: Tensor) -> Tensor:
        made, style = self.made(codes)
        real = real.detach().requires_grad_()
        score = self.judged(real)
        (slope,) = torch.autograd.grad(score.sum(), real, create_graph=True)
        path = (made.float() * torch.randn_like(made).float()).sum() / 8
        (pull,) = torch.autograd.grad(path, style, create_graph=True)
        length = torch.sqrt(pull.square().sum(1) + 1e-8)
        penalty = slope.float().square().sum((1, 2, 3)).mean() + (length - length.detach().mean()).square().mean()
        return F.softplus(self.judged(made)).mean() + F.softplus(-score).mean() + 0.1 * penalty


def several_labels() -> Tensor:
    """Labels of each picture, and -1 behind them."""
    return torch.tensor([[2, 0, -1, 1, 3, 5], [5, -1, 0, 0, 0, 0], [1, 3, 4, -1, 2, 0]])


PROGRAMS = (
    Program("old pictures", "seventh", OldPictures, lambda: [normal(3, 3, 20, 20), several_labels()]),
    Program("turned volumes", "seventh", Volumes, lambda: [normal(2, 1, 4, 6, 6), whole(3, 2, 4, 6, 6)]),
    Program("augmented", "seventh", Augmented, lambda: [normal(4, 3, 9, 9), whole(4, 4)]),
    Program("long filters", "seventh", Waves, lambda: [normal(2, 24, 6), normal(2, 24, 6, seed=3)]),
    Program("directions", "seventh", Directions, lambda: [normal(14, 5), normal(14, seed=3)]),
    Program("modulated", "seventh", Modulated, lambda: [normal(4, 3, 8, 8), normal(4, 5, seed=3)], ("checkpointed",)),
)
