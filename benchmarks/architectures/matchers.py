"""Pictures that are matched, mixed and predicted, with hard choices on the way."""

from __future__ import annotations

import copy
import math

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def assigned(cost: list[list[float]]) -> list[int]:
    """The Hungarian algorithm on numbers of Python: for each row its column."""
    rows, columns = len(cost), len(cost[0])
    u, v, match, way = [0.0] * (rows + 1), [0.0] * (columns + 1), [0] * (columns + 1), [0] * (columns + 1)
    for row in range(1, rows + 1):
        match[0], column, least, used = row, 0, [math.inf] * (columns + 1), [False] * (columns + 1)
        while match[column]:
            used[column], current, delta, best = True, match[column], math.inf, 0
            for other in range(1, columns + 1):
                if used[other]:
                    continue
                reduced = cost[current - 1][other - 1] - u[current] - v[other]
                if reduced < least[other]:
                    least[other], way[other] = reduced, column
                if least[other] < delta:
                    delta, best = least[other], other
            for other in range(columns + 1):
                if used[other]:
                    u[match[other]] += delta
                    v[other] -= delta
                else:
                    least[other] -= delta
            column = best
        while column:
            match[column], column = match[way[column]], way[column]
    found = [0] * rows
    for column in range(1, columns + 1):
        if match[column]:
            found[match[column] - 1] = column - 1
    return found


class MaskQueries(nn.Module):
    """Mask2Former: queries that look where their mask was, points drawn where it is unsure, a match, dice."""

    def __init__(self, width: int = 16, queries: int = 5, kinds: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(True))
        self.deep, self.side = nn.Conv2d(width, width, 3, 2, 1), nn.Conv2d(width, width, 1)
        self.queries, self.places = nn.Embedding(queries, width), nn.Embedding(queries, width)
        self.looks = nn.ModuleList(nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(2))
        self.feeds, self.norm = nn.ModuleList(nn.Linear(width, width) for _ in range(2)), nn.LayerNorm(width)
        self.kind, self.mask = nn.Linear(width, kinds + 1), nn.Linear(width, width)
        self.register_buffer("rare", torch.cat([torch.ones(kinds), torch.tensor([0.1])]))
        self.kinds = kinds

    def heads(self, hidden: Tensor, fine: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.norm(hidden)
        return self.kind(hidden).float(), torch.einsum("bqc,bchw->bqhw", self.mask(hidden), fine).float()

    @staticmethod
    def at(masks: Tensor, points: Tensor) -> Tensor:
        return F.grid_sample(masks, 2.0 * points.unsqueeze(2) - 1.0, align_corners=False).squeeze(3)

    def cost(self, kind: Tensor, mask: Tensor, kinds: Tensor, truth: Tensor) -> Tensor:
        with torch.no_grad():
            points = torch.rand(1, 20, 2, device=mask.device)
            ours = self.at(mask[:, None], points.expand(len(mask), -1, -1)).squeeze(1)
            given = self.at(truth[:, None], points.expand(len(truth), -1, -1)).squeeze(1)
            yes = F.binary_cross_entropy_with_logits(ours, torch.ones_like(ours), reduction="none")
            no = F.binary_cross_entropy_with_logits(ours, torch.zeros_like(ours), reduction="none")
            by_mask = (torch.einsum("nc,mc->nm", yes, given) + torch.einsum("nc,mc->nm", no, 1 - given)) / 20
            share = ours.sigmoid().flatten(1)
            dice = 1 - (2 * torch.einsum("nc,mc->nm", share, given) + 1) / (share.sum(-1)[:, None] + given.sum(-1) + 1)
            chosen = assigned((2 * -kind.softmax(-1)[:, kinds] + 5 * by_mask + 5 * dice).t().tolist())
        row = torch.tensor(chosen, device=mask.device)
        goal = torch.full((len(kind),), self.kinds, dtype=torch.long, device=kind.device)
        goal[row] = kinds
        named = F.cross_entropy(kind, goal, self.rare.float())
        with torch.no_grad():
            drawn = torch.rand(len(row), 36, 2, device=mask.device)
            unsure = -self.at(mask[row][:, None], drawn).abs().squeeze(1)
            best = unsure.topk(9, dim=1).indices + 36 * torch.arange(len(row), device=mask.device)[:, None]
            points = torch.cat([drawn.view(-1, 2)[best.view(-1)].view(len(row), 9, 2), drawn[:, :3]], 1)
            labels = self.at(truth[:, None], points).squeeze(1)
        logits = self.at(mask[row][:, None], points).squeeze(1)
        share = logits.sigmoid()
        dice = (1 - (2 * (share * labels).sum(-1) + 1) / (share.sum(-1) + labels.sum(-1) + 1)).mean()
        p = torch.exp(-F.binary_cross_entropy_with_logits(logits, labels, reduction="none"))
        focal = (F.binary_cross_entropy_with_logits(logits, labels, reduction="none") * (1 - p) ** 2).mean()
        return 2 * named + 5 * dice + 5 * focal

    def loss(self, picture: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(picture)
        deep = self.deep(x)
        fine = self.side(x) + F.interpolate(deep, size=x.shape[-2:], mode="bilinear", align_corners=False)
        memory = deep.flatten(2).transpose(1, 2)
        hidden = self.queries.weight.unsqueeze(0).repeat(len(picture), 1, 1).to(memory.dtype)
        results = [self.heads(hidden, fine)]
        for look, feed in zip(self.looks, self.feeds):
            before = F.interpolate(results[-1][1], size=deep.shape[-2:], mode="bilinear", align_corners=False)
            hide = (before.sigmoid().flatten(2).unsqueeze(1).repeat(1, 2, 1, 1).flatten(0, 1) < 0.5).detach()
            hide[torch.where(hide.sum(-1) == hide.shape[-1])] = False
            told, _ = look(hidden + self.places.weight.to(hidden.dtype), memory, memory, attn_mask=hide)
            hidden = hidden + told
            hidden = hidden + F.relu(feed(hidden))
            results.append(self.heads(hidden, fine))
        total = picture.new_zeros((), dtype=torch.float32)
        for kind, mask in results:
            for one in range(len(picture)):
                kinds = labels[one].unique()
                truth = (labels[one] == kinds[:, None, None]).float()
                wide = F.interpolate(mask[one][None], size=labels.shape[-2:], mode="bilinear", align_corners=False)[0]
                total = total + self.cost(kind[one], wide, kinds, truth)
        return total / 10


class Boxes(nn.Module):
    """YOLO 8: pooled pyramids, edges as distributions, tasks aligned by topk, CIoU, a mosaic, boxes suppressed."""

    def __init__(self, width: int = 16, kinds: int = 3, bins: int = 6) -> None:
        super().__init__()
        self.kinds, self.bins = kinds, bins
        self.stem, self.bn = nn.Conv2d(3, width, 6, 4, 1, bias=False), nn.BatchNorm2d(width, 1e-3, 0.03)
        self.c2f, self.mid = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width // 2, width // 2, 3, 1, 1)
        self.sppf, self.down = nn.Conv2d(3 * width, width, 1), nn.Conv2d(width, width, 3, 2, 1)
        self.box, self.cls = nn.Conv2d(width, 4 * bins, 1), nn.Conv2d(width, kinds, 1)
        nn.init.constant_(self.cls.bias, -2.0)

    def features(self, x: Tensor) -> list[Tensor]:
        x = F.silu(self.bn(self.stem(x)), inplace=True)
        first, second = self.c2f(x).chunk(2, 1)
        x = torch.cat([first, second + F.silu(self.mid(second))], 1)
        low = F.silu(self.down(x))
        pools = [low, F.max_pool2d(low, 5, 1, 2)]
        pools.append(F.max_pool2d(pools[-1], 5, 1, 2))
        return [x, self.sppf(torch.cat(pools, 1))]

    @staticmethod
    def overlap(one: Tensor, other: Tensor) -> Tensor:
        """CIoU; the arc tangents' share has no gradient."""
        inner = (torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])).clamp_(0)
        size, size2 = one[..., 2:] - one[..., :2], other[..., 2:] - other[..., :2]
        both = inner.prod(-1)
        iou = both / (size.prod(-1) + size2.prod(-1) - both + 1e-7)
        outer = torch.maximum(one[..., 2:], other[..., 2:]) - torch.minimum(one[..., :2], other[..., :2])
        far = ((one[..., :2] + one[..., 2:] - other[..., :2] - other[..., 2:]) ** 2).sum(-1) / 4
        v = 4 / math.pi**2 * (torch.atan(size2[..., 0] / size2[..., 1]) - torch.atan(size[..., 0] / size[..., 1])) ** 2
        with torch.no_grad():
            alpha = v / (v - iou + (1 + 1e-7))
        return iou - far / (outer.pow(2).sum(-1) + 1e-7) - v * alpha

    @staticmethod
    def suppressed(boxes: Tensor, scores: Tensor) -> Tensor:
        order = scores.argsort(descending=True)[:12]
        boxes = boxes[order]
        inner = (torch.min(boxes[:, None, 2:], boxes[None, :, 2:]) - torch.max(boxes[:, None, :2], boxes[None, :, :2])).clamp(0).prod(-1)  # fmt: skip # noqa: E501
        area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
        upper = (inner / (area[:, None] + area - inner + 1e-7)).triu_(diagonal=1)
        return order[upper.max(0).values < 0.5]

    def loss(self, picture: Tensor, truth: Tensor, kinds: Tensor) -> Tensor:
        levels = self.features(picture.contiguous(memory_format=torch.channels_last))
        anchors, strides = [], []
        for level, stride in zip(levels, (4, 8)):
            high, wide = level.shape[-2:]
            sy, sx = torch.arange(high, device=level.device) + 0.5, torch.arange(wide, device=level.device) + 0.5
            sy, sx = torch.meshgrid(sy, sx, indexing="ij")
            anchors.append(torch.stack((sx, sy), -1).view(-1, 2))
            strides.append(torch.full((high * wide, 1), stride, dtype=torch.float32, device=level.device))
        points, stride = torch.cat(anchors), torch.cat(strides)
        count = len(picture)
        spread = torch.cat([self.box(one).view(count, 4 * self.bins, -1) for one in levels], 2).permute(0, 2, 1)
        scores = torch.cat([self.cls(one).view(count, self.kinds, -1) for one in levels], 2).permute(0, 2, 1).float()
        bins = torch.arange(self.bins, dtype=torch.float32, device=picture.device)
        edges = spread.float().view(count, -1, 4, self.bins).softmax(3).matmul(bins)
        boxes = torch.cat((points - edges[..., :2], points + edges[..., 2:]), -1)
        start, size = truth.float()[..., :2].sigmoid() * 16, truth.float()[..., 2:].sigmoid() * 14 + 4
        goals = torch.cat([start, start + size], -1)
        with torch.no_grad():
            iou = self.overlap(goals[:, :, None], (boxes * stride)[:, None]).clamp_(0)
            rows = torch.arange(count, device=kinds.device)[:, None].expand_as(kinds)
            aligned = scores.sigmoid().permute(0, 2, 1)[rows, kinds].pow(0.5) * iou.pow(6)
            places = (points * stride)[None, None]
            inside = torch.cat([places - goals[:, :, None, :2], goals[:, :, None, 2:] - places], -1).amin(-1).gt_(1e-9)
            aligned = aligned * inside
            index = torch.topk(aligned, 4, dim=-1).indices
            chosen = torch.zeros_like(aligned, dtype=torch.int8)
            for one in range(4):
                chosen.scatter_add_(-1, index[:, :, one : one + 1], torch.ones_like(index[..., :1], dtype=torch.int8))
            chosen = chosen.masked_fill_(chosen > 1, 0).to(iou.dtype) * inside
            several = (chosen.sum(-2).unsqueeze(1) > 1).expand(-1, goals.shape[1], -1)
            best = torch.zeros_like(chosen).scatter_(1, iou.argmax(1, keepdim=True), 1)
            chosen = torch.where(several, best, chosen)
            owner, taken = chosen.argmax(-2), chosen.sum(-2) > 0
            aligned *= chosen
            most, most_iou = aligned.amax(-1, keepdim=True), (iou * chosen).amax(-1, keepdim=True)
            share = (aligned * most_iou / (most + 1e-9)).amax(-2).unsqueeze(-1)
            wanted = F.one_hot(kinds.gather(1, owner), self.kinds) * taken[..., None] * share
            target = goals.gather(1, owner[..., None].expand(-1, -1, 4)) / stride
        total = max(float(wanted.sum()), 1.0)
        named = F.binary_cross_entropy_with_logits(scores, wanted.float(), reduction="none").sum() / total
        weight = wanted.sum(-1)[taken]
        near = ((1.0 - self.overlap(boxes[taken], target[taken])) * weight).sum() / total
        around = torch.cat((points - target[..., :2], target[..., 2:] - points), -1).clamp(0, self.bins - 1.01)[taken]
        left = around.long()
        flat = spread.float().view(count, -1, 4, self.bins)[taken].view(-1, self.bins)
        lower = F.cross_entropy(flat, left.view(-1), reduction="none").view(left.shape) * (left + 1 - around)
        upper = F.cross_entropy(flat, left.view(-1) + 1, reduction="none").view(left.shape) * (around - left)
        dfl = ((lower + upper).mean(-1) * weight).sum() / total
        with torch.no_grad():
            kept = self.suppressed(boxes[0], scores[0].amax(-1))
        return 7.5 * near + 0.5 * named + 1.5 * dfl + 0 * kept.sum()


class Recipe(nn.Module):
    """timm's recipe: RandAugment by matrices, erasing, mixup or cutmix, layer scale, paths dropped, EMA, BCE."""

    def __init__(self, width: int = 12, kinds: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.depth = nn.ModuleList(nn.Conv2d(width, width, 7, padding=3, groups=width) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(3 * width, width) for _ in range(3))
        self.gamma = nn.ParameterList(torch.full((width,), 1e-2) for _ in range(3))
        self.grn, self.head = nn.Parameter(torch.zeros(2, 1, 1, 1, 3 * width)), nn.Linear(width, kinds)
        self.kinds = kinds
        self.__dict__["average"] = copy.deepcopy(self)  # no submodule, as timm keeps it

    def augmented(self, x: Tensor) -> Tensor:
        angle = (torch.rand(len(x), device=x.device) - 0.5) * 0.6
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        matrix = torch.stack([cos, -sin, zero, sin, cos, zero + 0.1], 1).view(-1, 2, 3)
        grid = F.affine_grid(matrix.to(x.dtype), list(x.shape), align_corners=False)
        x = F.grid_sample(x, grid, "bilinear", "reflection", align_corners=False)
        levels = ((x * 0.25 + 0.5).clamp(0, 1) * 255).to(torch.uint8)
        levels = torch.where(levels > 200, 255 - levels, levels) & 0xF8
        x = (levels.to(x.dtype) / 255 - 0.485) / 0.229
        top, left = torch.randint(0, 8, (2,)).tolist()
        x[:, :, top : top + 4, left : left + 4] = torch.empty_like(x[:, :, :4, :4]).normal_()
        return x

    def mixed(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        share = float(torch.distributions.Beta(0.8, 0.8).sample())
        low, high = 0.1 / self.kinds, 0.9 + 0.1 / self.kinds
        one = torch.full((len(y), self.kinds), low, device=x.device).scatter_(1, y.view(-1, 1), high)
        if torch.rand(()) < 0.5:
            x = x.mul(share).add_(x.flip(0).mul(1.0 - share))
        else:
            size = int(16 * math.sqrt(1 - share))
            x[:, :, :size, :size] = x.flip(0)[:, :, :size, :size].clone()
            share = 1 - size * size / 256
        return x, one * share + one.flip(0) * (1.0 - share)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.contiguous(memory_format=torch.channels_last))
        for number in range(3):
            rest = self.depth[number](x).permute(0, 2, 3, 1)
            rest = F.gelu(self.up[number](F.layer_norm(rest, rest.shape[-1:])))
            size = torch.norm(rest.float(), p=2, dim=(1, 2), keepdim=True)
            size = (size / (size.mean(dim=-1, keepdim=True) + 1e-6)).to(rest.dtype)
            rest = self.grn[0] * (rest * size) + self.grn[1] + rest
            rest = self.gamma[number].to(rest.dtype).mul(self.down[number](rest.to(x.dtype))).permute(0, 3, 1, 2)
            if self.training:
                keep = 1 - 0.1 * number
                rest = rest * rest.new_empty(len(rest), 1, 1, 1).bernoulli_(keep).div_(keep)
            x = x + rest
        return self.head(x.mean([-2, -1]))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            pictures, wanted = self.mixed(self.augmented(x), y)
            average = self.__dict__["average"].to(x.device)
            for slow, fast in zip(average.state_dict().values(), self.state_dict().values()):
                slow.copy_(slow * 0.9 + fast.to(slow.dtype) * 0.1)
        logits = self(pictures).float()
        two = F.binary_cross_entropy_with_logits(logits, wanted.gt(0.2).type(wanted.dtype))
        soft = torch.sum(-wanted * F.log_softmax(logits, dim=-1), dim=-1).mean()
        with torch.no_grad():
            _, best = logits.topk(2, 1, True, True)
            hits = best.t().eq(y.reshape(1, -1).expand_as(best.t()))[:2].reshape(-1).float().sum(0) * 100.0 / len(y)
        return two + soft + 0 * hits


PROGRAMS = (
    Program("mask queries", "ninth", MaskQueries, lambda: [normal(2, 3, 16, 16), whole(3, 2, 16, 16)]),
    Program("boxes as bins", "ninth", Boxes, lambda: [normal(2, 3, 32, 32), normal(2, 3, 4, seed=5), whole(3, 2, 3)]),
    Program("a recipe", "ninth", Recipe, lambda: [normal(4, 3, 16, 16), whole(4, 4)]),
)
