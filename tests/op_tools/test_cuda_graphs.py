"""The tools under capture and replay of CUDA graphs: they leave the capture alone, see no replay, and say both once."""

from __future__ import annotations

import pytest
import torch

import op_tools
from ditorch.backends.sim import SIM
from ditorch.redirect import Redirect
from op_tools.output import messages

pytestmark = pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # as on CUDA

TOOLS = ["OpCapture", "OpAutoCompare", "OpTimeMeasure", "OpObserve", "OpOverflowCheck", "OpFallback", "OpDtypeCast"]


@pytest.fixture(autouse=True)
def _cuda(device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    redirect = Redirect(SIM) if device == "sim" else None
    yield
    if redirect is not None:
        redirect.undo()


@pytest.mark.parametrize("name", TOOLS)
def test_a_training_step_is_captured_and_replayed_as_without_tools(name, capsys):
    def train(tool):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.zeros(5, 3, device="cuda")
        side = torch.cuda.Stream()

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        if tool:
            tool.start()
        with torch.cuda.stream(side):
            step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        losses = []
        for number in range(3):
            x.fill_(number)
            graph.replay()
            losses.append(loss.item())
        if tool:
            tool.stop()
        return losses, [parameter.detach().cpu() for parameter in model.parameters()]

    plain_losses, plain = train(None)
    capsys.readouterr()
    losses, parameters = train(getattr(op_tools, name)())
    said = capsys.readouterr()
    assert losses == plain_losses
    assert all(torch.equal(one, other) for one, other in zip(parameters, plain))
    assert "a CUDA graph is being captured, and what it replays is not seen" in said.out
    assert said.out.count("a CUDA graph is replayed: the tools do not see its kernels") <= 1


def test_a_replay_of_an_earlier_capture_is_said(capsys):
    messages.forget()
    x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    plain = torch.cuda.CUDAGraph.replay
    with op_tools.OpTimeMeasure():
        graph.replay()
        graph.replay()
    assert y.tolist() == [2, 2, 2]
    assert capsys.readouterr().out.count("a CUDA graph is replayed: the tools do not see its kernels") == 1
    assert torch.cuda.CUDAGraph.replay is plain


def test_graphed_callables_train_as_without_tools():
    def train(tool):
        torch.manual_seed(0)
        model = torch.cuda.make_graphed_callables(torch.nn.Linear(3, 2).cuda(), (torch.zeros(4, 3, device="cuda"),))
        if tool:
            tool.start()
        model(torch.ones(4, 3, device="cuda")).square().sum().backward()
        if tool:
            tool.stop()
        return [parameter.grad.cpu() for parameter in model.parameters()]

    plain = train(None)
    for name in TOOLS:
        assert all(torch.equal(one, other) for one, other in zip(train(getattr(op_tools, name)()), plain)), name
