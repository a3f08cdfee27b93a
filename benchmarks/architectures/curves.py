"""Models made of curves, trees, fields and likelihoods: splines, sparse choices, optical flow, processes, topics."""

from __future__ import annotations

import math

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Splines(nn.Module):
    """KAN: every edge is a curve of B-splines by recursion; losses of its edges' sizes and their entropy."""

    def __init__(self, sizes: tuple[int, ...] = (4, 6, 2), pieces: int = 5, order: int = 3) -> None:
        super().__init__()
        self.order = order
        self.register_buffer("knots", (torch.arange(pieces + 2 * order + 1) - order) * (2 / pieces) - 1)
        self.bases = nn.ParameterList(normal(out, size) * 0.3 for size, out in zip(sizes, sizes[1:]))
        self.curves = nn.ParameterList(
            normal(out, size, pieces + order, seed=5) * 0.1 for size, out in zip(sizes, sizes[1:])
        )

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        knots, penalty = self.knots.float(), x.new_zeros((), dtype=torch.float32)
        hidden = x.float().tanh()
        for base, curve in zip(self.bases, self.curves):
            at = hidden[..., None]
            spline = ((at >= knots[:-1]) & (at < knots[1:])).float()
            for k in range(1, self.order + 1):
                left = (at - knots[: -k - 1]) / (knots[k:-1] - knots[: -k - 1])
                right = (knots[k + 1 :] - at) / (knots[k + 1 :] - knots[1:-k])
                spline = left * spline[..., :-1] + right * spline[..., 1:]
            bent = torch.tensordot(spline, curve.float().permute(1, 2, 0), 2)
            hidden = F.linear(F.silu(hidden).to(base.dtype), base).float() + bent
            sizes = curve.float().abs().mean(-1)
            likely = sizes / sizes.sum()
            penalty = penalty + sizes.sum() - torch.xlogy(likely, likely).sum()
        return F.smooth_l1_loss(hidden, y.float(), beta=0.3) + 0.01 * penalty


class SparseChoices(nn.Module):
    """TabNet and soft trees: sparsemax by sorting, entmax by halving an interval, ghost batches, products of paths."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.into, self.ghost = nn.Linear(width, width), nn.BatchNorm1d(width, momentum=0.3)
        self.mask, self.feed = nn.Linear(6, width, bias=False), nn.Linear(width, 12)
        self.splits, self.leaves = nn.Linear(width, 7), nn.Parameter(normal(8, 3) * 0.5)

    def sparsemax(self, scores: Tensor) -> Tensor:
        ordered = scores.sort(-1, descending=True).values
        total = ordered.cumsum(-1) - 1
        count = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
        kept = (ordered * count > total).sum(-1, keepdim=True)
        return F.relu(scores - total.gather(-1, kept - 1) / kept)

    def entmax(self, scores: Tensor) -> Tensor:
        half = scores * 0.5
        low, high = half.amax(-1, keepdim=True) - 1, half.amax(-1, keepdim=True) - scores.shape[-1] ** -0.5
        with torch.no_grad():
            for _ in range(12):
                middle = (low + high) / 2
                over = F.relu(half - middle).square().sum(-1, keepdim=True) >= 1
                low, high = torch.where(over, middle, low), torch.where(over, high, middle)
        likely = F.relu(half - low).square()
        return likely / likely.sum(-1, keepdim=True)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        seen = torch.cat([self.ghost(part) for part in self.into(x).chunk(2)])
        prior, total, used = torch.ones_like(seen, dtype=torch.float32), 0.0, x.new_zeros((), dtype=torch.float32)
        state = F.glu(self.feed(seen), -1)
        for step in range(2):
            choose = self.sparsemax if step == 0 else self.entmax
            mask = choose(self.mask(state).float() * prior)
            prior = prior * (1.3 - mask)
            used = used - (mask * torch.log(mask + 1e-10)).sum(-1).mean()
            state = F.glu(self.feed((mask * seen).to(seen.dtype)), -1) * math.sqrt(0.5)
            total = total + F.relu(state)
        right = torch.sigmoid(self.splits(seen).float())
        paths = right.new_ones(len(x), 1)
        for depth in range(3):
            here = right[:, 2**depth - 1 : 2 ** (depth + 1) - 1]
            paths = torch.stack([paths * (1 - here), paths * here], -1).flatten(1)
        likely = paths @ self.leaves.float().softmax(-1)
        balance = -0.5 * (right.mean(0).log() + (1 - right.mean(0)).log()).mean()
        return (
            F.nll_loss(likely.clamp_min(1e-8).log(), y)
            + 1e-2 * (used + balance)
            + 0.1 * total.float().logsumexp(-1).mean()
        )


class OpticalFlow(nn.Module):
    """RAFT: all pairs as a pyramid, looked up round a guess, a convolutional GRU, upsampling by convex weights."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.see = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3), nn.InstanceNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1)
        )
        self.gates, self.new = (nn.Conv2d(width + 20, size, 3, padding=1) for size in (2 * width, width))
        self.flow, self.mask = nn.Conv2d(width, 2, 3, padding=1), nn.Conv2d(width, 16 * 9, 1)

    def loss(self, first: Tensor, second: Tensor, truth: Tensor) -> Tensor:
        one, other = self.see(first), self.see(second)
        count, width, high, wide = one.shape
        pairs = torch.einsum("bchw,bcij->bhwij", one, other).float() / math.sqrt(width)
        levels = [pairs.flatten(0, 2)[:, None]]
        levels.append(F.avg_pool2d(levels[0], 2, ceil_mode=True))
        rows, columns = torch.meshgrid(*(torch.arange(size, device=one.device) for size in (high, wide)), indexing="ij")
        base = torch.stack([columns, rows], -1).float().expand(count, -1, -1, -1)
        around = torch.cartesian_prod(*[torch.arange(-1, 2, device=one.device)] * 2).view(3, 3, 2).float()
        at, state, total = base, torch.tanh(one), torch.zeros((), device=one.device)
        for turn in range(2):
            at = at.detach()
            taken = []
            for number, level in enumerate(levels):
                sizes = torch.tensor([level.shape[-1] - 1, level.shape[-2] - 1], device=one.device).clamp(min=1)
                place = 2 * (at.reshape(-1, 1, 1, 2) / 2**number + around) / sizes - 1
                taken.append(F.grid_sample(level, place, align_corners=True).view(count, high, wide, -1))
            seen = torch.cat([*taken, at - base], -1).movedim(-1, 1).to(one.dtype)
            update, reset = torch.sigmoid(self.gates(torch.cat([state, seen], 1))).chunk(2, 1)
            fresh = torch.tanh(self.new(torch.cat([reset * state, seen], 1)))
            state = (1 - update) * state + update * fresh
            at = at + self.flow(state).float().movedim(1, -1)
            weights = self.mask(state).float().view(count, 1, 9, 4, 4, high, wide).softmax(2)
            moved = (at - base).movedim(-1, 1) * 4
            near = F.unfold(moved, 3, padding=1).view(count, 2, 9, 1, 1, high, wide)
            fine = (weights * near).sum(2).permute(0, 1, 4, 2, 5, 3).reshape(count, 2, 4 * high, 4 * wide)
            apart = (fine - truth.float()).abs()
            total = total + 0.8 ** (1 - turn) * (apart.sum(1) + 0.01).pow(0.4).mean()
        smooth = fine.diff(dim=-1).abs().mul(torch.exp(-first.float().diff(dim=-1).abs().mean(1, keepdim=True))).mean()
        return total + 0.1 * smooth


class Process(nn.Module):
    """A Gaussian process of few points: a Matern kernel, Cholesky factors, a whitened posterior, quadrature."""

    def __init__(self, points: int = 6) -> None:
        super().__init__()
        self.net, self.points = nn.Linear(5, 3), nn.Parameter(normal(points, 3))
        self.length, self.noise = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.tensor(-1.0))
        self.mean, self.root = nn.Parameter(normal(points, seed=6) * 0.3), nn.Parameter(torch.eye(points))

    def kernel(self, some: Tensor, others: Tensor) -> Tensor:
        length = F.softplus(self.length.float())
        far = math.sqrt(5) * torch.cdist(some / length, others / length, compute_mode="donot_use_mm_for_euclid_dist")
        return (1 + far + far.square() / 3) * torch.exp(-far)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        at, points, y = self.net(x).float(), self.points.float(), y.float()
        with torch.autocast(x.device.type, enabled=False):
            eye = torch.eye(len(points), device=x.device)
            factor, _ = torch.linalg.cholesky_ex(self.kernel(points, points) + 1e-3 * eye)
            across = torch.linalg.solve_triangular(factor, self.kernel(points, at), upper=False)
            root = torch.tril(self.root.float())
            mean = across.mT @ self.mean.float()
            spread = 1 - across.square().sum(0) + torch.linalg.matmul(root.mT, across).square().sum(0)
            spread = spread.clamp(min=1e-4)
            noise = F.softplus(self.noise.float()) + 1e-3
            likely = -0.5 * (torch.log(2 * math.pi * noise) + ((y - mean).square() + spread) / noise)
            posterior = torch.distributions.MultivariateNormal(self.mean.float(), scale_tril=root)
            prior = torch.distributions.MultivariateNormal(torch.zeros_like(mean[:1]).expand(len(points)), eye)
            apart = torch.distributions.kl_divergence(posterior, prior)
            nodes = torch.tensor([-1.2247449, 0.0, 1.2247449], device=x.device)
            shares = torch.tensor([0.2954090, 1.1816359, 0.2954090], device=x.device) / math.sqrt(math.pi)
            drawn = mean[:, None] + (2 * spread).sqrt()[:, None] * nodes
            classes = (torch.special.log_ndtr(torch.sign(y)[:, None] * drawn) @ shares).mean()
        return apart / len(x) - likely.mean() - 0.1 * classes


class Topics(nn.Module):
    """Topics and evidence: draws from Dirichlet, Gamma, Beta and Laplace distributions, and digammas of their sums."""

    def __init__(self, words: int = 20, topics: int = 4) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Linear(words, 16), nn.Softplus(), nn.Linear(16, topics), nn.BatchNorm1d(topics, affine=False)
        )
        self.topics, self.evidence = nn.Parameter(normal(topics, words) * 0.3), nn.Linear(16, 4)

    def loss(self, counts: Tensor, y: Tensor) -> Tensor:
        hidden = self.encode[1](self.encode[0](torch.log1p(counts)))
        shape = F.softplus(self.encode[3](self.encode[2](hidden)).float()) + 0.3
        with torch.autocast(counts.device.type, enabled=False):
            drawn = torch.distributions.Dirichlet(shape)
            prior = torch.distributions.Dirichlet(torch.full_like(shape, 0.7))
            shares = drawn.rsample()
            words = torch.log_softmax(self.topics.float(), -1)
            likely = torch.logsumexp(torch.log(shares + 1e-8)[..., None] + words, 1)
            told = -(counts.float() * likely).sum(-1).mean()
            apart = torch.distributions.kl_divergence(drawn, prior).mean()
            rate = torch.distributions.Gamma(shape, 2.0).rsample().clamp(min=1e-3)
            weibull = torch.distributions.Weibull(rate + 0.5, 1.5).rsample().log1p().mean()
            sparse = torch.distributions.Laplace(0.0, shape).rsample().abs().mean()
            beta = torch.distributions.Beta(shape[:, 0] + 1, shape[:, 1] + 1)
            alpha = F.softplus(self.evidence(hidden.to(self.evidence.weight.dtype)).float()) + 1
            total = alpha.sum(-1, keepdim=True)
            wanted = F.one_hot(y, 4).float()
            sure = (wanted * (torch.digamma(total) - torch.digamma(alpha))).sum(-1).mean()
        return told / 10 + apart + sure + 0.1 * (weibull + sparse - beta.entropy().mean())


class SplineFlow(nn.Module):
    """A flow of rational-quadratic splines: bins by softmax, found by search; a turn by Householder reflections."""

    def __init__(self, bins: int = 5) -> None:
        super().__init__()
        self.bins = bins
        self.net = nn.Sequential(nn.Linear(2, 16), nn.ELU(), nn.Linear(16, 2 * (3 * bins - 1)))
        self.mirrors, self.low = nn.Parameter(normal(2, 4, seed=8)), nn.Parameter(normal(4, 4, seed=9) * 0.2)

    def bend(self, x: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
        widths, heights, slopes = made.split([self.bins, self.bins, self.bins - 1], -1)
        widths, heights = (0.02 + (1 - 0.02 * self.bins) * one.softmax(-1) for one in (widths, heights))
        slopes = F.pad(0.05 + F.softplus(slopes), (1, 1), value=1.0)
        edges, tops = (F.pad(6 * one.cumsum(-1) - 3, (1, 0), value=-3.0) for one in (widths, heights))
        inside = (x > -3) & (x < 3)
        at = torch.where(inside, x, torch.zeros_like(x))
        place = (torch.searchsorted(edges.contiguous(), at[..., None].contiguous()) - 1).clamp(0, self.bins - 1)
        left, low = (one.gather(-1, place).squeeze(-1) for one in (edges, tops))
        width, height = (6 * one.gather(-1, place).squeeze(-1) for one in (widths, heights))
        here, there = (one.gather(-1, place).squeeze(-1) for one in (slopes[..., :-1], slopes[..., 1:]))
        share = (at - left) / width
        rise, both = height / width, share * (1 - share)
        bottom = rise + (here + there - 2 * rise) * both
        moved = low + height * (rise * share.square() + here * both) / bottom
        slope = rise.square() * (there * share.square() + 2 * rise * both + here * (1 - share).square())
        return torch.where(inside, moved, x), torch.where(inside, slope.log() - 2 * bottom.log(), torch.zeros_like(x))

    def loss(self, x: Tensor) -> Tensor:
        z = x.float()
        for mirror in self.mirrors.float():
            z = z - 2 * torch.outer(z @ mirror, mirror) / torch.dot(mirror, mirror)
        turn = torch.tril(self.low.float(), -1) + torch.eye(4, device=x.device)
        z = torch.addmm(torch.zeros(4, device=x.device), z, turn.mT)
        total = torch.zeros(len(x), device=x.device)
        for _ in range(2):
            kept, moved = z.chunk(2, -1)
            made = self.net(kept.to(self.net[0].weight.dtype)).float().unflatten(-1, (2, -1))
            moved, change = self.bend(moved, made)
            z, total = torch.cat([moved, kept], -1), total + change.sum(-1)
        normals = -0.5 * z.square().sum(-1) - 2 * math.log(2 * math.pi)
        return -(normals + total).mean()


class PerSample(nn.Module):
    """Private training: one gradient a sample by vmap, clipped, with noise; a trace of the Jacobian by random signs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 10), nn.Linear(10, 3)

    def one(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        hidden = torch.tanh(F.linear(x, parameters["first.weight"], parameters["first.bias"]))
        scores = F.linear(hidden, parameters["last.weight"], parameters["last.bias"])
        return -(F.log_softmax(scores.float(), -1) * y).sum()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        parameters = dict(self.named_parameters())
        gradients = torch.func.vmap(torch.func.grad(self.one), (None, 0, 0))(parameters, x, F.one_hot(y, 3))
        flat = torch.cat([one.flatten(1).float() for one in gradients.values()], 1)
        sizes = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
        clipped = flat * torch.clamp(0.5 / (sizes + 1e-6), max=1.0)
        private = clipped.mean(0) + 0.01 * torch.randn(flat.shape[1], device=x.device)
        point = x.detach().clone().requires_grad_()
        scores = self.last(torch.tanh(self.first(point)))
        sign = torch.randint(0, 2, scores.shape, device=x.device).to(scores.dtype) * 2 - 1
        (slope,) = torch.autograd.grad(scores, point, sign, create_graph=True)
        rough = slope.float().square().sum(-1).mean()
        hinge = F.soft_margin_loss(scores.float(), F.one_hot(y, 3).float() * 2 - 1)
        return private.square().sum() + 0.1 * rough + hinge + F.cross_entropy(scores.float(), y, label_smoothing=0.2)


PROGRAMS = (
    Program("KAN", "fifth", Splines, lambda: [normal(9, 4), normal(9, 2, seed=3)]),
    Program("sparse choices", "fifth", SparseChoices, lambda: [normal(12, 8), whole(3, 12)]),
    Program(
        "RAFT",
        "fifth",
        OpticalFlow,
        lambda: [normal(2, 3, 16, 16), normal(2, 3, 16, 16, seed=3), normal(2, 2, 16, 16, seed=4)],
    ),
    Program("process of few points", "fifth", Process, lambda: [normal(8, 5), normal(8, seed=3)]),
    Program("topics", "fifth", Topics, lambda: [whole(5, 6, 20).float(), whole(4, 6)]),
    Program("spline flow", "fifth", SplineFlow, lambda: [normal(10, 4)]),
    Program("private", "fifth", PerSample, lambda: [normal(6, 6), whole(3, 6)], ("checkpointed",)),
)
