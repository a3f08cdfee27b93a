"""A device that fails behind the host's back: the user's own exception, no abort, and the calls that are to blame.

Each case runs in a process of its own, for a device that has failed stays so. DITORCH_TEST_DEVICE=cuda has a real one.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import torch

PROGRAM = """
import sys
import torch
import op_tools

tool, device, ends_at, out = sys.argv[1:]
if device == "sim":
    from ditorch import sim
    sim.start()


def fail():
    # on CUDA an index that is out of range is found by the kernel
    if device == "cuda":
        return table[torch.tensor([10_000_000], device=device)]
    from ditorch.sim import faults
    with faults.inject("aten.index: assert"):
        return table[torch.tensor([1], device=device)]


def train():
    x = torch.ones(64, 64, device=device, requires_grad=True)
    for number in range(3):
        loss = (x * 2).exp().mean()
        loss.backward()
    kept = torch.sigmoid(x)
    bad = fail()
    after = torch.tanh(x)
    if ends_at == "synchronize":
        getattr(torch, device).synchronize()
    elif ends_at == "item":
        after.sum().item()
    else:
        (after * bad.sum()).sum().backward()
        after.sum().item()


table = torch.ones(8, 4, device=device)
(table * 1).sum().item()
if tool == "none":
    train()
else:
    skip = ["torch.Tensor.__getitem__"] if tool == "OpFallback" else None  # the CPU's kernel does not fail
    with getattr(op_tools, tool)(out=out, skip=skip):
        train()
"""
OBSERVING = ("OpCapture", "OpAutoCompare", "OpTimeMeasure", "OpObserve", "OpOverflowCheck")
CHANGING = ("OpFallback", "OpDtypeCast")


@pytest.fixture
def run_program(run_python, device):
    """Each test's folder is its own (conftest.py): what a tool leaves, it leaves there."""

    def run(tool: str, ends_at: str) -> subprocess.CompletedProcess[str]:
        return run_python(PROGRAM, tool, device, ends_at, ".", check=False)

    return run


_without_a_tool: dict[str, subprocess.CompletedProcess[str]] = {}


def _exception(done: subprocess.CompletedProcess[str]) -> str:
    """The kind and the first line of the exception that ended the program."""
    lines = [line for line in done.stderr.splitlines() if "Error: " in line and "device-side assert" in line]
    lines = [line for line in lines if not line.startswith((" ", "op_tools:"))]
    assert len(lines) == 1, done.stderr
    return lines[0]


def _cases() -> Iterator[Any]:
    """All with the slow tests; else each tool once, and the two that wait for the device in their own ways always."""
    for tool in OBSERVING + CHANGING:
        for ends_at in ("synchronize", "item", "backward"):
            is_quick = ends_at == "item" or tool in ("OpAutoCompare", "OpTimeMeasure")
            yield pytest.param(tool, ends_at, marks=() if is_quick else pytest.mark.slow)


@pytest.mark.parametrize(("tool", "ends_at"), list(_cases()))
def test_the_users_exception_is_raised_as_without_a_tool(tool, ends_at, run_program):
    if ends_at not in _without_a_tool:
        _without_a_tool[ends_at] = run_program("none", ends_at)
    plain, done = _without_a_tool[ends_at], run_program(tool, ends_at)
    assert plain.returncode == 1, plain.stderr
    assert done.returncode == 1, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert _exception(done) == _exception(plain)
    assert "terminate called" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("tool", ["OpCapture", "OpAutoCompare", "OpTimeMeasure"])
def test_the_last_good_call_and_the_first_that_is_not_are_named_once(tool, run_program):
    done = run_program(tool, "item")
    said = [line for line in done.stderr.splitlines() if "the device has failed" in line]
    assert len(said) == 1, done.stderr
    assert done.stderr.count("op_tools: ") == 1, done.stderr
    (first,) = (line for line in done.stderr.splitlines() if "the first that is not known to be good" in line)
    if tool == "OpTimeMeasure":  # it waits for nothing: its calls go through C++, and are named all the same
        assert "torch.ones (forward_id 1, " in first
        assert re.search(", and 1[345] after it", first)
        return
    (good,) = (line for line in done.stderr.splitlines() if "known to be good, the last ones" in line)
    assert good.rstrip().endswith(")")
    if tool == "OpAutoCompare":  # it waits for every call
        assert "torch.tensor" in good or "torch.sigmoid" in good
        assert "torch.Tensor.__getitem__" in first
    else:  # the device may be some calls behind
        assert "torch.tanh" not in good


def test_what_was_captured_before_is_whole(run_program, tmp_path):
    run_program("OpCapture", "item")
    files = sorted(tmp_path.glob("op_capture_results/**/*.pth"))
    names = {torch.load(path, weights_only=True)["name"] for path in files}
    assert {"torch.Tensor.mul", "torch.Tensor.exp", "torch.Tensor.mean"} <= names
    assert not [path for path in tmp_path.glob("op_capture_results/**/*") if ".tmp" in path.name]


def test_the_results_of_the_calls_before_are_written(run_program, device, tmp_path):
    done = run_program("OpAutoCompare", "item")
    (table,) = tmp_path.glob("op_autocompare_result/*.csv")
    # a quick device looks first, and later: what it had not looked at when it failed, nobody will
    assert ("torch.Tensor.exp" if device == "sim" else "forward_id,name,allclose") in table.read_text()
    assert "OpAutoCompare: " in done.stdout
