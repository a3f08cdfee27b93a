"""The source line and the module of a call."""

from __future__ import annotations

import copy
import inspect
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ditorch_shared import dynamo

from ..recorder import Recorder

pytestmark = pytest.mark.usefixtures("way")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(4, 4)

    def forward(self, x):
        return helper(self.q_proj(x))


def helper(x):
    return functional.softmax(x, -1)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention()

    def forward(self, x):
        return x + self.self_attn(x)


class Model(nn.Module):
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x.sum()


def recorded(device, **options):
    model = Model(**options).to(device)
    x = torch.ones(2, 4, device=device, requires_grad=True)
    with Recorder() as recorder:
        model(x).backward()
    return recorder


def modules(recorder, name):
    return [call.where.module for call in recorder.calls if call.name == name]


def test_the_module_of_a_call(device):
    recorder = recorded(device)
    assert modules(recorder, "torch.nn.functional.linear") == [f"layers.{i}.self_attn.q_proj" for i in range(3)]
    assert modules(recorder, "torch.nn.functional.softmax") == [f"layers.{i}.self_attn" for i in range(3)]
    assert modules(recorder, "torch.Tensor.add") == [f"layers.{i}" for i in range(3)]
    assert modules(recorder, "torch.Tensor.sum") == ["Model"]


def test_gradients_have_the_place_of_their_call(device):
    recorder = recorded(device)
    seen = [call.where.module for call, _ in recorder.backward if call.name == "torch.nn.functional.linear"]
    assert seen == [f"layers.{i}.self_attn.q_proj" for i in (2, 1, 0)]


def test_recomputed_calls_have_their_module_too(device):
    recorder = recorded(device, checkpointed=True)
    expected = [f"layers.{i}.self_attn.q_proj" for i in (0, 1, 2, 2, 1, 0)]
    assert modules(recorder, "torch.nn.functional.linear") == expected


def test_the_line_is_the_users_own_not_torchs(device):
    recorder = recorded(device)
    _, first = inspect.getsourcelines(Attention.forward)
    call = next(call for call in recorder.calls if call.name == "torch.nn.functional.linear")
    assert call.where.line() == f"{__file__}:{first + 1} forward: return helper(self.q_proj(x))"
    call = next(call for call in recorder.calls if call.name == "torch.nn.functional.softmax")
    assert call.where.line().endswith(" helper: return functional.softmax(x, -1)")


def test_outside_of_modules_there_is_a_line_only(device):
    x = torch.ones(3, device=device)
    with Recorder() as recorder:
        x + 1
    assert recorder.calls[0].where.module == ""
    assert recorder.calls[0].where.line().endswith("test_outside_of_modules_there_is_a_line_only: x + 1")


def test_a_module_that_nobody_lists_goes_by_its_class(device):
    hidden = [nn.Linear(4, 4).to(device)]

    class Holder(nn.Module):
        def forward(self, x):
            return hidden[0](x)

    with Recorder() as recorder:
        Holder()(torch.ones(2, 4, device=device))
    assert modules(recorder, "torch.nn.functional.linear") == ["Linear"]


def test_the_line_of_a_call_in_a_long_statement(device):
    x = torch.ones(3, device=device)
    with Recorder() as recorder:
        (
            x.exp(),
            x.sin(),
        )
    assert [call.where.line().rpartition(": ")[2] for call in recorder.calls] == ["x.exp(),", "x.sin(),"]


def test_the_whole_stack_on_demand(device, monkeypatch):
    monkeypatch.setenv("OP_TOOLS_PRINT_STACK", "1")
    recorder = recorded(device)
    stack = recorder.calls[0].where.stack
    assert "in recorded" in stack
    assert "in test_the_whole_stack_on_demand" in stack


def test_the_innermost_module_is_that_of_the_call(device):
    layer, x = nn.Linear(4, 4, device=device), torch.ones(2, 4, device=device)
    with Recorder() as recorder:
        layer(x)
        layer(x)
    first, second = (call.where for call in recorder.calls)
    assert (first.line(), first.module) != (second.line(), "")
    assert first.module == second.module == "Linear"


def test_code_without_a_file(device):
    x = torch.ones(3, device=device)
    with Recorder() as recorder:
        exec("y = x.exp()", {"x": x})  # noqa: S102  as typed into a prompt
    assert recorder.calls[0].where.line() == "<string>:1 <module>: "


def test_code_that_our_packages_share_is_no_line_of_the_users(device):
    """In older releases of torch, what hides our code from Dynamo stands between the user's code and our modes."""
    shared: dict = {}
    exec(compile("def unseen(function):\n    return function()", dynamo.__file__, "exec"), shared)  # noqa: S102
    x = torch.ones(2, device=device)
    with Recorder() as recorder:
        shared["unseen"](x.exp)
    assert recorder.calls[-1].where.line().endswith('shared["unseen"](x.exp)')


def test_code_of_pythons_own_is_no_line_of_the_users(device):
    weight = nn.Parameter(torch.ones(2, device=device))
    with Recorder() as recorder:
        copy.deepcopy(weight)
    assert recorder.calls[-1].where.line().endswith("copy.deepcopy(weight)")


def test_a_line_of_pythons_own_is_better_than_none(device):
    x, recorder = torch.ones(2, device=device), Recorder()
    with ThreadPoolExecutor(1, initializer=recorder.start) as pool:
        pool.submit(torch.exp, x).result()
        pool.submit(recorder.stop).result()
    assert "concurrent/futures/thread.py" in recorder.calls[-1].where.line()
