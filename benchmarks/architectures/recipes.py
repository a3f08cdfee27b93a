"""Ways to train that write their own autograd: policies, merged ranks, fake bits, islands of precision, functions."""

from __future__ import annotations

import functools
from typing import Any

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, parametrize


class Policy(nn.Module):
    """Group relative policy optimization: texts from a nucleus with cached keys, clipped ratios, a KL estimate."""

    def __init__(self, words: int = 20, width: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(16, width)
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def scores(self, words: Tensor, cache: list[Tensor]) -> Tensor:
        start = cache[0].shape[2] if cache else 0
        x = self.words(words) + self.places(torch.arange(start, start + words.shape[1], device=words.device))
        parts = self.qkv(self.norm(x)).split([16, 8, 8], -1)
        q, k, v = (one.unflatten(-1, (-1, 8)).transpose(1, 2) for one in parts)
        if cache:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        cache[:] = [k, v]
        looked = F.scaled_dot_product_attention(q, k, v, is_causal=not start, enable_gqa=True)
        x = x + self.out(looked.transpose(1, 2).flatten(2))
        return F.linear(x + self.feed(x), self.words.weight).float()

    @torch.no_grad()
    def drawn(self, texts: Tensor, length: int = 5) -> Tensor:
        cache: list[Tensor] = []
        scores = self.scores(texts, cache)
        for _ in range(length):
            ordered, places = (scores[:, -1] / 0.8).sort(descending=True)
            chances = ordered.softmax(-1)
            ordered = ordered.masked_fill(chances.cumsum(-1) - chances > 0.9, -torch.inf)
            scores = torch.full_like(ordered, -torch.inf).scatter_(1, places, ordered)
            chosen = torch.multinomial(scores.softmax(-1), 1)
            texts = torch.cat([texts, chosen], 1)
            scores = self.scores(chosen, cache)
        return texts

    def loss(self, prompts: Tensor) -> Tensor:
        texts = self.drawn(prompts.repeat_interleave(3, 0))
        rewards = (texts[:, prompts.shape[1] :] % 3 == 0).float().mean(1).view(-1, 3)
        gains = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        scores = self.scores(texts[:, :-1], [])[:, prompts.shape[1] - 1 :]
        likely = scores.log_softmax(-1).gather(2, texts[:, prompts.shape[1] :, None]).squeeze(2)
        older = likely.detach() + 0.2 * torch.randn_like(likely)
        ratio = torch.exp(likely - older)
        best = torch.min(ratio * gains, ratio.clamp(0.8, 1.28) * gains)
        apart = older - likely
        return (
            -(best - 0.04 * (torch.expm1(apart) - apart)).mean() - 0.01 * torch.special.entr(scores.softmax(-1)).mean()
        )


class Ranks(nn.Module):
    """Fine tuning of four-bit weights: packed nibbles, low ranks beside them, a magnitude, parametrized layers."""

    def __init__(self, width: int = 16, rank: int = 2) -> None:
        super().__init__()
        levels = torch.erfinv(torch.linspace(-0.93, 0.93, 16))
        self.register_buffer("levels", levels / levels.abs().max())
        frozen = normal(width, width) * 0.3
        size = frozen.view(-1, 8).abs().amax(1, keepdim=True)
        nearest = (frozen.view(-1, 8, 1) / size[..., None] - self.levels).abs().argmin(-1).view(-1).to(torch.uint8)
        self.register_buffer("packed", (nearest[::2] << 4) | nearest[1::2])
        self.register_buffer("sizes", size)
        self.down, self.up = nn.Parameter(normal(rank, width) * 0.2), nn.Parameter(torch.zeros(width, rank))
        self.magnitude = nn.Parameter(torch.ones(width, 1))
        self.turn = parametrizations.orthogonal(nn.Linear(width, width, bias=False), orthogonal_map="cayley")
        self.head = parametrizations.weight_norm(nn.Linear(width, 5))

    def frozen(self, dtype: torch.dtype) -> Tensor:
        halves = torch.stack([self.packed >> 4, torch.bitwise_and(self.packed, 15)], -1).view(-1)
        return (self.levels[halves.long()].view(-1, 8) * self.sizes).view(16, 16).to(dtype)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        base = self.frozen(self.down.dtype)
        weight = base + 2 * self.up @ self.down
        weight = self.magnitude * (weight / torch.linalg.vector_norm(weight.float(), dim=1, keepdim=True).detach())
        beside = F.linear(F.linear(F.dropout(x, 0.1), self.down), self.up)
        hidden = F.silu(F.linear(x, weight.to(x.dtype)) + beside)
        with in_float32(x), parametrize.cached():
            turned = F.linear(hidden.float(), self.turn.weight.float())
        merged = base.clone().addmm_(self.up.detach().to(base.dtype), self.down.detach().to(base.dtype), alpha=2.0)
        apart = F.mse_loss(F.linear(x, merged), F.linear(x, base))
        return F.cross_entropy(self.head(turned.to(x.dtype)).float(), y) + 0 * apart.float()


class FakeBits(nn.Module):
    """Training for few bits: fake quantization by tensor and channel, learnt steps, float8, blocks of one exponent."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.step, self.offset = nn.Parameter(torch.tensor([0.05])), nn.Parameter(torch.tensor([0.0]))

    @staticmethod
    def straight(x: Tensor, rounded: Tensor) -> Tensor:
        return x + (rounded - x).detach()

    def blocks(self, x: Tensor) -> Tensor:
        parts = x.unflatten(-1, (-1, 8))
        exponent = torch.frexp(parts.detach().abs().amax(-1, keepdim=True).clamp_min(1e-6)).exponent
        scaled = torch.ldexp(parts.detach(), 3 - exponent)
        return self.straight(x, torch.ldexp(scaled.round().clamp(-7, 7), exponent - 3).flatten(-2))

    def eight(self, x: Tensor) -> Tensor:
        scale = 448.0 / x.detach().abs().amax().clamp_min(1e-4)
        return self.straight(x, (x.detach() * scale).to(torch.float8_e4m3fn).to(x.dtype) / scale)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with in_float32(x):
            x, first, second, third = x.float(), self.first.weight, self.second.weight, self.third.weight
            low, high = torch.aminmax(x.detach())
            scale = (high - low).clamp_min(1e-3) / 255
            zero = (-torch.round(low / scale)).to(torch.int32)
            x = torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)
            scales = first.detach().float().abs().amax(1) / 127
            zeros = torch.zeros_like(scales, dtype=torch.int32)
            x = F.relu(x @ torch.fake_quantize_per_channel_affine(first.float(), scales, zeros, 0, -128, 127).mT)
            grad_factor = (x.numel() * 127) ** -0.5
            x = torch._fake_quantize_learnable_per_tensor_affine(
                x, self.step.float(), self.offset.float(), 0, 255, grad_factor
            )
            x = x + self.eight(x) @ self.eight(second.float()).mT
            x = self.blocks(x) @ self.blocks(third.float()).mT
        return F.smooth_l1_loss(x, y.float()) + 1e-4 * sum(one.weight.float().abs().sum() for one in self.children())


@functools.lru_cache(maxsize=4)
def swish_on(kind: str) -> Any:
    """An activation that asks autocast for float32 and keeps one tensor."""

    class Swish(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=kind, cast_inputs=torch.float32)
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x.sigmoid()

        @staticmethod
        @torch.autograd.function.once_differentiable
        @torch.amp.custom_bwd(device_type=kind)
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            share = x.sigmoid()
            return share.mul_(1 + x * (1 - share)).mul_(gradient)

    return Swish


class Islands(nn.Module):
    """Precision by region: a core in float64, autocast nested in autocast, without its cache, a matrix in bfloat16."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.into, self.mix, self.last = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 4)
        self.norm = nn.BatchNorm1d(width, momentum=None, track_running_stats=False)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        kind = x.device.type
        hidden = self.norm(swish_on(kind).apply(self.into(x)).to(x.dtype))
        with torch.autocast(kind, enabled=False):
            wide = hidden.double()
            spread = wide.mT @ wide / len(wide) + 1e-3 * torch.eye(wide.shape[1], device=x.device, dtype=torch.float64)
            whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(spread), wide.mT, upper=False).mT
            with torch.autocast(kind, torch.bfloat16, cache_enabled=False):
                mixed = self.mix(whitened.to(self.mix.weight.dtype)) + self.mix(hidden.to(self.mix.weight.dtype))
                with torch.autocast(kind, enabled=False):
                    size = mixed.float().logsumexp(-1)
                pairs = mixed @ mixed.mT
        scores = self.last(torch.tanh(mixed).to(self.last.weight.dtype)).float()
        return F.cross_entropy(scores, y) + 1e-3 * (size.square().mean() + pairs.float().diagonal().mean())


class ChunkedLoss(torch.autograd.Function):
    """Cross entropy of a large head, chunk by chunk: its gradients are made on the way forward, in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        for_x, for_weight = torch.empty_like(x), torch.zeros_like(weight, dtype=torch.float32)
        total = torch.zeros((), device=x.device)
        for start in range(0, len(x), 5):
            part, wanted = x[start : start + 5], targets[start : start + 5, None]
            scores = torch.mm(part, weight.t()).float()
            size = scores.logsumexp(1, keepdim=True)
            total += (size - scores.gather(1, wanted)).sum()
            scores.sub_(size).exp_().scatter_add_(1, wanted, torch.full_like(size, -1.0)).div_(len(x))
            torch.mm(scores.to(weight.dtype), weight, out=for_x[start : start + 5])
            for_weight.addmm_(scores.t(), part.float())
        ctx.save_for_backward(for_x, for_weight.to(weight.dtype))
        return total / len(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        for_x, for_weight = ctx.saved_tensors
        return for_x.mul_(gradients[0].to(for_x.dtype)), for_weight.mul_(gradients[0].to(for_weight.dtype)), None


class Reversed(torch.autograd.Function):
    """A reversible pair of blocks: nothing but the result is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, one: Tensor, other: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        a = a + torch.tanh(b @ one)
        b = b + torch.tanh(a @ other)
        out = torch.cat([a, b], -1)
        ctx.save_for_backward(out, one, other)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        out, one, other = (each.detach() for each in ctx.saved_tensors)
        a, b = out.chunk(2, -1)
        b = b - torch.tanh(a @ other)
        a = a - torch.tanh(b @ one)
        with torch.enable_grad():
            leaves = [each.detach().requires_grad_() for each in (torch.cat([a, b], -1), one, other)]
            a, b = leaves[0].chunk(2, -1)
            a = a + torch.tanh(b @ leaves[1])
            b = b + torch.tanh(a @ leaves[2])
            return torch.autograd.grad(torch.cat([a, b], -1), leaves, gradients[0])


class OwnFunctions(nn.Module):
    """Autograd by hand: a chunked loss, reversible blocks, hooks on gradients, tensors kept on the host."""

    def __init__(self, width: int = 12, words: int = 22) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), nn.RMSNorm(width)
        self.one, self.other = (nn.Parameter(normal(width // 2, width // 2, seed=seed) * 0.3) for seed in (1, 2))
        self.source = nn.Linear(width, 2)

    def loss(self, words: Tensor) -> Tensor:
        x = self.words(words[:, :-1])
        with in_float32(x):
            hidden = Reversed.apply(x.float(), self.one.float(), self.other.float())
        with torch.autograd.graph.save_on_cpu():
            hidden = self.norm(hidden.to(x.dtype)) * torch.sigmoid(hidden.to(x.dtype))
        turned = hidden.clone()
        turned.register_hook(lambda gradient: -0.1 * gradient.clamp(-1e-2, 1e-2))
        domain = F.cross_entropy(self.source(turned.mean(1)).float(), words[:, 0] % 2)
        with in_float32(x):
            chunked = ChunkedLoss.apply(hidden.flatten(0, 1).float(), self.words.weight.float(), words[:, 1:].flatten())
        return chunked + domain


PROGRAMS = (
    Program("GRPO", "seventh", Policy, lambda: [whole(20, 3, 4)]),
    Program("low ranks on four bits", "seventh", Ranks, lambda: [normal(10, 16), whole(5, 10)], ("bfloat16",)),
    Program("fake bits", "seventh", FakeBits, lambda: [normal(9, 16), normal(9, 16, seed=3)]),
    Program("islands", "seventh", Islands, lambda: [normal(20, 12), whole(4, 20)]),
    Program("own functions", "seventh", OwnFunctions, lambda: [whole(22, 3, 9)]),
)
