"""Other ways to say it: functions of models, subclasses, compiled blocks, sparse layouts, twins for inference."""

from __future__ import annotations

import copy
from typing import Any

import torch
from benchmarks.architectures.chunks import in_float32
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils import _pytree as pytree


class Stacked(nn.Module):
    """Models as functions: stacked states, gradients with values, a Hessian, derivatives forward in a transform."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)) for _ in range(3))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        func, base = torch.func, self.members[0]
        with in_float32(x):
            x, y = x.float(), y.float()
            states = [{name: one.float() for name, one in member.named_parameters()} for member in self.members]
            stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}

            def cost(state: dict[str, Tensor], at: Tensor, wanted: Tensor) -> Tensor:
                return F.huber_loss(func.functional_call(base, state, (at[None],)).squeeze(), wanted)

            noisy = func.vmap(
                lambda state: state["0.bias"] + 0.1 * torch.randn_like(state["0.bias"]), randomness="different"
            )
            stacked = {**stacked, "0.bias": noisy(stacked)}
            each = func.vmap(func.vmap(func.grad_and_value(cost), (None, 0, 0)), (0, None, None))
            slopes, values = each(stacked, x, y)
            sizes = torch.stack([one.flatten(2).square().sum(-1) for one in slopes.values()]).sum(0)
            whole_batch = lambda at: func.functional_call(base, states[0], (at[None],)).squeeze()  # noqa: E731
            bend = func.vmap(func.hessian(whole_batch))(x[:4])
            forward = func.vmap(func.jacfwd(whole_batch))(x)
            _, push = func.linearize(whole_batch, x[0])
            laplace = bend.diagonal(dim1=-2, dim2=-1).sum(-1)
        return values.mean() + 0.01 * (sizes.mean() + laplace.square().mean() + forward.norm() + push(x[1]).square())


class Scaled(Tensor):
    """Eight bits and a scale for each row, as a tensor that computes with what it stands for."""

    bits: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls: Any, bits: Tensor, scale: Tensor) -> Any:
        kind = {"dtype": scale.dtype, "device": bits.device}
        return torch.Tensor._make_wrapper_subclass(cls, bits.shape, **kind)

    def __init__(self, bits: Tensor, scale: Tensor) -> None:
        self.bits, self.scale = bits, scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def plain(one: Any) -> Any:
            return one.bits.to(one.scale.dtype) * one.scale if isinstance(one, Scaled) else one

        if func is torch.ops.aten.detach.default:
            return cls(args[0].bits, args[0].scale)
        return func(*pytree.tree_map(plain, args), **pytree.tree_map(plain, kwargs or {}))


class Counted(Tensor):
    """A tensor that stays of its class, whatever is done with it."""


class Subclasses(nn.Module):
    """Subclasses of tensors: a frozen layer of eight bits, data that keep their class, a module under deep copies."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        weight = normal(width, width) * 0.3
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("bits", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, 3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = F.gelu(self.first(x))
        hidden = hidden + hidden @ Scaled(self.bits, self.scale.to(hidden.dtype)).t()
        counted = hidden.as_subclass(Counted)
        counted = torch.where(counted > 0, counted, 0.1 * counted).mul(2).clamp(max=3)
        twin = copy.deepcopy(self.last).requires_grad_(False)
        scores, beside = self.last(counted).float(), twin(x).float()
        return (F.cross_entropy(scores, y) + 0.1 * F.kl_div(scores.log_softmax(-1), beside.softmax(-1))).as_subclass(
            Tensor
        )


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU("tanh"), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return x + self.feed(x)


class Compiled(nn.Module):
    """A compiled block beside an eager one, with a break of the graph between them."""

    def __init__(self, width: int = 16, words: int = 18) -> None:
        super().__init__()
        torch._dynamo.reset()
        self.words, self.eager, self.block = nn.Embedding(words, width), Block(width), Block(width)
        self.run = torch.compile(self.block, backend="aot_eager", dynamic=False)

    def loss(self, words: Tensor) -> Tensor:
        x = self.run(self.eager(self.words(words[:, :-1])))
        return F.cross_entropy(F.linear(x, self.words.weight).float().flatten(0, 1), words[:, 1:].flatten())


class Layouts(nn.Module):
    """Sparse layouts: a softmax over edges, compressed rows, embeddings with sparse gradients or bounded rows."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.nodes, self.items = (
            nn.Embedding(12, width, sparse=True),
            nn.Embedding(9, width, max_norm=1.0, scale_grad_by_freq=True),
        )
        self.query, self.key, self.top = (nn.Linear(width, size, bias=False) for size in (width, width, 4))
        self.nodes.weight.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", one.grad.to_dense()))

    def loss(self, edges: Tensor, bags: Tensor, labels: Tensor) -> Tensor:
        x = self.nodes(torch.arange(12, device=edges.device))
        with in_float32(x):
            query, key = (
                self.query(x.to(self.query.weight.dtype)).float(),
                self.key(x.to(self.key.weight.dtype)).float(),
            )
            places = torch.unique(edges, dim=1)
            scores = (query[places[0]] * key[places[1]]).sum(-1)
            graph = torch.sparse.softmax(torch.sparse_coo_tensor(places, scores, (12, 12)).coalesce(), 1)
            seen = torch.sparse.mm(graph, x.float())
            degree = torch.sparse.sum(graph, 0).to_dense()
            rows = torch.sparse_csr_tensor(
                torch.arange(0, 13, 2, device=x.device),
                torch.arange(12, device=x.device) % 5,
                scores.new_ones(12),
                (6, 5),
            )
            held = (rows @ seen[:5].detach()).square().mean()
            likely = torch.sparse.log_softmax(torch.sparse_coo_tensor(places, scores, (12, 12)).coalesce(), 1)
        bag = self.items(bags).mean(1)
        out = self.top((seen.to(bag.dtype) + bag).to(self.top.weight.dtype)).float()
        return F.cross_entropy(out, labels) - 0.01 * likely.values().mean() + 0.1 * degree.square().mean() + 0.01 * held


class Deployed(nn.Module):
    """Training with an eye on evaluation: lazy layers, fused ones for inference, weights as one vector, old cells."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LazyConv2d(6, 3), nn.LazyBatchNorm2d(), nn.ReLU6(), nn.LazyConv2d(6, 3))
        self.words, self.cell, self.top = (
            nn.RNN(6, 8, num_layers=2, nonlinearity="relu"),
            nn.GRUCell(8, 8),
            nn.LazyLinear(4),
        )
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.score(normal(2, 3, 10, 10))

    def score(self, x: Tensor) -> Tensor:
        seen = self.body(x)
        states, last = self.words(seen.flatten(2).permute(2, 0, 1))
        mixed = self.encoder(states.transpose(0, 1).to(x.dtype))
        return self.top(self.cell(mixed.mean(1).to(last.dtype), last[-1]))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.score(x).float()
        with torch.no_grad(), in_float32(x):
            twin = copy.deepcopy(self.body).eval()
            fused = nn.utils.fuse_conv_bn_eval(twin[0], twin[1])
            seen = twin[3](F.relu6(fused(x.to(fused.weight.dtype))))
            flat = nn.utils.parameters_to_vector(twin.parameters())
            flat = flat.lerp(torch.zeros_like(flat), 0.1)
            nn.utils.vector_to_parameters(flat, twin.parameters())
            apart = (twin(x.to(flat.dtype)) - seen).float().square().mean()
        with torch.inference_mode():
            calm = (
                copy.deepcopy(self.encoder)
                .eval()(torch.ones(2, 5, 8, device=x.device, dtype=flat.dtype))
                .float()
                .mean()
            )
        return F.cross_entropy(scores, y, label_smoothing=0.1) + 0 * apart + 0 * calm.clone()


PROGRAMS = (
    Program("models as functions", "seventh", Stacked, lambda: [normal(7, 4), normal(7, seed=3)], ("checkpointed",)),
    Program("subclasses", "seventh", Subclasses, lambda: [normal(8, 10), whole(3, 8)]),
    Program("compiled block", "seventh", Compiled, lambda: [whole(18, 2, 9)]),
    Program("sparse layouts", "seventh", Layouts, lambda: [whole(12, 2, 40), whole(9, 12, 3), whole(4, 12)]),
    Program("deployed", "seventh", Deployed, lambda: [normal(2, 3, 10, 10), whole(4, 2)], ("checkpointed",)),
)
