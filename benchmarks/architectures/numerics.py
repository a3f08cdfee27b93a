"""Programs made of numbers that few models have: complex, sparse, whole, huge, tiny, masked, special, none at all."""

from __future__ import annotations

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class ComplexLayers(nn.Module):
    """Complex weights, products, norms and activations, as in models of signals and of quantum states."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(normal(width, width, 2, seed=seed) * 0.2) for seed in (3, 4))
        self.bias = nn.Parameter(normal(width, 2, seed=5) * 0.1)
        self.head = nn.Linear(3 * width, 4)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        first, second, bias = (torch.view_as_complex(one.float()) for one in (self.first, self.second, self.bias))
        wave = torch.fft.fft2(torch.complex(x.float(), x.float().roll(1, -1)))
        hidden = wave @ first + bias
        hidden = torch.polar(F.relu(hidden.abs() - 0.1), hidden.angle())
        hidden = torch.matmul(hidden, second.mH) / (1 + hidden.abs().square().mean(-1, keepdim=True).sqrt())
        state = torch.linalg.matrix_exp(1j * (first + first.mH))
        turned = hidden @ state
        back = torch.fft.ifftn(torch.fft.fftshift(turned, dim=-1), dim=(-2, -1))
        features = torch.cat([back.real, back.imag, torch.log1p((turned * turned.conj()).real)], -1).mean(1)
        return (
            F.cross_entropy(self.head(features.to(self.head.weight.dtype)), y) + 0.01 * torch.vdot(bias, state[0]).abs()
        )


class SparseGraph(nn.Module):
    """A graph as a sparse matrix, in both layouts."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(6, width), nn.Linear(width, 3)
        self.strength = nn.Parameter(normal(40, seed=3))

    def loss(self, nodes: Tensor, edges: Tensor) -> Tensor:
        hidden, count = torch.tanh(self.into(nodes)).float(), len(nodes)
        matrix = torch.sparse_coo_tensor(edges, torch.sigmoid(self.strength.float()), (count, count)).coalesce()
        hidden = torch.sparse.mm(matrix, hidden) + hidden
        likely = torch.sparse.softmax(matrix, 1).to_dense()
        rows = torch.eye(count, device=nodes.device).to_sparse_csr()
        hidden = likely @ hidden + (rows @ hidden.detach())
        return (
            F.cross_entropy(self.out(hidden.to(nodes.dtype)).float(), torch.arange(count, device=nodes.device) % 3)
            + matrix.values().square().mean()
        )


class Hashes(nn.Module):
    """Whole numbers that overflow, bits, counts: an embedding of hashed features."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.EmbeddingBag(32, 8, mode="sum"), nn.Linear(8, 4)

    def loss(self, words: Tensor, y: Tensor) -> Tensor:
        number = words * 2654435761 + 97
        number = (number ^ (number >> 13)) * 1540483477
        number = number.bitwise_xor(number << 7) & 0x7FFFFFFF
        buckets = torch.remainder(number, 32)
        small = (words.to(torch.int8) * 77).to(torch.int16) - (words.to(torch.uint8) * 3).to(torch.int16)
        seen = torch.bincount(buckets.flatten(), minlength=32)
        rank = torch.bucketize(number.float() / 2**31, torch.linspace(0, 1, 9, device=words.device))
        parity = (number.cumsum(-1) // 3 % 5).float() + torch.div(number, -7, rounding_mode="floor").remainder(
            3
        ).float()
        weight = 1 / (1 + seen[buckets].float()) + 0.01 * rank.float() + 0.001 * small.float().abs() + 0.01 * parity
        hidden = self.table(buckets, per_sample_weights=weight.to(self.table.weight.dtype))
        return F.cross_entropy(self.out(torch.tanh(hidden)), y)


class Magnitudes(nn.Module):
    """Huge and tiny numbers, denormals and infinities that a careful program masks."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.out = nn.Parameter(normal(16) * 0.1), nn.Linear(16, 4)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        scale = torch.exp(self.scale.float())
        huge, tiny = x.float() * scale * 1e30, x.float() * scale * 1e-30
        level = torch.log(huge.abs() + 1e25) - torch.log(tiny.abs() + 1e-36)
        denormal = (tiny * 1e-11) * 1e10 * 1e30
        far = torch.logsumexp(huge.abs().log() * 100, -1) + F.softplus(x.float() * 80 * scale).mean(-1)
        masked = (x.float() * scale).masked_fill(x.float() > 1, float("-inf"))
        likely = torch.softmax(masked, -1)
        none = torch.softmax(torch.where(x.float().sum(-1, keepdim=True) > 0, float("-inf"), masked), -1).nan_to_num(
            0.0
        )
        best = masked.amax(-1).clamp(min=-5) + torch.hypot(huge / 1e15, huge / 1e15).mean(-1) / 1e15
        features = torch.tanh(level / 60) + denormal + likely + 0.1 * none
        return F.cross_entropy(self.out(features.to(x.dtype)), y) + 1e-4 * (far + best).mean()


class Masks(nn.Module):
    """Attention of sequences of which some are all padding, by three implementations."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words, self.mix = nn.Linear(6, width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.key, self.query, self.out = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 6)

    def loss(self, x: Tensor, lengths: Tensor) -> Tensor:
        hidden = self.words(x)
        real = torch.arange(x.shape[1], device=x.device)[None] < lengths[:, None]
        mixed, _ = self.mix(
            hidden, hidden, hidden, key_padding_mask=~(real | (lengths == 0)[:, None]), need_weights=False
        )
        query, key = (one(hidden).unflatten(-1, (2, -1)).transpose(1, 2) for one in (self.query, self.key))
        allowed = (real[:, None, None] & real[:, None, :, None]).expand(-1, 2, -1, -1)
        by_sdpa = F.scaled_dot_product_attention(query, key, key, attn_mask=allowed)
        scores = query.float() @ key.float().mT / 3
        by_hand = (
            torch.softmax(scores.masked_fill(~allowed, float("-inf")), -1).masked_fill(~allowed, 0.0) @ key.float()
        )
        both = torch.where(allowed.any(-1, keepdim=True), by_sdpa.float() + by_hand, 0.0).transpose(1, 2).flatten(2)
        error = (self.out((mixed.float() + both).to(x.dtype)).float() - x.float()).square().mean(-1)
        return (error * real).sum() / real.sum().clamp(min=1)


class Nothing(nn.Module):
    """Batches, experts and selections that are empty now and then."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 6)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(6))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 4)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        likely = F.softmax(self.gate(x).float() + 3 * x[:, :1].float(), -1)
        strength, chosen = likely.topk(2, -1)
        total = torch.zeros_like(x, dtype=torch.float32)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            made = expert(self.norm(x[rows])).float() * strength[rows, place, None]
            total = total.index_add(0, rows, made)
        none = x[y < 0]
        rest = torch.cat([total.to(x.dtype), self.norm(none)]) if len(none) == 0 else total
        small = (
            F.cross_entropy(self.out(none), y[:0], reduction="sum").float()
            + none.sum().float()
            + none.new_zeros(0, 3).prod(1).sum()
        )
        return F.cross_entropy(self.out(rest.to(x.dtype)), y) + small


class Special(nn.Module):
    """Functions of statistics: likelihoods of many distributions."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = nn.Parameter(normal(8, 6) * 0.5)

    def loss(self, x: Tensor, _: Tensor) -> Tensor:
        a, b = F.softplus(self.raw.float())[:4] + 0.3, F.softplus(self.raw.float())[4:] + 0.3
        part, count = torch.sigmoid(x.float()), (x.float().abs() * 4).floor()
        z = x.float() * a
        terms = [
            torch.distributions.Beta(a, b).log_prob(part),
            torch.distributions.Gamma(a, b).log_prob(x.float().abs() + 0.1),
            torch.distributions.StudentT(a + 1, b).log_prob(x.float()),
            torch.distributions.NegativeBinomial(a, logits=b).log_prob(count),
            torch.distributions.VonMises(b, a).log_prob(x.float()),
            torch.distributions.Dirichlet(a).log_prob(F.softmax(x.float(), -1))[:, None],
            torch.distributions.kl_divergence(torch.distributions.Gamma(a, b), torch.distributions.Gamma(b, a)),
            torch.special.log_ndtr(z),
            torch.special.i0e(z),
            torch.special.i1(z.clamp(-5, 5)),
            torch.erfinv(0.9 * torch.tanh(z)),
            torch.special.ndtri(part * 0.98 + 0.01),
            torch.special.entr(part * a),
            torch.xlogy(count, a),
            torch.special.xlog1py(count, b),
            torch.special.erfcx(z),
            torch.digamma(a),
            torch.polygamma(1, b),
            torch.mvlgamma(a + 2, 2),
            torch.sinc(z),
            torch.special.gammainc(b.detach(), a.detach()),
            torch.special.bessel_j0(x.float()),
            torch.special.zeta(a.detach() + 2, 1 + b.detach()),
        ]
        return sum(-0.01 * term.clamp(-50, 50).mean() for term in terms)


class Matrices(nn.Module):
    """Gradients through decompositions of small matrices."""

    def __init__(self, size: int = 5) -> None:
        super().__init__()
        self.raw = nn.Parameter(normal(3, size, size) * 0.3)

    def loss(self, x: Tensor, _: Tensor) -> Tensor:
        raw, x = self.raw.float(), x.float()
        with torch.autocast(x.device.type, enabled=False):
            even = raw @ raw.mT + 2 * torch.diag_embed(torch.arange(1.0, 6, device=x.device))
            lower = torch.linalg.cholesky(even)
            values, vectors = torch.linalg.eigh(even)
            whitened = vectors @ (vectors.mT @ x / values.sqrt().unsqueeze(-1))
            solved = torch.linalg.solve_triangular(lower, x, upper=False)
            q, r = torch.linalg.qr(even)
            sizes = torch.linalg.svdvals(raw)
            _, volume = torch.linalg.slogdet(raw + 3 * torch.eye(5, device=x.device))
            inverse = torch.linalg.pinv(torch.cat([even, raw], -2))
            fitted = torch.linalg.lstsq(even, x).solution
            _, lower_again, u = torch.linalg.lu(even)
            parts = [
                torch.linalg.multi_dot([raw[0], raw[1], raw[2]]).trace(),
                torch.linalg.matrix_exp(0.3 * raw).diagonal(0, 1, 2).sum(),
                whitened.square().mean(),
                solved.abs().mean(),
                (q.abs() * r.abs()).sum() * 0.1,
                sizes.log().sum(),
                volume.sum(),
                inverse.square().sum(),
                fitted.norm(),
                torch.cholesky_inverse(lower[0]).trace(),
                torch.linalg.det(even).log().sum(),
                torch.linalg.matrix_norm(raw, 2).sum(),
                torch.linalg.cond(even).mean() * 0.1,
                torch.linalg.inv(even).sum(),
                (u.diagonal(0, 1, 2).abs() + lower_again.abs().sum(-1)).sum() * 0.1,
                torch.linalg.matrix_power(0.5 * raw, 3).sum(),
                torch.logdet(even).sum(),
                torch.cov(x[0]).square().sum(),
                torch.kron(raw[0], raw[1]).abs().mean(),
            ]
        return 0.1 * sum(parts)


class Robust(nn.Module):
    """Statistics by order: quantiles, medians, trimmed means, correlations, counts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(10, 8), nn.Linear(12, 4)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.first(x).float()
        middle, _ = hidden.nanmedian(0)
        low, high = torch.quantile(hidden, torch.tensor([0.1, 0.85], device=x.device), dim=0)
        ordered = hidden.sort(0).values[2:-2].mean(0)
        third = hidden.kthvalue(3, 0).values
        together = torch.corrcoef(hidden.t())[0, 1:5] + torch.cov(hidden.t())[1, :4]
        counts = torch.histc(hidden.detach(), 6, -3, 3)[:4] / len(x)
        place = torch.searchsorted(hidden.detach().flatten().sort().values, middle.detach()).float() / hidden.numel()
        spread, mean = torch.std_mean(hidden, 0, correction=0)
        longest = hidden.cummax(0).values[-1] - hidden.cummin(0).values[-1] + hidden.logcumsumexp(0)[-1]
        row = torch.stack([middle + low, high - ordered, third + longest])[:, :4] + together + counts + place[:4]
        features = torch.cat([row.flatten()]).to(x.dtype) * 0.1
        scores = self.second(features)[None].expand(len(x), -1).float() + (hidden[:, :4] - mean[:4]) / (
            spread[:4] + 0.1
        )
        return F.cross_entropy(scores, y)


PROGRAMS = (
    Program("complex layers", "fresh", ComplexLayers, lambda: [normal(3, 8, 12), whole(4, 3)]),
    Program("sparse graph", "fresh", SparseGraph, lambda: [normal(12, 6), whole(12, 2, 40)]),
    Program("hashed features", "fresh", Hashes, lambda: [whole(100_000, 6, 7), whole(4, 6)]),
    Program("magnitudes", "fresh", Magnitudes, lambda: [normal(10, 16), whole(4, 10)]),
    Program("masks", "fresh", Masks, lambda: [normal(5, 7, 6), torch.tensor([7, 3, 0, 1, 5])]),
    Program("nothing", "fresh", Nothing, lambda: [normal(9, 8), whole(4, 9)]),
    Program("special functions", "fresh", Special, lambda: [normal(4, 6), normal(1)]),
    Program("decompositions", "fresh", Matrices, lambda: [normal(3, 5, 4), normal(1)]),
    Program("robust statistics", "fresh", Robust, lambda: [normal(20, 10), whole(4, 20)]),
)
