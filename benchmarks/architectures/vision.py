"""Models of pictures."""

from __future__ import annotations

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

CLASSES = 6


def pictures(batch: int = 4, size: int = 16) -> list[Tensor]:
    return [normal(batch, 3, size, size), whole(CLASSES, batch)]


class Patches(nn.Module):
    """ViT: patches, a class token, nn.MultiheadAttention."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.norm, self.last = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.perceptron = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.patches(x).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.first.expand(len(x), -1, -1).to(hidden.dtype), hidden], 1) + self.places
        normal = self.norm(hidden)
        hidden = hidden + self.attention(normal, normal, normal, need_weights=False)[0]
        return self.last(hidden + self.perceptron(self.norm(hidden)))[:, 0]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self(x)), y, label_smoothing=0.1)


class Windows(nn.Module):
    """Swin: windows that are rolled on, with a table of biases."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 2, stride=2)
        self.mixed, self.out, self.head = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            nn.Linear(width, CLASSES),
        )
        self.table = nn.Parameter(torch.randn(49, 3) * 0.02)
        grid = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        distance = (grid[:, :, None] - grid[:, None]) + 3
        self.register_buffer("places", distance[0] * 7 + distance[1])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.patches(x).permute(0, 2, 3, 1)
        for shift in (0, 2):
            moved = torch.roll(F.layer_norm(hidden, hidden.shape[-1:]), (-shift, -shift), (1, 2))
            cut = moved.unflatten(1, (2, 4)).unflatten(3, (2, 4)).transpose(2, 3).flatten(0, 2).flatten(1, 2)
            query, key, value = self.mixed(cut).unflatten(-1, (3, 3, -1)).permute(2, 0, 3, 1, 4)
            bias = self.table[self.places.flatten()].view(16, 16, 3).permute(2, 0, 1)
            scores = query * query.shape[-1] ** -0.5 @ key.transpose(-2, -1) + bias
            seen = self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
            seen = seen.unflatten(1, (4, 4)).unflatten(0, (-1, 2, 2)).transpose(2, 3).flatten(1, 2).flatten(2, 3)
            hidden = hidden + torch.roll(seen, (shift, shift), (1, 2))
        return F.cross_entropy(self.head(hidden.mean((1, 2))), y)


class TwoTowers(nn.Module):
    """CLIP: pictures and words that belong together are near."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures, self.words = Patches(), nn.EmbeddingBag(40, 32, mode="mean")
        self.left, self.right = nn.Linear(32, 16, bias=False), nn.Linear(32, 16, bias=False)
        self.scale = nn.Parameter(torch.tensor(2.6593))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        left = F.normalize(self.left(self.pictures(x)), dim=-1)
        right = self.right(self.words(y))
        right = right / right.norm(dim=-1, keepdim=True)
        scores = self.scale.exp() * left @ right.t()
        labels = torch.arange(len(x), device=x.device)
        return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.t(), labels)) / 2


class ConvNeXt(nn.Module):
    """Convolutions by channel, layer norm over channels, scaled branches, stochastic depth."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2, stride=2)
        self.depth = nn.ModuleList(nn.Conv2d(width, width, 7, padding=3, groups=width) for _ in range(2))
        self.norm = nn.ModuleList(nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(2))
        self.scale = nn.Parameter(torch.full((2, width), 0.1))
        self.head = nn.Linear(width, CLASSES)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.stem(x).to(memory_format=torch.channels_last)
        for number in range(2):
            branch = self.depth[number](hidden).permute(0, 2, 3, 1)
            branch = self.down[number](F.gelu(self.up[number](self.norm[number](branch)))) * self.scale[number]
            kept = torch.empty(len(x), 1, 1, 1, device=x.device).bernoulli_(0.8).div_(0.8)
            hidden = hidden + (branch * kept).permute(0, 3, 1, 2)
        return F.cross_entropy(self.head(hidden.mean((-2, -1))), y)


class Mobile(nn.Module):
    """MobileNetV2 and V3: inverted bottlenecks, batch norm, relu6 or hardswish, squeeze and excite."""

    def __init__(self, width: int = 12, third: bool = False) -> None:
        super().__init__()
        wide, self.activation = 3 * width, F.hardswish if third else F.relu6
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
        self.expand = nn.Conv2d(width, wide, 1, bias=False)
        self.depth = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.project = nn.Conv2d(wide, width, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(one) for one in (width, wide, wide, width))
        self.squeeze = nn.Sequential(nn.Conv2d(wide, 4, 1), nn.ReLU(), nn.Conv2d(4, wide, 1)) if third else None
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(width, CLASSES))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.activation(self.norms[0](self.stem(x)))
        inner = self.activation(self.norms[1](self.expand(hidden)))
        inner = self.activation(self.norms[2](self.depth(inner)))
        if self.squeeze is not None:
            inner = inner * F.hardsigmoid(self.squeeze(F.adaptive_avg_pool2d(inner, 1)))
        hidden = hidden + self.norms[3](self.project(inner))
        return F.cross_entropy(self.head(F.adaptive_avg_pool2d(hidden, 1).flatten(1)), y)


class Residual(nn.Module):
    """ResNet with max pooling, batch norm in place, and mixed-up pictures."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, width, 7, stride=1, padding=3, bias=False), nn.BatchNorm2d(width)
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))
        self.head = nn.Linear(width, CLASSES)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        x = 0.7 * x + 0.3 * x.flip(0)
        hidden = F.max_pool2d(F.relu(self.first(self.stem(x)), inplace=True), 3, 2, 1)
        branch = F.relu_(self.norms[0](self.layers[0](hidden)))
        branch = self.norms[1](self.layers[1](branch))
        branch += hidden
        scores = self.head(F.relu_(branch).mean((2, 3)))
        return 0.7 * F.cross_entropy(scores, y) + 0.3 * F.cross_entropy(scores, y.flip(0))


class Detector(nn.Module):
    """Boxes: a pyramid, anchors, overlaps, non-maximum suppression, regions by sampling, focal loss."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.deeper = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.score, self.box = nn.Conv2d(width, 1, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.region = nn.Linear(width * 9, CLASSES)

    def loss(self, x: Tensor, truth: Tensor) -> Tensor:
        fine = F.leaky_relu(F.group_norm(self.body(x), 3), 0.1)
        coarse = F.leaky_relu(self.deeper(fine), 0.1)
        hidden = fine + F.interpolate(coarse, scale_factor=2.0, mode="nearest")
        scores = self.score(hidden).flatten(1).float()
        offsets = self.box(hidden).flatten(2).transpose(1, 2).float()
        side = hidden.shape[-1]
        centres = (
            torch.stack(torch.meshgrid(*[torch.arange(side, device=x.device) + 0.5] * 2, indexing="xy"), -1).view(-1, 2)
            * 2
        )
        sizes = 4 * offsets[..., 2:].clamp(-2, 2).exp()
        middle = centres + offsets[..., :2].tanh() * 2
        boxes = torch.cat([middle - sizes / 2, middle + sizes / 2], -1)
        overlap = overlaps(boxes, truth)
        best, which = overlap.max(-1)
        is_object = (best > 0.2).to(scores.dtype)
        chance = scores.sigmoid()
        focal = F.binary_cross_entropy_with_logits(scores, is_object, reduction="none")
        focal = focal * ((1 - chance) * is_object + chance * (1 - is_object)).pow(2)
        wanted = truth.gather(1, which.unsqueeze(-1).expand(-1, -1, 4))
        chosen = best > 0.1
        placed = F.smooth_l1_loss(boxes[chosen], wanted[chosen], reduction="sum", beta=0.5) / chosen.sum().clamp(min=1)
        classified = sum(self.regions(hidden[one : one + 1], boxes[one], scores[one]) for one in range(len(x)))
        return focal.mean() + placed * 0.1 + classified * 0.1

    def regions(self, hidden: Tensor, boxes: Tensor, scores: Tensor) -> Tensor:
        kept = suppressed(boxes.detach(), scores.detach())
        corners = boxes[kept] / hidden.shape[-1] - 1
        steps = torch.linspace(0, 1, 3, device=boxes.device)
        x = corners[:, None, 0] + steps * (corners[:, None, 2] - corners[:, None, 0])
        y = corners[:, None, 1] + steps * (corners[:, None, 3] - corners[:, None, 1])
        grid = torch.stack([x[:, None].expand(-1, 3, 3), y[:, :, None].expand(-1, 3, 3)], -1)
        seen = F.grid_sample(hidden.float().expand(len(kept), -1, -1, -1), grid, align_corners=False)
        return F.cross_entropy(self.region(seen.flatten(1)), kept % CLASSES)


def overlaps(boxes: Tensor, truth: Tensor) -> Tensor:
    """Intersection over union."""
    low = torch.max(boxes[..., :, None, :2], truth[..., None, :, :2])
    high = torch.min(boxes[..., :, None, 2:], truth[..., None, :, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    area = [(one[..., 2:] - one[..., :2]).prod(-1) for one in (boxes, truth)]
    return common / (area[0][..., :, None] + area[1][..., None, :] - common + 1e-6)


def suppressed(boxes: Tensor, scores: Tensor, most: int = 4) -> Tensor:
    """The best boxes, without those that overlap a better one."""
    left, kept = scores.argsort(descending=True), []
    while left.numel() and len(kept) < most:
        kept.append(left[0])
        left = left[1:][overlaps(boxes[left[:1]], boxes[left[1:]])[0] < 0.5]
    return torch.stack(kept)


def boxes() -> Tensor:
    corner = torch.rand(2, 3, 2, generator=torch.Generator().manual_seed(3)) * 10
    return torch.cat([corner, corner + 4], -1)


PROGRAMS = (
    Program("ViT", "held-out", Patches, pictures),
    Program("Swin", "tuned", Windows, pictures),
    Program("CLIP", "tuned", TwoTowers, lambda: [pictures()[0], whole(40, 4, 6)]),
    Program("ConvNeXt", "tuned", ConvNeXt, pictures),
    Program("MobileNetV2", "tuned", Mobile, pictures),
    Program("MobileNetV3", "held-out", lambda: Mobile(third=True), pictures),
    Program("ResNet", "held-out", Residual, pictures),
    Program("detector", "held-out", Detector, lambda: [normal(2, 3, 16, 16), boxes()]),
)
