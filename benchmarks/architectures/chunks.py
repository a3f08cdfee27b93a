"""Models that work in chunks, rays, pairs and packs: state space duality, delta rules, splats, triangles, codecs."""

from __future__ import annotations

import math

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def in_float32(like: Tensor) -> torch.autocast:
    """For what people compute outside of autocast."""
    return torch.autocast(like.device.type, enabled=False)


class StateSpaceDuality(nn.Module):
    """Mamba 2: decays as sums over segments, products within a chunk, states that are handed from chunk to chunk."""

    def __init__(self, width: int = 16, heads: int = 2, state: int = 4, words: int = 30) -> None:
        super().__init__()
        self.heads, self.state, self.inner = heads, state, 2 * width
        self.words = nn.Embedding(words, width)
        self.into = nn.Linear(width, 2 * self.inner + 2 * state + heads, bias=False)
        self.mix = nn.Conv1d(self.inner + 2 * state, self.inner + 2 * state, 4, groups=self.inner + 2 * state)
        self.rates, self.steps = nn.Parameter(torch.linspace(0.0, 1.0, heads)), nn.Parameter(normal(heads) * 0.2)
        self.skip, self.norm = nn.Parameter(torch.ones(heads)), nn.Parameter(torch.ones(self.inner))
        self.out = nn.Linear(self.inner, width, bias=False)

    @staticmethod
    def segments(x: Tensor) -> Tensor:
        """Sums of all segments that end at one place and begin after another."""
        length = x.shape[-1]
        spread = x.unsqueeze(-1).repeat_interleave(length, -1)
        below = torch.ones(length, length, dtype=torch.bool, device=x.device).tril(-1)
        sums = spread.masked_fill(~below, 0).cumsum(-2)
        return sums.masked_fill(~torch.ones_like(below).tril(), -math.inf)

    def scan(self, x: Tensor, decay: Tensor, b: Tensor, c: Tensor, chunk: int = 4) -> Tensor:
        x, b, c = (one.unflatten(1, (-1, chunk)) for one in (x, b, c))
        decay = decay.unflatten(1, (-1, chunk)).permute(0, 3, 1, 2)
        total = decay.cumsum(-1)
        within = torch.einsum("bzln,bzsn,bhzls,bzshp->bzlhp", c, b, self.segments(decay).exp(), x)
        states = torch.einsum("bzln,bhzl,bzlhp->bzhpn", b, (total[..., -1:] - total).exp(), x)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
        carried = self.segments(F.pad(total[..., -1], (1, 0))).exp()
        states = torch.einsum("bhzc,bchpn->bzhpn", carried, states)[:, :-1]
        return (within + torch.einsum("bzln,bzhpn,bhzl->bzlhp", c, states, total.exp())).flatten(1, 2)

    def loss(self, words: Tensor) -> Tensor:
        embedded = self.words(words)
        gate, mixed, steps = self.into(embedded).split([self.inner, self.inner + 2 * self.state, self.heads], -1)
        mixed = F.silu(self.mix(F.pad(mixed.mT, (3, 0))).mT)
        x, b, c = mixed.split([self.inner, self.state, self.state], -1)
        steps = F.softplus(steps.float() + self.steps.float())
        x = x.unflatten(-1, (self.heads, -1)).float()
        made = self.scan(x * steps[..., None], -steps * self.rates.float().exp(), b.float(), c.float())
        made = (made + x * self.skip.float()[:, None]).flatten(2)
        made = F.rms_norm(made * F.silu(gate.float()), (self.inner,), self.norm.float(), 1e-5)
        scores = F.linear(self.out(made.to(embedded.dtype)) + embedded, self.words.weight)
        return F.cross_entropy(scores[:, :-1].flatten(0, 1).float(), words[:, 1:].flatten())


class DeltaRule(nn.Module):
    """Gated DeltaNet: a memory that unlearns what it is about to be told; a chunk by one triangular solution."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.gates = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 2 * heads)
        self.short = nn.Conv1d(3 * width, 3 * width, 3, padding=2, groups=3 * width, bias=False)
        self.norm, self.out = nn.RMSNorm(width // heads), nn.Linear(width, width)

    def chunk(self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        size = q.shape[-2]
        total = decay.cumsum(-1)
        apart = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
        told = k * beta[..., None]
        lower = torch.tril((told @ k.mT) * apart, -1) + torch.eye(size, device=q.device)
        inverse = torch.linalg.solve_triangular(
            lower, torch.eye(size, device=q.device).expand_as(lower), upper=False, unitriangular=True
        )
        values, keys = inverse @ (v * beta[..., None]), inverse @ (told * total.exp()[..., None])
        fresh = values - keys @ state
        seen = (q * total.exp()[..., None]) @ state + ((q @ k.mT) * apart).tril() @ fresh
        left = (total[..., -1:] - total).exp()[..., None]
        return seen, state * total[..., -1:, None].exp() + (k * left).mT @ fresh

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        length = x.shape[1]
        mixed = F.silu(self.short(self.qkv(x).mT)[..., :length].mT)
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2).float() for one in mixed.chunk(3, -1))
        q, k = F.normalize(q, dim=-1) * q.shape[-1] ** -0.5, F.normalize(k, dim=-1)
        beta, decay = self.gates(x).float().transpose(1, 2).chunk(2, 1)
        beta, decay = beta.sigmoid(), F.logsigmoid(decay)
        with in_float32(x):
            state, made = torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1], device=x.device), []
            for start in range(0, length, 4):
                here = slice(start, start + 4)
                pieces = (one[:, :, here] for one in (q, k, v, beta, decay))
                seen, state = self.chunk(*pieces, state)
                made.append(seen)
        joined = self.norm(torch.cat(made, 2).to(x.dtype)).transpose(1, 2).flatten(2)
        return F.mse_loss(self.out(joined).float(), y.float()) + 1e-3 * state.square().mean()


class FlowMatching(nn.Module):
    """A diffusion transformer: norms that time modulates, gates from zero, rotations in two dimensions."""

    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.patches, self.labels = nn.Conv2d(2, width, 2, 2), nn.Embedding(classes + 1, width)
        self.time = nn.Sequential(nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(3))
        self.modulate = nn.Linear(width, 6 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.keys, self.queries = nn.RMSNorm(8), nn.RMSNorm(8)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU("tanh"), nn.Linear(2 * width, width))
        self.last, self.paint = nn.Linear(width, 2 * width), nn.Linear(width, 8)

    @staticmethod
    def turned(x: Tensor, high: int, wide: int) -> Tensor:
        rows = torch.arange(high, device=x.device).repeat_interleave(wide)
        columns = torch.arange(wide, device=x.device).repeat(high)
        rate = 10000 ** -(torch.arange(2, device=x.device) / 2)
        angle = torch.cat([torch.outer(rows, rate), torch.outer(columns, rate)], -1)
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2).to(x.dtype)

    def loss(self, pictures: Tensor, labels: Tensor) -> Tensor:
        noise = torch.randn_like(pictures)
        time = torch.sigmoid(torch.randn(len(pictures), device=pictures.device))
        kept = torch.rand(len(labels), device=labels.device) < 0.9
        at = time.view(-1, 1, 1, 1).to(pictures.dtype)
        seen = self.patches((1 - at) * pictures + at * noise)
        high, wide = seen.shape[-2:]
        tokens = seen.flatten(2).mT
        waves = time[:, None] * 1000 * torch.exp(-math.log(10000) * torch.arange(4, device=time.device) / 4)
        told = self.time(torch.cat([waves.cos(), waves.sin()], -1).to(pictures.dtype))
        told = F.silu(told + self.labels(torch.where(kept, labels, self.labels.num_embeddings - 1)))
        shift, scale, gate, shift2, scale2, gate2 = self.modulate(told)[:, None].chunk(6, -1)
        q, k, v = self.qkv(self.norms[0](tokens) * (1 + scale) + shift).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        q, k = self.turned(self.queries(q), high, wide), self.turned(self.keys(k), high, wide)
        looked = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v).transpose(1, 2).flatten(2)
        tokens = tokens + gate.tanh() * self.out(looked)
        tokens = torch.addcmul(tokens, gate2, self.feed(self.norms[1](tokens) * (1 + scale2) + shift2))
        shift, scale = self.last(told)[:, None].chunk(2, -1)
        painted = self.paint(torch.addcmul(shift, self.norms[2](tokens), 1 + scale))
        speed = F.fold(painted.mT.float(), (2 * high, 2 * wide), 2, stride=2)
        error = (speed - (noise - pictures).float()).square().mean((1, 2, 3))
        weight = torch.minimum(1 / (error.detach() + 0.1), torch.full_like(error, 2.0))
        like = F.cosine_similarity(speed.flatten(1), noise.float().flatten(1))
        return (weight * error).mean() + 0.05 * (1 - like).mean()


class Splats(nn.Module):
    """Gaussian splatting: turns by quaternions, ellipses on a screen, an order by depth, light that is left."""

    def __init__(self, count: int = 12) -> None:
        super().__init__()
        self.places, self.sizes = nn.Parameter(normal(count, 3) * 0.6), nn.Parameter(normal(count, 3, seed=3) * 0.2 - 1)
        self.turns, self.cover = nn.Parameter(normal(count, 4, seed=4)), nn.Parameter(normal(count, seed=5))
        self.colours = nn.Parameter(normal(count, 4, 3, seed=6) * 0.3)

    def covariances(self) -> Tensor:
        w, x, y, z = F.normalize(self.turns.float(), dim=-1).unbind(-1)
        rows = (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y))
        rows += (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x))
        rows += (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y))
        scaled = torch.stack(rows, -1).unflatten(-1, (3, 3)) @ torch.diag_embed(self.sizes.float().exp())
        return scaled @ scaled.mT

    def loss(self, picture: Tensor) -> Tensor:
        with in_float32(picture):
            x, y, depth = (self.places.float() + self.places.new_tensor([0.0, 0.0, 4.0]).float()).unbind(-1)
            zero = torch.zeros_like(depth)
            slopes = [8 / depth, zero, -8 * x / depth**2, zero, 8 / depth, -8 * y / depth**2]
            project = torch.stack(slopes, -1).unflatten(-1, (2, 3))
            flat = project @ self.covariances() @ project.mT + 0.3 * torch.eye(2, device=picture.device)
            inverse = torch.linalg.inv(flat)
            view = F.normalize(torch.stack([x, y, depth], -1), dim=-1)
            basis = torch.cat([torch.full_like(view[:, :1], 0.2820948), 0.4886025 * view.roll(1, -1)], -1)
            colours = torch.relu(torch.einsum("nk,nkc->nc", basis, self.colours.float()) + 0.5)
            order = depth.detach().argsort()
            high, wide = picture.shape[-2:]
            axes = (torch.arange(count, device=x.device) for count in (wide, high))
            grid = torch.stack(torch.meshgrid(*axes, indexing="xy"), -1)
            centre = torch.stack([8 * x / depth + wide / 2, 8 * y / depth + high / 2], -1)
            apart = grid[..., None, :] - centre[order]
            power = -0.5 * torch.einsum("hwni,nij,hwnj->hwn", apart, inverse[order], apart)
            alpha = (self.cover.float().sigmoid()[order] * power.clamp(max=0).exp()).clamp_max(0.99)
            alpha = torch.where(alpha < 1 / 255, 0.0, alpha)
            left = torch.cumprod(torch.cat([torch.ones_like(alpha[..., :1]), 1 - alpha], -1), -1)
            painted = torch.einsum("hwn,nc->chw", alpha * left[..., :-1], colours[order]) + 0.1 * left[..., -1]
            size = torch.linalg.det(flat).clamp_min(1e-8).log().mean()
        return F.l1_loss(painted, picture.float()) + 0.01 * size + 0.01 * (-alpha * torch.log(alpha + 1e-6)).mean()


class Triangles(nn.Module):
    """AlphaFold: outer products of an alignment, triangles of pairs, attention by columns, points in frames."""

    def __init__(self, width: int = 8, pair: int = 8) -> None:
        super().__init__()
        self.row_norm, self.pair_norm, self.end = nn.LayerNorm(width), nn.LayerNorm(pair), nn.LayerNorm(pair)
        self.left, self.right, self.outer = nn.Linear(width, 4), nn.Linear(width, 4), nn.Linear(16, pair)
        self.qkv, self.bias = nn.Linear(width, 3 * width), nn.Linear(pair, 2, bias=False)
        self.gate, self.close = nn.Linear(width, width), nn.Linear(width, width)
        self.edges, self.edge_gates, self.pair_out = nn.Linear(pair, 16), nn.Linear(pair, 16), nn.Linear(8, pair)
        self.points, self.frames, self.bins = nn.Linear(width, 9), nn.Linear(width, 6), nn.Linear(pair, 10)

    def loss(self, rows: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        m = self.row_norm(rows)
        kept = mask.to(m.dtype)[..., None]
        outer = torch.einsum("sia,sjb->ijab", self.left(m) * kept, self.right(m) * kept).flatten(2)
        count = torch.einsum("si,sj->ij", kept[..., 0], kept[..., 0])[..., None]
        z = self.outer(outer / (count + 1e-3)).to(rows.dtype)
        q, k, v = self.qkv(m).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        bias = self.bias(self.pair_norm(z)).permute(2, 0, 1) + torch.where(mask, 0.0, -1e4)[:, None, None].to(z.dtype)
        looked = F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype)).transpose(1, 2).flatten(2)
        m = m + self.close(looked * self.gate(m).sigmoid())
        normed = self.pair_norm(z)
        a, b = (self.edges(normed) * self.edge_gates(normed).sigmoid()).chunk(2, -1)
        going = torch.einsum("ikc,jkc->ijc", a, b) + torch.einsum("kic,kjc->ijc", a, b)
        z = z + self.end(self.pair_out(going.to(z.dtype)))
        with in_float32(rows):
            first = m[0].float() @ self.frames.weight.float().mT + self.frames.bias.float()
            e1 = F.normalize(first[:, :3], dim=-1)
            e2 = F.normalize(first[:, 3:] - (e1 * first[:, 3:]).sum(-1, keepdim=True) * e1, dim=-1)
            frames = torch.stack([e1, e2, torch.linalg.cross(e1, e2, dim=-1)], -1)
            moved = (m[0].float() @ self.points.weight.float().mT + self.points.bias.float()).unflatten(-1, (3, 3))
            points = torch.einsum("nij,npj->npi", frames, moved) + places.float()[:, None]
            local = torch.einsum("nji,mpnj->mpni", frames, points[:, :, None] - places.float())
            wanted = (places.float()[:, None] - places.float())[:, None]
            fape = torch.sqrt((local - wanted).square().sum(-1) + 1e-4).clamp(max=10.0).mean() / 10
            apart = torch.cdist(places.float(), places.float())
            edges = torch.linspace(0.3, 3.0, 9, device=rows.device)
            bins = torch.bucketize(apart, edges)
            scores = self.bins((z + z.transpose(0, 1)).to(self.bins.weight.dtype)).float()
        return fape + 0.3 * F.cross_entropy(scores.flatten(0, 1), bins.flatten())


class ResidualCodec(nn.Module):
    """A sound codec: Snake activations, codebooks one after the other that are averaged along, levels, random depth."""

    def __init__(self, width: int = 8, entries: int = 12) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv1d(1, width, 8, 4, 2), nn.ConvTranspose1d(width, 1, 8, 4, 2)
        self.snake = nn.Parameter(torch.ones(width, 1))
        self.down, self.up = nn.Linear(width, 3), nn.Linear(3, width)
        self.register_buffer("books", normal(2, entries, width) * 0.5)
        self.register_buffer("counts", torch.ones(2, entries))

    def bent(self, x: Tensor) -> Tensor:
        return x + (self.snake + 1e-9).reciprocal() * torch.sin(self.snake * x).pow(2)

    def quantized(self, number: int, x: Tensor) -> tuple[Tensor, Tensor]:
        book = self.books[number].float()
        flat = x.reshape(-1, x.shape[-1])
        apart = flat.square().sum(1, keepdim=True) - 2 * flat @ book.mT + book.square().sum(1)
        chosen = apart.argmin(1)
        with torch.no_grad():
            hits = F.one_hot(chosen, len(book)).to(flat.dtype)
            self.counts[number].mul_(0.9).add_(hits.sum(0), alpha=0.1)
            share = (self.counts[number].float() + 1e-5) / (self.counts[number].float().sum() + 1e-5 * len(book))
            sums = torch.zeros_like(book).index_add_(0, chosen, flat)
            mean = sums / hits.sum(0).clamp_min(1)[:, None]
            self.books[number].lerp_(torch.where(hits.sum(0)[:, None] > 0, mean, book).to(self.books.dtype), 0.1)
        picked = F.embedding(chosen, book).view_as(x)
        entropy = -(share * share.log()).sum()
        return x + (picked - x).detach(), F.mse_loss(x, picked.detach()) + 0 * entropy

    def loss(self, sound: Tensor) -> Tensor:
        hidden = self.bent(self.encode(sound)).mT.float()
        with in_float32(sound):
            rest, made, cost = hidden, torch.zeros_like(hidden), torch.zeros((), device=sound.device)
            depth = torch.randint(1, 3, (len(sound),), device=sound.device)
            for number in range(2):
                one, error = self.quantized(number, rest)
                used = (number < depth).float()[:, None, None]
                made, rest, cost = made + one * used, rest - one.detach(), cost + 0.25 * error
        levels = 3 * torch.tanh(self.down(made.to(self.down.weight.dtype)).float())
        levels = levels + (torch.round(levels) - levels).detach()
        made = made.to(self.up.weight.dtype) + self.up((levels / 3).to(self.up.weight.dtype))
        heard = self.decode(made.mT).float()
        window = torch.hann_window(16, device=sound.device)
        both = (heard.squeeze(1), sound.float().squeeze(1))
        spectra = [torch.stft(one, 16, 4, window=window, return_complex=True) for one in both]
        sizes = [torch.sqrt(one.real.square() + one.imag.square() + 1e-5) for one in spectra]
        shape = torch.linalg.matrix_norm(sizes[0] - sizes[1]) / torch.linalg.matrix_norm(sizes[1])
        return F.l1_loss(heard, sound.float()) + cost + shape.mean() + F.l1_loss(sizes[0].log(), sizes[1].log())


PROGRAMS = (
    Program("Mamba 2", "sixth", StateSpaceDuality, lambda: [whole(30, 2, 12)]),
    Program("delta rule", "sixth", DeltaRule, lambda: [normal(2, 12, 16), normal(2, 12, 16, seed=3)]),
    Program("flow matching", "sixth", FlowMatching, lambda: [normal(4, 2, 8, 8), whole(5, 4)]),
    Program("splats", "sixth", Splats, lambda: [normal(3, 9, 11).sigmoid()]),
    Program("triangles", "sixth", Triangles, lambda: [normal(4, 7, 8), whole(5, 4, 7) > 0, normal(7, 3, seed=3)]),
    Program("residual codec", "sixth", ResidualCodec, lambda: [normal(2, 1, 96) * 0.3], ("checkpointed",)),
)
