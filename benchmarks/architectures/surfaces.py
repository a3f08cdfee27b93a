"""Pictures of space: hashed grids, prompts, meshes, far points, depth, cells that grow, boxes that are assigned."""

from __future__ import annotations

import math

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class HashedGrid(nn.Module):
    """Instant NGP as a signed distance: eight hashed corners a level, slopes of length one, light where it turns."""

    def __init__(self, rows: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, 2) for _ in range(3)])
        for table in self.tables:
            nn.init.uniform_(table.weight, -0.3, 0.3)
        self.body, self.colour = nn.Sequential(nn.Linear(9, 16), nn.Softplus(100), nn.Linear(16, 5)), nn.Linear(10, 3)
        self.sharp = nn.Parameter(torch.tensor(2.0))

    def encoded(self, x: Tensor) -> Tensor:
        corner = torch.cartesian_prod(*[torch.tensor([0, 1], device=x.device)] * 3)
        made = [x]
        for level, table in enumerate(self.tables):
            scaled = (x + 2) * 2.0 * 1.5**level
            low = scaled.detach().floor()
            share = scaled - low
            place = low.long()[:, None] + corner
            key = place[..., 0] ^ (place[..., 1] * 2654435761) ^ (place[..., 2] * 805459861)
            weight = torch.where(corner.bool(), share[:, None], 1 - share[:, None]).prod(-1, keepdim=True)
            made.append((table(key.remainder(table.num_embeddings)).float() * weight).sum(1))
        return torch.cat(made, -1)

    def loss(self, rays: Tensor, wanted: Tensor) -> Tensor:
        with in_float32(rays):
            origin, way = rays.float().split(3, -1)
            way = way / way.norm(dim=-1, keepdim=True).clamp_min(1e-6)
            depth = (
                torch.arange(7, device=rays.device) * 0.4 + 0.1 + 0.05 * torch.rand(len(rays), 7, device=rays.device)
            )
            places = torch.addcmul(origin[:, None], way[:, None], depth[..., None]).flatten(0, 1).clamp(-1.9, 1.9)
            places = places.detach().requires_grad_()
            body = [(one.weight.float(), one.bias.float()) for one in (self.body[0], self.body[2])]
            made = F.linear(F.softplus(F.linear(self.encoded(places), *body[0]), 100), *body[1])
            distance = made[:, 0]
            (normals,) = torch.autograd.grad(distance, places, torch.ones_like(distance), create_graph=True)
            eikonal = (normals.norm(2, -1) - 1).square().mean()
            near = torch.sigmoid(self.sharp.float().exp() * distance.view(len(rays), 7))
            alpha = ((near[:, :-1] - near[:, 1:]) / (near[:, :-1] + 1e-5)).clamp(0, 1)
            clear = torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-7], 1).cumprod(1)[:, :-1]
            colour = self.colour.weight.float() @ torch.cat([places, normals, made[:, 1:]], -1).mT
            colour = (colour + self.colour.bias.float()[:, None]).mT.sigmoid().view(len(rays), 7, 3)
            seen = torch.einsum("nd,ndc->nc", alpha * clear, colour[:, :-1])
            bend = F.relu(-(normals.view(len(rays), 7, 3) * way[:, None]).sum(-1)).mean()
        rough = sum(one.weight.float().diff(dim=0).abs().mean() for one in self.tables)
        return F.l1_loss(seen, wanted.float()) + 0.1 * eikonal + 0.01 * bend + 1e-3 * rough


class Prompts(nn.Module):
    """SAM: points and boxes as waves of a fixed random matrix, looks both ways, masks by weights made on the way."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.register_buffer("waves", normal(2, width // 2))
        self.body, self.labels = nn.Conv2d(3, width, 4, 4), nn.ModuleList(nn.Embedding(1, width) for _ in range(4))
        self.none, self.tokens = nn.Embedding(1, width), nn.Embedding(4, width)
        self.there, self.back = (nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(2))
        self.up = nn.ConvTranspose2d(width, 8, 2, stride=2)
        self.scale, self.shift = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8)) for _ in range(3)
        )
        self.quality = nn.Linear(width, 3)

    def placed(self, places: Tensor) -> Tensor:
        waves = 2 * torch.pi * ((2 * places - 1) @ self.waves.float())
        return torch.cat([waves.sin(), waves.cos()], dim=-1)

    def prompts(self, points: Tensor, labels: Tensor) -> Tensor:
        made = self.placed(points.float()).to(self.none.weight.dtype)
        made[labels == -1] = 0.0
        made[labels == -1] += self.none.weight
        for number, table in enumerate(self.labels):
            made[labels == number] += table.weight
        return made

    def loss(self, x: Tensor, points: Tensor, labels: Tensor, masks: Tensor) -> Tensor:
        seen = self.body(x)
        high, wide = seen.shape[-2:]
        grid = torch.ones(high, wide, device=x.device)
        grid = torch.stack([(grid.cumsum(1) - 0.5) / wide, (grid.cumsum(0) - 0.5) / high], -1)
        with in_float32(x):
            where = self.placed(grid).flatten(0, 1).to(seen.dtype)
            told = self.prompts(points, labels).to(seen.dtype)
        tokens = torch.cat([self.tokens.weight.expand(len(x), -1, -1).to(seen.dtype), told], 1)
        flat = seen.flatten(2).mT
        tokens = tokens + self.there(tokens, flat + where, flat, need_weights=False)[0]
        flat = flat + self.back(flat + where, tokens, tokens, need_weights=False)[0]
        up = self.up(flat.mT.unflatten(2, (high, wide))).float()
        mean = up.mean(1, keepdim=True)
        up = (up - mean) / torch.sqrt((up - mean).pow(2).mean(1, keepdim=True) + 1e-6)
        up = F.gelu(self.scale.float()[:, None, None] * up + self.shift.float()[:, None, None])
        weights = torch.stack([net(tokens[:, 1 + place]) for place, net in enumerate(self.nets)], 1).float()
        made = (weights @ up.flatten(2)).view(len(x), 3, *up.shape[-2:])
        made = F.interpolate(made.float(), masks.shape[-2:], mode="bilinear", antialias=True)
        wanted = masks[:, None].float().expand_as(made)
        p = made.sigmoid()
        right = p * wanted + (1 - p) * (1 - wanted)
        focal = (F.binary_cross_entropy_with_logits(made, wanted, reduction="none") * (1 - right) ** 2).mean((2, 3))
        dice = 1 - (2 * (p * wanted).sum((2, 3)) + 1) / (p.sum((2, 3)) + wanted.sum((2, 3)) + 1)
        shared = ((p > 0.5) & (wanted > 0.5)).sum((2, 3)) / ((p > 0.5) | (wanted > 0.5)).sum((2, 3)).clamp(min=1)
        best = (20 * focal + dice).min(1).values.mean()
        return best + F.mse_loss(self.quality(tokens[:, 0]).float(), shared.detach())


class Meshes(nn.Module):
    """A soft rasterizer: triangles by their edges, colours by depth, a mesh that stays smooth, normals that agree."""

    def __init__(self) -> None:
        super().__init__()
        corners = torch.tensor([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]])
        self.register_buffer("start", corners)
        faces = [[0, 2, 4], [2, 1, 4], [1, 3, 4], [3, 0, 4], [2, 0, 5], [1, 2, 5], [3, 1, 5], [0, 3, 5]]
        self.register_buffer("faces", torch.tensor(faces))
        self.moves, self.colours = nn.Parameter(normal(6, 3) * 0.1), nn.Parameter(normal(6, 3, seed=5))
        self.view = nn.Parameter(torch.tensor([0.3, 0.2, 3.0]))

    def loss(self, picture: Tensor) -> Tensor:
        with in_float32(picture):
            corners = self.start.float() + 0.3 * torch.tanh(self.moves.float())
            yaw, tilt, far = self.view.float().unbind()
            zero, one = torch.zeros_like(yaw), torch.ones_like(yaw)
            turn = torch.stack([yaw.cos(), zero, yaw.sin(), zero, one, zero, -yaw.sin(), zero, yaw.cos()]).view(3, 3)
            lift = torch.stack([one, zero, zero, zero, tilt.cos(), -tilt.sin(), zero, tilt.sin(), tilt.cos()]).view(
                3, 3
            )
            placed = torch.linalg.multi_dot([corners, turn, lift]) + F.pad(far[None], (2, 0))
            flat = placed[:, :2] / placed[:, 2:].clamp(min=0.1)
            a, b, c = flat[self.faces].unbind(1)
            line = torch.linspace(-0.6, 0.6, 7, device=picture.device)
            y, x = torch.meshgrid(line, line, indexing="ij")
            pixels = torch.stack([x, y], -1).view(-1, 1, 2)

            def side(start: Tensor, end: Tensor) -> Tensor:
                edge, there = end - start, pixels - start
                return edge[..., 0] * there[..., 1] - edge[..., 1] * there[..., 0]

            area = side(a, b).new_tensor(1e-6).copysign((b - a)[:, 0] * (c - a)[:, 1]) + (
                (b - a)[:, 0] * (c - a)[:, 1] - (b - a)[:, 1] * (c - a)[:, 0]
            )
            share = torch.stack([side(b, c), side(c, a), side(a, b)], -1) / area[:, None]
            inside = torch.sigmoid(share.amin(-1) * 20)
            clipped = share.clamp(0, 1) / share.clamp(0, 1).sum(-1, keepdim=True).clamp(min=1e-5)
            depth = (clipped * placed[self.faces][..., 2]).sum(-1).reciprocal()
            behind = torch.full_like(depth[:, :1], math.log(1e-3))
            weights = torch.cat([inside.clamp_min(1e-8).log() + 10 * depth, behind], 1).softmax(1)
            colour = torch.einsum("pfk,fkc->pfc", clipped, self.colours.float().sigmoid()[self.faces])
            painted = torch.baddbmm(weights[:, -1:, None] * 0.5, weights[:, None, :-1], colour).squeeze(1)
            hidden = 1 - torch.prod(1 - inside, 1)
            normals = torch.linalg.cross(*(corners[self.faces[:, k]] - corners[self.faces[:, 0]] for k in (1, 2)))
            normals = normals.div(normals.norm(dim=1, keepdim=True).add(1e-8))
            agree = 1 - F.cosine_similarity(normals, normals.roll(1, 0), eps=1e-6).mean()
            pairs = torch.cat([self.faces[:, [0, 1]], self.faces[:, [1, 2]], self.faces[:, [2, 0]]])
            near = torch.zeros_like(corners).index_add_(0, pairs[:, 0], corners[pairs[:, 1]])
            count = torch.zeros(6, 1, device=picture.device).index_add_(
                0, pairs[:, 0], torch.ones_like(pairs[:, :1]).float()
            )
            smooth = (near / count - corners).norm(dim=1).mean()
        wanted = picture.float().flatten(1).mT
        return F.mse_loss(painted, wanted) + 0.1 * (hidden * wanted[:, 0]).mean() + 0.05 * agree + 0.1 * smooth


class FarPoints(nn.Module):
    """PointNet++: points that are farthest from each other, balls round them, back by the three nearest; Chamfer."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.local = nn.Sequential(
            nn.Conv2d(6, width, 1, bias=False), nn.BatchNorm2d(width, 1e-3), nn.ReLU(inplace=True)
        )
        self.back, self.grow = nn.Sequential(nn.Conv1d(width + 3, width, 1), nn.ReLU()), nn.Linear(width, 9)
        self.top = nn.Conv1d(width, 4, 1)

    @staticmethod
    @torch.no_grad()
    def farthest(x: Tensor, count: int) -> Tensor:
        chosen = torch.zeros(len(x), count, dtype=torch.long, device=x.device)
        distance = torch.full(x.shape[:2], 1e10, device=x.device)
        last, rows = torch.zeros(len(x), dtype=torch.long, device=x.device), torch.arange(len(x), device=x.device)
        for place in range(count):
            chosen[:, place] = last
            apart = ((x - x[rows, last].view(-1, 1, 3)) ** 2).sum(-1)
            nearer = apart < distance
            distance[nearer] = apart[nearer]
            last = torch.max(distance, -1)[1]
        return chosen

    def loss(self, points: Tensor, labels: Tensor) -> Tensor:
        x, rows = points.float(), torch.arange(len(points), device=points.device)
        centre = x[rows[:, None], self.farthest(x, 6)]
        apart = -2 * torch.matmul(centre, x.mT) + (centre**2).sum(-1, keepdim=True) + (x**2).sum(-1)[:, None]
        index = torch.arange(x.shape[1], device=x.device).repeat(len(x), 6, 1)
        index[apart > 1.0] = x.shape[1]
        index = index.sort(-1)[0][..., :5]
        first = index[..., :1].expand_as(index)
        missing = index == x.shape[1]
        index = torch.where(missing, first, index).clamp(max=x.shape[1] - 1)
        near = x[rows[:, None, None], index]
        given = torch.cat([near, near - centre[:, :, None]], -1).permute(0, 3, 1, 2)
        seen = self.local(given.to(points.dtype)).max(3)[0]
        far, place = torch.cdist(x, centre, compute_mode="donot_use_mm_for_euclid_dist").topk(3, largest=False)
        weight = (far + 1e-5).reciprocal()
        weight = weight / weight.sum(-1, True)
        picked = torch.gather(seen.float().mT, 1, place.flatten(1)[..., None].expand(-1, -1, seen.shape[1]))
        carried = (picked.unflatten(1, (-1, 3)) * weight[..., None]).sum(2).mT
        hidden = self.back(torch.cat([carried.to(points.dtype), points.mT], 1))
        grown = self.grow(hidden.amax(2)).float().view(len(x), 3, 3)
        pull = torch.cdist(grown, x).square()
        chamfer = pull.min(2).values.mean() + pull.min(1).values.mean()
        weight = torch.tensor([0.5, 1, 1, 2], device=x.device, dtype=hidden.dtype)
        return (
            F.cross_entropy(self.top(hidden), labels, weight.to(hidden.dtype), label_smoothing=0.2).float()
            + 0.1 * chamfer
        )


class Depth(nn.Module):
    """Depth without labels: turns by Rodrigues, a picture seen from elsewhere, the better of two views, edges."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3), nn.ELU(inplace=True))
        self.pose, self.out = nn.Conv2d(6, 6, 3, 2), nn.Conv2d(8, 1, 3, padding=1, padding_mode="reflect")
        self.register_buffer("lens", torch.tensor([[8.0, 0, 5.5], [0, 8, 4.5], [0, 0, 1]]))

    @staticmethod
    def turned(axis: Tensor) -> Tensor:
        angle = axis.norm(dim=1, keepdim=True)
        x, y, z = (axis / (angle + 1e-7)).unbind(1)
        zero = torch.zeros_like(x)
        skew = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], 1).view(-1, 3, 3)
        eye = torch.eye(3, device=axis.device).unsqueeze(0)
        return eye + angle.sin()[..., None] * skew + (1 - angle.cos())[..., None] * torch.bmm(skew, skew)

    @staticmethod
    def unlike(x: Tensor, y: Tensor) -> Tensor:
        x, y = (F.pad(one, (1, 1, 1, 1), "reflect") for one in (x, y))
        mean_x, mean_y = F.avg_pool2d(x, 3, 1), F.avg_pool2d(y, 3, 1)
        var_x, var_y = F.avg_pool2d(x**2, 3, 1) - mean_x**2, F.avg_pool2d(y**2, 3, 1) - mean_y**2
        both = F.avg_pool2d(x * y, 3, 1) - mean_x * mean_y
        top = (2 * mean_x * mean_y + 1e-4) * (2 * both + 9e-4)
        low = (mean_x**2 + mean_y**2 + 1e-4) * (var_x + var_y + 9e-4)
        return torch.clamp((1 - top / low) / 2, 0, 1).mean(1, True)

    def loss(self, now: Tensor, before: Tensor) -> Tensor:
        disparity = torch.sigmoid(self.out(self.body(now))).float()
        depth = 1 / (0.01 + 9.99 * disparity)
        moved = 0.01 * self.pose(torch.cat([now, before], 1)).mean((2, 3)).float()
        with in_float32(now):
            count, _, high, wide = now.shape
            y, x = torch.meshgrid(*(torch.arange(size, device=now.device) for size in (high, wide)), indexing="ij")
            pixels = torch.stack([x, y, torch.ones_like(x)]).float().view(3, -1)
            rays = torch.linalg.inv(self.lens.float()) @ pixels
            there = self.turned(moved[:, :3]) @ (depth.view(count, 1, -1) * rays) + moved[:, 3:, None]
            seen = torch.matmul(self.lens.float(), there)
            place = (seen[:, :2] / (seen[:, 2:] + 1e-7)).view(count, 2, high, wide).permute(0, 2, 3, 1)
            place = (place / torch.tensor([wide - 1, high - 1], device=now.device) - 0.5) * 2
            other = F.grid_sample(before.float(), place, padding_mode="border", align_corners=True)
        now, before = now.float(), before.float()
        errors = [0.85 * self.unlike(one, now) + 0.15 * (one - now).abs().mean(1, True) for one in (other, before)]
        errors[1] = errors[1] + torch.randn_like(errors[1]) * 1e-5
        best, chosen = torch.min(torch.cat(errors, 1), 1)
        even = disparity / (disparity.mean((2, 3), keepdim=True) + 1e-7)
        edges = [
            (even.diff(dim=k).abs() * torch.exp(-now.diff(dim=k).abs().mean(1, keepdim=True))).mean() for k in (2, 3)
        ]
        return best.mean() + 0.1 * sum(edges) + 0 * chosen.float().mean()


class Automaton(nn.Module):
    """A picture that grows: each cell sees its slopes, some cells wake at each step, cells without neighbours die."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        line, slope = torch.tensor([1.0, 2.0, 1.0]), torch.tensor([-1.0, 0.0, 1.0])
        kernels = torch.stack(
            [torch.outer(line, slope), torch.outer(slope, line), torch.tensor([[0.0] * 3, [0, 8, 0], [0] * 3])]
        )
        self.register_buffer("kernels", (kernels / 8).repeat(width, 1, 1)[:, None])
        self.first, self.last = nn.Conv2d(3 * width, 20, 1), nn.Conv2d(20, width, 1, bias=False)
        nn.init.normal_(self.last.weight, std=0.05)
        self.register_buffer("pool", torch.zeros(4, width, 7, 7))
        self.pool[:, 3:, 3, 3] = 1.0

    @staticmethod
    def lives(x: Tensor) -> Tensor:
        return F.max_pool2d(x[:, 3:4], 3, stride=1, padding=1) > 0.1

    def loss(self, wanted: Tensor) -> Tensor:
        chosen = torch.tensor([2, 0], device=wanted.device)
        x = self.pool[chosen].to(wanted.dtype)
        for _ in range(4):
            before = self.lives(x)
            seen = F.conv2d(F.pad(x, (1, 1, 1, 1), "circular"), self.kernels.to(x.dtype), groups=x.shape[1])
            change = self.last(F.relu(self.first(seen), inplace=True))
            x = x + change * torch.empty_like(x[:, :1]).bernoulli_(0.5).to(change.dtype)
            x = x * (before & self.lives(x)).to(x.dtype)
        x.register_hook(lambda gradient: gradient / (gradient.norm() + 1e-8))
        losses = (x[:, :4].float() - wanted.float()).square().mean((1, 2, 3))
        over = (x.float() - x.float().clamp(-2, 2)).abs().mean()
        with torch.no_grad():
            self.pool[chosen] = x[losses.argsort()].to(self.pool.dtype)
        return losses.mean() + over


class Assigned(nn.Module):
    """A detector without anchors: boxes as shares of distances, things choose their places, CIoU by arc tangents."""

    def __init__(self, width: int = 8, bins: int = 4) -> None:
        super().__init__()
        self.bins = bins
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width, momentum=0.03), nn.SiLU(True)
        )
        self.pool, self.mix = nn.MaxPool2d(5, 1, 2), nn.Conv2d(3 * width, width, 1)
        self.boxes, self.kinds = nn.Conv2d(width, 4 * bins, 1), nn.Conv2d(width, 3, 1)

    @staticmethod
    def overlap(one: Tensor, other: Tensor) -> Tensor:
        low, high = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
        shared = (high - low).clamp(min=0).prod(-1)
        size, wanted = one[..., 2:] - one[..., :2], other[..., 2:] - other[..., :2]
        iou = shared / (size.prod(-1) + wanted.prod(-1) - shared + 1e-7)
        hull = torch.maximum(one[..., 2:], other[..., 2:]) - torch.minimum(one[..., :2], other[..., :2])
        apart = ((one + one.roll(2, -1) - other - other.roll(2, -1))[..., :2] ** 2).sum(-1) / 4
        bent = (
            4
            / math.pi**2
            * (torch.atan(wanted[..., 0] / wanted[..., 1]) - torch.atan(size[..., 0] / size[..., 1])).pow(2)
        )
        with torch.no_grad():
            alpha = bent / (bent - iou + 1 + 1e-7)
        return iou - apart / (hull.square().sum(-1) + 1e-7) - alpha * bent

    def loss(self, x: Tensor, boxes: Tensor, kinds: Tensor) -> Tensor:
        seen = self.body(x)
        twice = self.pool(seen)
        seen = self.mix(torch.cat([seen, twice, self.pool(twice)], 1))
        shares, scores = (one(seen).flatten(2).mT.float() for one in (self.boxes, self.kinds))
        side = seen.shape[-1]
        line = torch.arange(side, device=x.device) + 0.5
        anchor = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).view(-1, 2)
        far = shares.unflatten(-1, (4, self.bins)).softmax(-1) @ torch.arange(self.bins, device=x.device).float()
        made = torch.cat([anchor - far[..., :2], anchor + far[..., 2:]], -1)
        truth = boxes.float()
        with torch.no_grad():
            gaps = torch.cat([anchor - truth[:, :, None, :2], truth[:, :, None, 2:] - anchor], -1)
            inside = gaps.amin(-1) > 1e-9
            likely = scores.sigmoid().mT.gather(1, kinds[..., None].expand(-1, -1, side * side))
            near = self.overlap(made[:, None], truth[:, :, None]).clamp(0)
            metric = likely.sqrt() * near.pow(6) * inside
            best = torch.zeros_like(metric).scatter_(-1, metric.topk(5, -1).indices, 1.0).mul_(inside)
            twice = best.sum(1, keepdim=True) > 1
            best = torch.where(twice, F.one_hot(near.argmax(1), truth.shape[1]).mT.to(best), best)
            chosen, picked = best.sum(1) > 0, best.argmax(1)
            metric = metric * best
            share = metric / metric.amax(-1, keepdim=True).clamp(min=1e-9) * (near * best).amax(-1, keepdim=True)
            wanted = F.one_hot(kinds, 3).float().mT @ share
        total = wanted.sum().clamp(min=1)
        cost = F.binary_cross_entropy_with_logits(scores, wanted.mT, reduction="none").sum() / total
        target = truth.gather(1, picked[..., None].expand(-1, -1, 4))
        weight = wanted.sum(1)[chosen]
        cost = cost + ((1 - self.overlap(made[chosen], target[chosen])) * weight).sum() / total
        gap = torch.cat([anchor - target[..., :2], target[..., 2:] - anchor], -1).clamp(0, self.bins - 1.01)[chosen]
        low = gap.long()
        logits = shares[chosen].view(-1, self.bins)
        fine = F.cross_entropy(logits, low.view(-1), reduction="none") * (low + 1 - gap).view(-1)
        fine = fine + F.cross_entropy(logits, low.view(-1) + 1, reduction="none") * (gap - low).view(-1)
        return cost + 0.3 * (fine.view(-1, 4).mean(1) * weight).sum() / total


def boxes() -> Tensor:
    """Low and high corners of two things in each picture, on a grid of 6 by 6."""
    return torch.tensor([[[0.4, 0.3, 3.9, 4.2], [2.2, 2.6, 5.8, 5.5]], [[1.1, 0.2, 5.2, 3.1], [0.3, 2.4, 2.9, 5.7]]])


def prompts() -> Tensor:
    """Points with their kind: none, outside, inside, corners of a box."""
    return torch.tensor([[1, 0, -1], [1, 1, 0], [2, 3, -1]])


PROGRAMS = (
    Program("hashed grid", "eighth", HashedGrid, lambda: [normal(9, 6), torch.sigmoid(normal(9, 3, seed=4))]),
    Program(
        "prompts", "eighth", Prompts,
        lambda: [normal(3, 3, 16, 16), torch.sigmoid(normal(3, 3, 2)), prompts(), whole(2, 3, 12, 12)],
    ),
    Program("meshes", "eighth", Meshes, lambda: [torch.sigmoid(normal(3, 7, 7))]),
    Program("far points", "eighth", FarPoints, lambda: [normal(2, 16, 3), whole(4, 2, 16)]),
    Program("depth", "eighth", Depth, lambda: [torch.sigmoid(normal(2, 3, 10, 12, seed=s)) for s in (1, 2)]),
    Program("cells that grow", "eighth", Automaton, lambda: [torch.sigmoid(normal(2, 4, 7, 7))]),
    Program("assigned boxes", "eighth", Assigned, lambda: [normal(2, 3, 12, 12), boxes(), whole(3, 2, 2)]),
)  # fmt: skip
