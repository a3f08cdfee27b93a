"""`ditorch export`: a row for each tensor, in every format."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy
import pytest
import torch
from click.testing import CliRunner

import op_tools
from ditorch_cli.export import command
from op_tools.export import COLUMNS
from op_tools.storage import blocks, store
from op_tools.values import trees


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


def test_captured_tensors_can_be_read_at_their_offsets(device):
    x = torch.randn(4, 6, device=device)
    y = x.t()[1:]  # a view that begins somewhere else
    tools = op_tools.OpCapture(mode="statistics", out="run", verbose=0), op_tools.OpCapture(out="run", verbose=0)
    with tools[0], tools[1]:
        torch.addcmul(x, x[:, :1], x.double().float(), value=0.5)
        y.contiguous()
        torch.cat([x, x.bfloat16().float()])
    lines = [json.loads(line) for line in exported(Path("run"), "jsonl").read_text().splitlines()]
    kept = [line for line in lines if line["data"] and line["dtype"] == "float32"]
    assert len(kept) > 8
    for line in kept:
        first = numpy.memmap(Path("run") / line["data"], "<f4", "r", line["offset"], (1,))[0]
        part = store.load_part(Path("run") / line["data"])
        places = trees.results(part.args[0]) if line["part"] == "output" else trees.arguments(part.args, part.kwargs)
        assert {place.strip(): value for place, value in places}[line["place"]].flatten()[0] == float(first)
    assert all(line["offset"] is None for line in lines if not line["data"])


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


def test_of_a_damaged_file_what_is_before_is_written(run):
    (file,) = run.rglob("*.pack")
    count = len(list(op_tools.read_statistics(run)))
    file.write_bytes(file.read_bytes() + blocks.BLOCK.pack(blocks.TABLE, 4, 1) + b"evil")
    done = CliRunner().invoke(command, [str(run), "--to", "jsonl"])
    assert (done.exit_code, "is damaged at byte" in done.stderr) == (0, True)
    assert len((run / "statistics.jsonl").read_text().splitlines()) == count > 0


def test_a_file_of_something_else_is_said_to_be_nothing_else(tmp_path):
    (tmp_path / "x.pack").write_bytes(bytes(range(256)) * 8)
    done = CliRunner().invoke(command, [str(tmp_path / "x.pack"), "--to", "csv"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "it holds no statistics that OpCapture wrote" in done.stderr


def test_a_file_that_ends_in_the_middle_is_named(run):
    (file,) = run.rglob("*.pack")
    whole = file.read_bytes()
    file.write_bytes(whole + blocks.BLOCK.pack(blocks.TABLE, 1000, 0) + b"begun")
    done = CliRunner().invoke(command, [str(run), "--to", "csv"])
    assert (done.exit_code, "ends in the middle" in done.stderr) == (0, True)
    file.write_bytes(whole[:600])
    (run / "statistics.csv").unlink()
    done = CliRunner().invoke(command, [str(run), "--to", "csv"])
    assert (done.exit_code, "holds no statistics of any tensor: nothing is written" in done.stderr) == (2, True)
    assert not list(run.glob("statistics.*"))
