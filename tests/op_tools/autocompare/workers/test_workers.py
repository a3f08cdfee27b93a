"""Processes that compare while training goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import op_tools
from ditorch.sim import faults
from op_tools.output import messages
from tests.op_tools.autocompare.net import found_by, step

pytestmark = pytest.mark.usefixtures("who_looks")


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_workers_find_the_same(device, autocast, capfd):
    fault = "aten.mm: scale=1.01; aten.native_layer_norm: scale=1.01"
    here = found_by(op_tools.OpAutoCompare(verbose=0), device, fault, autocast=autocast)
    messages.forget()
    tool = op_tools.OpAutoCompare(worker=1, out="elsewhere")
    there = found_by(tool, device, fault, autocast=autocast)
    # sums on the CPU depend on the number of threads, and so does the order of what is about as wrong
    assert {(one.name, one.what, one.module, one.where, one.calls) for one in there} == {
        (one.name, one.what, one.module, one.where, one.calls) for one in here
    }
    printed = capfd.readouterr()
    assert "wrong: torch.nn.functional.linear grad" in printed.out
    assert list(Path("elsewhere").rglob("device/grad_inputs.pth"))


def test_workers_with_little_memory_are_waited_for(device):
    tool = op_tools.OpAutoCompare(verbose=0, worker=1, memory=200_000)
    with tool:
        plain = step(device)
    assert tool.summary.ranked() == []
    assert tool.summary.calls > 30
    assert all(torch.equal(one, other) for one, other in zip(plain, step(device)))


def test_a_dead_worker_is_reported(device, capfd):
    x = torch.randn(8, 8, device=device)
    tool = op_tools.OpAutoCompare(verbose=0, worker=1)
    with tool:
        x @ x
        (worker,) = tool._strategy._workers._workers
        worker._process.kill()
        worker._process.wait()
        worker._thread.join()
        with faults.inject("aten.mm: scale=1.01"):
            x @ x  # compared in this process
    assert [one.name for one in tool.summary.ranked()] == ["torch.Tensor.matmul"]
    assert "a process of OpAutoCompare ended (exit code -9)" in capfd.readouterr().err
