"""Histograms beside a wrong call: what the device gave, and what the reference has."""

from __future__ import annotations

import json

import torch

from op_tools.autocompare import histograms


def written(folder, part, got, expected):
    histograms.write(folder, part, got, expected)
    [file] = folder.glob("*.json")
    return json.loads(file.read_text(), parse_constant=lambda word: 1 / 0)  # plain JSON


def test_both_sides_share_their_bins(tmp_path):
    right = torch.linspace(-1, 1, 1000, dtype=torch.float64)
    found = written(tmp_path, "grad_inputs", (right.float() * 2, None), (right, None))
    assert [value["what"] for value in found["values"]] == ["grad_inputs[0]"]
    [value] = found["values"]
    assert (value["edges"][0], value["edges"][-1]) == (-2, 2)
    assert sum(value["device"]["counts"]) == sum(value["reference"]["counts"]) == 1000
    assert value["reference"]["counts"][0] == 0 < value["device"]["counts"][0]
    assert (value["device"]["max"], value["reference"]["max"]) == (2, 1)


def test_nan_infinities_and_constants_are_counted(tmp_path):
    got = torch.tensor([float("nan"), float("inf"), 3.0])
    [value] = written(tmp_path, "output", (got,), (torch.full((3,), 3.0),))["values"]
    assert value["what"] == "output"
    assert (value["device"]["nan"], value["device"]["inf"], sum(value["device"]["counts"])) == (1, 1, 1)
    assert sum(value["reference"]["counts"]) == 3


def test_what_has_no_numbers_is_left_out(tmp_path):
    whole = torch.arange(3)
    histograms.write(tmp_path, "output", ((whole, torch.empty(0)),), ((whole, torch.empty(0)),))
    histograms.write(tmp_path, "grad_inputs", (None,), (None,))
    assert list(tmp_path.iterdir()) == []
