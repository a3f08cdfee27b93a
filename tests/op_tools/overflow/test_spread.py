"""The table of the calls that a NaN or an infinity reached."""

from __future__ import annotations

import csv

import torch

from op_tools import OpOverflowCheck


def rows(folder):
    files = folder.glob("op_overflow_result/*.csv")
    return [row for file in files for row in csv.DictReader(file.read_text().splitlines())]


def test_calls_are_listed_from_the_guilty_one_on(tmp_path, device):
    x = torch.ones(4, device=device, requires_grad=True)
    with OpOverflowCheck(verbose=0, out=tmp_path) as tool:
        healthy = x * 2
        bad = torch.log(healthy - 3)
        (bad + 1).sum().backward()
    found = [(row["name"].rpartition(".")[2], row["phase"], row["role"]) for row in rows(tmp_path)]
    assert found[:3] == [("log", "forward", "made"), ("add", "forward", "carried"), ("sum", "forward", "carried")]
    assert all(role == "carried" for _, _, role in found[1:])
    assert "mul" not in {name for name, phase, _ in found if phase == "forward"}
    orders = [int(row["order"]) for row in rows(tmp_path)]
    assert len(set(orders)) == len(orders)
    assert tool.results.files == [str(next(tmp_path.glob("op_overflow_result/*.csv")))]


def test_a_mask_of_infinities_is_no_spread(tmp_path, device):
    scores = torch.randn(4, 4, device=device)
    mask = torch.ones(4, 4, dtype=torch.bool, device=device).tril()
    with OpOverflowCheck(verbose=0, out=tmp_path):
        torch.softmax(scores.masked_fill(~mask, float("-inf")) * 1.0, -1)
    assert rows(tmp_path) == []


def test_infinities_of_a_mask_are_not_in_the_way_of_a_nan(tmp_path, device):
    scores = torch.randn(4, 4, device=device)
    mask = torch.ones(4, 4, dtype=torch.bool, device=device).tril()
    with OpOverflowCheck(verbose=0, out=tmp_path):
        torch.log(scores * 0 - 1)
        scores.masked_fill(~mask, float("-inf")) * 1.0
    assert {row["name"] for row in rows(tmp_path)} == {"torch.log"}
