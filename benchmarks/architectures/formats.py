"""Other formats: eight bits, complex numbers, channels last, sparse ones, subclasses; weights made of others."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, parametrize
from torch.utils import _pytree as pytree


class EightBits(torch.autograd.Function):
    """A product of numbers in eight bits with a scale each, forward in e4m3, backward in e5m2."""

    @staticmethod
    def cast(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        scale = torch.finfo(dtype).max / x.detach().float().abs().amax().clamp_min(1e-12)
        return (x.float() * scale).clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype), scale.reciprocal()

    @staticmethod
    def product(a: Tensor, b: Tensor, of_a: torch.dtype, of_b: torch.dtype, made: torch.dtype) -> Tensor:
        first, first_scale = EightBits.cast(a, of_a)
        second, second_scale = EightBits.cast(b, of_b)
        return torch._scaled_mm(
            first.contiguous(), second.t().contiguous().t(), scale_a=first_scale, scale_b=second_scale, out_dtype=made
        )

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return EightBits.product(x, weight.t(), torch.float8_e4m3fn, torch.float8_e4m3fn, torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, arrived: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        for_x = EightBits.product(arrived, weight, torch.float8_e5m2, torch.float8_e4m3fn, torch.bfloat16)
        for_weight = EightBits.product(arrived.t(), x, torch.float8_e5m2, torch.float8_e4m3fn, torch.bfloat16)
        return for_x.to(x.dtype), for_weight.to(weight.dtype)


class Scaled(nn.Module):
    """Layers whose products take eight bits, as float8 training has them; a cache of activations in eight bits."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Parameter(normal(width, width) * 0.2),
            nn.Parameter(normal(width, width, seed=4) * 0.2),
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 5)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = F.silu(EightBits.apply(x, self.first))
        kept = hidden.detach().to(torch.float8_e4m3fn)
        hidden = EightBits.apply(self.norm(hidden.to(self.norm.weight.dtype)), self.second)
        hidden = hidden + 0.1 * kept.to(hidden.dtype) + 0.1 * x.to(torch.float8_e5m2).to(hidden.dtype)
        packed = kept.view(torch.uint8)[:, ::2].contiguous().view(torch.float8_e4m3fn).float()
        scores = self.out(hidden.to(self.out.weight.dtype)).float()
        return F.cross_entropy(scores, y) + 0 * packed.mean()


class Complex(nn.Module):
    """Complex weights from end to end: linear, convolution, a gate by phase, attention, a spectrum, a modulus."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(width, width, dtype=torch.cfloat)
        self.wave = nn.Conv1d(2, 4, 3, padding=1, dtype=torch.cfloat)
        self.bias, self.out = nn.Parameter(torch.zeros(width)), nn.Linear(2 * width, 3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with in_float32(x):
            spectrum = torch.fft.fft(x.float(), norm="ortho")
            hidden = self.first(spectrum)
            size = hidden.abs()
            hidden = F.relu(size + self.bias.float()) * torch.exp(1j * hidden.angle())
            scores = (hidden @ hidden.mH).real / hidden.shape[-1] ** 0.5
            hidden = hidden + scores.softmax(-1).to(hidden.dtype) @ hidden
            waves = self.wave(torch.stack([hidden, hidden.conj().resolve_conj()], 1))
            mixed = torch.view_as_real(waves.mean(1) * torch.polar(size, size * 0.1)).flatten(1)
            mixed = mixed + torch.cat([torch.fft.ifft(waves.sum(1)).real, torch.sgn(hidden).imag], -1)
            mixed = mixed + 0.1 * torch.view_as_real(
                torch.tanh(0.1 * hidden) + torch.sqrt(hidden * hidden + 2)
            ).flatten(1)
            return F.cross_entropy(self.out(mixed), y) + 0.01 * torch.linalg.vector_norm(hidden).square()


class Last(nn.Module):
    """A small ResNet in channels_last: depthwise and grouped convolutions, batch norm, pools."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1, bias=False)
        self.deep = nn.Conv2d(width, width, 3, 1, 1, groups=width, bias=False)
        self.grouped = nn.Conv2d(width, width, 1, groups=3)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))
        self.up, self.out = nn.ConvTranspose2d(width, width, 2, 2), nn.Linear(4 * width, 5)
        self.to(memory_format=torch.channels_last)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.to(memory_format=torch.channels_last)
        hidden = F.relu6(self.norms[0](self.stem(x)))
        hidden = hidden + F.hardswish(self.norms[1](self.deep(hidden)))
        hidden = F.max_pool2d(F.relu(self.norms[2](self.grouped(hidden)), inplace=True), 3, 2, 1)
        hidden = F.pixel_unshuffle(self.up(hidden), 2)
        gate = F.adaptive_avg_pool2d(hidden, 1).sigmoid()
        pooled = F.avg_pool2d(hidden * gate, 2).contiguous(memory_format=torch.channels_last)
        return F.cross_entropy(self.out(pooled.mean((2, 3))).float(), y, label_smoothing=0.1)


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, -x], 0)

    def right_inverse(self, made: Tensor) -> Tensor:
        return made[: len(made) // 2]


class Parametrized(nn.Module):
    """Weights made of others: orthogonal, of unit rows, of bounded spectrum, symmetric, shared, one behind another."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.turn = parametrizations.orthogonal(nn.Linear(width, width), orthogonal_map="matrix_exp")
        self.rows = parametrizations.weight_norm(nn.Linear(width, width))
        self.bound = parametrizations.spectral_norm(nn.Linear(width, width))
        self.even, self.out = nn.Linear(width, width), nn.Linear(width, 3)
        parametrize.register_parametrization(self.even, "weight", Symmetric())
        parametrize.register_parametrization(self.even, "weight", Halved(), unsafe=True)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with in_float32(x), parametrize.cached():
            x = x.to(self.out.weight.dtype)
            hidden = torch.tanh(self.rows(self.turn(x)))
            hidden = hidden + torch.tanh(self.bound(hidden)) + torch.tanh(self.turn(hidden))
            hidden = hidden + F.pad(hidden[:, :4], (0, 4)) @ self.even.weight[:8].mT
            return F.cross_entropy(self.out(hidden).float(), y)


class Quantized(nn.Module):
    """Quantization-aware training by torch.ao: observers, by tensor and by channel, a folded batch norm."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        from torch.ao import quantization as ao

        self.conv, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.first = ao.FusedMovingAvgObsFakeQuantize.with_args(quant_min=0, quant_max=255, dtype=torch.quint8)()
        self.second = ao.FakeQuantize(ao.MovingAverageMinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.qint8)
        self.third = ao.FakeQuantize(
            ao.MovingAveragePerChannelMinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.qint8,
            qscheme=torch.per_channel_symmetric, ch_axis=0,
        )  # fmt: skip
        self.out = nn.Linear(width, 4)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with in_float32(x):
            x = self.first(x.float())
            size = self.norm.weight.float() / torch.sqrt(self.norm.running_var.float() + self.norm.eps)
            weight = self.third(self.conv.weight.float() * size[:, None, None, None])
            made = F.conv2d(x, weight, None, padding=1) / size[:, None, None] + self.conv.bias.float()[:, None, None]
            mean, spread = made.mean((0, 2, 3)), made.var((0, 2, 3), unbiased=False)
            self.norm.running_var.lerp_(spread.detach().to(self.norm.running_var.dtype), 0.1)
            made = (made - mean[:, None, None]) * torch.rsqrt(spread + 1e-5)[:, None, None]
            made = F.relu(made * self.norm.weight.float()[:, None, None] + self.norm.bias.float()[:, None, None])
            pooled = self.second(made.mean((2, 3)))
            return F.cross_entropy(F.linear(pooled, self.second(self.out.weight.float()), self.out.bias.float()), y)


class Sparse(nn.Module):
    """Products with sparse matrices: COO with values that learn, CSR adjacency, a mask of a softmax, gathered rows."""

    def __init__(self, nodes: int = 7, width: int = 8) -> None:
        super().__init__()
        self.register_buffer("places", torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 2], [1, 0, 3, 2, 5, 4, 6, 6, 5]]))
        self.nodes, self.strength = nodes, nn.Parameter(torch.ones(9))
        self.first, self.out = nn.Linear(4, width), nn.Linear(width, 3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with in_float32(x):
            hidden = F.linear(x.float(), self.first.weight.float(), self.first.bias.float())
            shape = (self.nodes, self.nodes)
            coo = torch.sparse_coo_tensor(self.places, self.strength.float(), shape, is_coalesced=False)
            spread = torch.sparse.mm(coo, hidden)
            normal_ = torch.sparse.softmax(coo.coalesce(), 1)
            spread = F.relu(spread + torch.sparse.mm(normal_, hidden))
            fixed = torch.zeros(shape, device=x.device).index_put_(tuple(self.places), torch.ones(9, device=x.device))
            csr = fixed.to_sparse_csr()
            spread = spread + csr @ spread + torch.sparse.sum(coo, 1).to_dense()[:, None]
            return F.cross_entropy(F.linear(spread, self.out.weight.float(), self.out.bias.float()), y)


class Named(Tensor):
    """A subclass by __torch_function__ that carries a name along."""

    @classmethod
    def __torch_function__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(op, types, args, kwargs or {})
        names = [one.label for one in pytree.tree_leaves(args) if isinstance(one, Named) and hasattr(one, "label")]
        if isinstance(made, Named) and names:
            made.label = names[0]
        return made


class Logged(Tensor):
    """A wrapper by __torch_dispatch__ that holds its numbers in another tensor and counts what is done to it."""

    inner: Tensor
    count = 0
    __slots__ = ("inner",)

    @staticmethod
    def __new__(cls: Any, inner: Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), dtype=inner.dtype, device=inner.device, requires_grad=inner.requires_grad
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.count += 1
        bare = pytree.tree_map_only(Logged, lambda one: one.inner, (args, kwargs or {}))
        made = op(*bare[0], **bare[1])
        return pytree.tree_map_only(Tensor, lambda one: one if isinstance(one, Logged) else Logged(one), made)


class Unwrapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Logged) -> Tensor:
        return given.inner.clone()

    @staticmethod
    def backward(ctx: Any, arrived: Tensor) -> Tensor:
        return Logged(arrived)


class Wrapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor) -> Any:
        return Logged(given.clone())

    @staticmethod
    def backward(ctx: Any, arrived: Any) -> Tensor:
        return arrived.inner if isinstance(arrived, Logged) else arrived


class Subclassed(nn.Module):
    """Batches of a subclass by function, activations of one by dispatch, a masked tensor's mean."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.norm, self.out = nn.Linear(5, width), nn.LayerNorm(width), nn.Linear(width, 3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        given = x.as_subclass(Named)
        given.label = "batch"
        hidden = self.norm(self.first(given))
        assert getattr(hidden, "label", "") == "batch"
        hidden = hidden.as_subclass(Tensor)
        held = Wrapped.apply(hidden)
        held = torch.tanh(held * 1.5) + torch.sigmoid(held)
        hidden = Unwrapped.apply(held)
        return F.cross_entropy(self.out(hidden.to(self.out.weight.dtype)).float(), y)


PROGRAMS = (
    Program("products in eight bits", "tenth", Scaled, lambda: [normal(16, 32), whole(5, 16)]),
    Program(
        "complex weights",
        "tenth",
        Complex,
        lambda: [normal(6, 8), whole(3, 6)],
        ("bfloat16", "autocast float16", "checkpointed"),
    ),
    Program("channels last", "tenth", Last, lambda: [normal(4, 3, 16, 16), whole(5, 4)]),
    Program("parametrized", "tenth", Parametrized, lambda: [normal(6, 8), whole(3, 6)], ("bfloat16",)),
    Program("aware of quantization", "tenth", Quantized, lambda: [normal(4, 3, 6, 6), whole(4, 4)], ("bfloat16",)),
    Program("sparse matrices", "tenth", Sparse, lambda: [normal(7, 4), whole(3, 7)]),
    Program("subclassed", "tenth", Subclassed, lambda: [normal(6, 5), whole(3, 6)]),
)
