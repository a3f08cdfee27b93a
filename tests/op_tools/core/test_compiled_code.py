"""The tools look into what torch.compile has made, op by op (aot_eager), with the user's lines and modules."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging

import pytest
import torch
from benchmarks import models
from torch import nn
from torch.nn import functional

import op_tools
from ditorch.sim import faults

from ..recorder import Recorder

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Dynamo's own
    pytest.mark.usefixtures("compiler"),
]


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x):
        hidden = functional.gelu(self.up(self.norm(x)))
        return x + self.down(hidden)


class Model(nn.Module):
    """`nonzero` has no fixed shape: torch runs it between two graphs."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.breaks = breaks

    def forward(self, x):
        x = self.blocks[0](x)
        if self.breaks:
            x = x * x.nonzero().shape[0]
        x = self.blocks[1](x)
        return x.square().mean()


def line_of(function, text: str) -> str:
    """`path:12 forward: ...` of the line of a function that holds this text."""
    lines, first = inspect.getsourcelines(function)
    number, line = next((number, line) for number, line in enumerate(lines) if text in line)
    return f"{inspect.getsourcefile(function)}:{first + number} {function.__name__}: {line.strip()}"


def places(recorder, name):
    return [(call.where.line(), call.where.module) for call in recorder.calls if call.name == name]


def test_every_op_of_a_graph_has_its_line_and_module_forward_and_backward(device, way):
    compiled = torch.compile(Model().to(device), backend="aot_eager")
    x = torch.randn(4, 16, device=device)
    compiled(x).backward()  # compiled before the tool begins
    with Recorder() as recorder:
        compiled(x).backward()
    up, down = line_of(Block.forward, "self.up"), line_of(Block.forward, "self.down")
    backward = "  (its backward)"
    assert places(recorder, "aten.addmm.default") == [
        (up, "blocks.0.up"), (down, "blocks.0.down"), (up, "blocks.1.up"), (down, "blocks.1.down")
    ]  # fmt: skip
    # each product has a gradient for its weight and one for its input; x needs none
    assert places(recorder, "aten.mm.default") == [
        *[(down + backward, "blocks.1.down")] * 2, *[(up + backward, "blocks.1.up")] * 2,
        *[(down + backward, "blocks.0.down")] * 2, *[(up + backward, "blocks.0.up")] * 2,
    ]  # fmt: skip
    assert places(recorder, "aten.gelu_backward.default") == [(up + backward, "blocks.1"), (up + backward, "blocks.0")]
    assert not any("CompiledFunction" in call.name for call in recorder.calls)
    assert all(call.where.line() != "<unknown>" for call in recorder.calls)


def test_modules_that_share_a_graph_are_told_apart(device):
    model = Model().to(device)
    for block in model.blocks:
        block.compile(backend="aot_eager")
    with Recorder() as recorder:
        model(torch.randn(4, 16, device=device))
    assert [module for _, module in places(recorder, "aten.addmm.default")] == [
        "blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down"
    ]  # fmt: skip


def test_modules_that_share_a_graph_are_told_apart_in_backward(device, way):
    """It is autograd's thread that runs it, and no module is running then."""
    model = Model().to(device)
    for block in model.blocks:
        block.compile(backend="aot_eager")
    with Recorder() as recorder:
        model(torch.randn(4, 16, device=device)).backward()
    assert [module for _, module in places(recorder, "aten.mm.default")] == [
        *["blocks.1.down"] * 2, *["blocks.1.up"] * 2, *["blocks.0.down"] * 2, *["blocks.0.up"] * 2
    ]  # fmt: skip
    assert [module for _, module in places(recorder, "aten.gelu_backward.default")] == ["blocks.1", "blocks.0"]


def test_backward_of_code_that_is_all_torchs_has_the_line_that_called_it(device):
    """The forward of nn.Sequential: no line of its graph is the user's."""
    layers = nn.Sequential(nn.Linear(4, 4), nn.GELU()).to(device)
    compiled = torch.compile(layers, backend="aot_eager")

    def forward(x):
        return compiled(x)

    with Recorder() as recorder:
        forward(torch.ones(2, 4, device=device)).sum().backward()
    line = line_of(forward, "return compiled(x)")
    assert [line for line, _ in places(recorder, "aten.gelu.default")] == [line]
    assert [line for line, _ in places(recorder, "aten.gelu_backward.default")] == [line + "  (its backward)"]


def test_a_compiled_module_inside_of_compiled_code_has_its_own_name(device):
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = torch.compile(Block(), backend="aot_eager")

        def forward(self, x):
            return self.block(x).sum()

    compiled = torch.compile(Outer().to(device), backend="aot_eager")
    with Recorder() as recorder:
        compiled(torch.randn(4, 16, device=device)).backward()
    assert [module for _, module in places(recorder, "aten.addmm.default")] == ["block.up", "block.down"]
    assert {module for _, module in places(recorder, "aten.gelu_backward.default")} == {"block"}


def test_a_module_that_a_function_holds_has_the_paths_of_its_parts(device):
    block = Block().to(device)

    def run(x):
        return block(x).sum()

    compiled = torch.compile(lambda x: run(x) * 2, backend="aot_eager")
    with Recorder() as recorder:
        compiled(torch.randn(4, 16, device=device))
    assert [module for _, module in places(recorder, "aten.addmm.default")] == ["up", "down"]


def test_what_comes_back_from_the_host_for_backward_is_shown_with_the_function_that_is_compiled(device):
    compiled = torch.compile(Block().to(device), backend="aot_eager")

    def forward(x):
        with torch.autograd.graph.save_on_cpu():
            return compiled(x).sum()

    with Recorder() as recorder:
        forward(torch.randn(4, 16, device=device, requires_grad=True)).backward()
    compiled_function = line_of(Block.forward, "def forward") + "  (its backward)"
    assert compiled_function in {line for line, _ in places(recorder, "torch.Tensor.to")}
    assert all(call.where.line() != "<unknown>" for call in recorder.calls)


def test_ops_between_two_graphs_have_the_users_function(device):
    compiled = torch.compile(Model(breaks=True).to(device), backend="aot_eager")
    with Recorder() as recorder:
        for _ in range(2):
            compiled(torch.randn(4, 16, device=device)).backward()
    between = line_of(Model.forward, "nonzero")
    assert places(recorder, "torch.Tensor.nonzero") == [(between, "Model")] * 2
    assert places(recorder, "aten.pow.Tensor_Scalar")[0] == (line_of(Model.forward, "square"), "Model")


def test_a_function_without_a_file_is_named_and_not_a_line_of_ours(device):
    """A program has made its code: torch leaves its lines out."""
    names = {}
    exec("def made(x):\n    return x.exp().sum()", names)  # noqa: S102  code without a file is what this is about
    compiled = torch.compile(names["made"], backend="aot_eager")
    with Recorder() as recorder:
        compiled(torch.randn(4, device=device))
    ((line, module),) = places(recorder, "aten.exp.default")
    assert line.startswith("<string>:1 made")
    assert module == ""


def test_an_exported_program_is_shown_with_the_lines_that_it_was_made_from(device):
    """Its code is that of a graph, and is compiled itself."""
    x = torch.randn(4, 16, device=device)
    exported = torch.export.export(Model().to(device), (x,)).module()
    compiled = torch.compile(exported, backend="aot_eager")
    with Recorder() as recorder:
        compiled(x.requires_grad_()).backward()
    up, down = line_of(Block.forward, "self.up"), line_of(Block.forward, "self.down")
    assert places(recorder, "aten.addmm.default") == [
        (up, "blocks.0.up"), (down, "blocks.0.down"), (up, "blocks.1.up"), (down, "blocks.1.down")
    ]  # fmt: skip
    assert set(places(recorder, "aten.gelu_backward.default")) == {
        (up + "  (its backward)", "blocks.1"), (up + "  (its backward)", "blocks.0")
    }  # fmt: skip


def test_a_compiled_optimizer_is_shown_with_the_users_line(device):
    """Its own lines are torch's."""
    weight = torch.ones(4, device=device, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.Adam([weight], foreach=True)

    @torch.compile(backend="aot_eager")
    def optimize():
        optimizer.step()

    with Recorder() as recorder:
        optimize()
    ((line, _),) = set(places(recorder, "aten._foreach_sqrt.default"))
    assert line.split(": ")[1] == "optimizer.step()"


def test_compiled_autograd_runs_ops_in_the_line_that_called_backward(device):
    compiled = torch.compile(Model().to(device), backend="aot_eager")

    def backward(x):
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
            compiled(x).backward()

    x = torch.randn(4, 16, device=device)
    backward(x)
    with Recorder() as recorder:
        backward(x)
    assert set(places(recorder, "aten.gelu_backward.default")) == {(line_of(backward, "compiled(x).backward()"), "")}


def test_graphs_that_are_interpreted_are_seen_as_well(device):
    """As aot_eager does it in older releases."""

    def interpreting(graph, inputs):
        from functorch.compile import aot_module_simplified, make_boxed_func

        def interpreted(part, inputs):
            return make_boxed_func(lambda *args: torch.fx.Interpreter(part).run(*args))

        return aot_module_simplified(graph, inputs, fw_compiler=interpreted)

    with Recorder() as recorder:
        torch.compile(Model().to(device), backend=interpreting)(torch.randn(4, 16, device=device)).backward()
    assert [module for _, module in places(recorder, "aten.addmm.default")] == [
        "blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down"
    ]  # fmt: skip
    assert places(recorder, "aten.gelu.default")[0][0] == line_of(Block.forward, "self.up")


# ---- the tools -------------------------------------------------------------------------------------------------------


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 4))

    def loss(self, x, y):
        return functional.cross_entropy(self.layers(x), y)


def numbers():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 12, generator=generator), torch.randint(4, (8,), generator=generator)


HEALTHY = {"GPT": models.TINY["GPT"], "CNN": models.TINY["CNN"], "MLP": (Perceptron, numbers)}
WATCHING = (op_tools.OpAutoCompare, op_tools.OpCapture, op_tools.OpOverflowCheck)


def train(make, data, device, tools=(), amp=False):
    """Four steps; the tools are there in the second and third."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make().to(device)
    loss_of = torch.compile(model.loss, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = (tensor.to(device) for tensor in data())
    losses, compiled = [], []
    for step in range(4):
        for tool in tools:
            if step == 1:
                tool.start()
            elif step == 3:
                tool.stop()
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=amp):
            loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        compiled.append(graphs())
    return losses, [parameter.detach().cpu() for parameter in model.parameters()], compiled


@pytest.mark.parametrize(
    ("name", "amp"), [("GPT", False), pytest.param("CNN", True, marks=pytest.mark.slow), ("MLP", False), ("MLP", True)]
)
def test_a_healthy_compiled_model_has_no_finding_and_the_same_losses(name, amp, device):
    make, data = HEALTHY[name]
    plain = train(make, data, device, amp=amp)
    tools = [tool(verbose=0) for tool in WATCHING]
    watched = train(make, data, device, tools, amp)
    assert watched[0] == plain[0]
    assert all(map(torch.equal, watched[1], plain[1]))
    assert watched[2][3] == watched[2][2], "nothing is compiled again when the tools have gone"
    compare, capture, overflow = (tool.results for tool in tools)
    assert len(compare) == 0
    assert len(overflow) == 0
    ops = {row["op"] for row in capture}
    assert any(op.startswith("aten.") and "backward" in op for op in ops)


def test_the_ops_of_a_graph_are_compared_on_the_device_too(device, capsys):
    """Aten's ops have their arguments in an order of their own: embedding has the table first."""
    model = nn.Sequential(nn.Embedding(12, 16), nn.LayerNorm(16), nn.Linear(16, 12)).to(device)
    words = torch.randint(12, (4, 6), device=device)
    compiled = torch.compile(lambda x: functional.cross_entropy(model(x).mT, x), backend="aot_eager")
    compiled(words).backward()
    for reference in ("device", "identities"):
        with op_tools.OpAutoCompare(reference=reference, verbose=0) as tool:
            compiled(words).backward()
        assert not list(tool.results)
        assert tool.results.calls > 10
    assert "could not" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "op", "place", "module"),
    [
        ("aten.gelu: scale=1.01", "aten.gelu.default", ("self.up", ""), ""),
        ("aten.native_layer_norm: scale=1.001", "aten.native_layer_norm.default", ("self.up", ""), ".norm"),
        ("aten.gelu_backward: scale=1.01", "aten.gelu_backward.default", ("self.up", "  (its backward)"), ""),
    ],
)
def test_a_fault_in_compiled_code_is_named_with_op_line_and_module(fault, op, place, module, device):
    torch.manual_seed(0)
    compiled = torch.compile(Model().to(device), backend="aot_eager")
    x = torch.randn(4, 16, device=device)
    compiled(x).backward()
    with faults.inject(fault), contextlib.redirect_stdout(io.StringIO()), op_tools.OpAutoCompare() as tool:
        compiled(x).backward()
    found = list(tool.results)
    assert {row["op"] for row in found} == {op}
    assert {row["where"] for row in found} == {line_of(Block.forward, place[0]) + place[1]}
    assert {row["module"] for row in found} <= {f"blocks.0{module}", f"blocks.1{module}"}  # the worst at this line


def test_nan_in_compiled_code_is_found_with_its_line(device):
    class Unstable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x):
            hidden = self.linear(x) - 10
            hidden = hidden.log()
            return hidden.sum()

    compiled = torch.compile(Unstable().to(device), backend="aot_eager")
    x = torch.randn(4, 16, device=device)
    with contextlib.redirect_stdout(io.StringIO()), op_tools.OpOverflowCheck() as tool:
        compiled(x).backward()
    first = next(iter(tool.results))
    assert first["op"] == "aten.log.default"
    assert first["where"] == line_of(Unstable.forward, "hidden.log()")


def test_a_function_at_dynamos_limit_stays_compiled_under_a_tool_and_after_it(device):
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    limit = torch._dynamo.config.recompile_limit
    compiled = torch.compile(lambda x: (x * 2).relu().sum(), backend="aot_eager", dynamic=False)
    try:
        torch._dynamo.config.recompile_limit = 4
        for size in range(1, 4):
            compiled(torch.ones(size, device=device))
        with Recorder() as recorder:
            for size in range(1, 5):
                compiled(torch.ones(size, device=device))
        assert recorder.names.count("aten.relu.default") == 4
        before = graphs()
        compiled(torch.ones(4, device=device))
        assert graphs() == before + 1
    finally:
        torch._dynamo.config.recompile_limit = limit
