"""Compiled code beside torch's other machinery: transforms, threads, export, operators of one's own."""

from __future__ import annotations

import threading
from typing import Any

import torch
from benchmarks.compiled.program import Chosen, Programs, Step, state_of, training_step
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

PROGRAMS = Programs()
WIDTH = 16


class Small(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(functional.silu(self.first(x)))


def batch(chosen: Chosen) -> tuple[Tensor, Tensor]:
    return chosen.to(torch.randn(6, WIDTH)), chosen.to(torch.randint(4, (6,)))


@PROGRAMS("vmap of grad inside")
def gradients_of_samples(chosen: Chosen) -> Step:
    model = chosen.to(Small())

    def loss_of(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(torch.func.functional_call(model, parameters, (x[None],)), y[None])

    @chosen.compile
    def norms(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        found = torch.func.vmap(torch.func.grad(loss_of), (None, 0, 0))(parameters, x, y)
        return torch.stack([one.flatten(1).norm(dim=1) for one in found.values()])

    def step() -> list[Tensor]:
        parameters = {name: one.detach() for name, one in model.named_parameters()}
        return [norms(parameters, *batch(chosen))]

    return step


@PROGRAMS("functional_call outside")
def functional_outside(chosen: Chosen) -> Step:
    model = chosen.to(Small())
    compiled = chosen.compile(lambda parameters, x: torch.func.functional_call(model, parameters, (x,)))
    shift = chosen.to(torch.zeros(WIDTH)).requires_grad_()

    def step() -> list[Tensor]:
        model.zero_grad()
        shift.grad = None
        x, y = batch(chosen)
        loss = functional.cross_entropy(compiled({"first.bias": model.first.bias + shift}, x), y)
        loss.backward()
        return state_of(loss, [*model.parameters(), shift])

    return step


@PROGRAMS("parts that are not compiled")
def disabled(chosen: Chosen) -> Step:
    model = chosen.to(Small())

    @torch.compiler.disable
    def noted(x: Tensor) -> Tensor:
        return x / (1 + x.detach().abs().max())

    @chosen.compile
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        hidden = noted(model.first(x).relu())
        return functional.cross_entropy(model.second(hidden), y)

    return training_step(model, lambda: loss_of(*batch(chosen)))


@PROGRAMS("compiled in compiled")
def nested(chosen: Chosen) -> Step:
    model = chosen.to(Small())
    inner = chosen.compile(model)

    @chosen.compile
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(inner(x) * 2, y)

    return training_step(model, lambda: loss_of(*batch(chosen)))


@PROGRAMS("in a thread, with a DataLoader")
def in_a_thread(chosen: Chosen) -> Step:
    model = chosen.to(Small())
    compiled = chosen.compile(model)
    found: list[Tensor] = []

    def evaluate(x: Tensor) -> None:
        with torch.no_grad():
            found.append(compiled(x))

    def step() -> list[Tensor]:
        model.zero_grad()
        found.clear()
        data = TensorDataset(torch.randn(6, WIDTH), torch.randint(4, (6,)))
        for x, y in DataLoader(data, 3, num_workers=0):
            loss = functional.cross_entropy(compiled(chosen.to(x)), chosen.to(y))
            loss.backward()
            thread = threading.Thread(target=evaluate, args=(chosen.to(x),))
            thread.start()
            thread.join()
        return [*state_of(loss, model), *found]

    return step


@PROGRAMS("exported")
def exported(chosen: Chosen) -> Step:
    model = chosen.to(Small()).eval()
    x = batch(chosen)[0]
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("size", min=2, max=64)},))
    module = program.module()
    compiled = chosen.compile(module)

    def step() -> list[Tensor]:
        with torch.no_grad():
            x = batch(chosen)[0]
            return [module(x), compiled(x[:4])]

    return step


@PROGRAMS("exported under the step")
def exported_each_step(chosen: Chosen) -> Step:
    model = chosen.to(Small()).eval()

    def step() -> list[Tensor]:
        x = batch(chosen)[0]
        module = torch.export.export(model, (x,)).run_decompositions().module()
        with torch.no_grad():
            return [module(x)]

    return step


@torch.library.custom_op("compiled_programs::smooth", mutates_args=())
def smooth(x: Tensor, power: float) -> Tensor:
    return x.sign() * x.abs().pow(power)


@smooth.register_fake
def _(x: Tensor, power: float) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.power = inputs[1]


def _smooth_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    return gradient * ctx.power * x.abs().pow(ctx.power - 1), None


smooth.register_autograd(_smooth_backward, setup_context=_keep)


@PROGRAMS("an operator of one's own")
def own_operator(chosen: Chosen) -> Step:
    model = chosen.to(Small())

    @chosen.compile(fullgraph=True)
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(model.second(smooth(model.first(x), 1.5)), y)

    return training_step(model, lambda: loss_of(*batch(chosen)))


@PROGRAMS("control flow of higher order")
def control_flow(chosen: Chosen) -> Step:
    model = chosen.to(Small())

    @chosen.compile(fullgraph=True)
    def output(x: Tensor) -> Tensor:
        hidden = model.first(x)
        hidden = torch.cond(hidden.sum() > 0, lambda one: one.sin(), lambda one: one.cos() * 2, (hidden,))
        return model.second(hidden)

    def step() -> list[Tensor]:
        with torch.no_grad():
            return [output(batch(chosen)[0]) for _ in range(3)]

    return step


@PROGRAMS("a loop over closures", has_modules=False)
def closures(chosen: Chosen) -> Step:
    weights = [chosen.to(torch.randn(WIDTH, WIDTH)).requires_grad_() for _ in range(3)]
    layers = [chosen.compile(lambda x, weight=weight: torch.tanh(x @ weight)) for weight in weights]

    def step() -> list[Tensor]:
        for weight in weights:
            weight.grad = None
        x = batch(chosen)[0]
        for layer in layers:
            x = layer(x)
        loss = x.square().mean()
        loss.backward()
        return state_of(loss, weights)

    return step


@PROGRAMS("default device and default dtype", has_modules=False)
def defaults(chosen: Chosen) -> Step:
    @chosen.compile
    def made(size: int) -> Tensor:
        places = torch.arange(size, dtype=torch.get_default_dtype())
        return torch.outer(places, places).add(torch.eye(size)).inverse().diagonal().cumsum(0)

    def step() -> list[Tensor]:
        with torch.device(chosen.device):
            return [made(5), made(5)]

    return step


@PROGRAMS("an average of weights", has_modules=False)
def average_of_weights(chosen: Chosen) -> Step:
    model = chosen.to(Small())
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @chosen.compile
    def follow() -> None:
        with torch.no_grad():
            for mean, one in zip(average.module.parameters(), model.parameters()):
                mean.lerp_(one, 0.1)

    def step() -> list[Tensor]:
        optimizer.zero_grad()
        x, y = batch(chosen)
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        follow()
        return [one.detach().clone() for one in average.module.parameters()]

    return step


@PROGRAMS("a backend of one's own")
def own_backend(chosen: Chosen) -> Step:
    model = chosen.to(Small())
    sizes: list[int] = []

    def counting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        sizes.append(len(graph.graph.nodes))
        return graph.forward

    compiled = torch.compile(model, backend=counting)

    def step() -> list[Tensor]:
        model.zero_grad()
        x, y = batch(chosen)
        loss = functional.cross_entropy(compiled(x), y)
        loss.backward()
        return state_of(loss, model)

    return step


@PROGRAMS("cuda graphs' marks, a stack of models", cannot=("inductor",))
def stack_of_models(chosen: Chosen) -> Step:
    models = [chosen.to(Small()) for _ in range(3)]
    parameters, _ = torch.func.stack_module_state(models)

    @chosen.compile
    def together(x: Tensor) -> Tensor:
        return torch.func.vmap(lambda one: torch.func.functional_call(models[0], one, (x,)))(parameters)

    def step() -> list[Tensor]:
        torch.compiler.cudagraph_mark_step_begin()
        for one in parameters.values():
            one.grad = None
        loss = together(batch(chosen)[0]).square().mean()
        loss.backward()
        return state_of(loss, list(parameters.values()))

    return step
