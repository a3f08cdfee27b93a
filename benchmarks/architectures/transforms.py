"""Functions of functions, of torch.func and beside it: gradients per sample, ensembles, duals, exported graphs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, func, nn
from torch.autograd import forward_ad
from torch.nn import functional as F  # noqa: N812


class Private(nn.Module):
    """DP-SGD: a gradient for each sample by vmap of grad, clipped, added up with noise."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 3))

    def one(self, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        scores = func.functional_call(self.body, weights, (x[None],))
        return F.cross_entropy(scores.float(), y[None])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        weights = {name: one.detach() for name, one in self.body.named_parameters()}
        each = func.vmap(func.grad(self.one), in_dims=(None, 0, 0))(weights, x, y)
        sizes = torch.stack([one.flatten(1).float().norm(dim=1) for one in each.values()], 1).norm(dim=1)
        share = (0.5 / (sizes + 1e-6)).clamp(max=1.0)
        total = torch.zeros((), device=x.device)
        for name, parameter in self.body.named_parameters():
            clipped = torch.einsum("n,n...->...", share, each[name].float()) / len(x)
            clipped = clipped + 1e-3 * torch.randn_like(clipped)
            total = total + (parameter.float() * clipped.detach()).sum()
        return total + 0 * F.cross_entropy(self.body(x).float(), y)


class Ensemble(nn.Module):
    """Five members whose weights are stacked, called at once by vmap; random masks of each member's own."""

    def __init__(self, members: int = 5, width: int = 10) -> None:
        super().__init__()
        models = [nn.Sequential(nn.Linear(7, width), nn.SiLU(), nn.Linear(width, 4)) for _ in range(members)]
        stacked, _ = func.stack_module_state(models)
        self.names = list(stacked)
        self.stacked = nn.ParameterList([nn.Parameter(one.detach()) for one in stacked.values()])
        self.base = [copy.deepcopy(models[0]).to("meta")]
        self.prior = nn.Parameter(torch.zeros(members))

    def member(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return func.functional_call(self.base[0], weights, (F.dropout(x, 0.2),))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        weights = dict(zip(self.names, self.stacked))
        scores = func.vmap(self.member, in_dims=(0, None), randomness="different")(weights, x).float()
        likely = scores.log_softmax(-1)
        mixed = torch.logsumexp(likely + self.prior.float().log_softmax(0)[:, None, None], 0)
        apart = func.vmap(lambda one: (one - likely.detach().mean(0)).abs().mean())(likely)
        return F.nll_loss(mixed, y) - 0.01 * apart.mean()


class Tangents(nn.Module):
    """A neural tangent kernel by jacrev, a Laplacian by hessian, a Gauss-Newton product by jvp and vjp, linearize."""

    def __init__(self, width: int = 9) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 1)

    def field(self, weight: Tensor, x: Tensor) -> Tensor:
        hidden = torch.sin(F.linear(x, weight, self.first.bias.float()))
        return F.linear(hidden, self.last.weight.float(), self.last.bias.float()).squeeze(-1)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with in_float32(x):
            x, weight = x.float(), self.first.weight.float()
            slopes = func.vmap(func.jacrev(self.field), (None, 0))(weight, x).flatten(1)
            kernel = slopes @ slopes.mT
            bends = func.vmap(func.hessian(self.field, argnums=1), (None, 0))(weight, x)
            laplacian = torch.diagonal(bends, dim1=-2, dim2=-1).sum(-1)
            value, along = func.jvp(lambda at: self.field(at, x), (weight,), (torch.ones_like(weight),))
            _, back = func.vjp(lambda at: self.field(at, x), weight)
            gauss = back(along)[0]
            straight, slope = func.linearize(lambda at: self.field(at, x), weight.detach())
            far = straight + slope(torch.full_like(weight, 0.1))
            fit = torch.linalg.solve(kernel.detach() + torch.eye(len(x), device=x.device), (y.float() - value).detach())
            held = (laplacian - y.float()).square().mean() + 0.01 * gauss.square().mean() + 0 * far.mean()
        return held + (kernel @ fit - y.float()).square().mean()


class Meta(nn.Module):
    """MAML over a batch of tasks: vmap of an inner loop of grad steps, the outer gradient through all of them."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1))
        self.rates = nn.Parameter(torch.full((4,), 0.1))

    def task(self, weights: dict[str, Tensor], rates: Tensor, x: Tensor, y: Tensor) -> Tensor:
        def cost(some: dict[str, Tensor], at: Tensor, goal: Tensor) -> Tensor:
            return F.mse_loss(func.functional_call(self.net, some, (at,)).float(), goal.float())

        for _ in range(2):
            slopes = func.grad(cost)(weights, x[:3], y[:3])
            weights = {
                name: one - rates[k].to(one.dtype) * slopes[name] for k, (name, one) in enumerate(weights.items())
            }
        return cost(weights, x[3:], y[3:])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        weights = dict(self.net.named_parameters())
        return func.vmap(self.task, (None, None, 0, 0))(weights, self.rates, x, y).mean()


class Duals(nn.Module):
    """Forward-mode AD by itself: tangents through layers, in place and through a function with its own jvp."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, width), nn.LayerNorm(width), nn.Linear(width, 3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        class Cubed(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, given: Tensor) -> Tensor:
                ctx.save_for_forward(given)
                ctx.save_for_backward(given)
                return given**3

            @staticmethod
            def backward(ctx: Any, arrived: Tensor) -> Tensor:
                (given,) = ctx.saved_tensors
                return 3 * given**2 * arrived

            @staticmethod
            def jvp(ctx: Any, tangent: Tensor) -> Tensor:
                (given,) = ctx.saved_tensors
                return 3 * given**2 * tangent

        way = torch.randn_like(x)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, way)
            hidden = self.norm(self.first(dual))
            hidden = torch.where(hidden > 0, hidden, torch.atan(hidden)).clone()
            hidden.mul_(1.5).add_(torch.sin(hidden.detach()), alpha=0.2)
            hidden = 0.01 * Cubed.apply(hidden) + hidden
            scores = torch.cat([self.last(hidden[:4]), self.last(hidden[4:])])
            plain, tangent = forward_ad.unpack_dual(scores.float() - scores.float().exp().sum(-1, keepdim=True).log())
            assert tangent is not None
        smooth = tangent.square().mean()
        return F.nll_loss(plain, y) + 0.1 * smooth


class Exported(nn.Module):
    """A module that torch.export has taken apart, trained as the graph that is left of it."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        block = nn.Sequential(
            nn.Conv1d(3, width, 3, padding=1), nn.GroupNorm(3, width), nn.Mish(), nn.AdaptiveAvgPool1d(4), nn.Flatten()
        )
        batch = torch.export.Dim("batch", min=2, max=64)
        program = torch.export.export(block, (torch.randn(4, 3, 16),), dynamic_shapes=({0: batch},))
        self.graph = program.module()
        self.weight = nn.Parameter(torch.randn(5, 4 * width) * 0.1)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.graph(x)
        return F.cross_entropy(F.linear(hidden.to(self.weight.dtype), self.weight).float(), y)


class Jagged(nn.Module):
    """Sequences of several lengths as one nested tensor: projections, attention, means, and back to padded ones."""

    def __init__(self, words: int = 20, width: int = 16) -> None:
        super().__init__()
        self.words, self.into, self.out = nn.Embedding(words, width), nn.Linear(width, 3 * width), nn.Linear(width, 4)
        self.norm = nn.LayerNorm(width)

    def loss(self, words: Tensor, lengths: Tensor, y: Tensor) -> Tensor:
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        nested = torch.nested.nested_tensor_from_jagged(self.words(words), offsets, min_seqlen=2, max_seqlen=6)
        q, k, v = self.into(self.norm(nested)).chunk(3, -1)
        heads = [one.unflatten(-1, (2, 8)).transpose(1, 2) for one in (q, k, v)]
        rows = [
            F.scaled_dot_product_attention(*(part[None] for part in one)).squeeze(0).transpose(0, 1).flatten(-2)
            for one in zip(*(part.unbind() for part in heads))
        ]
        seen = nested + F.gelu(torch.nested.nested_tensor_from_jagged(torch.cat(rows), offsets))
        padded = torch.nested.to_padded_tensor(seen, 0.0)
        mean = padded.sum(1) / lengths[:, None]
        last = seen.values()[offsets[1:] - 1]
        return F.cross_entropy(self.out((mean + last).to(self.out.weight.dtype)).float(), y)


class Mixture(nn.Module):
    """A mixture of experts by index_add: top two of four, a capacity, a balanced load, a shared expert beside them."""

    def __init__(self, width: int = 12, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(experts)
        )
        self.shared, self.out = nn.Linear(width, width), nn.Linear(width, 3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.gate(x).float()
        share, chosen = scores.softmax(-1).topk(2, sorted=False)
        share = share / share.sum(-1, keepdim=True)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == number)
            row, slot = row[:6], slot[:6]
            if row.numel() == 0:
                continue
            made = expert(x.index_select(0, row)) * share[row, slot, None].to(x.dtype)
            mixed.index_add_(0, row, made.to(mixed.dtype))
        counted = torch.bincount(chosen.flatten(), minlength=len(self.experts)).float() / chosen.numel()
        balance = (counted * scores.softmax(-1).mean(0)).sum() * len(self.experts)
        hidden = F.relu(mixed + self.shared(x).to(mixed.dtype))
        return (
            F.cross_entropy(self.out(hidden).float(), y) + 0.01 * balance + 1e-3 * scores.logsumexp(-1).square().mean()
        )


PROGRAMS = (
    Program("per sample", "tenth", Private, lambda: [normal(6, 6), whole(3, 6)], ("checkpointed",)),
    Program("stacked members", "tenth", Ensemble, lambda: [normal(6, 7), whole(4, 6)]),
    Program("tangents", "tenth", Tangents, lambda: [normal(5, 4), normal(5, seed=3)], ("checkpointed",)),
    Program("tasks at once", "tenth", Meta, lambda: [normal(3, 6, 2), normal(3, 6, 1, seed=3)], ("checkpointed",)),
    Program("duals", "tenth", Duals, lambda: [normal(8, 5), whole(3, 8)]),
    Program("exported", "tenth", Exported, lambda: [normal(6, 3, 16), whole(5, 6)]),
    Program(
        "jagged", "tenth", Jagged, lambda: [whole(20, 13), torch.tensor([4, 6, 3]), whole(4, 3)], ("checkpointed",)
    ),
    Program("index_add experts", "tenth", Mixture, lambda: [normal(14, 12), whole(3, 14)]),
)
