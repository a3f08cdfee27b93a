"""Where memory does not suffice for the gradients of a whole step, its calls are compared in turns."""

from __future__ import annotations

import csv

import pytest
import torch
from torch import nn

import op_tools
from ditorch.sim import faults

LAYERS, WIDTH = 8, 64
REFERENCES = ["cpu", "device"]


def training(device, steps):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    given = torch.randn(WIDTH, WIDTH, device=device)
    for _ in range(steps):
        model(given).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def compared(device, folder, steps, **options):
    """Of a run with room for a few layers: the tool, and the modules whose gradients each step has compared."""
    options = {"ops": ["torch.nn.functional.linear"], "memory": 3 * 2 * WIDTH * WIDTH * 4, "verbose": 0, **options}
    with op_tools.OpAutoCompare(out=folder, **options) as tool:
        training(device, steps)
    found = {}
    for row in rows_of(folder):
        found.setdefault(int(row["step"]), set()).add(row["module"])
    return tool, found


def rows_of(folder):
    """Those of gradients."""
    for file in folder.rglob("*.csv"):
        with file.open() as lines:
            yield from (row for row in csv.DictReader(lines) if "grad" in row["name"])


@pytest.mark.parametrize("reference", REFERENCES)
def test_each_step_takes_other_calls_until_all_are_compared(device, tmp_path, reference):
    tool, found = compared(device, tmp_path, 8, reference=reference)
    assert len(found[0]) < LAYERS  # which shows that turns are needed
    together = set()
    for step in sorted(found)[1:]:
        assert not together & found[step]  # nothing twice before all have had their turn
        together |= found[step]
        if len(together) == LAYERS:
            break
    assert len(together) == LAYERS
    assert tool.summary.coverage == f"coverage: all {LAYERS} calls of a step, in turns"
    assert not [one for one in tool.results.not_looked_at if one["what"] == "gradients"]


def test_what_is_left_is_said_with_the_steps_that_it_takes(device, tmp_path):
    tool, found = compared(device, tmp_path, 2)
    known = len(found[1])
    assert tool.summary.coverage.startswith(f"coverage: {known} of {LAYERS} calls of a step")
    assert "more step" in tool.summary.coverage
    assert [one["calls"] for one in tool.results.not_looked_at if one["what"] == "gradients"] == [2 * (LAYERS - known)]


def test_a_fault_in_the_gradient_of_any_layer_is_found(device, tmp_path):
    with faults.inject("aten.mm: scale=1.01"):  # forward is addmm
        compared(device, tmp_path, 8)
    wrong = {row["module"] for row in rows_of(tmp_path) if row["verdict"] == "wrong"}
    assert wrong == {str(number) for number in range(LAYERS)}


def test_the_tool_ends_its_work_when_all_are_compared(device, tmp_path):
    _, found = compared(device, tmp_path, 12, until_covered=True)
    assert set().union(*found.values()) == {str(number) for number in range(LAYERS)}
    assert max(found) < 11
    assert sum(map(len, found.values())) == LAYERS


def test_with_room_for_all_one_step_is_enough(device, tmp_path):
    tool, found = compared(device, tmp_path, 4, until_covered=True, ops=None, memory=2**30)
    assert list(found) == [0]
    assert tool.summary.coverage == ""
