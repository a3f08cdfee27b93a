"""The CPU as reference, with a first look on the device."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

import op_tools
from ditorch.sim import faults
from op_tools.autocompare import on_host, report
from op_tools.autocompare.prefilter import screen
from tests.op_tools.autocompare.net import found_by, rows_of, step

pytestmark = pytest.mark.usefixtures("who_looks")


def test_both_ways_of_looking_measure_the_same(device, monkeypatch):
    def rows(is_first):
        monkeypatch.setattr(screen, "is_quick", lambda tensors: is_first and any(not one.is_cpu for one in tensors))
        with op_tools.OpAutoCompare(verbose=0, out=str(is_first)):
            step(device)
        return {(row["forward_id"], row["name"]): row for row in rows_of(Path(str(is_first)))}

    full, first = rows(False), rows(True)
    shift = int(next(iter(first))[0]) - int(next(iter(full))[0])
    assert len(full) == len(first) > 60
    # these ask the CPU in the device's own dtype, which does not run where a first look is enough
    columns = set(report.CSV) - {"forward_id", "rmse_ratio", "severity", "error_info"}
    for (number, name), row in full.items():
        seen = first[str(int(number) + shift), name]
        different = [column for column in columns if not _is_about(row[column], seen[column])]
        assert not different, (name, different, row, seen)


def _is_about(one, other):
    with contextlib.suppress(ValueError):
        return float(one) == pytest.approx(float(other), rel=1e-6, abs=1e-12)
    return one == other


def test_what_is_changed_right_after_is_compared_as_it_was(device):
    """Gradients are added up in place, without any op that could be seen."""
    x, weight = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device, requires_grad=True)
    tool = op_tools.OpAutoCompare(verbose=0)
    with faults.inject("aten.mm: scale=1.01, phase=backward"), tool:
        for _ in range(3):
            (x @ weight).sum().backward()
    (found,) = tool.summary.ranked()
    assert found.calls == 3, str(found)


@pytest.mark.parametrize("when", ["before", "after", "launch"])
def test_without_room_on_the_device_the_host_looks(device, monkeypatch, when):
    def full(*arguments):
        raise screen.OUT_OF_MEMORY("no room")

    places = {"before": (on_host, "clone"), "after": (on_host, "clones_of"), "launch": (screen, "numbers_of")}
    place, name = places[when]
    monkeypatch.setattr(place, name, full)
    tool = op_tools.OpAutoCompare()
    assert [one.name for one in found_by(tool, device, "aten.gelu: scale=1.01")] == ["torch.nn.functional.gelu"]
    assert len(rows_of()) > 60
