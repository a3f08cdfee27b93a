"""While tools watch, optimizers read their parameters' properties without a detour through the tools."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from op_tools.core import dynamo
from op_tools.core.session import Mode

from ..recorder import Recorder

OPTIMIZERS = {"AdamW": torch.optim.AdamW, "SGD": torch.optim.SGD, "Adagrad": torch.optim.Adagrad}


@pytest.fixture
def detours(monkeypatch):
    """Counts what goes through the mode."""
    seen = []
    original = Mode.__torch_function__

    @dynamo.hidden
    def counting(self, func, types, args=(), kwargs=None):
        seen.append(func)
        return original(self, func, types, args, kwargs)

    monkeypatch.setattr(Mode, "__torch_function__", counting)
    return seen


def trained(device, kind, layers):
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(layers))).to(device)
    optimizer = OPTIMIZERS[kind](model.parameters(), lr=0.1)
    model(torch.ones(2, 3, device=device)).sum().backward()
    return model, optimizer


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_calls_do_not_grow_with_the_number_of_parameters(device, kind, detours):
    counts = []
    for layers in (2, 20):
        model, optimizer = trained(device, kind, layers)
        optimizer.step()
        with Recorder(verbose=0):
            detours.clear()
            optimizer.step()
            optimizer.zero_grad()
            counts.append(len(detours))
    assert counts[0] == counts[1]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_calls_do_not_grow_once_torch_compile_was_used(device, detours):
    torch.compile(torch.neg, backend="eager")(torch.ones(1))  # Dynamo wraps functions of torch.optim
    test_calls_do_not_grow_with_the_number_of_parameters(device, "SGD", detours)


def test_the_state_of_the_first_step_is_seen(device):
    _, optimizer = trained(device, "AdamW", 2)
    with Recorder() as recorder:
        optimizer.step()
    assert recorder.names.count("torch.zeros_like") == 8


def test_zeroing_gradients_in_place_is_seen(device):
    _, optimizer = trained(device, "SGD", 2)
    with Recorder() as recorder:
        optimizer.zero_grad(set_to_none=False)
    assert {"torch._foreach_zero_", "torch.Tensor.zero_"} & set(recorder.names)


def test_a_mode_of_somebody_else_sees_everything(device):
    class Theirs(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen += 1
            return func(*args, **(kwargs or {}))

    counts = []
    for tool in (None, Recorder(verbose=0)):
        _, optimizer = trained(device, "AdamW", 2)
        optimizer.step()
        if tool is not None:
            tool.start()
        with Theirs() as theirs:
            optimizer.step()
        if tool is not None:
            tool.stop()
        counts.append(theirs.seen)
    assert counts[0] == counts[1] > 0


def test_everything_is_put_back(device):
    zero_grad, init_group = torch.optim.Optimizer.zero_grad, torch.optim.Adam._init_group
    first, second = Recorder().start(), Recorder().start()
    assert torch.optim.Optimizer.zero_grad is not zero_grad
    first.stop()
    second.stop()
    assert torch.optim.Optimizer.zero_grad is zero_grad
    assert torch.optim.Adam._init_group is init_group
