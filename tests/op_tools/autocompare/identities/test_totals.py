"""Running totals of whole numbers in one long row: a stretch of it, from the total before it on."""

from __future__ import annotations

import pytest
import torch
from benchmarks.reported import REPORTED

from op_tools.autocompare.identities import totals, whole

from ....conftest import DEVICE


@pytest.fixture(autouse=True)
def _as_if_large(monkeypatch):
    monkeypatch.setattr(whole, "MAX_ELEMENTS", 0)


CALLS = {
    "flags": lambda device: (torch.randn(3000, device=device) > 0).cumsum(0),
    "bytes": lambda device: torch.randint(0, 256, (3000,), device=device, dtype=torch.uint8).cumsum(-1),
    "that go round": lambda device: torch.full((3000,), 2**61, device=device).cumsum(dim=0),
    "in another dtype": lambda device: torch.ones(3000, device=device, dtype=torch.int32).cumsum(0, dtype=torch.int16),
    "of every other": lambda device: torch.arange(6000, device=device)[::2].cumsum(0),
    "in place": lambda device: torch.arange(3000, device=device).cumsum_(0),
}


@pytest.mark.parametrize("length", [64, 2**14])
@pytest.mark.parametrize("name", CALLS)
def test_healthy_totals_are_compared_and_right(compared, device, monkeypatch, name, length):
    monkeypatch.setattr(totals, "STRETCH", length)
    for _ in range(4):  # another stretch each time
        results = compared(lambda: CALLS[name](device))
        assert list(results) == []
        unseen = {one["what"].rpartition(".")[2] for one in results.not_looked_at}
        assert name == "in place" or not any("cumsum" in one for one in unseen), unseen


@pytest.mark.skipif(DEVICE != "sim", reason="its kernels are broken")
@pytest.mark.parametrize("name", ["flags", "bytes"])
def test_a_total_that_is_off_from_a_place_on_is_found(compared, device, name):
    (broken,) = (one for one in REPORTED if one.name == "a_block_adds_a_total_that_is_not_there_yet")
    with broken.inject("sim"):
        assert {row["op"].rpartition(".")[2] for row in compared(lambda: CALLS[name](device))} == {"cumsum"}


def test_totals_of_fractions_are_left_alone(compared, device):
    """Their errors grow with the whole row."""
    results = compared(lambda: torch.rand(3000, device=device).cumsum(0))
    assert "torch.Tensor.cumsum" in [one["what"] for one in results.not_looked_at]
