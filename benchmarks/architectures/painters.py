"""Models of pictures as they are trained today: flows, autoencoders with critics, tokens, teachers, masks, recipes."""

from __future__ import annotations

import copy
import itertools
import math

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Rectified(nn.Module):
    """Flow matching with text and picture in one attention (MMDiT), log-normal times, guidance, Heun's steps."""

    def __init__(self, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.patch, self.text = nn.Conv2d(4, width, 2, 2), nn.Embedding(20, width)
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.proj = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 48), nn.GELU("tanh"), nn.Linear(48, width)) for _ in range(2)
        )
        self.modulation = nn.ModuleList(nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width)) for _ in range(2))
        self.norm_q, self.norm_k = nn.RMSNorm(8, eps=1e-6), nn.RMSNorm(8, eps=1e-6)
        self.norm, self.last = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6), nn.Linear(width, 16)
        for one in self.modulation:
            nn.init.normal_(one[1].weight, std=0.02)

    def times(self, t: Tensor, like: Tensor) -> Tensor:
        turns = torch.exp(-math.log(10000) * torch.arange(8, device=t.device, dtype=torch.float32) / 8)
        angle = 1000 * t.float()[:, None] * turns[None]
        return self.time(torch.cat([angle.cos(), angle.sin()], -1).to(like.dtype))

    def block(self, streams: list[Tensor], told: Tensor) -> list[Tensor]:
        changes = [one(told).unsqueeze(1).chunk(6, dim=-1) for one in self.modulation]
        heads = []
        for x, layer, (shift, scale, *_) in zip(streams, self.qkv, changes):
            made = layer(self.norm(x) * (1 + scale) + shift)
            heads.append(made.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4))
        q, k, v = (torch.cat([one[i] for one in heads], dim=2) for i in range(3))
        q, k = self.norm_q(q).to(v.dtype), self.norm_k(k).to(v.dtype)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        out = []
        pieces = mixed.split([one.shape[1] for one in streams], dim=1)
        for x, piece, proj, mlp, (_, _, gate, shift, scale, second) in zip(
            streams, pieces, self.proj, self.mlp, changes
        ):
            x = x + gate * proj(piece)
            out.append(x + second * mlp(self.norm(x) * (1 + scale) + shift))
        return out

    def forward(self, picture: Tensor, t: Tensor, words: Tensor) -> Tensor:
        x = self.patch(picture.to(self.patch.weight.dtype))
        high, wide = x.shape[-2:]
        places = torch.stack(torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij"), -1).to(x.device)
        waves = torch.outer(places.flatten(0, 1).sum(-1).float(), torch.logspace(0, -2, 12, device=x.device))
        x = x.flatten(2).transpose(1, 2) + torch.cat([waves.sin(), waves.cos()], -1).to(x.dtype)
        text = self.text(words)
        told = self.times(t, text) + text.mean(1)
        _, x = self.block([text.to(x.dtype), x], told.to(x.dtype))
        x = self.last(self.norm(x)).view(len(x), high, wide, 2, 2, 4)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(picture.shape)

    @torch.no_grad()
    def sample(self, words: Tensor, noise: Tensor, steps: int = 2) -> Tensor:
        x, sigmas = noise, torch.linspace(1, 0, steps + 1, device=noise.device)
        sigmas = 3.0 * sigmas / (1 + 2.0 * sigmas)
        both = torch.cat([words, torch.zeros_like(words)])
        for now, then in itertools.pairwise(sigmas) if hasattr(itertools, "pairwise") else zip(sigmas, sigmas[1:]):
            given, free = self(torch.cat([x, x]), now.expand(len(both)), both).float().chunk(2)
            way = free + 4.0 * (given - free)
            ahead = x + (then - now) * way
            if then > 0:
                given, free = self(torch.cat([ahead, ahead]), then.expand(len(both)), both).float().chunk(2)
                way = (way + free + 4.0 * (given - free)) / 2
            x = x + (then - now) * way
        return x.clamp(-3, 3)

    def loss(self, picture: Tensor, words: Tensor) -> Tensor:
        words = words * (torch.rand(len(words), 1, device=words.device) > 0.1)
        t = torch.sigmoid(torch.randn(len(picture), device=picture.device))
        noise = torch.randn_like(picture)
        mixed = torch.lerp(picture, noise, t.view(-1, 1, 1, 1).to(picture.dtype))
        guess = self(mixed, t, words).float()
        weight = torch.clamp(((1 - t) / t).square(), max=5.0) + 1
        each = (guess - (noise - picture).float()).square().flatten(1).mean(1)
        made = self.sample(words[:1], noise[:1].float().to(picture.dtype))
        return (each * weight).mean() + 0 * made.float().mean()


class LatentCritic(nn.Module):
    """The autoencoder of latent diffusion: likeness by a frozen net, a patch critic, its weight by two slopes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.Conv2d(16, 8, 1)
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(4, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(),
            nn.Upsample(scale_factor=2.0, mode="nearest"), nn.Conv2d(16, 16, 3, padding=1), nn.SiLU(),
            nn.Upsample(scale_factor=2.0, mode="nearest"), nn.Conv2d(16, 8, 3, padding=1), nn.SiLU(),
        )  # fmt: skip
        self.last, self.spread = nn.Conv2d(8, 3, 3, padding=1), nn.Parameter(torch.zeros(()))
        self.critic = nn.Sequential(
            nn.utils.spectral_norm(nn.Conv2d(3, 8, 4, 2, 1)), nn.LeakyReLU(0.2, True),
            nn.Conv2d(8, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.2, True), nn.Conv2d(16, 1, 3),
        )  # fmt: skip
        self.frozen = nn.ModuleList([nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)]).requires_grad_(
            False
        )
        self.register_buffer("shift", torch.tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1))
        self.register_buffer("scale", torch.tensor([0.458, 0.448, 0.450]).view(1, 3, 1, 1))

    def likeness(self, one: Tensor, other: Tensor) -> Tensor:
        one, other = ((x - self.shift) / self.scale for x in (one, other))
        total: Tensor = one.new_zeros(len(one), 1, 1, 1)
        for layer in self.frozen:
            one, other = F.relu(layer(one)), F.relu(layer(other))
            unit = [x / (torch.sqrt(torch.sum(x**2, dim=1, keepdim=True)) + 1e-6) for x in (one, other)]
            total = total + (unit[0] - unit[1]).pow(2).sum(1, keepdim=True).mean([2, 3], keepdim=True)
            one, other = F.max_pool2d(one, 2), F.max_pool2d(other, 2)
        return total

    def loss(self, picture: Tensor) -> Tensor:
        mean, log_var = torch.chunk(self.encoder(picture), 2, dim=1)
        log_var = torch.clamp(log_var.float(), -30.0, 20.0)
        latent = mean + torch.exp(0.5 * log_var).to(mean.dtype) * torch.randn(mean.shape, device=mean.device)
        made = self.last(self.decoder(latent.to(picture.dtype)))
        kl = 0.5 * torch.sum(mean.float().pow(2) + log_var.exp() - 1.0 - log_var, dim=[1, 2, 3]).mean()
        rebuilt = (picture - made).abs().float() + 0.5 * self.likeness(picture, made).float()
        nll = (rebuilt / self.spread.float().exp() + self.spread.float()).sum() / len(picture)
        self.critic.requires_grad_(False)
        fooled = -self.critic(made).float().mean()
        self.critic.requires_grad_(True)
        from_nll = torch.autograd.grad(nll, self.last.weight, retain_graph=True)[0]
        from_critic = torch.autograd.grad(fooled, self.last.weight, retain_graph=True)[0]
        weight = torch.norm(from_nll.float()) / (torch.norm(from_critic.float()) + 1e-4)
        weight = torch.clamp(weight, 0.0, 1e4).detach() * 0.5
        real, fake = self.critic(picture.contiguous().detach()), self.critic(made.contiguous().detach())
        hinge = 0.5 * (F.relu(1.0 - real.float()).mean() + F.relu(1.0 + fake.float()).mean())
        seen = picture.detach().float().requires_grad_(True)
        with in_float32(seen):
            slope = torch.autograd.grad(
                F.conv2d(seen, self.critic[0].weight.float(), stride=2).sum(), seen, create_graph=True
            )[0]
        return (nll + 1e-6 * kl + weight * fooled + hinge) / 100 + 0.01 * slope.pow(2).mean()


class Tokens(nn.Module):
    """Pictures as tokens: codes by moving means with dead ones revived, FSQ and LFQ, and MaskGIT on top of them."""

    def __init__(self, width: int = 8, codes: int = 16) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 12, 4, 4), nn.GELU(), nn.Conv2d(12, width, 1))
        self.dec = nn.Sequential(nn.Conv2d(width, 12, 1), nn.GELU(), nn.ConvTranspose2d(12, 1, 4, 4))
        self.register_buffer("book", normal(codes, width) * 0.5)
        self.register_buffer("sizes", torch.ones(codes))
        self.register_buffer("sums", normal(codes, width) * 0.5)
        self.levels, self.small = (5, 3, 4), nn.ModuleList([nn.Conv2d(width, 3, 1), nn.Conv2d(3, width, 1)])
        self.guess, self.places = nn.Embedding(codes + 1, 16), nn.Parameter(normal(16, 16) * 0.02)
        self.prior, self.top = (
            nn.TransformerEncoderLayer(16, 2, 24, 0.1, "gelu", batch_first=True),
            nn.Linear(16, codes),
        )

    @torch.no_grad()
    def moved(self, flat: Tensor, index: Tensor) -> None:
        onehot = F.one_hot(index, len(self.book)).to(flat.dtype)
        self.sizes.mul_(0.9).add_(onehot.sum(0), alpha=0.1)
        self.sums.mul_(0.9).add_((onehot.t() @ flat).to(self.sums.dtype), alpha=0.1)
        total = self.sizes.float().sum()
        smooth = (self.sizes.float() + 1e-5) / (total + len(self.book) * 1e-5) * total
        self.book.copy_(self.sums.float() / smooth.unsqueeze(1))
        dead = self.sizes < 0.92
        random = flat[torch.randperm(len(flat), device=flat.device)[: len(self.book)]]
        self.book[dead] = random[: int(dead.sum())].to(self.book.dtype) + 0.0

    def quantized(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = z.detach().permute(0, 2, 3, 1).reshape(-1, z.shape[1]).float()
        book = self.book.float()
        far = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ book.t() + book.pow(2).sum(1)
        index = far.argmin(1)
        chosen = F.embedding(index, book).view(len(z), *z.shape[2:], -1).permute(0, 3, 1, 2)
        if self.training:
            self.moved(flat, index)
        commit = F.mse_loss(z.float(), chosen.detach())
        return z + (chosen - z).detach(), index.view(len(z), -1), commit

    def finite(self, z: Tensor) -> Tensor:
        levels = torch.tensor(self.levels, device=z.device, dtype=torch.float32).view(1, -1, 1, 1)
        half = (levels - 1) * (1 + 1e-3) / 2
        offset = torch.where(levels % 2 == 0, 0.5, 0.0)
        bounded = (z.float() + torch.atanh(offset / half)).tanh() * half - offset
        rounded = bounded + (bounded.round() - bounded).detach()
        return rounded / (levels // 2)

    def loss(self, picture: Tensor) -> Tensor:
        z = self.enc(picture)
        codes, index, commit = self.quantized(z)
        made = self.dec(codes.to(z.dtype))
        low = self.small[0](z)
        finite = self.dec(self.small[1](self.finite(low).to(z.dtype)))
        bits = torch.where(low > 0, 1.0, -1.0)
        share = torch.stack([low, -low], -1).float().mul(4).softmax(-1)
        entropy = -(share * share.clamp(min=1e-5).log()).sum(-1).mean()
        mean = share.mean((0, 2, 3))
        spread = -(mean * mean.clamp(min=1e-5).log()).sum(-1).mean()
        rate = torch.cos(torch.rand(len(z), 1, device=z.device) * math.pi / 2)
        noise = torch.rand(index.shape, device=z.device)
        rank = noise.argsort(-1).argsort(-1)
        masked = rank < (rate * index.shape[1]).ceil()
        x = self.prior(self.guess(index.masked_fill(masked, len(self.book))) + self.places)
        prior = F.cross_entropy(self.top(x)[masked].float(), index[masked])
        same = F.l1_loss(made.float(), picture.float()) + F.smooth_l1_loss(finite.float(), picture.float(), beta=0.1)
        return same + 0.25 * commit + 0.1 * prior + 0.05 * (entropy - spread) + 0 * bits.mean()


class Teacher(nn.Module):
    """DINOv2: a teacher that follows, crops of two sizes, centres by Sinkhorn, hidden patches, KoLeo, registers."""

    def __init__(self, width: int = 16, kinds: int = 12) -> None:
        super().__init__()
        self.student = nn.ModuleDict(
            {
                "patch": nn.Conv2d(3, width, 4, 4),
                "body": nn.TransformerEncoderLayer(width, 2, 32, 0.0, F.gelu, batch_first=True, norm_first=True),
                "head": nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 8)),
                "last": nn.utils.parametrizations.weight_norm(nn.Linear(8, kinds, bias=False)),
            }
        )
        self.tokens, self.hidden = nn.Parameter(normal(1, 3, width) * 0.02), nn.Parameter(torch.zeros(1, 1, width))
        self.grid = nn.Parameter(normal(1, width, 4, 4) * 0.02)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def read(self, net: nn.ModuleDict, picture: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        x = net["patch"](picture)
        grid = F.interpolate(self.grid, x.shape[-2:], mode="bicubic", antialias=True, align_corners=False)
        x = x.flatten(2).mT
        if mask is not None:
            x = torch.where(mask.unsqueeze(-1), self.hidden.to(x.dtype), x)
        x = x + grid.flatten(2).mT.to(x.dtype)
        x = net["body"](torch.cat([self.tokens.to(x.dtype).expand(len(x), -1, -1), x], 1))
        points = [net["last"](F.normalize(net["head"](one), dim=-1, eps=1e-6)) for one in (x[:, 0], x[:, 3:])]
        return points[0].float(), points[1].float(), x[:, 0].float()

    @torch.no_grad()
    def centred(self, scores: Tensor) -> Tensor:
        q = torch.exp((scores - scores.max()) / 0.07).t()
        q /= q.sum()
        for _ in range(3):
            q /= q.sum(dim=1, keepdim=True) * q.shape[0]
            q /= q.sum(dim=0, keepdim=True) * q.shape[1]
        return (q * q.shape[1]).t()

    def loss(self, picture: Tensor) -> Tensor:
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), self.student.parameters()):
                slow.data.mul_(0.99).add_(fast.detach().data, alpha=0.01)
        wide = [picture, torch.flip(picture, dims=[-1]).mul(0.8)]
        small = [one[..., 4:12, 2:10] for one in wide]
        mask = torch.rand(len(picture), 16, device=picture.device).topk(6, dim=1).indices
        mask = torch.zeros(len(picture), 16, dtype=torch.bool, device=picture.device).scatter_(1, mask, True)
        with torch.no_grad():
            told = [self.read(self.teacher, one)[:2] for one in wide]
            goals = self.centred(torch.cat([one for one, _ in told])).chunk(2)
            patches = [F.softmax(one / 0.07, dim=-1) for _, one in told]
        seen = [self.read(self.student, one, mask) for one in wide] + [self.read(self.student, one) for one in small]
        total, count = picture.new_zeros((), dtype=torch.float32), 0
        for i, goal in enumerate(goals):
            for j, (guess, _, _) in enumerate(seen):
                if i != j:
                    total, count = total - (goal * F.log_softmax(guess / 0.1, -1)).sum(-1).mean(), count + 1
        hidden = [-(p * F.log_softmax(one[1] / 0.1, -1)).sum(-1) for p, one in zip(patches, seen)]
        patch = sum((one * mask).sum(-1) / mask.sum(-1).clamp(min=1.0) for one in hidden)
        with in_float32(picture):
            unit = F.normalize(seen[0][2], p=2, dim=-1)
            dots = torch.mm(unit, unit.t())
            dots.view(-1)[:: len(unit) + 1].fill_(-1)
            near = dots.max(1).indices
            koleo = -torch.log(nn.PairwiseDistance(2, eps=1e-8)(unit, unit[near]) + 1e-8).mean()
        return total / count + patch.mean() / 2 + 0.1 * koleo


PROGRAMS = (
    Program("rectified flow", "ninth", Rectified, lambda: [normal(2, 4, 8, 8), whole(20, 2, 5)]),
    Program("latent critic", "ninth", LatentCritic, lambda: [normal(2, 3, 16, 16).tanh()], ("checkpointed",)),
    Program("picture tokens", "ninth", Tokens, lambda: [normal(4, 1, 16, 16)]),
    Program("crops and a teacher", "ninth", Teacher, lambda: [normal(3, 3, 16, 16)]),
)
