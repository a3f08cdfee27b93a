"""Habits of people: own operators, scripts, pruned weights, NumPy's names, underscores, noises, old algebra."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, fx, nn
from torch.autograd import forward_ad
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint_sequential


class Surgery(nn.Module):
    """Several tasks on one body: gradients projected off each other, put back by hand; weights that learn."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, width), nn.Softsign(), nn.Linear(width, width), nn.Hardswish())
        self.heads, self.doubt = nn.ModuleList(nn.Linear(width, 2) for _ in range(3)), nn.Parameter(torch.zeros(3))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.body(x)
        costs = [
            F.huber_loss(self.heads[0](hidden).float(), y.float()),
            F.binary_cross_entropy_with_logits(self.heads[1](hidden).float(), (y > 0).float()),
            F.hinge_embedding_loss(self.heads[2](hidden).float(), y.float().sign(), margin=0.7),
        ]
        shared = list(self.body.parameters())
        taken = [torch.autograd.grad(cost, shared, retain_graph=True) for cost in costs]
        flat = torch.stack([torch.cat([part.float().reshape(-1) for part in one]) for one in taken])
        turned = flat.clone()
        for one in range(3):
            for other in (k for k in range(3) if k != one):
                along = torch.dot(turned[one], flat[other])
                if along.item() < 0:
                    turned[one].sub_(flat[other], alpha=float(along / flat[other].dot(flat[other]).clamp_min(1e-12)))
        agree = torch.nn.functional.cosine_similarity(flat[:, None], flat[None], dim=-1)
        for parameter, part in zip(shared, turned.mean(0).split([one.numel() for one in shared])):
            parameter.grad = part.view_as(parameter).to(parameter.dtype).clone()
        apart = F.linear(hidden.detach(), self.heads[0].weight).float().square().mean()
        doubt = self.doubt.float()
        mixed = torch.stack([cost.detach() for cost in costs])
        return (mixed * torch.exp(-2 * doubt) + doubt).sum() + 0.1 * apart + 0 * agree.mean()


class Pruned(nn.Module):
    """Lottery tickets: masks by size and by row, two of each four, a weight that keeps only its mean's direction."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, width)
        self.wide, self.out = nn.Conv1d(1, 4, 3, stride=2, dilation=2), nn.Linear(16, 4)
        prune.l1_unstructured(self.first, "weight", 0.4)
        prune.ln_structured(self.wide, "weight", 0.25, n=2, dim=0)
        prune.random_unstructured(self.second, "bias", 3)
        prune.global_unstructured([(self.first, "weight"), (self.second, "weight")], prune.L1Unstructured, amount=5)

    def two_of_four(self, weight: Tensor) -> Tensor:
        groups = weight.detach().abs().reshape(-1, 4)
        small = groups.argsort(dim=1)[:, :2]
        mask = torch.ones_like(groups).scatter(1, small, 0.0).reshape_as(weight)
        return weight * mask + 2e-3 * (weight * (1 - mask)).detach()

    def grown(self) -> None:
        """RigL: the smallest weights that are left go, and as many come where they were cut."""
        mask = self.second.weight_mask
        left = torch.where(mask.bool(), self.second.weight_orig.detach().abs(), torch.inf).flatten()
        least = left.float().kthvalue(2).values
        mask.view(-1)[left.float() <= least] = 0
        free = (mask.view(-1) == 0).nonzero().flatten()[:2]
        mask.view(-1).index_fill_(0, free, 1)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            self.grown()
        hidden = F.relu6(self.second(F.hardswish(self.first(x))))
        hidden = F.linear(hidden, self.two_of_four(self.third.weight), self.third.bias).relu_()
        ternary = torch.where(hidden.detach().abs() > 0.7 * hidden.detach().abs().mean(), hidden.detach().sgn(), 0)
        hidden = hidden + (ternary - hidden).detach() * 0.5
        waves = self.wide(hidden.unsqueeze(1)).flatten(1)
        cut = sum((module.weight == 0).sum() for module in (self.first, self.second))
        scores = self.out(waves).float()
        return F.multi_margin_loss(scores, y, p=1, margin=0.5, weight=torch.ones(4, device=x.device)) + 0 * cut.float()


@functools.lru_cache(maxsize=1)
def own_operators() -> tuple[Any, Any]:
    """Registered as an extension registers its kernels: a gated norm that can be differentiated, a write in place."""

    @torch.library.custom_op("eighth_set::gated_norm", mutates_args=())
    def gated_norm(x: Tensor, gate: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        size = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
        return (x.float() * size * torch.sigmoid(gate.float())).to(x.dtype), size

    @gated_norm.register_fake
    def _(x: Tensor, gate: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return torch.empty_like(x), x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)

    def keeps(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], inputs[1], output[1])

    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:
        x, gate, size = ctx.saved_tensors
        share, arrived = torch.sigmoid(gate.float()), gradient.float()
        scaled = arrived * share
        along = (scaled * x.float()).mean(-1, keepdim=True)
        for_x = size * (scaled - x.float() * size**2 * along)
        for_gate = arrived * x.float() * size * share * (1 - share)
        return for_x.to(x.dtype), for_gate.to(gate.dtype), None

    gated_norm.register_autograd(backward, setup_context=keeps)

    @torch.library.custom_op("eighth_set::decay_", mutates_args={"state"})
    def decay_(state: Tensor, x: Tensor, rate: float) -> None:
        state.mul_(rate).add_(x.mean(0).to(state.dtype), alpha=1 - rate)

    return gated_norm, decay_


class OwnOperators(nn.Module):
    """An extension's kernels, registered with torch.library; ops asked for by their full names."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        own_operators()
        self.body, self.gate, self.out = nn.Linear(8, width), nn.Linear(8, width), nn.Linear(width, 3)
        self.register_buffer("state", torch.zeros(width))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        ops = torch.ops
        hidden, gate = self.body(x), self.gate(x)
        made, size = ops.eighth_set.gated_norm(hidden, gate, 1e-5)
        ops.eighth_set.decay_(self.state, made.detach(), 0.9)
        made = ops.aten.add.Tensor(made, self.state.to(made.dtype), alpha=0.1)
        made = ops.aten.native_dropout(made, 0.2, True)[0]
        made = made + ops.aten.hardsigmoid(ops.aten.slice.Tensor(made, 1, 0, 12, 1))
        weight = ops.aten.t.default(self.out.weight)
        scores = ops.aten.addmm.default(self.out.bias.to(made.dtype), made, weight.to(made.dtype))
        likely = ops.aten._log_softmax.default(scores.float(), -1, False)
        return ops.aten.nll_loss_forward.default(likely, y, None, 1, -100)[0] + 0.01 * size.mean()


def _gated(x: Tensor, gate: Tensor, turns: int) -> Tensor:
    total = torch.zeros_like(x)
    for turn in range(turns):
        if turn % 2 == 0:
            total = total + torch.sigmoid(gate) * torch.roll(x, turn, -1)
        else:
            total = total - 0.1 * x * gate.tanh()
    return total


class Scripted(nn.Module):
    """Scripted and traced parts, and a graph by torch.fx in which one function was put for another."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.script = torch.jit.script(_gated)
        self.traced = torch.jit.trace(nn.Sequential(nn.Linear(width, width), nn.GELU()), torch.zeros(2, width))
        self.graph = self.changed(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)))
        self.out = torch.jit.script(nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 3)))

    @staticmethod
    def changed(module: nn.Module) -> fx.GraphModule:
        traced = fx.symbolic_trace(module)
        for node in list(traced.graph.nodes):
            if node.op == "call_module" and isinstance(traced.get_submodule(node.target), nn.ReLU):
                with traced.graph.inserting_after(node):
                    bent = traced.graph.call_function(F.silu, node.args)
                with traced.graph.inserting_after(bent):
                    more = traced.graph.call_function(operator.add, (bent, node.args[0]))
                node.replace_all_uses_with(more)
                traced.graph.erase_node(node)
        traced.recompile()
        return traced

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.graph(x)
        hidden = self.script(hidden, x.to(hidden.dtype), 3) + self.traced(x).to(hidden.dtype)
        return F.cross_entropy(self.out(hidden.to(self.out[0].weight.dtype)).float(), y)


class Squeezed(nn.Module):
    """A graph that is kept in eight bits; hooks on modules that scale and watch gradients; stages that run again."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stages = nn.Sequential(
            *(nn.Sequential(nn.Linear(width, width), nn.CELU(0.7), nn.LayerNorm(width)) for _ in range(4))
        )
        self.last, self.out = nn.Linear(width, width), nn.Linear(width, 5)
        self.register_buffer("seen", torch.zeros(2))
        self.last.register_full_backward_hook(self.scaled)
        self.last.register_forward_pre_hook(lambda module, given: (given[0] * 1.5,))
        self.out.register_full_backward_pre_hook(lambda module, given: (given[0].clamp(-0.05, 0.05),))
        self.out.register_forward_hook(self.watch, with_kwargs=True)

    @staticmethod
    def scaled(_module: nn.Module, arrived: Any, _left: Any) -> tuple[Tensor | None, ...]:
        return tuple(None if one is None else one * 0.5 for one in arrived)

    def watch(self, _module: nn.Module, _given: Any, _named: Any, result: Tensor) -> None:
        with torch.no_grad():
            self.seen.add_(torch.stack(torch.var_mean(result.float())).to(self.seen.dtype))

    @staticmethod
    def pack(x: Tensor) -> Any:
        if x.numel() < 64 or not x.is_floating_point() or isinstance(x, nn.Parameter):
            return x
        low, high = x.detach().float().aminmax()
        step = (high - low).clamp_min(1e-8) / 255
        return torch.round((x.detach().float() - low) / step).to(torch.uint8), low, step, x.dtype

    @staticmethod
    def unpack(kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        bits, low, step, dtype = kept
        return torch.addcmul(low, bits.to(torch.float32), step).to(dtype)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
            hidden = self.last(self.stages[:2](x))
        hidden = checkpoint_sequential(list(self.stages[2:]), 2, hidden.to(x.dtype), use_reentrant=True)
        with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
            scores = self.out(hidden)
        return F.cross_entropy(input=scores.float(), target=y, reduction="sum").div(len(x))


class NumPyNames(nn.Module):
    """Code that came from NumPy: its names for the same ops, its shapes at least so deep, its lists put together."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(normal(width, width) * 0.5), nn.Parameter(torch.zeros(width))
        self.last = nn.Parameter(normal(width, 3) * 0.5)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with in_float32(x):
            x, weight, last = x.float(), self.weight.float(), self.last.float()
            hidden = torch.add(torch.matmul(x, weight), self.bias.float())
            bent = torch.multiply(hidden, torch.greater_equal(hidden, 0)).subtract(torch.divide(hidden, 7))
            bounded = torch.divide(bent, torch.absolute(bent).add(1)).multiply(0.9)
            angles = torch.arcsin(bounded) + torch.arccos(bounded.square()) - torch.arctan(bent)
            angles = angles + torch.arctan2(bounded, torch.ones_like(bounded)) + torch.arcsinh(bent)
            angles = angles + 0.1 * torch.arccosh(1.5 + bent.square()) - torch.arctanh(bounded)
            parts = torch.concatenate([angles, torch.negative(bent)], axis=1)[:, ::2]
            flipped = torch.swapaxes(torch.fliplr(parts), 0, 1).moveaxis(0, 1)
            stacked = torch.vstack([parts, torch.flipud(flipped)])
            three = torch.atleast_3d(stacked).swapdims(1, 2)
            first, second = torch.dsplit(three.expand(-1, -1, 4) if three.shape[2] == 1 else three[..., :6], 2)
            both = torch.dstack([first.squeeze(1), second.squeeze(1)]).nansum(axis=2)
            rows = torch.row_stack([both, torch.atleast_2d(both[0])])[:-1]
            a, b = torch.broadcast_tensors(rows[:, :1], torch.ravel(rows)[: rows.shape[1]])
            outer = torch.concat([a * b, torch.diagflat(rows[0, :2])[:1].expand(len(rows), 2)], 1)
            held = torch.where(torch.isclose(outer, torch.zeros(1, device=x.device), atol=1e-3), 0.0, outer)
            kept = torch.argwhere(torch.logical_and(torch.isfinite(held), torch.not_equal(held, 0)))
            area = torch.trapz(held.std(0, unbiased=False), dx=0.5) + torch.fix(held * 3).mean() * 0.1
            likely = torch.hstack([bent, torch.clip(held[: len(bent), :1], -1, 1)])[:, 1:] @ last
            picked = held[kept[:, 0], kept[:, 1]].mean()
            even = torch.cov(likely.mT, correction=0).ravel().mean()
            return F.cross_entropy(likely, y) + 0.1 * (area + picked + even) + 0.01 * torch.nanmean(rows.square())


class Underscores(nn.Module):
    """Everything in place that may be: shapes that turn, comparisons, steps by hand, memory that is made again."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, 3)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("square", torch.ones(width))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.first(x).clone()
        hidden.unsqueeze_(0).transpose_(1, 2).swapdims_(1, 2).squeeze_(0)
        F.hardtanh_(hidden.mul_(1.25).sub_(0.1).div_(1.1), -3, 3)
        F.leaky_relu_(hidden.add_(x.to(hidden.dtype)), 0.2)
        hidden = F.elu_(hidden.clone(), 0.9)
        hidden = hidden.clone()
        hidden[1::2].neg_().sigmoid_()
        hidden = hidden.clone()
        hidden[:, ::2].copy_(hidden[:, 1::2].flip(1)).tanh_()
        hidden = hidden.clone()
        hidden.narrow(1, 2, 3).exp_()
        hidden = hidden.square().log1p().add_(0.1).sqrt_().clone()
        hidden.select(1, 0).addcmul_(hidden[:, 1].detach().clone(), hidden[:, 2].detach().clone(), value=0.3)
        hidden.t_().t_().clamp_min_(-2.5).lerp_(x.to(hidden.dtype), 0.1)
        with torch.no_grad():
            seen = hidden.detach().float()
            work = torch.empty(0, device=x.device).resize_(seen.shape).copy_(seen)
            torch.sort(work.clone(), 0, out=(work, torch.empty(work.shape, dtype=torch.long, device=x.device)))
            above = work.clone().gt_(0).logical_and_(work.abs().le_(2)).eq_(1)
            work.addcdiv_(above, work.abs().add_(1), value=-0.1).trunc_().fmod_(3).remainder_(2).pow_(2)
            work.atan2_(above.add_(1)).floor_divide_(0.25).clip_(-2, 2).nan_to_num_()
            work.fill_diagonal_(0.5).triu_(-1).cumsum_(0).rsqrt_().masked_fill_(work.isinf(), 0).sign_()
            self.mean.mul_(0.9).add_(seen.mean(0), alpha=0.1)
            self.square.mul_(0.99).addcmul_(seen[0].to(self.square.dtype), seen[0].to(self.square.dtype), value=0.01)
            far = torch.sub(seen, self.mean.float(), out=torch.empty_like(seen)).div_(
                self.square.float().sqrt().add_(1e-3)
            )
            count = (
                torch.zeros(3, dtype=torch.long, device=x.device).scatter_add_(0, y, torch.ones_like(y)).bitwise_or_(1)
            )
        weight = count.float().reciprocal_().mul_(3).clamp_(0.2, 2)
        return F.cross_entropy(self.last(hidden).float(), y, weight) + 0 * (far.mean() + work.mean())


class Forward(nn.Module):
    """Gradients without a backward pass: dual numbers along a random direction, Hessians times vectors."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, width), nn.Linear(width, 3)

    def cost(self, weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
        hidden = torch.tanh(F.linear(x, weight, self.first.bias.float()))
        scores = F.linear(hidden, self.second.weight.float().detach(), self.second.bias.float().detach())
        return -scores.log_softmax(-1).gather(1, y[:, None]).mean()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with in_float32(x):
            x, weight = x.float(), self.first.weight.detach().float()
            total = torch.zeros((), device=x.device)
            for _ in range(2):
                way = torch.randn_like(weight)
                with forward_ad.dual_level():
                    dual = forward_ad.make_dual(weight, way)
                    value, slope = forward_ad.unpack_dual(self.cost(dual, x, y))
                guess = slope.detach() * way
                total = total + (self.first.weight.float() * guess).sum() / 2 + 0 * value.detach()
            curve = torch.autograd.functional.vhp(lambda at: self.cost(at, x, y), weight, way)[1]
            slopes = torch.autograd.functional.jacobian(
                lambda at: F.linear(torch.tanh(F.linear(at, weight)), self.second.weight.float()),
                x[:2],
                create_graph=True,
            )
            forward = torch.func.jvp(lambda at: self.cost(at, x, y), (weight,), (way,))[1]
            bend = slopes.square().mean() + 0 * (curve.mean() + forward)
            hidden = torch.tanh(F.linear(x, weight, self.first.bias.float()))
            scores = F.linear(hidden, self.second.weight.float(), self.second.bias.float())
        return F.cross_entropy(scores, y) + total + 0.01 * bend


class Noises(nn.Module):
    """All kinds of noise: heavy tails, waiting times, counts, masks of spectra, mixed pictures, order at random."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(width, 16), nn.Linear(16, width), nn.Parameter(torch.ones(width))
        self.drop, self.top = nn.Dropout1d(0.3), nn.Linear(width, 4)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        shape = {"device": x.device, "dtype": torch.float32}
        size = x.shape
        with torch.no_grad():
            tails = torch.empty(size, **shape).cauchy_(0, 0.1).clamp_(-1, 1)
            waits = torch.empty(size, **shape).exponential_(2.0)
            grown = torch.empty(size, **shape).log_normal_(-1, 0.25)
            tries = torch.empty(size, **shape).geometric_(0.6)
            counts = torch.binomial(torch.full(size, 5.0, **shape), torch.sigmoid(x.float()))
            levels = torch.empty(size, **shape).random_(0, 3)
            signs = torch.randint_like(tails, 0, 2).mul_(2).sub_(1)
            each = torch.normal(x.float() * 0.1, grown)
            student = torch.distributions.StudentT(3.0).sample(size[:1]).to(x.device)
            order = torch.randperm(len(x), device=x.device)
            share = torch.distributions.Beta(torch.tensor(0.4, **shape), torch.tensor(0.4, **shape)).sample()
            places = torch.arange(size[1], device=x.device)
            start = torch.randint(0, size[1] - 2, (len(x), 1), device=x.device)
            hidden = (places >= start) & (places < start + 2)
            keep = torch.rand(len(x), 1, device=x.device).ge(0.1) / 0.9
        noise = tails * signs + 0.1 * (waits - 0.5) + 0.05 * tries + 0.02 * counts + 0.01 * levels + 0.1 * each
        seen = (x.float() + 0.1 * noise * self.scale.float()).masked_fill(hidden, 0.0).to(x.dtype)
        seen = share.to(x.dtype) * seen + (1 - share.to(x.dtype)) * seen.index_select(0, order)
        bent = F.rrelu(self.first(seen).float(), training=True).to(self.last.weight.dtype)
        made = seen + self.drop(self.last(bent).unsqueeze(-1)).squeeze(-1) * keep.to(seen.dtype)
        gumbel = -torch.empty(len(x), 4, **shape).exponential_().log()
        scores = self.top(made).float()
        soft = ((scores + gumbel) / 0.7).softmax(-1)
        labels = F.one_hot(y, 4)
        mixed = share * F.cross_entropy(scores, y) + (1 - share) * F.cross_entropy(scores, y[order])
        return mixed + 0.1 * (soft - labels).square().mean() + 0 * student.mean()


class OldAlgebra(nn.Module):
    """Linear algebra by its oldest names and LAPACK's: solutions, reflections, ranks, conditions, spectra."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.weight, self.other = nn.Parameter(normal(width, width) * 0.3), nn.Parameter(normal(width, 2, seed=4))
        self.top = nn.Linear(width, 3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with in_float32(x):
            linalg, x, weight, other = torch.linalg, x.float(), self.weight.float(), self.other.float()
            eye = torch.eye(len(weight), device=x.device)
            matrix = weight @ weight.mT + eye
            factor = torch.cholesky(matrix)
            inverse = torch.cholesky_inverse(factor)
            upper = torch.triangular_solve(other, factor, upper=False)[0]
            packed, pivots = torch.lu(matrix)[:2]
            solved = torch.lu_solve(other, packed, pivots)
            places, low, high = torch.lu_unpack(packed, pivots)
            again = torch.chain_matmul(places, low, high)
            with torch.no_grad():
                reflected, tau = torch.geqrf(x)
                basis = linalg.householder_product(reflected, tau)
                along = torch.ormqr(reflected, tau, x[:, :2].contiguous(), left=True, transpose=True)
                table, places = linalg.ldl_factor(matrix)
                direct = linalg.ldl_solve(table, places, other)
                rank = linalg.matrix_rank(basis) + (linalg.cond(matrix) < 1e4)
                spectrum = torch.view_as_real(linalg.eigvals(weight)).norm(dim=-1).sort().values
                least = linalg.lstsq(x, x[:, :1] * 2).solution
                checked, info = linalg.cholesky_ex(matrix)
                turned, bad = linalg.inv_ex(matrix)
                values = linalg.eigvalsh(matrix)
                nuclear = linalg.matrix_norm(weight, "nuc") + linalg.matrix_norm(weight, 2) + linalg.norm(weight, 1)
                square = linalg.tensorinv(torch.eye(4, device=x.device).add(0.1).view(2, 2, 4), ind=2)
            pseudo = torch.pinverse(x)
            grown = torch.matrix_exp(0.1 * (weight - weight.mT))
            root = linalg.vecdot(grown, inverse).sum() + torch.logdet(matrix) + linalg.cross(x[:, :3], x[:, 1:4]).mean()
            made = x @ grown + pseudo.mT * 0.1 + (x @ solved) @ upper.mT * 0.01
            held = linalg.matrix_norm(again - matrix) + linalg.vector_norm(made, 3, dim=1).mean()
            extras = (along, direct, spectrum, least, checked, turned, values, nuclear, square)
            loose = sum(one.float().mean() for one in extras) + rank + info + bad
        return F.cross_entropy(self.top(made.to(self.top.weight.dtype)).float(), y) + 0.01 * (root + held) + 0 * loose


def tall() -> Tensor:
    """A matrix with more rows than columns, of full rank."""
    return normal(9, 5) + math.sqrt(2) * torch.eye(9, 5)


PROGRAMS = (
    Program(
        "several tasks",
        "eighth",
        Surgery,
        lambda: [normal(8, 6), normal(8, 2, seed=3)],
        ("checkpointed", "autocast float16"),
    ),
    Program("pruned", "eighth", Pruned, lambda: [normal(7, 8), whole(4, 7)]),
    Program("own operators", "eighth", OwnOperators, lambda: [normal(8, 8), whole(3, 8)]),
    Program(
        "scripted", "eighth", Scripted, lambda: [normal(6, 10), whole(3, 6)], ("autocast bfloat16", "autocast float16")
    ),
    Program("squeezed graph", "eighth", Squeezed, lambda: [normal(9, 12), whole(5, 9)], ("checkpointed",)),
    Program("NumPy's names", "eighth", NumPyNames, lambda: [normal(8, 6), whole(3, 8)]),
    Program("underscores", "eighth", Underscores, lambda: [normal(8, 6), whole(3, 8)]),
    Program("forward gradients", "eighth", Forward, lambda: [normal(7, 5), whole(3, 7)]),
    Program("noises", "eighth", Noises, lambda: [normal(8, 8), whole(4, 8)]),
    Program("old algebra", "eighth", OldAlgebra, lambda: [tall(), whole(3, 9)]),
)
