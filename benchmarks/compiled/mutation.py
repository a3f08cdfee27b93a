"""What compiled code may do to its arguments, and what it may return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from benchmarks.compiled.program import Chosen, Programs, Step, state_of, training_step
from torch import Tensor, nn
from torch.nn import functional

PROGRAMS = Programs()
WIDTH = 24


@PROGRAMS("arguments that are changed", has_modules=False)
def changed_arguments(chosen: Chosen) -> Step:
    @chosen.compile
    def update(average: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        x[:, 0] = 0
        x.clamp_(min=-1)
        return ((x - average) @ weight).relu().sum()

    average = chosen.to(torch.zeros(WIDTH))
    weight = chosen.to(torch.randn(WIDTH, WIDTH)).requires_grad_()

    def step() -> list[Tensor]:
        weight.grad = None
        x = chosen.to(torch.randn(6, WIDTH))
        loss = update(average, x, weight)
        loss.backward()
        return [*state_of(loss, [weight]), average.clone(), x]

    return step


@PROGRAMS("views returned", has_modules=False)
def views(chosen: Chosen) -> Step:
    @chosen.compile
    def parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        doubled = x * 2
        return x.t(), doubled[1:3], doubled.view(-1)[::2], x

    weight = chosen.to(torch.randn(4, WIDTH)).requires_grad_()

    def step() -> list[Tensor]:
        weight.grad = None
        turned, middle, every_other, same = parts(weight)
        loss = turned.sin().sum() + middle.square().sum() + every_other.exp().sum() + same.cos().sum()
        loss.backward()
        free = chosen.to(torch.randn(4, WIDTH))
        part = parts(free)[1]
        part.zero_()
        parts(free)[0].add_(1)  # changes `free`, which it is a view of
        return [*state_of(loss, [weight]), part, free]

    return step


class Pair(NamedTuple):
    """Two results with names."""

    first: Tensor
    second: Tensor


@dataclass
class Output:
    """As a library returns it."""

    loss: Tensor
    pair: Pair
    extra: dict[str, Any]


@PROGRAMS("results that are no tensors")
def various_results(chosen: Chosen) -> Step:
    class Various(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, scale: float = 1.0, *, name: str = "a") -> Output:
            hidden = self.linear(x) * scale
            extra = {"name": name, "size": x.shape[0], "none": None, "list": [hidden.amax(), 3, "text"]}
            return Output(hidden.square().mean(), Pair(hidden.detach(), hidden.argmax(-1)), extra)

    model = chosen.to(Various())
    compiled = chosen.compile(model)

    def step() -> list[Tensor]:
        model.zero_grad()
        output = compiled(chosen.to(torch.randn(5, WIDTH)), 0.5, name="b")
        output.loss.backward()
        assert output.extra["size"] == 5
        return [*state_of(output.loss, model), *output.pair, output.extra["list"][0].detach()]

    return step


class Clipped(torch.autograd.Function):
    """The straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bound = bound
        return (x / bound).round() * bound

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 1), None


@PROGRAMS("an autograd.Function inside")
def own_function(chosen: Chosen) -> Step:
    model = chosen.to(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)))

    @chosen.compile
    def loss_of(x: Tensor) -> Tensor:
        hidden = Clipped.apply(torch.tanh(model[0](x)), 0.125)
        return model[1](hidden).square().mean()

    return training_step(model, lambda: loss_of(chosen.to(torch.randn(5, WIDTH))))


@PROGRAMS("random numbers inside", has_modules=False)
def random_inside(chosen: Chosen) -> Step:
    @chosen.compile
    def noisy(x: Tensor, weight: Tensor) -> Tensor:
        noise = torch.randn_like(x) * 0.1 + torch.rand(x.shape[-1], device=x.device)
        kept = torch.bernoulli(torch.full_like(x, 0.8))
        hidden = functional.dropout((x + noise) * kept, 0.25)
        return functional.gumbel_softmax(hidden @ weight, tau=0.7).square().sum()

    weight = chosen.to(torch.randn(WIDTH, WIDTH)).requires_grad_()

    def step() -> list[Tensor]:
        weight.grad = None
        loss = noisy(chosen.to(torch.randn(5, WIDTH)), weight)
        loss.backward()
        return state_of(loss, [weight])

    return step


class Counting(nn.Module):
    """Keeps books: a number, a buffer and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += x.shape[0]
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return self.linear((x - self.mean) / (1 + self.calls)).square().mean()


@PROGRAMS("a module that counts")
def counting(chosen: Chosen) -> Step:
    model = chosen.to(Counting())
    compiled = chosen.compile(model)

    def step() -> list[Tensor]:
        model.zero_grad()
        loss = compiled(chosen.to(torch.randn(5, WIDTH)))
        loss.backward()
        return [*state_of(loss, model), model.seen.clone(), model.mean.clone()]

    return step


@PROGRAMS("parametrizations and complex numbers")
def parametrized(chosen: Chosen) -> Step:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
            self.second = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))
            self.filter = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.fft.irfft(torch.fft.rfft(self.first(x)) * self.filter, WIDTH)
            return self.second(hidden).square().mean()

    model = chosen.to(Spectral())
    compiled = chosen.compile(model)

    return training_step(model, lambda: compiled(chosen.to(torch.randn(5, WIDTH))))


@PROGRAMS("integers, indices and choices", has_modules=False)
def choices(chosen: Chosen) -> Step:
    @chosen.compile
    def select(x: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        order = keys.sort(stable=True).indices
        values, indices = x[order].topk(3, -1)
        table = torch.zeros(8, 3, device=x.device).index_put((keys % 8,), values, accumulate=True)
        table = table.scatter_add(1, indices[:8] % 3, values[:8])
        bins = torch.bucketize(x.flatten(), torch.linspace(-1, 1, 5, device=x.device))
        return table.cumsum(0), (x > 0).sum(0), bins.bincount(minlength=6), torch.where(x.isnan(), 0, x).sign()

    def step() -> list[Tensor]:
        x, keys = chosen.to(torch.randn(10, WIDTH)), chosen.to(torch.randint(100, (10,)))
        return list(select(x, keys))

    return step


@PROGRAMS("quantized weights", has_modules=False)
def quantized(chosen: Chosen) -> Step:
    @chosen.compile(fullgraph=True)
    def product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        low, high = (weight & 15).to(torch.int8) - 8, (weight >> 4).to(torch.int8) - 8
        whole = torch.stack((low, high), -1).flatten(-2)
        return x @ (whole.to(x.dtype) * scale[:, None]).t()

    weight, scale = chosen.to(torch.randint(256, (WIDTH, WIDTH // 2), dtype=torch.uint8)), chosen.to(torch.rand(WIDTH))

    def step() -> list[Tensor]:
        with torch.inference_mode():
            return [product(chosen.to(torch.randn(3, WIDTH)).bfloat16(), weight, scale.bfloat16())]

    return step
