"""CUDA graphs as programs use them, on the simulated accelerator, and how they are found on other chips."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn
from torch.nn import functional

from ditorch.errors import MissingOnBackendError
from ditorch.redirect.cuda import graphs
from ditorch.redirect.cuda.names import NAMES

pytestmark = [
    pytest.mark.usefixtures("redirect"),
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream"),  # as on CUDA
]


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).cuda()


def batches(count):
    generator = torch.Generator().manual_seed(7)
    return [(torch.randn(6, 4, generator=generator), torch.randint(3, (6,), generator=generator)) for _ in range(count)]


def parameters_of(model):
    return [parameter.detach().cpu() for parameter in model.parameters()]


def same(ones, others):
    return all(torch.equal(one, other) for one, other in zip(ones, others))


def test_the_shortest_program():
    x = torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        y = x + 1
    assert not torch.cuda.is_current_stream_capturing()
    x.fill_(4)
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [5, 5, 5]
    assert isinstance(graph, torch.cuda.graphs.CUDAGraph)


def test_an_inference_server():
    """One graph per batch size, largest first, in one pool; requests are copied into static buffers."""
    model = network().eval()
    static = torch.zeros(8, 4, device="cuda")
    pool, runners = None, {}
    with torch.inference_mode():
        for size in (8, 4, 1):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                model(static[:size])
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                output = model(static[:size])
            pool = pool or graph.pool()
            runners[size] = graph, output
        for size in (1, 4, 8, 4):
            request = torch.randn(size, 4)
            static[:size].copy_(request)
            runners[size][0].replay()
            assert torch.equal(runners[size][1], model(request.cuda()))


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01, capturable=True),
        lambda parameters: torch.optim.Adam(parameters, lr=0.01, capturable=True, foreach=True),
        lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01, device="cuda"), capturable=True),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True, capturable=True),
        lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, capturable=True),
    ],
    ids=["sgd", "adamw", "adam_foreach", "adam_tensor_lr", "adamw_fused", "rmsprop"],
)
def test_a_whole_training_step(make):
    def train(captured):
        model = network()
        optimizer = make(model.parameters())
        x, y = torch.zeros(6, 4, device="cuda"), torch.zeros(6, dtype=torch.long, device="cuda")

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = functional.cross_entropy(functional.dropout(model(x), 0.2), y)
            loss.backward()
            optimizer.step()
            return loss

        torch.cuda.manual_seed(3)
        losses, graph = [], None
        side = torch.cuda.Stream()
        for number, (inputs, labels) in enumerate(batches(7)):
            x.copy_(inputs)
            y.copy_(labels)
            if captured and number >= 3:
                if graph is None:
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        loss = step()
                graph.replay()
            else:
                with torch.cuda.stream(side):
                    loss = step()
            losses.append(loss.item())
        return losses, parameters_of(model)

    plain_losses, plain = train(captured=False)
    losses, parameters = train(captured=True)
    assert losses == plain_losses
    assert same(parameters, plain)


def test_an_optimizer_that_counts_on_the_host_is_refused():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4, device="cuda")).sum().backward()
    refused = pytest.raises(RuntimeError, match="instance of Adam but param_groups' capturable is False")
    with refused, pytest.warns(UserWarning, match="Graph is empty"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        optimizer.step()
    optimizer.step()


@pytest.mark.parametrize("autocast", [False, True])
def test_make_graphed_callables_trains_as_without(autocast):
    def train(graphed):
        first, second = network(0), nn.Linear(3, 3).cuda()
        loss_of = functional.cross_entropy
        inputs = torch.randn(6, 4, device="cuda"), torch.randn(6, 3, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast, cache_enabled=False):
            if graphed:
                first, second = torch.cuda.make_graphed_callables((first, second), ((inputs[0],), (inputs[1],)))
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
        losses = []
        for x, y in batches(4):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast, cache_enabled=False):
                hidden = first(x.cuda())
                loss = loss_of(second(hidden.float()), y.cuda())
                loss.backward()  # as the capture does it: which sums are float32 depends on autocast
            optimizer.step()
            losses.append(loss.item())
        first.eval()  # was graphed for training: the plain forward runs
        losses.append(first(torch.ones(2, 4, device="cuda")).sum().item())
        return losses, parameters_of(first) + parameters_of(second)

    torch.manual_seed(0)
    plain_losses, plain = train(graphed=False)
    torch.manual_seed(0)
    losses, parameters = train(graphed=True)
    assert losses == plain_losses
    assert same(parameters, plain)


def test_make_graphed_callables_refuses_the_autocast_cache():
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="autocast caching"):
        torch.cuda.make_graphed_callables(network(), (torch.zeros(2, 4, device="cuda"),))


def test_a_scaled_training_step_with_the_optimizer_outside():
    def train(captured):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
        x, y = torch.zeros(6, 4, device="cuda"), torch.zeros(6, dtype=torch.long, device="cuda")

        def step():
            with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
                loss = functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()

        with torch.cuda.stream(torch.cuda.Stream()):
            step()
        optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        if captured:
            with torch.cuda.graph(graph):
                step()
        for inputs, labels in batches(3):
            x.copy_(inputs)
            y.copy_(labels)
            if captured:
                graph.replay()
            else:
                optimizer.zero_grad(set_to_none=True)
                step()
            scaler.step(optimizer)
            scaler.update()
        return parameters_of(model)

    assert same(train(captured=True), train(captured=False))


def test_input_liveness_is_checked():
    pytest.importorskip("torch.utils._cuda_debug")
    graph, x = torch.cuda.CUDAGraph(), torch.ones(2, device="cuda")
    with torch.cuda.graph(graph, check_input_liveness=True):
        y = x + 1
    graph.replay()
    assert y.tolist() == [2, 2]
    del x
    with pytest.raises(RuntimeError, match="dead tensor"):
        graph.replay()


@pytest.mark.skipif(not hasattr(getattr(torch, "accelerator", None), "Graph"), reason="this torch has none")
def test_the_generic_graph_works_as_a_block():
    x = torch.zeros(2, device="cuda")
    graph = torch.accelerator.Graph()
    with torch.cuda.stream(torch.cuda.Stream()), graph:
        y = x + 1
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [3, 3]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", [{"mode": "reduce-overhead"}, {"backend": "cudagraphs"}], ids=str)
def test_compile_with_graphs_runs_without(how):
    compiled = torch.compile(network().eval(), **how)
    x = torch.ones(2, 4, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            assert torch.allclose(compiled(x), network().eval()(x))
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
def test_a_graph_of_compiled_code():
    model = network().eval()
    compiled = torch.compile(model, backend="aot_eager")
    static = torch.zeros(2, 4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        compiled(static)
        with torch._dynamo.config.patch(error_on_recompile=True), torch.cuda.graph(graph):  # refused in 2.15
            y = compiled(static)
        static.fill_(3)
        graph.replay()
        assert torch.equal(y, model(static))
    torch._dynamo.reset()


# ---- other chips ---------------------------------------------------------------------------------------------------


class Chip:
    """As much of a Target as graphs need."""

    type = "npu"

    def __init__(self, **members):
        self.members = members
        self.backend = types.SimpleNamespace(name="ascend", title="Huawei Ascend")

    def own(self, name):
        return self.members.get(name)


class NPUGraph:
    def __new__(cls):
        return super().__new__(cls)


class Capture:
    def __init__(self, npu_graph, pool=None, stream=None, auto_dispatch_capture=False, capture_error_mode="global"):
        self.given = npu_graph, pool, stream, auto_dispatch_capture, capture_error_mode


def test_a_vendors_graphs_are_found_by_its_name_and_take_cudas_arguments():
    names = graphs.names(Chip(NPUGraph=NPUGraph, graph=Capture, graph_pool_handle=lambda: (0, 1)))
    graph = names["CUDAGraph"](keep_graph=False)
    assert isinstance(graph, NPUGraph)
    assert names["graph"](cuda_graph=graph).given == (graph, None, None, False, "global")
    block = names["graph"](graph, (0, 1), None, "thread_local", check_input_liveness=False)
    assert block.given == (graph, (0, 1), None, False, "thread_local")
    assert names["graph_pool_handle"]() == (0, 1)
    with pytest.raises(MissingOnBackendError, match=r"CUDAGraph\(keep_graph=True\) does not exist on ascend"):
        names["CUDAGraph"](keep_graph=True)


def test_a_vendor_without_graphs_is_left_to_the_refusal():
    assert graphs.names(Chip()) == {}
    assert NAMES["CUDAGraph"].what
