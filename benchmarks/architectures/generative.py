"""Models that make pictures, sounds and fields."""

from __future__ import annotations

import torch
from benchmarks.architectures.language import rotation
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Block(nn.Module):
    def __init__(self, inner: int, outer: int, time: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(inner, outer, 3, padding=1), nn.Conv2d(outer, outer, 3, padding=1)
        self.norms = nn.ModuleList((nn.GroupNorm(4, inner), nn.GroupNorm(4, outer)))
        self.time, self.short = nn.Linear(time, outer), nn.Conv2d(inner, outer, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.first(F.silu(self.norms[0](x))) + self.time(F.silu(time))[:, :, None, None]
        return self.second(F.silu(self.norms[1](hidden))) + self.short(x)


class Diffusion(nn.Module):
    """A UNet that guesses the noise: time by sines, attention in the middle, nearest neighbours on the way up."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down, self.middle, self.up = Block(width, width), Block(width, width), Block(2 * width, width)
        self.less, self.mixed = nn.Conv2d(width, width, 3, stride=2, padding=1), nn.Conv2d(width, 3 * width, 1)

    def loss(self, x: Tensor, time: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        left = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100, device=x.device), 0)[time][:, None, None, None]
        noisy = left.sqrt() * x + (1 - left).sqrt() * noise
        cosine, sine = rotation(100, 16, x.device)
        known = torch.cat([cosine[time, :8], sine[time, :8]], -1)
        hidden = self.down(self.into(noisy), known)
        low = self.middle(self.less(hidden), known)
        query, key, value = self.mixed(low).flatten(2).transpose(1, 2).unsqueeze(1).chunk(3, -1)
        seen = F.scaled_dot_product_attention(query, key, value).squeeze(1).transpose(1, 2).reshape_as(low)
        up = F.interpolate(low + seen, scale_factor=2.0, mode="nearest")
        return F.mse_loss(self.out(F.silu(self.up(torch.cat([hidden, up], 1), known))), noise)


class Autoencoder(nn.Module):
    """A VAE: transposed convolutions, sampling, the divergence in closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 4, 2, 1), nn.ELU(), nn.Conv2d(8, 16, 4, 2, 1), nn.ELU(), nn.Flatten()
        )
        self.mean, self.spread, self.back = nn.Linear(256, 6), nn.Linear(256, 6), nn.Linear(6, 256)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.Softplus(), nn.ConvTranspose2d(8, 3, 4, 2, 1)
        )

    def loss(self, x: Tensor, _: Tensor) -> Tensor:
        hidden = self.encoder(x)
        mean, spread = self.mean(hidden), self.spread(hidden)
        sample = mean + torch.exp(0.5 * spread) * torch.randn_like(spread)
        made = self.decoder(F.elu(self.back(sample)).view(-1, 16, 4, 4))
        divergence = -0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
        return F.binary_cross_entropy_with_logits(made, torch.sigmoid(x), reduction="sum") / 100 + divergence / 100


class Codebook(nn.Module):
    """A VQ-VAE: the nearest of some vectors, and a gradient that passes it by."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Mish(), nn.Conv2d(8, 8, 1))
        self.decoder = nn.Sequential(nn.Conv2d(8, 48, 3, padding=1), nn.PixelShuffle(4))
        self.codes = nn.Embedding(32, 8)

    def loss(self, x: Tensor, _: Tensor) -> Tensor:
        hidden = self.encoder(x).permute(0, 2, 3, 1)
        flat = hidden.reshape(-1, 8).float()
        nearest = torch.cdist(flat, self.codes.weight.float()).argmin(1)
        chosen = self.codes(nearest).view_as(hidden)
        commitment = F.mse_loss(hidden.float(), chosen.detach()) + F.mse_loss(chosen, hidden.detach().float())
        passed = hidden + (chosen - hidden).detach()
        return F.huber_loss(self.decoder(passed.permute(0, 3, 1, 2)).float(), x) + 0.25 * commitment


class Adversaries(nn.Module):
    """WGAN with a penalty on the critic's gradient, which is differentiated again."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 192), nn.Tanh())
        self.critic = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(8, 8, 3, 2, 1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(32, 1),
        )

    def loss(self, x: Tensor, noise: Tensor) -> Tensor:
        made = self.generator(noise).view_as(x)
        share = torch.rand(len(x), 1, 1, 1, device=x.device)
        between = torch.lerp(x, made.to(x.dtype), share).detach().requires_grad_()
        judged = self.critic(between)
        (gradient,) = torch.autograd.grad(judged.sum(), between, create_graph=True)
        penalty = (gradient.flatten(1).norm(2, dim=1) - 1).pow(2).mean()
        return self.critic(made.detach()).mean() - self.critic(x).mean() + 10 * penalty - self.critic(made).mean()


class Fields(nn.Module):
    """A Fourier neural operator: complex weights on some frequencies."""

    def __init__(self, width: int = 6, modes: int = 4) -> None:
        super().__init__()
        self.modes = modes
        self.into, self.beside, self.out = nn.Conv2d(1, width, 1), nn.Conv2d(width, width, 1), nn.Conv2d(width, 1, 1)
        self.weight = nn.Parameter(torch.randn(width, width, modes, modes, 2) * 0.2)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.into(x)
        weight = torch.view_as_complex(self.weight.float())
        for _ in range(2):
            waves = torch.fft.rfft2(hidden.float(), norm="ortho")
            low = torch.einsum("bixy,ioxy->boxy", waves[..., : self.modes, : self.modes], weight)
            whole = torch.zeros_like(waves)
            whole[..., : self.modes, : self.modes] = low
            hidden = F.gelu(torch.fft.irfft2(whole, s=x.shape[-2:], norm="ortho") + self.beside(hidden))
        made = self.out(hidden)
        return (made - y).flatten(1).norm(dim=1).div(y.flatten(1).norm(dim=1)).mean()


class Rays(nn.Module):
    """NeRF: sines of places, light that is absorbed on its way, samples by an inverted distribution."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    def march(self, origin: Tensor, direction: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        places = origin[:, None] + direction[:, None] * depth[..., None]
        waves = torch.cat([f(places * 2.0**k) for k in range(4) for f in (torch.sin, torch.cos)], -1)
        made = self.layers(waves).float()
        gaps = F.pad(depth.diff(dim=-1), (0, 1), value=1.0)
        dense = 1 - torch.exp(-F.softplus(made[..., 3]) * gaps)
        weights = dense * torch.cumprod(F.pad(1 - dense + 1e-10, (1, 0), value=1.0), -1)[:, :-1]
        return (weights[..., None] * torch.sigmoid(made[..., :3])).sum(1), weights

    def loss(self, rays: Tensor, colour: Tensor) -> Tensor:
        origin, direction = rays[:, :3], F.normalize(rays[:, 3:], dim=-1)
        depth = torch.linspace(0.5, 4, 12, device=rays.device).expand(len(rays), -1)
        rough, weights = self.march(origin, direction, depth)
        share = torch.cumsum(F.normalize(weights.detach() + 1e-5, p=1, dim=-1), -1)
        asked = torch.rand(len(rays), 8, device=rays.device)
        place = torch.searchsorted(share, asked).clamp(max=11)
        finer, _ = torch.sort(torch.cat([depth, depth.gather(1, place)], -1), -1)
        fine, _ = self.march(origin, direction, finer)
        return F.mse_loss(rough, colour) + F.mse_loss(fine, colour)


class Sounds(nn.Module):
    """wav2vec 2.0: convolutions over sound, a quantizer by Gumbel noise, cosines to the right piece and to others."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.front = nn.ModuleList((nn.Conv1d(1, width, 8, stride=4), nn.Conv1d(width, width, 4, stride=2)))
        self.norm = nn.GroupNorm(width, width)
        self.scores, self.codes = nn.Linear(width, 2 * 8), nn.Parameter(torch.rand(2, 8, width // 2))
        self.places = nn.Conv1d(width, width, 5, padding=2, groups=4)
        self.layer = nn.TransformerEncoderLayer(width, 2, 32, 0.0, batch_first=True, norm_first=True)

    def loss(self, sound: Tensor, _: Tensor) -> Tensor:
        hidden = F.gelu(self.norm(self.front[0](sound)))
        hidden = F.gelu(self.front[1](hidden)).transpose(1, 2)
        chosen = F.gumbel_softmax(self.scores(hidden).unflatten(-1, (2, 8)).float(), tau=1.0, hard=True)
        target = torch.einsum("blgv,gvd->blgd", chosen, self.codes).flatten(2)
        seen = self.layer(hidden + F.gelu(self.places(hidden.transpose(1, 2))).transpose(1, 2))
        others = torch.stack([target.roll(step, 1) for step in range(4)], 2)
        near = F.cosine_similarity(seen.float().unsqueeze(2), others, dim=-1) / 0.1
        share = chosen.float().mean((0, 1))
        spread = torch.exp(-(share * torch.log(share + 1e-7)).sum(-1)).sum()
        return (
            F.cross_entropy(near.flatten(0, 1), near.new_zeros(near[..., 0].numel(), dtype=torch.long)) - 0.01 * spread
        )


class Spectra(nn.Module):
    """A vocoder's loss: short Fourier transforms of several lengths, logarithms of sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(1, 8, 9, padding=4), nn.Tanh(), nn.Conv1d(8, 1, 9, padding=4))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        made = self.layers(x).squeeze(1).float()
        total = F.l1_loss(made, y.squeeze(1))
        for size in (16, 32):
            window = torch.hann_window(size, device=x.device)
            left, right = (
                torch.stft(one, size, size // 2, window=window, return_complex=True).abs().clamp(min=1e-5)
                for one in (made, y.squeeze(1))
            )
            total = total + torch.linalg.matrix_norm(right - left).div(torch.linalg.matrix_norm(right)).mean()
            total = total + F.l1_loss(left.log(), right.log())
        return total


class Flow(nn.Module):
    """A normalizing flow: couplings, an invertible mixture, the logarithm of its determinant."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(3, 24), nn.SiLU(), nn.Linear(24, 6)) for _ in range(2))
        self.mix = nn.Parameter(torch.linalg.qr(normal(width, width))[0])

    def loss(self, x: Tensor, _: Tensor) -> Tensor:
        total = x.new_zeros(len(x), dtype=torch.float32)
        for net in self.nets:
            x = x.float() @ self.mix.float()
            total = total + torch.linalg.slogdet(self.mix.float())[1]
            left, right = x.chunk(2, -1)
            scale, shift = net(left).float().chunk(2, -1)
            x, total = (
                torch.cat([right * torch.exp(torch.tanh(scale)) + shift, left], -1),
                total + torch.tanh(scale).sum(-1),
            )
        likely = torch.distributions.Normal(torch.zeros_like(x), 1.0).log_prob(x).sum(-1)
        return -(likely + total).mean()


PICTURES = (4, 3, 16, 16)
PROGRAMS = (
    Program("diffusion", "tuned", Diffusion, lambda: [normal(2, 3, 8, 8), whole(100, 2)]),
    Program("VAE", "held-out", Autoencoder, lambda: [normal(*PICTURES), whole(2, 4)]),
    Program("VQ-VAE", "tuned", Codebook, lambda: [normal(*PICTURES), whole(2, 4)]),
    Program("WGAN-GP", "tuned", Adversaries, lambda: [normal(4, 3, 8, 8), normal(4, 8)], ("checkpointed",)),
    Program("FNO", "held-out", Fields, lambda: [normal(2, 1, 12, 12), normal(2, 1, 12, 12, seed=5)]),
    Program("NeRF", "held-out", Rays, lambda: [normal(16, 6), torch.sigmoid(normal(16, 3, seed=4))]),
    Program("wav2vec 2.0", "tuned", Sounds, lambda: [normal(2, 1, 160), whole(2, 2)]),
    Program("vocoder", "tuned", Spectra, lambda: [normal(2, 1, 96), normal(2, 1, 96, seed=5)]),
    Program("normalizing flow", "held-out", Flow, lambda: [normal(24, 6), whole(2, 2)]),
)
