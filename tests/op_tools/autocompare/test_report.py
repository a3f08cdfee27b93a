"""What OpAutoCompare prints and writes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

import op_tools
from ditorch.sim import faults
from tests.op_tools.autocompare.net import found_by, rows_of

pytestmark = pytest.mark.usefixtures("who_looks")


def test_a_healthy_run_ends_with_one_line_that_says_so(device, capsys):
    x = torch.randn(4, 4, device=device, requires_grad=True)
    shares = torch.rand(3, device=device)
    with op_tools.OpAutoCompare() as tool:
        (x @ x).sum().backward()
        for _ in range(2):
            shares.random_()
    *_, last, saved = capsys.readouterr().out.splitlines()
    assert last == (
        "OpAutoCompare: nothing wrong in 6 calls, 7 values compared; 66.6 % of all calls were compared; "
        "not compared: torch.Tensor.random_ (2 calls, 33.3 %): random"
    )
    assert saved.endswith(".csv saved")
    assert tool.summary.text() == last


def test_a_run_on_the_cpu_alone_says_that_there_was_nothing_to_compare(capsys):
    with op_tools.OpAutoCompare():
        torch.ones(3) * 2
    (last,) = capsys.readouterr().out.splitlines()
    assert last == "OpAutoCompare: nothing to compare: no op that was asked for had a tensor on an accelerator"


def test_the_summary_names_gradients_for_which_there_was_no_memory(device):
    x = torch.randn(64, 64, device=device, requires_grad=True)
    with op_tools.OpAutoCompare(verbose=0, memory=1) as tool:
        (x @ x).exp()
    assert "not compared: gradients (2 calls, 50 %): the memory for calls that wait is full" in tool.summary.text()


def test_the_csv_has_the_contracts_columns_first(device):
    with op_tools.OpAutoCompare(verbose=0):
        torch.ones(2, device=device) * torch.ones(2, device=device)
    (path,) = Path("op_tools_results/op_autocompare_result").iterdir()
    assert path.name.startswith(f"op_autocompare_info_pid{os.getpid()}_")
    header = path.read_text().splitlines()[0]
    assert header.startswith(
        "forward_id,name,allclose,cosine_similarity,max_abs_diff,max_relative_diff,atol,rtol,error_info,"
    )
    rows = [row for row in rows_of() if row["name"].startswith("torch.Tensor.mul ")]
    assert [row["name"] for row in rows] == [f"torch.Tensor.mul {part}" for part in ("input[0]", "input[1]", "output")]
    assert rows[2]["allclose"] == "True"
    assert rows[2]["cosine_similarity"] == "1.000000000"
    assert rows[2]["atol"] == "0.000010000"
    assert rows[2]["error_info"] == "Inconsistent dtypes: torch.float32 torch.float64"
    assert rows[2]["verdict"] == "right"
    assert "test_report.py" in rows[2]["where"]


def test_every_call_is_shown_at_verbosity_2(device, capfd):
    x = torch.ones(2, device=device, requires_grad=True)
    with op_tools.OpAutoCompare(verbose=2, ops="torch.Tensor.mul"):
        (x * 3).sum().backward()
    printed = capfd.readouterr().out
    assert "apply OpAutoCompareHook on torch.Tensor.mul" in printed
    assert "cpu_dtype_cast_info(from:to): {torch.float32: torch.float64}" in printed
    for label in ("inputs[0]", "inputs[1]", "outputs", "inputs(cpu)[0]", "outputs(cpu)", "grad_inputs(cpu)"):
        assert f"torch.Tensor.mul {label} " in printed
    assert re.search(r"\| +name +\| allclose \| max_abs_diff \| max_relative_diff \|", printed)
    row = "| torch.Tensor.mul input[1] |   True   | 0.000000000  |    0.000000000    | 0.000001000 | 0.000001000 |"
    assert row in printed
    assert "| torch.Tensor.mul grad[0] |" in printed
    at_the_end = re.split(r"\| forward_id \| +name +\| allclose \| max_abs_diff \|", printed)[-1]
    names = re.findall(r"\| +torch.Tensor.mul (\S+) +\|", at_the_end)
    assert names == ["input[0]", "input[1]", "output", "grad[0]"]


@pytest.mark.parametrize("worker", [0, 1])
def test_tables_show_the_devices_own_tensors(device, capfd, worker):
    """Not the copies on the host that are compared."""
    x = torch.ones(2, device=device, requires_grad=True)
    with op_tools.OpAutoCompare(verbose=2, worker=worker, ops="torch.Tensor.mul"):
        (x * 3).sum().backward()
    cells = {}
    for line in capfd.readouterr().out.splitlines():
        if line.startswith("| ") and "torch.strided" in line:
            name, *others = (cell.strip() for cell in line.strip("|").split("|"))
            cells[name.removeprefix("torch.Tensor.mul ")] = others
    for label in ("inputs[0]", "outputs", "grad_outputs", "grad_inputs"):
        assert cells[label][4].startswith(device)
    for label in ("inputs(cpu)[0]", "outputs(cpu)", "grad_inputs(cpu)"):
        assert cells[label][4] == "cpu"
    if not worker:
        assert str(x.data_ptr()) in cells["inputs[0]"]


def test_only_what_is_wrong_is_shown_at_verbosity_1(device, capfd):
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
    with faults.inject("aten.mm: scale=1.01"), op_tools.OpAutoCompare():
        x @ y
        x + y
    printed = capfd.readouterr()
    assert "wrong: torch.Tensor.matmul output: off by a factor of 1.01 as a whole" in printed.out
    assert "torch.Tensor.add output" not in printed.out
    assert "x @ y" in printed.out
    assert printed.err == ""
    assert "OpAutoCompare: 2 calls, 6 values compared, 1 calls wrong" in printed.out
    assert ".csv saved" in printed.out


def test_nothing_is_printed_at_verbosity_0(device, capfd):
    found = found_by(op_tools.OpAutoCompare(verbose=0), device, "aten.addmm: scale=1.01")
    assert found
    assert capfd.readouterr() == ("", "")


def test_after_some_calls_of_one_place_a_line_is_enough(device, capfd):
    x = torch.randn(8, 8, device=device)
    with faults.inject("aten.mm: scale=1.01"), op_tools.OpAutoCompare() as tool:
        for _ in range(12):
            x @ x
    printed = capfd.readouterr().out
    assert printed.count("cpu_dtype_cast_info") == 8
    assert printed.count("wrong: torch.Tensor.matmul output") == 12
    assert [one.calls for one in tool.summary.ranked()] == [12]
    folder = Path("op_tools_results/op_capture_results/torch.Tensor.matmul") / str(os.getpid()) / "autocompare"
    assert len(list(folder.iterdir())) == 8


def test_values_that_are_not_close_but_no_worse_than_their_dtype_are_only_counted(device, capfd):
    x = 100 * torch.randn(20, 20, device=device, dtype=torch.bfloat16)
    with op_tools.OpAutoCompare() as tool:
        x @ x
    assert tool.summary.ranked() == []
    assert "1 values are not allclose but no worse than their dtype" in capfd.readouterr().out


def test_the_summary_ranks_the_worst_first(device):
    x = torch.randn(32, 32, device=device)
    with faults.inject("aten.mm: scale=1.01; aten.exp: scale=1.5; aten.tanh: nan@one"):
        tool = op_tools.OpAutoCompare(verbose=0)
        with tool:
            x @ x
            x.exp()
            x.tanh()
    assert [one.name for one in tool.summary.ranked()] == [
        "torch.Tensor.tanh",
        "torch.Tensor.exp",
        "torch.Tensor.matmul",
    ]


def test_wrong_calls_are_saved(device):
    x = torch.randn(8, 8, device=device, requires_grad=True)
    with faults.inject("aten.mm: scale=1.01"), op_tools.OpAutoCompare(verbose=0):
        (x @ x).sum().backward()
    root = Path("op_tools_results/op_capture_results/torch.Tensor.matmul") / str(os.getpid()) / "autocompare"
    saved = sorted("/".join(path.parts[-2:]) for path in root.rglob("*.pth"))
    assert {"device/input.pth", "device/output.pth", "cpu/input.pth", "cpu/output.pth"} <= set(saved)
    assert {"device/grad_outputs.pth", "device/grad_inputs.pth", "cpu/grad_inputs.pth"} <= set(saved)
    (path,) = root.rglob("cpu/output.pth")
    content = torch.load(path, weights_only=True)
    assert content["name"] == "torch.Tensor.matmul"
    assert torch.allclose(content["args"][0], (x.detach().cpu().double() @ x.detach().cpu().double()))


def test_a_full_disk_is_said_once(device, capfd, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("op_tools.autocompare.examiner.store.save", full)
    x = torch.randn(8, 8, device=device)
    with faults.inject("aten.mm: scale=1.01"), op_tools.OpAutoCompare() as tool:
        for _ in range(3):
            x @ x
    assert capfd.readouterr().err.count("No space left on device") == 1
    assert tool.summary.wrong_calls == 3
