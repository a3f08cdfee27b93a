"""Worlds that are simulated or imagined: latent states, crystals, quantum circuits, arms, parses, masked flows."""

from __future__ import annotations

import math

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Imagined(nn.Module):
    """Dreamer: states of categories, two sides of a divergence, returns in shares of two bins, an actor in a dream."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.cell, self.into = nn.GRUCell(width, width), nn.Linear(12 + 3, width)
        self.prior, self.later = nn.Linear(width, 12), nn.Linear(width + 5, 12)
        self.see, self.act, self.value = nn.Linear(width + 12, 5), nn.Linear(width + 12, 3), nn.Linear(width + 12, 9)
        self.ends, self.reward = nn.Linear(width + 12, 1), nn.Linear(width + 12, 9)
        self.register_buffer("bins", torch.linspace(-4, 4, 9))
        self.register_buffer("range", torch.zeros(2))
        nn.init.zeros_(self.reward.weight)

    @staticmethod
    def symlog(x: Tensor) -> Tensor:
        return torch.sign(x) * torch.log1p(torch.abs(x))

    def two_hot(self, x: Tensor) -> Tensor:
        x = self.symlog(x).clamp(-4, 4)
        below = (self.bins.float() <= x[..., None]).sum(-1).sub(1).clamp(0, 8)
        above = (below + 1).clamp(max=8)
        far = torch.where(below == above, 1.0, (self.bins[below].float() - x).abs())
        other = torch.where(below == above, 1.0, (self.bins[above].float() - x).abs())
        total = far + other
        return F.one_hot(below, 9) * (other / total)[..., None] + F.one_hot(above, 9) * (far / total)[..., None]

    def mean(self, scores: Tensor) -> Tensor:
        x = (scores.float().softmax(-1) * self.bins.float()).sum(-1)
        return torch.sign(x) * torch.expm1(x.abs())

    @staticmethod
    def drawn(scores: Tensor) -> tuple[Tensor, Tensor]:
        likely = 0.99 * scores.float().unflatten(-1, (3, 4)).softmax(-1) + 0.01 / 4
        choice = torch.distributions.OneHotCategoricalStraightThrough(probs=likely)
        return choice.rsample().flatten(-2), likely.log()

    def step(self, state: Tensor, drawn: Tensor, action: Tensor) -> Tensor:
        joined = F.silu(self.into(torch.cat([drawn, action], -1).to(self.into.weight.dtype)))
        return self.cell(joined.to(state.dtype), state)

    def loss(self, seen: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
        state, drawn = seen.new_zeros(len(seen), 12), seen.new_zeros(len(seen), 12)
        total, states = seen.new_zeros((), dtype=torch.float32), []
        for time in range(seen.shape[1]):
            state = self.step(state, drawn, F.one_hot(actions[:, time], 3))
            drawn, later = self.drawn(self.later(torch.cat([state, self.symlog(seen[:, time])], -1)))
            prior = self.drawn(self.prior(state))[1]
            far = lambda p, q: (p.exp() * (p - q)).sum((-1, -2)).clamp_min(1.0).mean()  # noqa: E731
            total = total + 0.5 * far(later.detach(), prior) + 0.1 * far(later, prior.detach())
            both = torch.cat([state, drawn.to(state.dtype)], -1)
            guessed = self.reward(both).float().log_softmax(-1)
            total = total - (self.two_hot(rewards[:, time].float()) * guessed).sum(-1).mean()
            total = total + F.mse_loss(self.see(both).float(), self.symlog(seen[:, time]).float())
            states.append(both)
        dream = torch.cat(states).detach()
        state, drawn = dream.split(12, -1)
        values, gains, likely, rest = [], [], [], []
        for _ in range(3):
            both = torch.cat([state, drawn.to(state.dtype)], -1)
            policy = torch.distributions.Categorical(logits=self.act(both.detach()).float())
            action = policy.sample()
            likely.append(policy.log_prob(action) + 3e-3 * policy.entropy())
            values.append(self.value(both.detach()))
            with torch.no_grad():
                state = self.step(state, drawn, F.one_hot(action, 3))
                drawn = self.drawn(self.prior(state))[0]
                both = torch.cat([state, drawn.to(state.dtype)], -1)
                gains.append(self.mean(self.reward(both)))
                rest.append(0.97 * torch.sigmoid(self.ends(both).float()).squeeze(-1))
        guessed = torch.stack([self.mean(one) for one in values]).detach()
        returns, ahead = [], guessed[-1]
        for time in (2, 1, 0):
            ahead = gains[time] + rest[time] * (0.05 * guessed[time] + 0.95 * ahead)
            returns.insert(0, ahead)
        goal = torch.stack(returns)
        low, high = torch.quantile(goal, goal.new_tensor([0.05, 0.95]))
        self.range.lerp_(torch.stack([low, high]).to(self.range.dtype), 0.01)
        size = torch.clip(self.range[1] - self.range[0], min=1.0).float()
        gain = (goal - guessed) / size
        critic = -(self.two_hot(goal) * torch.stack(values).float().log_softmax(-1)).sum(-1).mean()
        return total / seen.shape[1] + critic - (torch.stack(likely) * gain).mean()


class Crystals(nn.Module):
    """Atoms in a cell that repeats: the nearest image, bases of sines, products of directions, forces, stress."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.kinds, self.radial = nn.Embedding(4, width), nn.Linear(6, 3 * width, bias=False)
        self.mix = nn.Parameter(normal(3, width, width) * 0.2)
        self.out, self.shift = nn.Linear(3 * width, 1), nn.Parameter(torch.zeros(4))
        self.register_buffer("cell", torch.tensor([[3.0, 0, 0], [0.4, 3.2, 0], [0, 0.3, 3.1]]))

    @staticmethod
    def harmonics(way: Tensor) -> list[Tensor]:
        x, y, z = way.unbind(-1)
        second = torch.stack([x * y, y * z, (3 * z**2 - 1) / 12**0.5, x * z, (x**2 - y**2) / 2], -1) * 3**0.5
        return [torch.ones_like(x)[:, None], way, second]

    def energy(self, places: Tensor, kinds: Tensor, strain: Tensor) -> Tensor:
        bent = torch.eye(3, device=places.device) + (strain + strain.mT) / 2
        cell = self.cell.float() @ bent
        places = places @ bent
        count = len(places)
        source, target = torch.ones(count, count, device=places.device).fill_diagonal_(0).nonzero(as_tuple=True)
        gap = places[target] - places[source]
        share = torch.linalg.solve(cell.mT, gap.mT).mT
        gap = gap - share.detach().round() @ cell
        far = torch.linalg.vector_norm(gap, dim=-1)
        near = far.clamp(max=2.5) / 2.5
        cut = 1 - 10 * near**3 + 15 * near**4 - 6 * near**5
        bases = torch.sinc(torch.arange(1, 7, device=places.device) * near[:, None]) * cut[:, None]
        radial = F.linear(bases, self.radial.weight.float()).unflatten(-1, (3, -1))
        hidden = self.kinds(kinds).float()
        sent = hidden[source, None] * radial
        parts = []
        for order, shape in enumerate(self.harmonics(gap / far[:, None])):
            message = torch.einsum("ec,em->ecm", sent[:, order], shape)
            summed = hidden.new_zeros(count, hidden.shape[1], shape.shape[1]).index_add(0, target, message)
            turned = torch.einsum("ncm,cd->ndm", summed, self.mix[order].float())
            parts.append((summed * turned).sum(-1))
        weight = self.out.weight.float().view(-1)
        atoms = (
            torch.mv(F.silu(torch.cat(parts, -1)), weight) + self.out.bias.float() + self.shift.float().gather(0, kinds)
        )
        return atoms.sum() + 0.1 * ((1.2 - far).relu() ** 2).sum()

    def loss(self, places: Tensor, kinds: Tensor, forces: Tensor) -> Tensor:
        with in_float32(places), torch.enable_grad():
            places = places.float().requires_grad_()
            strain = torch.zeros(3, 3, device=places.device, requires_grad=True)
            energy = self.energy(places, kinds, strain)
            pull, stress = torch.autograd.grad(energy, [places, strain], create_graph=True)
            volume = torch.linalg.det(self.cell.float()).abs()
            pressure = torch.trace(stress / volume) / 3
            misses = F.l1_loss(stress.triu(), torch.zeros_like(stress))
            return (
                F.huber_loss(-pull, forces.float(), delta=0.3)
                + 0.01 * (energy / len(places) - 1) ** 2
                + 0.01 * (pressure**2 + misses)
            )


class Circuits(nn.Module):
    """A quantum circuit: turns of single bits, pairs that are entangled, chances, a shift rule against autograd."""

    def __init__(self, bits: int = 4) -> None:
        super().__init__()
        self.bits = bits
        self.angles, self.pairs = nn.Parameter(normal(2, bits, 2)), nn.Parameter(normal(2, bits, seed=7) * 0.5)
        self.read = nn.Linear(bits + 1, 3)

    def turned(self, state: Tensor, gate: Tensor, bit: int) -> Tensor:
        return torch.tensordot(gate, state, dims=([1], [bit])).moveaxis(0, bit)

    @staticmethod
    def gates(angle: Tensor, phase: Tensor) -> Tensor:
        half = angle / 2
        real = torch.stack([half.cos(), -half.sin(), half.sin(), half.cos()]).view(2, 2).to(torch.complex64)
        turn = torch.polar(torch.ones_like(phase), phase / 2)
        return torch.diag(torch.stack([turn.conj(), turn])) @ real

    def expected(self, x: Tensor, angles: Tensor) -> Tensor:
        state = torch.zeros((2,) * self.bits, dtype=torch.complex64, device=x.device)
        state[(0,) * self.bits] = 1
        for bit in range(self.bits):
            state = self.turned(state, self.gates(x[bit], x[bit] ** 2), bit)
        for layer in range(2):
            for bit in range(self.bits):
                state = self.turned(state, self.gates(angles[layer, bit, 0], angles[layer, bit, 1]), bit)
            for bit in range(self.bits):
                other = (bit + 1) % self.bits
                signs = torch.ones(2, 2, dtype=torch.complex64, device=x.device)
                phase = torch.exp(1j * self.pairs[layer, bit].float())
                signs = signs * torch.stack([torch.ones_like(phase), phase]).outer(
                    torch.tensor([1, 1j], device=x.device)
                )
                shape = [2 if place in (bit, other) else 1 for place in range(self.bits)]
                state = state * signs.view(shape)
        chance = state.abs().square()
        sign = torch.tensor([1.0, -1.0], device=x.device)
        single = [torch.tensordot(chance.movedim(bit, 0).flatten(1).sum(1), sign, 1) for bit in range(self.bits)]
        return torch.stack([*single, torch.view_as_real(state.resolve_conj()).pow(2).sum().sqrt()])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with in_float32(x):
            angles = self.angles.float()
            each = torch.stack([self.expected(one, angles) for one in x.float()])
            with torch.no_grad():
                ahead, behind = angles.clone(), angles.clone()
                ahead[0, 0, 0] += math.pi / 2
                behind[0, 0, 0] -= math.pi / 2
                shifted = (self.expected(x[0].float(), ahead) - self.expected(x[0].float(), behind)) / 2
            made = F.linear(each, self.read.weight.float(), self.read.bias.float())
            (slope,) = torch.autograd.grad(each[0, :-1].sum(), self.angles, retain_graph=True)
            apart = (slope[0, 0, 0].float() - shifted[:-1].sum()).abs()
        return F.cross_entropy(made, y) + 0 * apart


class Arms(nn.Module):
    """Poses: a chain of joints, logarithms of turns, the best fit of two clouds, Gauss and Newton's damped steps."""

    def __init__(self, joints: int = 4) -> None:
        super().__init__()
        self.axes, self.offsets = nn.Parameter(normal(joints, 3)), nn.Parameter(normal(joints, 3, seed=3) * 0.3)
        self.angles = nn.Linear(6, joints)

    @staticmethod
    def rotation(turn: Tensor) -> Tensor:
        angle2 = turn.square().sum(-1, keepdim=True)
        angle = angle2.clamp_min(1e-12).sqrt()
        small = angle2 < 1e-6
        a = torch.where(small, 1 - angle2 / 6, torch.sinc(angle / math.pi))[..., None]
        b = torch.where(small, 0.5 - angle2 / 24, (1 - angle.cos()) / angle2.clamp_min(1e-12))[..., None]
        skew = torch.zeros(*turn.shape[:-1], 3, 3, device=turn.device)
        skew[..., 0, 1], skew[..., 0, 2], skew[..., 1, 2] = -turn[..., 2], turn[..., 1], -turn[..., 0]
        skew = skew - skew.transpose(-1, -2)
        return torch.eye(3, device=turn.device) + a * skew + b * skew.matrix_power(2)

    @staticmethod
    def logarithm(turn: Tensor) -> Tensor:
        trace = turn.diagonal(dim1=-2, dim2=-1).sum(-1)
        angle = torch.acos(((trace - 1) / 2).clamp(-1 + 1e-6, 1 - 1e-6))
        skew = (turn - turn.mT) / (2 * angle.sin())[..., None, None]
        return torch.stack([skew[..., 2, 1], skew[..., 0, 2], skew[..., 1, 0]], -1) * angle[..., None]

    def chain(self, angles: Tensor) -> tuple[Tensor, Tensor]:
        axes = F.normalize(self.axes.float(), dim=-1)
        last = angles.new_tensor([0, 0, 0, 1]).expand(len(angles), 1, 4)
        whole_way, places = torch.eye(4, device=angles.device).repeat(len(angles), 1, 1), []
        for joint in range(angles.shape[1]):
            turn = self.rotation(axes[joint] * angles[:, joint, None])
            move = self.offsets[joint].float().view(1, 3, 1).expand(len(angles), -1, -1)
            whole_way = torch.bmm(whole_way, torch.cat([torch.cat([turn, move], 2), last], 1))
            places.append(whole_way[:, :3, 3])
        return torch.stack(places, 1), whole_way[:, :3, :3]

    @staticmethod
    def fitted(one: Tensor, other: Tensor) -> Tensor:
        """Kabsch: the turn that brings one cloud onto the other."""
        one, other = one - one.mean(1, keepdim=True), other - other.mean(1, keepdim=True)
        u, _, v = torch.svd(one.mT @ other)
        sign = torch.det(v @ u.mT).sign()
        signs = torch.diag_embed(torch.stack([torch.ones_like(sign), torch.ones_like(sign), sign], -1))
        return v @ signs @ u.mT

    def loss(self, x: Tensor, goal: Tensor) -> Tensor:
        angles = self.angles(x)
        with in_float32(x):
            angles, goal = angles.float(), goal.float()
            places, turn = self.chain(angles)
            with torch.no_grad():
                reach = lambda at: self.chain(at[None])[0][0, -1]  # noqa: E731
                slopes = torch.stack([torch.func.jacrev(reach)(one) for one in angles])
                miss = (places[:, -1] - goal[:, -1]).unsqueeze(-1)
                square = torch.baddbmm(0.1 * torch.eye(4, device=x.device).expand(len(x), 4, 4), slopes.mT, slopes)
                step = torch.cholesky_solve(slopes.mT @ miss, torch.linalg.cholesky(square)).squeeze(-1)
                after = (self.chain(angles - step)[0][:, -1] - goal[:, -1]).norm(dim=-1)
                turned = self.fitted(places, goal)
            aligned = places @ turned.mT
            near = F.mse_loss(aligned, goal) + F.pairwise_distance(places[:, -1], goal[:, -1], p=1.5).mean()
            return (
                near
                + 0.1 * self.logarithm(turn).square().mean()
                + 0.01 * F.mse_loss(angles, (angles - step))
                + 0 * after.mean()
            )


class Parses(nn.Module):
    """Parses: arcs by a double form, all trees by a determinant, the inside of a grammar's chart, its marginals."""

    def __init__(self, words: int = 18, width: int = 10) -> None:
        super().__init__()
        self.words, self.read = nn.Embedding(words, width), nn.RNN(width, width, batch_first=True, bidirectional=True)
        self.heads, self.tails = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
        self.form, self.labels = nn.Parameter(normal(width + 1, width) * 0.2), nn.Bilinear(width, width, 3)
        self.rules, self.ends = nn.Parameter(normal(4, 4, 4)), nn.Linear(2 * width, 4)

    def inside(self, ends: Tensor) -> Tensor:
        rules = self.rules.float().flatten(1).log_softmax(-1).view(4, 4, 4)
        length = ends.shape[1]
        chart = {(place, place): ends[:, place] for place in range(length)}
        for span in range(1, length):
            for start in range(length - span):
                parts = [
                    chart[start, middle][:, :, None] + chart[middle + 1, start + span][:, None]
                    for middle in range(start, start + span)
                ]
                pair = torch.stack(parts).logsumexp(0)
                chart[start, start + span] = torch.logsumexp(pair[:, None] + rules, (2, 3))
        return chart[0, length - 1].logsumexp(-1)

    def loss(self, words: Tensor, heads: Tensor) -> Tensor:
        seen, _ = self.read(self.words(words))
        head, tail = F.leaky_relu(self.heads(seen), 0.1), F.leaky_relu(self.tails(seen), 0.1)
        with_one = torch.cat([tail, torch.ones_like(tail[..., :1])], -1)
        scores = torch.einsum("bim,mn,bjn->bij", with_one.float(), self.form.float(), head.float())
        with in_float32(words.to(torch.float32)):
            scores = scores.clamp(-8, 8)
            length = scores.shape[1]
            others = ~torch.eye(length, dtype=torch.bool, device=words.device)
            weights = (scores.exp() * others).double()
            laplace = torch.diag_embed(weights.sum(2)) - weights
            roots = scores.diagonal(dim1=1, dim2=2).exp().double()
            bordered = torch.slice_scatter(laplace, roots[:, :, None], 2, 0, 1)
            total = torch.logdet(bordered).float()
            gold = scores.gather(2, heads[..., None]).squeeze(2).sum(1)
            trees = (total - gold).mean() / length
            ends = self.ends(seen.to(self.ends.weight.dtype)).float().log_softmax(-1).clamp_min(-20)
            evidence = self.inside(ends)
            (share,) = torch.autograd.grad(evidence.sum(), ends, create_graph=True)
        picked = head.gather(1, heads[..., None].expand_as(head))
        kinds = self.labels(tail.to(self.labels.weight.dtype), picked.to(self.labels.weight.dtype)).float()
        return (
            trees
            - evidence.mean() / length
            + F.cross_entropy(kinds.flatten(0, 1), words.flatten() % 3)
            + 0.1 * (share * (share + 1e-6).log()).mean()
        )


class MaskedFlow(nn.Module):
    """Flows: weights masked by order, a mixture by triangles, scales that start from the data, levels made smooth."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.width, degrees = width, torch.arange(width)
        inner = torch.arange(16) % (width - 1)
        self.register_buffer("first", (inner[:, None] >= degrees).float())
        self.register_buffer("last", (degrees[:, None] > inner).float().repeat(2, 1))
        self.into, self.out = nn.Linear(width, 16), nn.Linear(16, 2 * width)
        places, lower, upper = torch.linalg.lu(torch.linalg.qr(normal(width, width)).Q)
        self.register_buffer("places", places)
        self.register_buffer("signs", upper.diagonal().sign())
        self.lower, self.upper = nn.Parameter(lower), nn.Parameter(upper.triu(1))
        self.sizes = nn.Parameter(upper.diagonal().abs().log())
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("started", torch.tensor(False))

    def masked(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.elu(F.linear(x, self.into.weight * self.first, self.into.bias))
        shift, scale = F.linear(hidden, self.out.weight * self.last, self.out.bias).float().chunk(2, -1)
        return shift, torch.tanh(scale)

    def inverse(self, z: Tensor) -> Tensor:
        x = torch.zeros_like(z)
        for place in range(self.width):
            shift, scale = self.masked(x.to(self.into.weight.dtype))
            x[:, place] = z[:, place] * scale[:, place].exp() + shift[:, place]
        return x

    def loss(self, levels: Tensor) -> Tensor:
        x = (levels + torch.rand(levels.shape, device=levels.device)) / 16
        x = 0.05 + 0.9 * x
        total = (-(x.log() + torch.log1p(-x)) + math.log(0.9 / 16)).sum(-1)
        x = torch.logit(x)
        if not self.started:
            with torch.no_grad():
                spread, mean = torch.std_mean(x, 0)
                self.scale.data.copy_(1 / (spread + 1e-6))
                self.shift.data.copy_(-mean / (spread + 1e-6))
                self.started.fill_(True)
        x = x * self.scale.float() + self.shift.float()
        total = total + self.scale.float().abs().log().sum()
        with in_float32(x):
            eye = torch.eye(self.width, device=x.device)
            lower = self.lower.float().tril(-1) + eye
            upper = self.upper.float().triu(1) + torch.diag(self.signs.float() * self.sizes.float().exp())
            x = x @ (self.places.float() @ lower @ upper).mT
            total = total + self.sizes.float().sum()
            back = torch.linalg.solve_triangular(lower, self.places.float().mT @ x.mT, upper=False, unitriangular=True)
            before = torch.linalg.solve_triangular(upper, back, upper=True).mT
        shift, scale = self.masked(x.to(self.into.weight.dtype))
        z = (x - shift) * torch.exp(-scale)
        likely = -0.5 * (z**2 + math.log(2 * math.pi)).sum(-1) - scale.sum(-1) + total
        with torch.no_grad():
            drawn = self.inverse(torch.randn_like(z))
        return -likely.mean() / self.width / math.log(2) + 0 * before.mean() + 0 * drawn.mean()


PROGRAMS = (
    Program("imagined", "eighth", Imagined, lambda: [normal(3, 4, 5), whole(3, 3, 4), normal(3, 4, seed=5)]),
    Program("crystals", "eighth", Crystals, lambda: [1.5 * normal(6, 3), whole(4, 6), normal(6, 3, seed=5)]),
    Program("quantum circuits", "eighth", Circuits, lambda: [normal(3, 4), whole(3, 3)], ("checkpointed",)),
    Program("arms", "eighth", Arms, lambda: [normal(4, 6), normal(4, 4, 3, seed=5)], ("checkpointed",)),
    Program("parses", "eighth", Parses, lambda: [whole(18, 2, 5), whole(5, 2, 5)]),
    Program("masked flow", "eighth", MaskedFlow, lambda: [whole(16, 10, 6)]),
)
