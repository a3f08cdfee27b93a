"""The benchmarks' truth: which calls of a faulty run are broken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.broken_calls import Truth, broken, first_wrong
from torch.nn import functional

import op_tools
from ditorch.sim import faults


@pytest.fixture
def run(device, tmp_path):
    """Records a program of a few calls; its folder."""
    if device != "sim":
        pytest.skip("breaks kernels of the simulated device")

    def record(program, fault=""):
        path = Path(tmp_path, "faulty" if fault else "healthy")
        torch.manual_seed(0)
        leaf = torch.randn(6, 8).to(device).requires_grad_()
        injection = faults.inject(fault, device) if fault else None
        truth = Truth(lambda: sum(injection.struck.values()) if injection else 0, verbose=0)
        with op_tools.OpCapture(mode="statistics", out=path, verbose=0), truth:
            program(leaf).backward()
        if injection is not None:
            injection.remove()
        truth.write(path)
        return path

    return record


def broken_by(run, program, fault):
    faulty, healthy = run(program, fault), run(program)
    return first_wrong(faulty, healthy), broken(faulty, healthy)


def test_a_backward_that_reads_what_its_broken_forward_kept_is_broken(run):
    def program(x):
        return functional.cross_entropy(x, torch.zeros(6, dtype=torch.int64, device=x.device))

    first, calls = broken_by(run, program, "aten._log_softmax: zero@0.5")
    assert first is not None
    assert calls == {(first[0], "forward"), (first[0], "backward")}


def test_a_healthy_backward_of_a_broken_forward_is_not(run):
    first, calls = broken_by(run, lambda x: torch.mm(x, x.detach().T).sum(), "aten.mm: scale=1.1, phase=forward")
    assert first is not None
    assert calls == {(first[0], "forward")}


def test_a_backward_that_is_given_other_tensors_is_not(run):
    """Whether it is broken or passes them on cannot be told by looking at it."""
    first, calls = broken_by(run, lambda x: x.tanh().tanh().sum(), "aten.tanh: scale=1.1, phase=forward")
    assert first is not None
    assert calls == {(first[0], "forward"), (first[0] + 1, "forward")}
