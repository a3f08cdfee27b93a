"""Pictures once more: hard pixels, streets from above, hidden patches, cycles."""

from __future__ import annotations

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Street(nn.Module):
    """DeepLab and HRNet: holes in kernels, pooled scenes, hard pixels only, Lovász by class, objects as context."""

    def __init__(self, classes: int = 5, width: int = 12) -> None:
        super().__init__()
        self.classes = classes
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True))
        self.low = nn.Conv2d(width, 6, 1, bias=False)
        self.deep = nn.Sequential(nn.Conv2d(width, width, 3, 2, 1, groups=3), nn.BatchNorm2d(width), nn.SiLU(True))
        self.holes = nn.ModuleList(nn.Conv2d(width, 8, 3, padding=d, dilation=d, bias=False) for d in (1, 2, 4))
        self.pooled, self.project = nn.Conv2d(width, 8, 1), nn.Conv2d(32, width, 1, bias=False)
        self.norm, self.aux = nn.BatchNorm2d(width), nn.Conv2d(width, classes, 1)
        self.head = nn.Sequential(nn.Conv2d(width + 6, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, classes, 1))
        self.q, self.k, self.v = (nn.Conv2d(width, 8, 1), nn.Linear(width, 8), nn.Linear(width, width))
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def context(self, x: Tensor, rough: Tensor) -> Tensor:
        shares = rough.flatten(2).float().softmax(2).to(x.dtype)
        objects = shares @ x.flatten(2).transpose(1, 2)
        alike = self.q(x).flatten(2).transpose(1, 2) @ self.k(objects).transpose(1, 2) * 8**-0.5
        return (alike.float().softmax(-1).to(x.dtype) @ self.v(objects).to(x.dtype)).transpose(1, 2).view_as(x)

    def lovasz(self, chances: Tensor, y: Tensor) -> Tensor:
        valid = y.flatten() != 255
        chances = chances.transpose(0, 1).flatten(1)[:, valid]
        y, losses = y.flatten()[valid], []
        for number in range(self.classes):
            truth = (y == number).float()
            if truth.sum() == 0:
                continue
            errors, order = (truth - chances[number]).abs().sort(0, descending=True)
            sorted_ = truth[order]
            shared = sorted_.sum() - sorted_.cumsum(0)
            jaccard = 1.0 - shared / (sorted_.sum() + (1 - sorted_).cumsum(0))
            jaccard = torch.cat([jaccard[:1], jaccard[1:] - jaccard[:-1]])
            losses.append(torch.dot(errors, jaccard.detach()))
        return torch.stack(losses).mean()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        near = self.stem(x)
        deep = self.deep(near)
        pooled = F.interpolate(F.relu(self.pooled(deep.mean((2, 3), keepdim=True))), deep.shape[2:], mode="bilinear")
        parts = torch.cat([*(F.relu(hole(deep)) for hole in self.holes), pooled.to(deep.dtype)], 1)
        deep = F.dropout2d(F.relu(self.norm(self.project(parts))), 0.1)
        rough = self.aux(deep)
        deep = deep + self.context(deep, rough)
        up = F.interpolate(deep, near.shape[2:], mode="bilinear", align_corners=False)
        scores = self.head(torch.cat([up, self.low(near).to(up.dtype)], 1))
        scores, rough = (F.interpolate(one.float(), y.shape[1:], mode="bilinear") for one in (scores, rough))
        each = F.cross_entropy(scores, y, ignore_index=255, reduction="none")
        with torch.no_grad():
            sure = scores.softmax(1).gather(1, y.masked_fill(y == 255, 0).unsqueeze(1)).squeeze(1)
            valid = sure[y != 255]
            bar = valid.kthvalue(min(60, valid.numel())).values.clamp(min=0.7)
        hard = (sure < bar) & (y != 255)
        weights = torch.tensor([0.8, 1.2, 1.0, 0.9, 1.1], device=x.device)
        aside = F.cross_entropy(rough, y, weights, ignore_index=255)
        return each[hard].mean() + 0.4 * aside + self.lovasz(scores.softmax(1), y)


class Above(nn.Module):
    """Lift-splat and pillars: depths as chances, sums by a difference of running sums, points' maxima, CenterNet."""

    def __init__(self, depths: int = 6, width: int = 8, side: int = 12) -> None:
        super().__init__()
        self.depths, self.side = depths, side
        self.see = nn.Conv2d(3, depths + width, 4, 4)
        self.point, self.norm = nn.Linear(9, width, bias=False), nn.BatchNorm1d(width, eps=1e-3, momentum=0.01)
        self.body = nn.Sequential(nn.Conv2d(2 * width, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.GELU())
        self.heat, self.box = nn.Conv2d(16, 3, 1), nn.Conv2d(16, 6, 1)
        nn.init.constant_(self.heat.bias, -2.19)
        self.ways = nn.Parameter(torch.tensor([-1.0, -1.0]))

    def lifted(self, pictures: Tensor) -> Tensor:
        made = self.see(pictures)
        depth = made[:, : self.depths].float().softmax(1).unsqueeze(1)
        volume = depth * made[:, self.depths :].float().unsqueeze(2)
        count, width, steps, high, wide = volume.shape
        far = torch.linspace(1, self.side - 1, steps, device=pictures.device)
        across = torch.linspace(-0.5, 0.5, wide, device=pictures.device)
        x = (self.side / 2 + far[:, None] * across).floor().long()[:, None].expand(-1, high, -1)
        z = far.long()[:, None, None].expand(-1, high, wide)
        batch = torch.arange(count, device=pictures.device).view(-1, 1, 1, 1)
        rank = (batch * self.side + z) * self.side + x
        inside = (x >= 0) & (x < self.side)
        rows, rank = volume.movedim(1, -1).flatten(0, 3), rank.flatten()
        keep = inside.expand(count, -1, -1, -1).flatten()
        rows, rank = rows[keep], rank[keep]
        order = rank.argsort(stable=True)
        rows, rank = rows[order].cumsum(0), rank[order]
        last = torch.ones(len(rank), dtype=torch.bool, device=rank.device)
        last[:-1] = rank[1:] != rank[:-1]
        rows, rank = rows[last], rank[last]
        rows = torch.cat([rows[:1], rows[1:] - rows[:-1]])
        plane = rows.new_zeros(count * self.side * self.side, width)
        plane[rank] = rows
        return plane.view(count, self.side, self.side, width).permute(0, 3, 1, 2)

    def pillars(self, points: Tensor) -> Tensor:
        count = len(points)
        cell = (points[..., :2].float() * 2 + self.side / 2).floor().long().clamp(0, self.side - 1)
        batch = torch.arange(count, device=points.device)[:, None] * self.side**2
        key, back = torch.unique(batch + cell[..., 1] * self.side + cell[..., 0], return_inverse=True)
        flat, back = points.flatten(0, 1), back.flatten()
        sums = torch.zeros(len(key), 3, device=points.device).index_add_(0, back, flat[:, :3].float())
        mean = sums / torch.bincount(back, minlength=len(key)).unsqueeze(-1)
        middle = (cell.flatten(0, 1).float() + 0.5 - self.side / 2) / 2
        wide = torch.cat([flat, (flat[:, :3] - mean[back]).to(flat.dtype), (flat[:, :2] - middle).to(flat.dtype)], -1)
        hidden = F.relu(self.norm(self.point(wide)))
        most = hidden.new_zeros(len(key), hidden.shape[-1]).scatter_reduce(
            0, back.unsqueeze(-1).expand_as(hidden), hidden, "amax", include_self=False
        )
        plane = most.new_zeros(count * self.side**2, most.shape[-1]).index_copy(0, key, most)
        return plane.view(count, self.side, self.side, -1).permute(0, 3, 1, 2)

    def goals(self, boxes: Tensor) -> Tensor:
        grid = torch.arange(self.side, device=boxes.device).float()
        size = boxes[..., 2].float().clamp(min=0.5)
        across = torch.exp(-((grid - boxes[..., 0, None].float().round()) ** 2) / (2 * size[..., None] ** 2))
        along = torch.exp(-((grid - boxes[..., 1, None].float().round()) ** 2) / (2 * size[..., None] ** 2))
        heat = along.unsqueeze(-1) * across.unsqueeze(-2)
        heat[heat < torch.finfo(heat.dtype).eps * heat.max()] = 0
        return heat

    def loss(self, pictures: Tensor, points: Tensor, boxes: Tensor) -> Tensor:
        plane = torch.cat([self.lifted(pictures).to(points.dtype), self.pillars(points).to(points.dtype)], 1)
        hidden = self.body(plane)
        heat = self.heat(hidden).float().sigmoid().clamp(1e-4, 1 - 1e-4)
        goals = self.goals(boxes)
        positive = goals.eq(1).float()
        near = torch.log(heat) * (1 - heat).pow(2) * positive
        far = torch.log(1 - heat) * heat.pow(2) * (1 - goals).pow(4) * (1 - positive)
        focal = -(near.sum() + far.sum()) / positive.sum().clamp(min=1)
        place = boxes[..., 1].float().round().long() * self.side + boxes[..., 0].float().round().long()
        told = self.box(hidden).flatten(2).transpose(1, 2).float()
        told = told.gather(1, place.unsqueeze(-1).expand(-1, -1, 6))
        turn = torch.stack([boxes[..., 3].float().sin(), boxes[..., 3].float().cos()], -1)
        rest = boxes[..., :2].float() - boxes[..., :2].float().round()
        want = torch.cat([rest, boxes[..., 2:3].float().log().expand(-1, -1, 2), turn], -1)
        peaks = torch.where(F.max_pool2d(heat, 3, 1, 1) == heat, heat, 0.0).flatten(1).topk(4).values
        ways = self.ways.float()
        both = torch.stack([focal, F.smooth_l1_loss(told, want, beta=1 / 9)])
        return (both * torch.exp(-ways) + ways).sum() + 0 * peaks.mean()


class Hidden(nn.Module):
    """MAE and I-JEPA: patches shuffled by noise and put back, a target encoder that follows, BYOL's angle."""

    def __init__(self, width: int = 24, patch: int = 4, side: int = 4) -> None:
        super().__init__()
        self.patch, self.side = patch, side
        self.embed = nn.Linear(3 * patch * patch, width)
        self.register_buffer("places", self.waves(width, side))

        def make(heads: int) -> nn.Module:
            return nn.TransformerEncoderLayer(width, heads, 48, 0.0, "gelu", batch_first=True, norm_first=True)

        self.encode, self.decode, self.predict = make(3), make(4), make(2)
        self.mask, self.token = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, 1, width))
        nn.init.normal_(self.mask, std=0.02)
        self.target = make(3).requires_grad_(False)
        self.target.load_state_dict(self.encode.state_dict())
        self.out, self.norm = nn.Linear(width, 3 * patch * patch), nn.LayerNorm(width)
        self.guess = nn.Sequential(nn.Linear(width, 32), nn.BatchNorm1d(32), nn.ReLU(True), nn.Linear(32, width))

    @staticmethod
    def waves(width: int, side: int) -> Tensor:
        y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        turns = 1e4 ** -(torch.arange(width // 4) / (width / 4))
        parts = [f(one.flatten()[:, None] * turns) for one in (x, y) for f in (torch.sin, torch.cos)]
        return torch.cat(parts, 1)[None]

    def patches(self, pictures: Tensor) -> Tensor:
        x = pictures.unflatten(2, (self.side, self.patch)).unflatten(4, (self.side, self.patch))
        return torch.einsum("nchpwq->nhwpqc", x).flatten(3).flatten(1, 2)

    def loss(self, pictures: Tensor) -> Tensor:
        if torch.rand(()) < 0.5:
            pictures = pictures.flip(-1)
        goal = self.patches(pictures)
        x = self.embed(goal) + self.places.to(goal.dtype)
        count, length, width = x.shape
        noise = torch.rand(count, length, device=x.device)
        order = noise.argsort(1)
        back, kept = order.argsort(1), length // 4
        some = x.gather(1, order[:, :kept, None].expand(-1, -1, width))
        code = self.norm(self.encode(torch.cat([self.token.expand(count, -1, -1).to(x.dtype), some], 1)))
        masks = self.mask.expand(count, length - kept, -1).to(code.dtype)
        full = torch.cat([code[:, 1:], masks], 1).gather(1, back.unsqueeze(-1).expand(-1, -1, width))
        told = self.out(self.decode(full + self.places.to(full.dtype))).float()
        wide = goal.float()
        wide = (wide - wide.mean(-1, keepdim=True)) / (wide.var(-1, keepdim=True) + 1e-6) ** 0.5
        hidden = (back >= kept).float()
        pixels = ((told - wide).square().mean(-1) * hidden).sum() / hidden.sum()
        with torch.no_grad():
            for ours, theirs in zip(self.encode.parameters(), self.target.parameters()):
                theirs.mul_(0.996).add_(ours.detach(), alpha=1 - 0.996)
            whole_ = F.layer_norm(self.target(x.detach()), (width,))
        block = (torch.arange(4, device=x.device)[:, None] + torch.tensor([5, 6, 9, 10], device=x.device)) % length
        at = self.places.to(code.dtype)[0, block]
        asked = torch.cat([code[:, None, 1:].expand(-1, 4, -1, -1), (self.mask + at).expand(count, -1, -1, -1)], 2)
        seen = self.predict(asked.flatten(0, 1))[:, kept:].unflatten(0, (count, 4))
        far = F.smooth_l1_loss(seen.float(), whole_[:, block].float())
        a = F.normalize(self.guess(code[:, 0]).float(), dim=-1)
        b = F.normalize(whole_.mean(1).float(), dim=-1)
        return pixels + far + (2 - 2 * (a * b).sum(-1)).mean()


class Cycle(nn.Module):
    """CycleGAN: reflected edges, instance norm, judges by patches with least squares, old fakes, a there and back."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.there, self.back = self.painter(width), self.painter(width)
        self.judges = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(width, 2 * width, 4, 2, 1),
                nn.InstanceNorm2d(2 * width), nn.LeakyReLU(0.2, True), nn.Conv2d(2 * width, 1, 4, 1, 1),
            ) for _ in range(2)
        )  # fmt: skip
        self.register_buffer("pool", torch.zeros(4, 3, 16, 16))
        for layer in self.modules():
            if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
                nn.init.normal_(layer.weight, 0.0, 0.02)

    @staticmethod
    def painter(width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.ReflectionPad2d(3), nn.Conv2d(3, width, 7), nn.InstanceNorm2d(width), nn.ReLU(True),
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.InstanceNorm2d(2 * width, affine=True), nn.ReLU(True),
            nn.ReplicationPad2d(1), nn.Conv2d(2 * width, 2 * width, 3), nn.InstanceNorm2d(2 * width), nn.PReLU(),
            nn.ConvTranspose2d(2 * width, width, 3, 2, 1, 1), nn.InstanceNorm2d(width), nn.ReLU(True),
            nn.Conv2d(width, 3, 7, padding=3, padding_mode="reflect"), nn.Tanh(),
        )  # fmt: skip

    def loss(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = torch.tanh(a), torch.tanh(b)
        fake_b, fake_a = self.there(a), self.back(b)
        total = 10 * (F.l1_loss(self.back(fake_b), a) + F.l1_loss(self.there(fake_a), b))
        total = total + 5 * (F.l1_loss(self.there(b), b) + F.l1_loss(self.back(a), a))
        for judge, fake, real in zip(self.judges, (fake_a, fake_b), (a, b)):
            with torch.no_grad():
                judge.requires_grad_(False)
            score = judge(fake)
            judge.requires_grad_(True)
            total = total + F.mse_loss(score, torch.ones_like(score))
            with torch.no_grad():
                old = self.pool[: len(fake)].to(fake.dtype)
                swap = torch.rand(len(fake), 1, 1, 1, device=a.device) > 0.5
                mixed = torch.where(swap, old, fake.detach())
                self.pool.copy_(self.pool.roll(len(fake), 0))
                self.pool[: len(fake)] = fake.detach().to(self.pool.dtype)
            for score, goal in ((judge(real), 1.0), (judge(mixed), 0.0)):
                total = total + 0.5 * F.mse_loss(score, score.new_tensor(goal).expand_as(score))
        blur = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]], device=a.device, dtype=fake_b.dtype) / 16
        edges = F.conv2d(fake_b, blur.repeat(3, 1, 1, 1), padding=1, groups=3) - fake_b
        return total + 0.1 * torch.sqrt(edges.float().square() + 1e-6).mean()


def streets() -> list[Tensor]:
    y = whole(4, 2, 16, 16)
    return [normal(2, 3, 16, 16), y.masked_fill(normal(2, 16, 16, seed=4) > 1.3, 255)]


def boxes() -> Tensor:
    rest = normal(2, 3, 4, seed=6)
    return torch.cat([rest[..., :2].sigmoid() * 10 + 0.5, rest[..., 2:3].abs() + 0.5, rest[..., 3:]], -1)


PROGRAMS = (
    Program("hard pixels", "eleventh", Street, streets),
    Program("from above", "eleventh", Above, lambda: [normal(2, 3, 8, 16), normal(2, 40, 4) * 2, boxes()]),
    Program("hidden patches", "eleventh", Hidden, lambda: [normal(4, 3, 16, 16)]),
    Program("there and back", "eleventh", Cycle, lambda: [normal(1, 3, 16, 16), normal(1, 3, 16, 16, seed=3)]),
)
