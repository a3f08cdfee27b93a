"""Models of whole tasks: segmentation, detection, speech, recommendation, agents, molecules."""

from __future__ import annotations

import itertools

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Segmentation(nn.Module):
    """A U-Net with group and instance norm; Dice, Tversky and boundary losses."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.PReLU(8))
        self.down = nn.Sequential(nn.Conv2d(8, 12, 2, stride=2), nn.InstanceNorm2d(12, affine=True), nn.ELU())
        self.middle = nn.Sequential(nn.Conv2d(12, 12, 3, padding=2, dilation=2), nn.Dropout2d(0.2), nn.Mish())
        self.up, self.out = nn.ConvTranspose2d(12, 8, 2, stride=2), nn.Conv2d(16, 3, 1)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        skip = self.into(x)
        deep = self.down(skip)
        scores = self.out(torch.cat([self.up(self.middle(deep) + deep), skip], 1)).float()
        likely, wanted = scores.softmax(1), F.one_hot(y, 3).movedim(-1, 1).float()
        both, sides = (likely * wanted).sum((2, 3)), (0, 2, 3)
        dice = 1 - (2 * both + 1) / (likely.sum((2, 3)) + wanted.sum((2, 3)) + 1)
        missed, wrong = ((1 - likely) * wanted).sum(sides), (likely * (1 - wanted)).sum(sides)
        tversky = 1 - both.sum(0) / (both.sum(0) + 0.7 * missed + 0.3 * wrong + 1e-6)
        edges = F.max_pool2d(wanted, 3, 1, 1) + F.max_pool2d(-wanted, 3, 1, 1)
        border = (
            F.cross_entropy(scores, y, reduction="none", weight=x.new_tensor([1, 2, 3]).float()) * edges.amax(1)
        ).mean()
        hard = F.cross_entropy(scores, y, reduction="none").flatten(1).topk(20, 1).values.mean()
        return dice.mean() + tversky.pow(0.75).mean() + border + hard


class Queries(nn.Module):
    """DETR: learnt queries look at a picture; boxes and objects are matched, then compared by overlap."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        layer = nn.TransformerDecoderLayer(width, 4, 24, 0.1, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2, nn.LayerNorm(width))
        self.queries, self.places = nn.Embedding(4, width), nn.Parameter(normal(16, width) * 0.1)
        self.kind, self.box = nn.Linear(width, 3), nn.Linear(width, 4)

    def loss(self, x: Tensor, kinds: Tensor, boxes: Tensor) -> Tensor:
        memory = self.patches(x).flatten(2).mT + self.places.to(x.dtype)
        hidden = self.decoder(self.queries.weight.expand(len(x), -1, -1), memory)
        scores, found = self.kind(hidden).float(), self.box(hidden).float().sigmoid()
        total = scores.new_zeros(())
        for one, place, kind, box in zip(scores, found, kinds, boxes.float()):
            cost = -one.softmax(-1)[:, kind] + torch.cdist(place, box, p=1) - self.overlap(place, box)
            costs = cost.detach().cpu()
            order = min(
                itertools.permutations(range(len(one)), len(kind)),
                key=lambda some: float(costs[list(some), range(len(kind))].sum()),
            )
            chosen = torch.tensor(order, device=x.device)
            target = torch.full((len(one),), 2, device=x.device).scatter(0, chosen, kind)
            weight = torch.tensor([1.0, 1.0, 0.1], device=x.device)
            total = total + F.cross_entropy(one, target, weight) + F.l1_loss(place[chosen], box)
            total = total + (1 - self.overlap(place[chosen], box).diagonal()).mean()
        return total / len(x)

    def overlap(self, some: Tensor, others: Tensor) -> Tensor:
        """Generalized intersection over union."""
        (low, high), (other_low, other_high) = (
            (one[..., :2] - one[..., 2:] / 2, one[..., :2] + one[..., 2:] / 2) for one in (some[:, None], others[None])
        )
        inner = (torch.minimum(high, other_high) - torch.maximum(low, other_low)).clamp(min=0).prod(-1)
        union = (high - low).prod(-1) + (other_high - other_low).prod(-1) - inner
        outer = (torch.maximum(high, other_high) - torch.minimum(low, other_low)).prod(-1)
        return inner / union - (outer - union) / outer


class Transducer(nn.Module):
    """A conformer block, and all alignments of a transducer by a recursion over logarithms."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.into = nn.Linear(10, width)
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 32), nn.SiLU(), nn.Dropout(0.1), nn.Linear(32, width)
        )
        self.look, self.norm = nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True), nn.LayerNorm(width)
        self.wide, self.near = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 5, padding=2, groups=width)
        self.batch, self.last = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)
        self.words, self.memory, self.out = (
            nn.Embedding(6, width),
            nn.LSTM(width, width, batch_first=True),
            nn.Linear(width, 6),
        )

    def loss(self, x: Tensor, letters: Tensor) -> Tensor:
        hidden = self.into(x)
        hidden = hidden + 0.5 * self.feed(hidden)
        seen = self.norm(hidden)
        hidden = hidden + self.look(seen, seen, seen, need_weights=False)[0]
        local = self.near(F.glu(self.wide(hidden.mT), 1))
        hidden = hidden + self.last(F.silu(self.batch(local))).mT
        said, _ = self.memory(F.pad(self.words(letters), (0, 0, 1, 0)))
        joint = F.log_softmax(self.out(torch.tanh(hidden[:, :, None] + said[:, None])).float(), -1)
        stay = joint[..., 0]
        say = joint[:, :, :-1].gather(-1, letters[:, None, :, None].expand(-1, joint.shape[1], -1, -1)).squeeze(-1)
        row = F.pad(say[:, 0].cumsum(1), (1, 0))
        for time in range(1, joint.shape[1]):
            row, above = [], row + stay[:, time - 1]
            for place in range(above.shape[1]):
                come = above[:, place]
                row.append(come if not place else torch.logaddexp(come, row[-1] + say[:, time, place - 1]))
            row = torch.stack(row, 1)
        return -(row[:, -1] + stay[:, -1, -1]).mean() / letters.shape[1]


class Recommender(nn.Module):
    """SASRec: the next of some things by causal attention, against things that were drawn by how often they come."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.things, self.places = nn.Embedding(40, width, padding_idx=0, max_norm=1.5), nn.Embedding(9, width)
        layer = nn.TransformerEncoderLayer(width, 2, 24, 0.2, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.features, self.pairs = nn.EmbeddingBag(20, width, mode="mean"), nn.Linear(width, 1)

    def loss(self, history: Tensor, features: Tensor) -> Tensor:
        hidden = self.things(history) * history.shape[1] ** 0.5 + self.places.weight[: history.shape[1]]
        mask = torch.ones(history.shape[1], history.shape[1], dtype=torch.bool, device=history.device).triu(1)
        hidden = self.layers(hidden, mask, history == 0)[:, :-1]
        after, real = history[:, 1:], history[:, 1:] != 0
        often = torch.bincount(history.flatten(), minlength=40).float().pow(0.75)
        often[0] = 0
        others = torch.multinomial(often + 1e-3, after.numel(), replacement=True).view_as(after)
        good, bad = ((hidden.float() * self.things(one).float()).sum(-1) for one in (after, others))
        ranking = -(F.logsigmoid(good - bad) * real).sum() / real.sum()
        table = self.things.weight.float()
        sampled = F.cross_entropy((hidden[real].float() @ table.t()) - often.clamp(min=1).log(), after[real])
        rows = torch.stack([self.features.weight[one] for one in features.t()], 1).float()
        machine = 0.5 * (rows.sum(1).square() - rows.square().sum(1)).sum(-1) + self.pairs(
            self.features(features)
        ).float().squeeze(-1)
        return ranking + 0.1 * sampled + F.binary_cross_entropy_with_logits(machine, (features[:, 0] % 2).float())


class Replay(nn.Module):
    """Agents that learn from a memory: priorities, a target network, a distribution of returns on fixed places."""

    def __init__(self, places: int = 11) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3 * places))
        self.late = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3 * places)).requires_grad_(False)
        self.register_buffer("support", torch.linspace(-2, 2, places))
        self.register_buffer("priorities", torch.ones(32))

    def loss(self, states: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
        support, count = self.support.float(), len(self.support)
        likely = self.priorities.float().pow(0.6)
        line = likely.cumsum(0)
        points = (torch.arange(16, device=states.device) + torch.rand(16, device=states.device)) / 16 * line[-1]
        chosen = torch.searchsorted(line, points).clamp(max=31)
        weights = (32 * likely[chosen] / line[-1]).pow(-0.4)
        weights = weights / weights.max()
        now, later = states[chosen], states[(chosen + 1) % 32]
        with torch.no_grad():
            ahead = self.late(later).float().unflatten(-1, (3, count)).softmax(-1)
            best = (self.net(later).float().unflatten(-1, (3, count)).softmax(-1) * support).sum(-1).argmax(-1)
            ahead = ahead[torch.arange(16, device=states.device), best]
            moved = (rewards[chosen].float()[:, None] + 0.9 * support).clamp(-2, 2)
            place = (moved + 2) / (support[1] - support[0])
            low, high = place.floor().long(), place.ceil().long()
            low, high = low - ((high > 0) & (low == high)).long(), high + ((low < count - 1) & (low == high)).long()
            target = torch.zeros_like(ahead)
            offset = (torch.arange(16, device=states.device) * count)[:, None]
            target.view(-1).index_add_(
                0, (low + offset).view(-1).clamp(max=target.numel() - 1), (ahead * (high - place)).view(-1)
            )
            target.view(-1).index_add_(
                0, (high + offset).view(-1).clamp(max=target.numel() - 1), (ahead * (place - low)).view(-1)
            )
        scores = self.net(now).float().unflatten(-1, (3, count))
        picked = scores.gather(1, actions[chosen][:, None, None].expand(-1, 1, count)).squeeze(1)
        errors = -(target * F.log_softmax(picked, -1)).sum(-1)
        with torch.no_grad():
            self.priorities.index_put_((chosen,), (errors.abs() + 1e-3).to(self.priorities.dtype))
            for slow, fast in zip(self.late.parameters(), self.net.parameters()):
                slow.lerp_(fast, 0.05)
        values = (picked.softmax(-1) * support).sum(-1)
        return (weights * errors).mean() + F.huber_loss(values, (target * support).sum(-1), delta=0.5)


class Molecules(nn.Module):
    """EGNN: energies by distances, forces as their gradients, places that are moved along the edges."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.kinds, self.edge = (
            nn.Embedding(4, width),
            nn.Sequential(nn.Linear(2 * width + 8, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()),
        )
        self.move, self.node = (
            nn.Linear(width, 1, bias=False),
            nn.Sequential(nn.Linear(2 * width, width), nn.Softplus(), nn.Linear(width, width)),
        )
        self.energy = nn.Linear(width, 1)

    def loss(self, kinds: Tensor, places: Tensor, forces: Tensor) -> Tensor:
        places = places.detach().clone().requires_grad_()
        count = len(kinds)
        first, second = (~torch.eye(count, dtype=torch.bool, device=kinds.device)).nonzero(as_tuple=True)
        hidden, x = self.kinds(kinds), places
        for _ in range(2):
            apart = x[first] - x[second]
            far = (apart.float().square().sum(-1) + 1e-8).sqrt()
            waves = torch.exp(-2 * (far[:, None] - torch.linspace(0, 3, 8, device=far.device)).square())
            near = 0.5 * (torch.cos(torch.pi * far / 4) + 1) * (far < 4)
            said = self.edge(torch.cat([hidden[first], hidden[second], waves.to(hidden.dtype)], -1)) * near[:, None].to(
                hidden.dtype
            )
            step = (apart.float() / (far + 1)[:, None] * torch.tanh(self.move(said)).float()).to(x.dtype)
            x = x + torch.zeros_like(x).index_add(0, first, step) / count
            heard = torch.zeros_like(hidden).index_add(0, first, said.to(hidden.dtype))
            hidden = hidden + self.node(torch.cat([hidden, heard], -1)).to(hidden.dtype)
        energy = self.energy(hidden).float().sum()
        (slope,) = torch.autograd.grad(energy, places, create_graph=True)
        return (
            (energy - 1).square() * 0.01 + F.mse_loss(-slope.float(), forces.float()) + 0.01 * x.float().square().mean()
        )


PROGRAMS = (
    Program("segmentation", "fourth", Segmentation, lambda: [normal(2, 3, 12, 12), whole(3, 2, 12, 12)]),
    Program("DETR", "fourth", Queries, lambda: [normal(2, 3, 16, 16), whole(2, 2, 3), normal(2, 3, 4).sigmoid()]),
    Program("transducer", "fourth", Transducer, lambda: [normal(2, 9, 10), 1 + whole(5, 2, 4)]),
    Program("recommender", "fourth", Recommender, lambda: [whole(40, 5, 8), whole(20, 5, 4)]),
    Program("replay", "fourth", Replay, lambda: [normal(32, 6), whole(3, 32), normal(32)]),
    Program("molecules", "fourth", Molecules, lambda: [whole(4, 7), normal(7, 3), normal(7, 3, seed=4)]),
)
