"""Fewer calls, less memory: once, every, memory."""

from __future__ import annotations

import pytest
import torch

import op_tools
from tests.op_tools.autocompare.net import rows_of

pytestmark = pytest.mark.usefixtures("who_looks")


def test_each_distinct_call_once(device):
    x = torch.randn(4, 4, device=device, requires_grad=True)
    tool = op_tools.OpAutoCompare(verbose=0, once=True, ops="torch.Tensor.mul")
    with tool:
        for scale in range(5):
            (x * scale).sum().backward()
        (x[:2] * 2).sum().backward()
        x * x
    assert tool.summary.calls == 2 + 2 + 1  # forward and backward of the first two


def test_every_nth_step(device):
    x = torch.randn(4, 4, device=device)
    tool = op_tools.OpAutoCompare(verbose=0, every=3)
    with tool:
        for _ in range(9):
            op_tools.step()
            x * 2
    assert tool.summary.calls == 3


def test_memory_for_waiting_calls_is_limited(device, capfd):
    x = torch.randn(100, 100, device=device, requires_grad=True)
    tool = op_tools.OpAutoCompare(memory=100_000, ops="torch.Tensor.mul")
    with tool:
        y = x * 2
        for _ in range(5):
            y = y * 2
        y.sum().backward()
        del y
        (x * 2).sum().backward()
    assert capfd.readouterr().err.count("wait for gradients") == 1
    backward = [row for row in rows_of() if "grad" in row["name"]]
    assert 2 <= len(backward) < 7
    assert tool.summary.ranked() == []
