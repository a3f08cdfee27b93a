"""What surrounds the ops: regions of autocast, kinds of checkpointing, hooks, modes, threads; two models at once."""

from __future__ import annotations

import copy
import threading
from typing import Any

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint as checkpoints
from torch.utils._python_dispatch import TorchDispatchMode


class InFloat(torch.autograd.Function):
    """Casts its inputs to float32 under autocast, and runs its backward pass as it ran forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.float(), weight.float())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, arrived: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            return (arrived @ weight.float()).to(x.dtype), (arrived.mT @ x.float()).to(weight.dtype)


class Regions(nn.Module):
    """One weight in three modules, in regions of two dtypes, with and without the cache, inside of each other."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(width, width) for _ in range(3))
        self.second.weight = self.third.weight = self.first.weight
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        device, dtype = x.device.type, self.out.weight.dtype
        hidden = F.gelu(self.first(x))
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            hidden = hidden.to(dtype) + self.second(hidden).to(dtype)
            with torch.autocast(device, torch.float16):
                inner = self.third(F.silu(hidden)).float()
                with torch.autocast(device, enabled=False):
                    inner = inner.to(dtype) + F.linear(inner.to(dtype), self.first.weight)
            inner = inner + self.first(inner.to(dtype))
        inner = inner + 0.1 * InFloat.apply(inner, self.third.weight).to(inner.dtype)
        with torch.autocast(device, torch.bfloat16), torch.no_grad():
            far = self.second(x)
        with torch.autocast(device, torch.bfloat16):
            near = self.second(x)
        hidden = self.norm((hidden + inner.to(hidden.dtype)).to(self.norm.weight.dtype))
        hidden = hidden.to(dtype) + 0.1 * (near - far.detach()).to(dtype) + 0.1 * near.to(dtype)
        return F.cross_entropy(self.out(hidden).float(), y)


class Recomputed(nn.Module):
    """Checkpointing of every kind: reentrant, not, inside of each other, selective, with random ops."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))
            for _ in range(5)
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 4)

    def chosen(self) -> Any:
        policy = checkpoints.CheckpointPolicy

        def decide(_context: Any, op: Any, *_args: Any, **_named: Any) -> Any:
            keeps = op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
            return policy.MUST_SAVE if keeps else policy.PREFER_RECOMPUTE

        return checkpoints.create_selective_checkpoint_contexts(decide)

    def outer(self, x: Tensor) -> Tensor:
        x = x + checkpoints.checkpoint(self.blocks[2], x, use_reentrant=False, determinism_check="none")
        return x + checkpoints.checkpoint(lambda one: self.blocks[3](self.norm(one)).relu_(), x, use_reentrant=False)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.detach().to(self.out.weight.dtype).requires_grad_()
        hidden = x + checkpoints.checkpoint(self.blocks[0], x, use_reentrant=True)
        with checkpoints.set_checkpoint_early_stop(False):
            hidden = hidden + checkpoints.checkpoint(self.blocks[1], hidden, use_reentrant=False)
        hidden = checkpoints.checkpoint(self.outer, hidden, use_reentrant=False)
        hidden = hidden + checkpoints.checkpoint(self.blocks[4], hidden, use_reentrant=False, context_fn=self.chosen)
        hidden = hidden + checkpoints.checkpoint(self.blocks[0], hidden, use_reentrant=True, preserve_rng_state=False)
        return F.cross_entropy(self.out(hidden).float(), y)


class Hooked(nn.Module):
    """Every kind of hook: of modules, tensors, nodes, several gradients, behind accumulation, of the process."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(5, width), nn.Linear(width, width), nn.Linear(width, 3)
        self.seen = 0.0
        self.first.register_forward_pre_hook(lambda _m, given, named: ((given[0] * 2,), named), with_kwargs=True)
        self.first.register_forward_hook(lambda _m, _given, made: made.tanh())
        self.second.register_full_backward_pre_hook(lambda _m, arrived: (arrived[0] * 0.9,))
        self.second.register_full_backward_hook(lambda _m, left, _arrived: (left[0].clamp(-1, 1),))
        self.out.weight.register_hook(lambda gradient: gradient + 0.01 * gradient.sign())
        self.out.bias.register_post_accumulate_grad_hook(self.behind)
        for parameter in (self.first.weight, self.first.bias):
            parameter.register_hook(torch.nan_to_num)

    @staticmethod
    def behind(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)

    def several(self, gradients: Any) -> None:
        self.seen += float(sum(one.float().square().sum() for one in gradients if one is not None))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        handle = nn.modules.module.register_module_forward_hook(lambda _m, _given, made: made * 1.0)
        try:
            hidden = self.first(x)
        finally:
            handle.remove()
        hidden.register_hook(lambda gradient: gradient * 1.1)
        hidden.retain_grad()
        torch.autograd.graph.register_multi_grad_hook([hidden, self.second.weight], self.several)
        bent = F.silu(self.second(hidden))
        bent.grad_fn.register_hook(lambda left, _arrived: tuple(None if one is None else one * 1.0 for one in left))
        bent.grad_fn.register_prehook(lambda arrived: tuple(one * 0.7 for one in arrived))
        with torch.autograd.graph.save_on_cpu(pin_memory=False):
            bent = bent + torch.sin(self.second(bent))
        return F.cross_entropy(self.out(bent).float(), y)


class Doubled(TorchFunctionMode):
    """A mode of the program's own that replaces one function."""

    def __torch_function__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is F.relu:
            return F.leaky_relu(args[0], 0.05)
        return op(*args, **(kwargs or {}))


class Counted(TorchDispatchMode):
    """A mode that counts what is computed, as FLOP counters do."""

    count = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return op(*args, **(kwargs or {}))


class Modes(nn.Module):
    """Modes of the program's own around its ops; a teacher in inference mode; gradients on and off."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(5, width), nn.Linear(width, 3)
        self.bare = nn.utils.skip_init(nn.Linear, width, width)
        with torch.no_grad():
            nn.init.orthogonal_(self.bare.weight)
            nn.init.zeros_(self.bare.bias)
        self.teacher = copy.deepcopy(self.first).requires_grad_(False)

    @torch.no_grad()
    def follows(self) -> None:
        for slow, fast in zip(self.teacher.parameters(), self.first.parameters()):
            slow.lerp_(fast, 0.01)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.follows()
        with torch.inference_mode():
            goal = self.teacher(x).softmax(-1)
        goal = goal.clone()
        with Doubled():
            hidden = F.relu(self.first(x))
        with Counted() as counted:
            hidden = hidden + F.gelu(self.bare(hidden))
        assert counted.count
        with torch.set_grad_enabled(False):
            scale = hidden.float().std()
            with torch.enable_grad():
                hidden = hidden * 1.01
        with torch.autograd.set_detect_anomaly(True, check_nan=False), torch.profiler.record_function("scores"):
            scores = self.out(hidden / scale.to(hidden.dtype)).float()
        return F.cross_entropy(scores, y) + 0.1 * F.kl_div(
            hidden.float().log_softmax(-1), goal.float(), reduction="batchmean"
        )


class Threads(nn.Module):
    """Towers that run in threads of their own, as nn.parallel does, one of them with its own backward pass."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(5, width), nn.Tanh()) for _ in range(3))
        self.out = nn.Linear(3 * width, 3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        made: list[Any] = [None] * 3
        of_autocast = torch.is_autocast_enabled(x.device.type), torch.get_autocast_dtype(x.device.type)

        def tower(number: int) -> None:
            with torch.autocast(x.device.type, of_autocast[1], enabled=of_autocast[0]):
                given = x.detach().clone().requires_grad_()
                made[number] = self.towers[number](given)
                if number == 2:
                    (left,) = torch.autograd.grad(made[number].float().sum(), given, retain_graph=True)
                    made[number] = made[number] + 0.1 * left.mean()

        for number in range(3):  # one after another: the order of random numbers and of sums is the same each time
            thread = threading.Thread(target=tower, args=(number,))
            thread.start()
            thread.join()
        return F.cross_entropy(self.out(torch.cat(made, -1)).float(), y)


class Preferred(nn.Module):
    """Two models: PPO's ratio with a value, a penalty for parting from the reference, DPO; weights tied."""

    def __init__(self, words: int = 20, width: int = 12) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(words, width), nn.GRU(width, width, batch_first=True)
        self.head, self.value = nn.Linear(width, words, bias=False), nn.Linear(width, 1)
        self.head.weight = self.words.weight
        self.reference = nn.ModuleList([copy.deepcopy(self.words), copy.deepcopy(self.mix)]).requires_grad_(False)

    def likely(self, words: Tensor, frozen: bool) -> tuple[Tensor, Tensor]:
        embed, mix = (self.reference[0], self.reference[1]) if frozen else (self.words, self.mix)
        hidden = mix(embed(words[:, :-1]))[0]
        scores = F.linear(hidden, embed.weight.to(hidden.dtype)).float()
        return scores.log_softmax(-1).gather(-1, words[:, 1:, None]).squeeze(-1), hidden

    def loss(self, chosen: Tensor, rejected: Tensor, rewards: Tensor) -> Tensor:
        ours, hidden = self.likely(chosen, frozen=False)
        worse, _ = self.likely(rejected, frozen=False)
        with torch.no_grad():
            theirs, _ = self.likely(chosen, frozen=True)
            theirs_worse, _ = self.likely(rejected, frozen=True)
            returns = rewards.float().flip(1).cumsum(1).flip(1)
        values = self.value(hidden).float().squeeze(-1)
        gain = (returns - values).detach()
        gain = (gain - gain.mean()) * torch.rsqrt(gain.var() + 1e-8)
        ratio = torch.exp(ours - theirs)
        policy = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        parted = (torch.exp(theirs - ours) - 1 - (theirs - ours)).mean()
        margin = 0.1 * ((ours - theirs).sum(1) - (worse - theirs_worse).sum(1))
        return policy + 0.5 * F.smooth_l1_loss(values, returns) + 0.1 * parted - F.logsigmoid(margin).mean()


PROGRAMS = (
    Program("regions", "tenth", Regions, lambda: [normal(6, 10), whole(3, 6)], ("autocast float16",)),
    Program("recomputed", "tenth", Recomputed, lambda: [normal(6, 10), whole(4, 6)], ("checkpointed",)),
    Program("hooked", "tenth", Hooked, lambda: [normal(6, 5), whole(3, 6)]),
    Program("modes", "tenth", Modes, lambda: [normal(6, 5), whole(3, 6)]),
    Program("threads", "tenth", Threads, lambda: [normal(6, 5), whole(3, 6)], ("checkpointed",)),
    Program("preferred", "tenth", Preferred, lambda: [whole(20, 3, 7), whole(20, 3, 7, seed=5), normal(3, 6)]),
)
