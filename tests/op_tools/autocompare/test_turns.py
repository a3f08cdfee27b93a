"""Where memory does not suffice for the gradients of a whole step, its calls are compared in turns."""

from __future__ import annotations

import csv

import pytest
import torch
from torch import nn

import op_tools
from ditorch.sim import faults
from op_tools.autocompare import turns

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
    tool, found = compared(device, tmp_path, 12, until_covered=True)
    assert set().union(*found.values()) == {str(number) for number in range(LAYERS)}
    assert max(found) < 11
    assert sum(map(len, found.values())) == LAYERS
    steps = f"in steps 0 to {max(found)}; later steps were not compared"
    assert tool.summary.coverage == f"coverage: all {LAYERS} calls of a step, {steps}"
    assert tool.results.facts["coverage"] == tool.summary.coverage


def test_with_room_for_all_one_step_is_enough(device, tmp_path):
    tool, found = compared(device, tmp_path, 4, until_covered=True, ops=None, memory=2**30)
    assert list(found) == [0]
    assert tool.summary.coverage.endswith(" calls of a step, in step 0; later steps were not compared")
    assert tool.summary.coverage.startswith("coverage: all ")


def test_what_never_fits_into_the_memory_is_told_and_ends_the_rounds(device, tmp_path):
    tool, found = compared(device, tmp_path, 12, until_covered=True, ops=None, memory=7 * WIDTH * WIDTH)
    assert "torch.nn.functional.linear" not in {row["name"].partition(" ")[0] for row in rows_of(tmp_path)}
    assert f"; the gradients of {LAYERS} need more memory than there may be" in tool.summary.coverage
    assert max(found) < 11
    [left_out] = [row for row in tool.results.not_looked_at if row["what"] == "gradients"]
    assert left_out["reason"].endswith(tool.summary.coverage)


# ---- proofs by identities ------------------------------------------------------------------------------------------


@pytest.fixture
def is_large(monkeypatch):
    monkeypatch.setattr(turns, "_MIN_BYTES", 2**10)


def test_proofs_take_all_calls_of_the_first_step_and_then_turns(device, tmp_path, is_large):
    tool, found = compared(device, tmp_path, 14, reference="identities", memory=2**30)
    assert len(found[0]) == LAYERS
    assert all(len(found.get(step, ())) <= 1 for step in range(1, 14))
    together = [module for step in range(1, 1 + LAYERS) for module in found[step]]
    assert sorted(together) == sorted(found[0])  # each has its turn before any has its second
    assert tool.summary.coverage == f"coverage: all {LAYERS} calls of a step, in turns"


def test_a_fault_that_comes_later_is_found_in_turns(device, tmp_path, is_large):
    with op_tools.OpAutoCompare(reference="identities", out=tmp_path, verbose=0):
        training(device, 2)
        with faults.inject("aten.mm: scale=1.01"):
            training(device, 40)
    assert {row["module"] for row in rows_of(tmp_path) if row["verdict"] == "wrong"} == set(map(str, range(LAYERS)))


def test_small_programs_are_proven_in_every_step(device, tmp_path):
    tool, found = compared(device, tmp_path, 3, reference="identities", memory=2**30)
    assert [len(found[step]) for step in range(3)] == [LAYERS] * 3
    assert tool.summary.coverage == ""


def test_calls_that_come_once_do_not_hold_up_the_others(device, tmp_path, is_large):
    weights = [torch.randn(WIDTH, WIDTH, device=device, requires_grad=True) for _ in range(3)]
    optimizer = torch.optim.SGD(weights, lr=1e-3)
    with op_tools.OpAutoCompare(reference="identities", out=tmp_path, verbose=0, ops=["torch.mm"]) as tool:
        for step in range(12):
            for number in range(30 if step == 2 else 3):  # an evaluation
                torch.mm(weights[0], weights[1 + number % 2]).sum().backward()
            optimizer.step()
    steps = {int(row["step"]) for row in rows_of(tmp_path)}
    assert steps == set(range(12))
    assert "of 30 calls of a step" in tool.summary.coverage
