"""Every tool tells what it found as data."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn import functional

import op_tools
from ditorch.sim import faults
from op_tools.output.results import Results

TOOLS = [getattr(op_tools, name) for name in op_tools.__all__ if name.startswith("Op")]


def train(device):
    weight = torch.ones(4, 4, device=device, requires_grad=True)
    functional.linear(torch.ones(2, 4, device=device), weight).log().sum().backward()


@pytest.mark.parametrize("make", TOOLS, ids=lambda make: make.__name__)
def test_results_are_empty_before_start_and_rows_afterwards(make, device, monkeypatch):
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.float32->torch.float64")
    tool = make(verbose=0)
    assert len(tool.results) == 0
    with tool:
        train(device)
        assert tool.results.tool == make.__name__  # while it runs
    results = tool.results
    assert results.tool == make.__name__
    assert results.calls >= 2
    if make not in (op_tools.OpAutoCompare, op_tools.OpOverflowCheck):  # nothing is wrong here
        assert "torch.nn.functional.linear" in [row["op"] for row in results]
    assert json.loads(json.dumps(results.as_dictionary(100)))["tool"] == make.__name__


def test_a_second_run_begins_anew(device):
    tool = op_tools.OpObserve()
    for _ in range(2):
        with tool:
            torch.ones(2, device=device).add(1)
        assert {row["op"]: row["calls"] for row in tool.results} == {"torch.ones": 1, "torch.Tensor.add": 1}


def test_autocompare_tells_what_is_wrong_and_where_its_tensors_are(device):
    with faults.inject("aten.log: scale=1.1"), op_tools.OpAutoCompare(verbose=0) as tool:
        train(device)
    worst = tool.results[0]
    assert (worst["op"], worst["what"], worst["calls"]) == ("torch.Tensor.log", "output", 1)
    assert "train: functional.linear" in worst["where"]
    assert torch.load(f"{worst['capture']}/device/output.pth")["name"] == "torch.Tensor.log"
    assert tool.results.facts["wrong_calls"] == 1


def test_autocompare_tells_what_it_did_not_compare(device):
    with op_tools.OpAutoCompare(verbose=0) as tool:
        torch.zeros(3, device=device).random_()
        torch.ones(3, device=device) + torch.ones(3, device=device)
    assert tool.results.calls == 5
    [left_out] = tool.results.not_looked_at
    assert left_out == {"what": "torch.Tensor.random_", "calls": 1, "reason": "random", "share": 0.2}
    assert "torch.Tensor.random_, 1 calls (20 %): random" in tool.results._repr_html_()


def test_what_has_no_number_of_calls_has_no_share(device):
    with op_tools.OpAutoCompare(verbose=0, ops=["torch.Tensor.never"]) as tool:
        torch.ones(3, device=device)
    assert [row["share"] for row in tool.results.not_looked_at if not row["calls"]] == [None]


def test_gradients_that_found_no_room_are_told(device, capsys):
    with op_tools.OpAutoCompare(verbose=0, memory=8) as tool:
        train(device)
    left_out = {row["what"]: row["calls"] for row in tool.results.not_looked_at}
    assert left_out["gradients"] >= 2


def test_overflow_check_tells_the_first_first(device):
    with op_tools.OpOverflowCheck(verbose=0) as tool:
        torch.zeros(2, device=device).log().sub(torch.ones(2, device=device)).sqrt()
    assert [(row["op"], row["what"]) for row in tool.results] == [
        ("torch.Tensor.log", "made Inf out of finite inputs"),
        ("torch.Tensor.sqrt", "made NaN out of infinities"),
    ]


def test_results_become_a_data_frame(device):
    pandas = pytest.importorskip("pandas")
    with op_tools.OpObserve(verbose=0) as tool:
        torch.ones(2, device=device).add(1)
    table = tool.results.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert list(table.columns) == ["op", "calls"]
    assert table.set_index("op").calls["torch.Tensor.add"] == 1


ARGUMENTS = {
    "OpAutoCompare": {},
    "OpCapture": {},
    "OpTimeMeasure": {},
    "OpFallback": {"ops": "torch.Tensor.mul"},
    "OpDtypeCast": {"ops": "torch.Tensor.mul", "casts": "torch.float32->torch.float64"},
    "OpObserve": {},
    "OpOverflowCheck": {},
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_results_of_every_tool_are_a_table_in_a_notebook_and_in_pandas(name, device):
    pytest.importorskip("pandas")
    with (
        faults.inject("aten.mul: scale=1.5", torch.device(device).type),
        getattr(op_tools, name)(verbose=0, **ARGUMENTS[name]) as tool,
    ):
        torch.ones(2, device=device).mul(3.0).sub(9.0).log()
    table, shown = tool.results.to_pandas(), tool.results._repr_html_()
    assert (len(table), list(table.columns)) == (len(tool.results), list(tool.results.columns))
    assert len(table) > 0
    assert shown.startswith(f"<p><b>{name}</b>: {len(table)} rows from ")
    assert shown.count("<tr>") == len(table) + 1
    assert all(f"<td>{op}</td>" in shown for op in table["op"])


def test_the_number_of_rows_in_a_file_is_limited(device):
    with op_tools.OpObserve(verbose=0) as tool:
        torch.ones(2, device=device).add(1).mul(2).sub(1)
    kept = tool.results.as_dictionary(2)
    assert len(kept["rows"]) == 2
    assert kept["left_out"] == len(tool.results) - 2


def test_a_notebook_shows_a_table_and_every_text_is_escaped():
    rows = [("<script>alert(1)</script>", 0.123456789, None)] * 101
    results = Results("OpTimeMeasure", ("op", "total", "module"), rows, 7, [("<b>ops</b>", 3, "random & such")])
    shown = results._repr_html_()
    assert "<script>" not in shown
    assert "<b>ops" not in shown
    assert "<td>&lt;script&gt;alert(1)&lt;/script&gt;</td><td>0.1235</td><td></td>" in shown
    assert "101 rows from 7 calls" in shown
    assert "… and 1 more rows" in shown
    assert "<li>&lt;b&gt;ops&lt;/b&gt;, 3 calls: random &amp; such</li>" in shown
