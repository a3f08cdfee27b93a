"""Models that carry a state along: exponential gates, a tape with heads, spikes, slots, a fixed point."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class ExponentialGates(nn.Module):
    """xLSTM: a matrix as memory, exponential gates with a running maximum; RWKV's mixing with the word before."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.words, self.norm = nn.Embedding(28, width), nn.LayerNorm(width)
        self.mix = nn.Parameter(torch.rand(3, width, generator=torch.Generator().manual_seed(4)))
        self.read = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        self.gates, self.out_gate = nn.Linear(width, 2 * heads), nn.Linear(width, width)
        self.group, self.back = nn.GroupNorm(heads, width), nn.Linear(width, width)
        nn.init.constant_(self.gates.bias, 1.5)

    def loss(self, words: Tensor) -> Tensor:
        hidden = self.words(words)
        seen = self.norm(hidden)
        before = F.pad(seen, (0, 0, 1, -1))
        query, key, value = (
            layer(torch.lerp(before, seen, share.to(seen.dtype))).unflatten(-1, (self.heads, -1)).float()
            for layer, share in zip(self.read, self.mix)
        )
        let_in, keep = self.gates(seen).float().chunk(2, -1)
        keep = F.logsigmoid(keep)
        memory = query.new_zeros(len(words), self.heads, self.size, self.size)
        norm, largest = memory[..., 0], memory[..., 0, 0]
        told = []
        for place in range(words.shape[1]):
            now = torch.maximum(keep[:, place] + largest, let_in[:, place])
            fade, add = torch.exp(keep[:, place] + largest - now), torch.exp(let_in[:, place] - now)
            one, other = key[:, place] * self.size**-0.5, value[:, place]
            memory = fade[..., None, None] * memory + torch.einsum("bh,bhi,bhj->bhij", add, other, one)
            norm, largest = torch.addcmul(add[..., None] * one, fade[..., None], norm), now
            asked = torch.einsum("bhij,bhj->bhi", memory, query[:, place])
            size = torch.linalg.vecdot(norm, query[:, place]).abs()
            told.append(asked / torch.maximum(size, torch.exp(-now))[..., None])
        mixed = torch.stack(told, 1).flatten(2)
        mixed = self.group(mixed.flatten(0, 1).to(hidden.dtype)).view_as(hidden)
        hidden = hidden + self.back(mixed * torch.sigmoid(self.out_gate(seen)))
        scores = F.linear(hidden, self.words.weight)[:, :-1].float()
        z = torch.logsumexp(scores, -1)
        return (
            F.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten(), label_smoothing=0.05) + 1e-4 * (z * z).mean()
        )


class Tape(nn.Module):
    """A neural Turing machine: addresses by likeness, a circular shift, sharpening; copies what it has read."""

    def __init__(self, width: int = 10, rows: int = 8) -> None:
        super().__init__()
        self.control = nn.GRUCell(6 + width, 20)
        self.head = nn.Linear(20, width + 1 + 1 + 3 + 1 + 2 * width)
        self.out, self.rows, self.width = nn.Linear(20 + width, 6), rows, width
        self.first = nn.Parameter(normal(rows, width) * 0.1)

    def loss(self, x: Tensor) -> Tensor:
        count, length, _ = x.shape
        state = x.new_zeros(count, 20)
        tape = self.first.to(x.dtype).repeat(count, 1, 1)
        weights = F.one_hot(torch.zeros(count, dtype=torch.long, device=x.device), self.rows).to(x.dtype)
        read, total = x.new_zeros(count, self.width), x.new_zeros((), dtype=torch.float32)
        for place in range(2 * length):
            given = x[:, place] if place < length else torch.zeros_like(x[:, 0])
            state = self.control(torch.cat([given, read], -1), state)
            parts = self.head(state).split([self.width, 1, 1, 3, 1, self.width, self.width], -1)
            key, strength, gate, shift, sharp, erase, add = parts
            alike = F.cosine_similarity(tape, key[:, None].to(tape.dtype), -1, 1e-6)
            near = F.softmax(F.softplus(strength) * alike, -1)
            mixed = torch.lerp(weights.to(near.dtype), near, torch.sigmoid(gate).to(near.dtype))
            moved = torch.stack([mixed.roll(step, -1) for step in (-1, 0, 1)], -1)
            shifted = torch.bmm(moved.to(shift.dtype), F.softmax(shift, -1).to(shift.dtype)[..., None]).squeeze(-1)
            powered = (shifted.float() + 1e-6) ** (1 + F.softplus(sharp.float()))
            weights = (powered / powered.sum(-1, keepdim=True)).to(x.dtype)
            tape = tape * (1 - weights[..., None] * torch.sigmoid(erase)[:, None].to(x.dtype))
            tape = torch.baddbmm(tape, weights[..., None], torch.tanh(add)[:, None].to(x.dtype))
            read = torch.einsum("br,brw->bw", weights, tape).to(x.dtype)
            if place >= length:
                wanted = (x[:, place - length] > 0).float()
                said = self.out(torch.cat([state.to(read.dtype), read], -1)).float()
                total = total + F.binary_cross_entropy(torch.sigmoid(said).clamp(1e-6, 1 - 1e-6), wanted)
        return total / length


class Spike(torch.autograd.Function):
    """A step forward; backward the slope of an arc tangent."""

    @staticmethod
    def forward(context: Any, potential: Tensor) -> Tensor:
        context.save_for_backward(potential)
        return torch.heaviside(potential, torch.zeros((), device=potential.device, dtype=potential.dtype))

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (potential,) = context.saved_tensors
        return gradient / (1 + (torch.pi * potential).square())


class Spikes(nn.Module):
    """Leaky neurons that fire: a surrogate gradient, thresholds that adapt, rates and firing times as losses."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm, self.again = nn.Conv1d(4, 12, 3, padding=1), nn.BatchNorm1d(12), nn.Linear(12, 12)
        self.leak, self.out = nn.Parameter(torch.full((12,), 2.0)), nn.Linear(12, 3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        currents = self.norm(self.into(x)).float()
        potential, fired = torch.zeros_like(currents[..., 0]), torch.zeros_like(currents[..., 0])
        threshold = torch.ones_like(potential)
        keep = torch.sigmoid(self.leak.float())
        spikes = []
        for time in range(x.shape[-1]):
            potential = keep * potential * (1 - fired.detach()) + currents[..., time]
            potential = potential + 0.3 * self.again(fired.to(self.again.weight.dtype)).float()
            fired = Spike.apply(potential - threshold)
            threshold = torch.clip(0.9 * threshold + 0.1 + 0.2 * fired, max=3)
            spikes.append(fired)
        train = torch.stack(spikes, -1)
        rates = train.mean(-1)
        late = torch.arange(x.shape[-1], device=x.device, dtype=torch.float32)
        first = torch.where(train.bool(), late, late.new_full((), 99.0)).amin(-1)
        scores = self.out((rates + 0.01 * first.clamp(max=9)).to(self.out.weight.dtype)).float()
        quiet = F.relu(0.05 - rates).square().sum(-1).mean() + F.threshold(rates, 0.5, 0.0).mean()
        return F.multi_margin_loss(scores, y, p=2) + F.nll_loss(F.log_softmax(scores, -1), y) + quiet


class Slots(nn.Module):
    """Slot attention: slots compete for pixels in turns; each is painted on a grid, and masks mix the pictures."""

    def __init__(self, width: int = 12, slots: int = 3) -> None:
        super().__init__()
        self.slots, self.width = slots, width
        self.see, self.grid = nn.Conv2d(3, width, 5, padding=2), nn.Linear(4, width)
        self.pixels, self.own, self.after = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.both = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.state, self.feed = (
            nn.GRUCell(width, width),
            nn.Sequential(nn.Linear(width, 20), nn.Softsign(), nn.Linear(20, width)),
        )
        self.mean, self.spread = nn.Parameter(normal(width) * 0.3), nn.Parameter(torch.zeros(width))
        self.paint = nn.Sequential(
            nn.ConvTranspose2d(width, 8, 3, 2, 1, 1), nn.Hardswish(), nn.Conv2d(8, 4, 3, padding=1)
        )

    def places(self, size: int, like: Tensor) -> Tensor:
        line = torch.linspace(0, 1, size, device=like.device)
        grid = torch.cartesian_prod(line, line).view(size, size, 2)
        return self.grid(torch.cat([grid, 1 - grid], -1).to(self.grid.weight.dtype))

    def loss(self, x: Tensor) -> Tensor:
        seen = F.relu6(self.see(x)).movedim(1, -1)
        seen = self.pixels((seen + self.places(x.shape[-1], x)).flatten(1, 2))
        key, value = self.both(seen).chunk(2, -1)
        noise = torch.randn(len(x), self.slots, self.width, device=x.device)
        slots = (self.mean.float() + F.softplus(self.spread.float()) * noise).to(x.dtype)
        for _ in range(2):
            before = slots
            scores = torch.matmul(key, self.query(self.own(slots)).mT) * self.width**-0.5
            shares = scores.softmax(-1) + 1e-8
            weights = shares / shares.sum(1, keepdim=True)
            found = torch.matmul(weights.mT.to(value.dtype), value)
            new = self.state(found.flatten(0, 1), before.flatten(0, 1).to(found.dtype)).view_as(before)
            slots = new + self.feed(self.after(new))
        spread = slots.flatten(0, 1)[:, :, None, None].expand(-1, -1, 4, 4) + self.places(4, x).movedim(-1, 0)
        made = self.paint(spread.contiguous(memory_format=torch.channels_last)).unflatten(0, (len(x), -1)).float()
        colours, masks = made.tensor_split((3,), 2)
        mixed = (colours * masks.softmax(1)).sum(1)
        entropy = torch.special.entr(masks.softmax(1)).sum(1).mean()
        return F.mse_loss(mixed, x.float(), reduction="sum") / len(x) + 0.01 * entropy


class Equilibrium(nn.Module):
    """A deep equilibrium: Anderson's steps to a fixed point without a graph, its gradient by a hook's own iteration."""

    def __init__(self, width: int = 14) -> None:
        super().__init__()
        self.into, self.turn = nn.Linear(9, width), nn.Linear(width, width)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 2)
        with torch.no_grad():
            self.turn.weight.mul_(0.5)

    def step(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.turn(z.to(self.turn.weight.dtype)) + x)).float()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        given = self.into(x)
        with torch.no_grad():
            points = [torch.zeros(given.shape, device=x.device)]
            images = [self.step(points[0], given)]
            for _ in range(4):
                apart = torch.stack([image - point for image, point in zip(images, points)], 1)
                gram = torch.bmm(apart, apart.mT) + 1e-3 * torch.eye(len(points), device=x.device)
                share = torch.linalg.solve(gram, torch.ones(len(x), len(points), 1, device=x.device))
                share = share / share.sum(1, keepdim=True)
                points.append((share * torch.stack(images, 1)).sum(1))
                images.append(self.step(points[-1], given))
                points, images = points[-3:], images[-3:]
        z = self.step(images[-1], given)
        if z.requires_grad:
            fixed = images[-1].detach().requires_grad_()
            again = self.step(fixed, given.detach())

            def solve(gradient: Tensor) -> Tensor:
                sum_ = gradient
                for _ in range(3):
                    (slope,) = torch.autograd.grad(again, fixed, sum_, retain_graph=True)
                    sum_ = gradient + slope
                return sum_

            z.register_hook(solve)
        made = self.out(z.to(self.out.weight.dtype)).float()
        return F.gaussian_nll_loss(made[:, 0], y.float(), F.softplus(made[:, 1]) + 1e-2, full=True)


PROGRAMS = (
    Program("xLSTM", "fifth", ExponentialGates, lambda: [whole(28, 3, 8)]),
    Program("Turing machine", "fifth", Tape, lambda: [normal(3, 4, 6)], ("autocast bfloat16", "autocast float16")),
    Program("spikes", "fifth", Spikes, lambda: [normal(5, 4, 10), whole(3, 5)]),
    Program("slots", "fifth", Slots, lambda: [normal(2, 3, 8, 8)]),
    Program("equilibrium", "fifth", Equilibrium, lambda: [normal(6, 9), normal(6, seed=3)], ("checkpointed",)),
)
