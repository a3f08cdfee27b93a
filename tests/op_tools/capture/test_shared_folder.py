"""Several tools and processes that write into one folder never meet in one path."""

from __future__ import annotations

import csv
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import op_tools
from op_tools.output import paths, process
from op_tools.storage import store


def values(folder):
    return store.load_part(folder / "input.pth").args[0]


def test_nested_captures_are_both_whole(device, capsys):
    x = torch.randn(16, 16, device=device, requires_grad=True)
    with op_tools.OpCapture(out="shared"), op_tools.OpCapture(out="shared"):
        for _ in range(20):
            (x * 2).sum().backward()
    output = capsys.readouterr()
    assert not output.err
    assert output.out.count("160 files of 40 calls") == 2
    folders = list(store.find_captures("shared"))
    assert len(folders) == 80
    for folder in folders:
        assert {path.name for path in folder.glob("*.pth")} == {f"{part}.pth" for part in store.PARTS}
    # calls of both within one second, which is in the name: all but the odd one at its turn
    assert 30 <= sum(bool(re.search(r"-\d\d_2$", folder.name)) for folder in folders) <= 40


def test_one_capture_has_the_layout_of_the_contract(device):
    with op_tools.OpCapture(out="alone", verbose=0):
        torch.ones(2, device=device).exp()
    (folder,) = Path("alone/op_capture_results/torch.Tensor.exp", str(os.getpid())).glob("*/*")
    assert re.fullmatch(r"\d+", folder.parent.name)
    assert re.fullmatch(r"\d{4}(-\d\d){5}", folder.name)
    note = json.loads((folder / "input.pth.json").read_text())
    assert (note["host"], note["rank"], note["pid"]) == (socket.gethostname(), 0, os.getpid())


def test_the_folder_of_a_call_is_its_own_in_every_thread():
    first, second = (paths.OwnFolder(paths.capture_folder, Path("out"), "op", 1, "now") for _ in range(2))
    assert first.path() == first.path() != second.path()
    assert second.path().name == "now_2"


SAME_PID = """
import os, sys, time
import torch
from ditorch import sim
sim.start()
import op_tools
os.getpid = lambda: 7  # as in a container, where the first process always has the same
from op_tools.output import process
process.this_host = lambda: f"container{sys.argv[1]}"
x = torch.full((16, 16), float(sys.argv[1]), device="sim", requires_grad=True)
open(f"ready{sys.argv[1]}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.001)
with op_tools.OpCapture(out="shared"):
    for _ in range(50):
        (x * 2).sum().backward()
with op_tools.OpTimeMeasure(out="shared", verbose=0):
    for _ in range(50):
        (x * 2).sum().backward()
with op_tools.OpCapture(out="shared", mode="statistics", verbose=0):
    for _ in range(50):
        (x * 2).sum().backward()
"""


@pytest.fixture
def two_containers():
    """Two processes with the same pid, at the same time, in one folder."""
    command = [sys.executable, "-c", SAME_PID]
    both = [subprocess.Popen([*command, n], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for n in "12"]
    while not (Path("ready1").exists() and Path("ready2").exists()) and all(one.poll() is None for one in both):
        time.sleep(0.01)
    Path("go").touch()
    outputs = [one.communicate(timeout=600)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], outputs
    return outputs


def test_two_containers_with_the_same_pid_do_not_collide(two_containers):
    assert all("400 files of 100 calls" in output for output in two_containers)
    assert not any("cannot write" in output for output in two_containers)
    folders = list(store.find_captures("shared"))
    assert len(folders) == 200
    for folder in folders:
        parts = {part: json.loads((folder / f"{part}.pth.json").read_text()) for part in store.PARTS}
        (host,) = {note["host"] for note in parts.values()}
        if "mul" in parts["input"]["name"]:
            assert values(folder)[0, 0] == float(host[-1])
    tables = list(Path("shared/op_time_measure_result").glob("*.csv"))
    assert len(tables) == 2
    for table in tables:
        with open(table, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 100
        assert len({row["host"] for row in rows}) == 1
        assert {row["rank"] for row in rows} == {"0"}
    traces = [json.loads(path.read_text()) for path in Path("shared/op_time_measure_result").glob("*.json")]
    labels = {event["args"]["labels"] for trace in traces for event in trace if event["name"] == "process_labels"}
    assert labels == {"rank 0, container1", "rank 0, container2"}
    assert len(list(Path("shared/op_capture_results").glob("*.pack"))) == 2


def test_the_rank_is_that_of_the_group_or_the_variable(monkeypatch):
    assert process.this_rank() == 0
    monkeypatch.setenv("RANK", "3")
    assert process.identity() == {"host": socket.gethostname(), "rank": 3, "pid": os.getpid()}
