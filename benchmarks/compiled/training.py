"""What is compiled of a training loop: the model, a part of it, the loss, the step, the optimizer."""

from __future__ import annotations

import contextlib

import torch
from benchmarks.compiled.program import Chosen, Programs, Step, state_of, training_step
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

PROGRAMS = Programs()
WIDTH = 32


class Feed(nn.Module):
    """A block with a residual."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.gelu(self.up(self.norm(x)))
        return x + self.dropout(self.down(hidden))


class Stack(nn.Module):
    """Blocks and a head."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Feed(dropout) for _ in range(2))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch(chosen: Chosen, size: int = 8) -> tuple[Tensor, Tensor]:
    return chosen.to(torch.randn(size, WIDTH)), chosen.to(torch.randint(10, (size,)))


@PROGRAMS("whole model")
def whole_model(chosen: Chosen) -> Step:
    model = chosen.to(Stack())
    compiled = chosen.compile(model)
    optimizer = torch.optim.AdamW(compiled.parameters(), 1e-2)
    x, y = batch(chosen)

    def step() -> list[Tensor]:
        optimizer.zero_grad()
        loss = functional.cross_entropy(compiled(x), y)
        loss.backward()
        optimizer.step()
        return state_of(loss, model)

    return step


@PROGRAMS("loss and backward inside")
def loss_and_backward_inside(chosen: Chosen) -> Step:
    model = chosen.to(Stack())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @chosen.compile
    def train_step(x: Tensor, y: Tensor) -> Tensor:
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    def step() -> list[Tensor]:
        optimizer.zero_grad(set_to_none=True)
        loss = train_step(*batch(chosen))
        optimizer.step()
        return state_of(loss, model)

    return step


@PROGRAMS("model.compile() of each block")
def each_block(chosen: Chosen) -> Step:
    model = chosen.to(Stack())
    for block in model.blocks:
        block.compile(backend=chosen.backend, fullgraph=True)
    x, y = batch(chosen)

    return training_step(model, lambda: functional.cross_entropy(model(x), y))


@PROGRAMS("decorated functions", has_modules=False)
def decorated_functions(chosen: Chosen) -> Step:
    @chosen.compile
    def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).type_as(x) * weight

    @chosen.compile(dynamic=False, fullgraph=True)
    def swiglu(x: Tensor, gate: Tensor) -> Tensor:
        return functional.silu(gate) * x

    weights = [chosen.to(torch.randn(WIDTH, WIDTH) / 6).requires_grad_() for _ in range(2)]
    scale = chosen.to(torch.ones(WIDTH)).requires_grad_()

    def step() -> list[Tensor]:
        x = chosen.to(torch.randn(6, WIDTH))
        for one in (*weights, scale):
            one.grad = None
        hidden = rms_norm(x, scale)
        loss = swiglu(hidden @ weights[0], hidden @ weights[1]).square().mean()
        loss.backward()
        return state_of(loss, [*weights, scale])

    return step


@PROGRAMS("changing shapes, dynamic=True")
def dynamic_shapes(chosen: Chosen) -> Step:
    model = chosen.to(Stack())
    compiled = chosen.compile(model, dynamic=True)
    sizes = iter(range(3, 1000))

    def step() -> list[Tensor]:
        model.zero_grad()
        x, y = batch(chosen, next(sizes))
        loss = functional.cross_entropy(compiled(x), y)
        loss.backward()
        return state_of(loss, model)

    return step


@PROGRAMS("changing shapes, automatic")
def automatic_shapes(chosen: Chosen) -> Step:
    model = chosen.to(Stack())
    compiled = chosen.compile(model)
    sizes = iter(range(3, 1000, 2))

    def step() -> list[Tensor]:
        model.zero_grad()
        x, y = batch(chosen, next(sizes))
        loss = functional.cross_entropy(compiled(x), y, label_smoothing=0.1)
        loss.backward()
        return state_of(loss, model)

    return step


class Breaking(nn.Module):
    """A print, an item and a branch on data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        print(end="")
        scale = hidden.abs().max().item()
        hidden = hidden / (scale + 1)
        hidden = self.second(hidden) if hidden.sum() > 0 else self.second(-hidden).relu()
        return hidden.square().mean()


@PROGRAMS("graph breaks")
def graph_breaks(chosen: Chosen) -> Step:
    model = chosen.to(Breaking())
    compiled = chosen.compile(model)

    return training_step(model, lambda: compiled(batch(chosen)[0]))


@PROGRAMS("autocast inside")
def autocast_inside(chosen: Chosen) -> Step:
    model = chosen.to(Stack())

    @chosen.compile
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(chosen.device, torch.bfloat16):
            logits = model(x)
        return functional.cross_entropy(logits.float(), y)

    return training_step(model, lambda: loss_of(*batch(chosen)))


@PROGRAMS("autocast outside, GradScaler")
def autocast_outside(chosen: Chosen) -> Step:
    model = chosen.to(Stack())
    compiled = chosen.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(chosen.device, init_scale=2.0**14)

    def step() -> list[Tensor]:
        x, y = batch(chosen)
        optimizer.zero_grad()
        with torch.autocast(chosen.device, torch.float16):
            loss = functional.cross_entropy(compiled(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return [*state_of(loss, model), norm]

    return step


@PROGRAMS("checkpointing inside", cannot=("sim",))  # torch keeps random states of devices that it knows
def checkpointing_inside(chosen: Chosen) -> Step:
    model = chosen.to(Stack(dropout=0.1))

    @chosen.compile
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return functional.cross_entropy(model.head(x), y)

    return training_step(model, lambda: loss_of(*batch(chosen)))


@PROGRAMS("checkpointing of compiled blocks")
def checkpointing_outside(chosen: Chosen) -> Step:
    model = chosen.to(Stack(dropout=0.1))
    blocks = [chosen.compile(block) for block in model.blocks]
    x, y = batch(chosen)

    def step() -> list[Tensor]:
        model.zero_grad()
        hidden = x
        for block in blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        loss = functional.cross_entropy(model.head(hidden), y)
        loss.backward()
        return state_of(loss, model)

    return step


@PROGRAMS("saved tensors on the host")
def saved_on_the_host(chosen: Chosen) -> Step:
    model = chosen.to(Stack())
    compiled = chosen.compile(model)

    def step() -> list[Tensor]:
        model.zero_grad()
        x, y = batch(chosen)
        with torch.autograd.graph.save_on_cpu():
            loss = functional.cross_entropy(compiled(x), y)
        loss.backward()
        return state_of(loss, model)

    return step


class Picture(nn.Module):
    """Convolutions with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.pool, self.second = nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, stride=2, groups=4)
        self.norm, self.head = nn.GroupNorm(4, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.pool(self.first(x))
        hidden = functional.hardswish(self.norm(self.second(hidden)))
        return self.head(functional.adaptive_avg_pool2d(hidden, 1).flatten(1))


@PROGRAMS("pictures, channels last, train and eval")
def pictures(chosen: Chosen) -> Step:
    model = chosen.to(Picture()).to(memory_format=torch.channels_last)
    compiled = chosen.compile(model)
    x = chosen.to(torch.randn(4, 3, 16, 16)).to(memory_format=torch.channels_last)
    y = chosen.to(torch.randint(10, (4,)))

    def step() -> list[Tensor]:
        model.zero_grad()
        compiled.train()
        loss = functional.cross_entropy(compiled(x), y)
        loss.backward()
        found = state_of(loss, model)
        compiled.eval()
        with torch.no_grad():
            found.append(compiled(x))
        return [*found, *(one.clone() for one in model.buffers())]

    return step


@PROGRAMS("evaluation in no_grad and inference_mode")
def evaluation(chosen: Chosen) -> Step:
    model = chosen.to(Stack(dropout=0.2))
    compiled = chosen.compile(model)

    def step() -> list[Tensor]:
        x, y = batch(chosen)
        model.zero_grad()
        compiled.train()
        loss = functional.cross_entropy(compiled(x), y)
        loss.backward()
        compiled.eval()
        with torch.no_grad():
            first = compiled(x).softmax(-1)
        with torch.inference_mode():
            second = compiled(x).argmax(-1)
        return [*state_of(loss, model), first, second]

    return step


@PROGRAMS("compiled optimizer")
def compiled_optimizer(chosen: Chosen) -> Step:
    model = chosen.to(Stack())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, foreach=True, amsgrad=True)

    @chosen.compile(fullgraph=False)
    def optimize() -> None:
        optimizer.step()

    def step() -> list[Tensor]:
        optimizer.zero_grad()
        x, y = batch(chosen)
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimize()
        return [loss.detach(), *(one.detach().clone() for one in model.parameters())]

    return step


@PROGRAMS("gradient accumulation, compiled loss", has_modules=False)
def accumulation(chosen: Chosen) -> Step:
    model = chosen.to(Stack())

    @chosen.compile
    def loss_of(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        spread = logits.logsumexp(-1).square().mean()
        return functional.cross_entropy(logits.float(), y) + 1e-3 * spread, (logits.argmax(-1) == y).float().mean()

    def step() -> list[Tensor]:
        model.zero_grad()
        hits = []
        for _ in range(2):
            x, y = batch(chosen)
            loss, hit = loss_of(model(x), y)
            (loss / 2).backward()
            hits.append(hit)
        return [*state_of(loss, model), *hits]

    return step


@PROGRAMS("parameters in bfloat16, max-autotune")
def low_precision(chosen: Chosen) -> Step:
    model = chosen.to(Stack()).to(torch.bfloat16)
    compiled = chosen.compile(model)

    def step() -> list[Tensor]:
        model.zero_grad()
        x, y = batch(chosen)
        loss = functional.cross_entropy(compiled(x.bfloat16()).float(), y)
        loss.backward()
        return state_of(loss, model)

    return step


@PROGRAMS("compiled after a reset")
def after_reset(chosen: Chosen) -> Step:
    model = chosen.to(Stack())
    x, y = batch(chosen)

    def step() -> list[Tensor]:
        torch._dynamo.reset()
        compiled = chosen.compile(model)
        model.zero_grad()
        loss = functional.cross_entropy(compiled(x), y)
        loss.backward()
        return state_of(loss, model)

    return step


@PROGRAMS("compiled autograd")
def compiled_autograd(chosen: Chosen) -> Step:
    model = chosen.to(Stack())
    compiled = chosen.compile(model)
    x, y = batch(chosen)

    def step() -> list[Tensor]:
        model.zero_grad()
        loss = functional.cross_entropy(compiled(x), y)
        with torch._dynamo.compiled_autograd._enable(chosen.compile()):
            loss.backward()
        return state_of(loss, model)

    return step


@PROGRAMS("gradient penalty around a compiled critic")
def gradient_penalty(chosen: Chosen) -> Step:
    model = chosen.to(Stack())
    compiled = chosen.compile(model)

    def step() -> list[Tensor]:
        model.zero_grad()
        x = batch(chosen)[0].requires_grad_()
        score = compiled(x).mean()
        (slope,) = torch.autograd.grad(score, x, retain_graph=True)
        loss = score + slope.norm()  # a constant: compiled code has no second derivative
        loss.backward()
        return state_of(loss, [*model.parameters(), x])

    return step


@PROGRAMS("hooks in compiled code")
def hooks(chosen: Chosen) -> Step:
    model = chosen.to(Stack())
    norms: list[Tensor] = []
    model.blocks[0].register_forward_hook(lambda module, args, output: output * 1.5)
    model.blocks[1].register_full_backward_hook(lambda module, inputs, outputs: norms.append(outputs[0].norm()))
    compiled = chosen.compile(model)

    def step() -> list[Tensor]:
        model.zero_grad()
        norms.clear()
        x, y = batch(chosen)
        output = compiled(x)
        output.register_hook(lambda gradient: gradient * 2)
        loss = functional.cross_entropy(output, y)
        loss.backward()
        return [*state_of(loss, model), *norms]

    return step


@PROGRAMS("stances")
def stances(chosen: Chosen) -> Step:
    model = chosen.to(Stack())
    compiled = chosen.compile(model)
    names = iter(["default", "force_eager", "eager_on_recompile", "default"] * 10)

    def step() -> list[Tensor]:
        model.zero_grad()
        x, y = batch(chosen)
        stance = getattr(torch.compiler, "set_stance", contextlib.nullcontext)
        with stance(next(names)):
            loss = functional.cross_entropy(compiled(x), y)
        loss.backward()
        return state_of(loss, model)

    return step
