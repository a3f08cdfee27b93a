"""`ditorch export`: a row for each tensor, in every format."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import op_tools
from ditorch_cli.export import command
from op_tools.export import COLUMNS


@pytest.fixture
def run(device):
    x = torch.randn(4, 6, device=device, requires_grad=True)
    with op_tools.OpCapture(mode="statistics", out="run", verbose=0):
        for _ in range(2):
            (x.exp() + x.exp()).sum().backward()
            op_tools.step()
    with op_tools.OpCapture(out="run", verbose=0, ops="torch.Tensor.cos"):
        x.cos()
    return Path("run")


def exported(run, form, *options):
    done = CliRunner().invoke(command, [str(run), "--to", form, *map(str, options)])
    assert done.exit_code == 0, done.output
    return run / f"statistics.{form}"


def test_every_format_has_the_same_rows(run):
    records = list(op_tools.read_statistics(run))
    lines = [json.loads(line) for line in exported(run, "jsonl").read_text().splitlines()]
    with open(exported(run, "csv"), newline="") as file:
        table = list(csv.DictReader(file))
    assert len(lines) == len(table) == len(records) > 10
    for line, row, record in zip(lines, table, records):
        assert tuple(line) == tuple(row) == COLUMNS
        assert line["op"] == row["op"] == record.op
        assert (line["checksum"], int(row["checksum"])) == (record.checksum, record.checksum)
        assert line["shape"] == list(record.shape)
        assert line["norm"] == float(row["norm"]) == record.norm
    assert not list(run.glob("*.tmp"))


def test_calls_of_one_op_are_counted_in_each_step(run):
    lines = [json.loads(line) for line in exported(run, "jsonl").read_text().splitlines()]
    found = {(line["step"], line["occurrence"]) for line in lines if line["op"] == "torch.Tensor.exp"}
    assert found == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_parquet_is_read_by_others(run):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(exported(run, "parquet"))
    assert table.column_names == list(COLUMNS)
    assert table["norm"].to_pylist() == [record.norm for record in op_tools.read_statistics(run)]


def test_without_pyarrow_it_says_what_to_do(run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    done = CliRunner().invoke(command, [str(run)])
    assert done.exit_code == 2
    assert "pip install 'ditorch[offline]'" in done.stderr
    assert not list(run.glob("statistics.*"))


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_a_path_without_statistics_is_named(name, tmp_path):
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(command, [str(tmp_path / name), "--to", "csv"])
    assert done.exit_code == 2
    assert "holds no statistics" in done.stderr
