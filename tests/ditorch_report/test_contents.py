"""What the page is made of: read from whatever is there, as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import ditorch_report
import op_tools
from ditorch.sim import faults
from ditorch_report import contents, page, ranks, sources, trace
from ditorch_report.call_table import Call
from ditorch_report.errors import ReportError

from . import runs

ASSETS = Path(ditorch_report.__file__).parent / "assets"


def events(*rows):
    """Lines of a trace: (track, name, forward_id, start, duration)."""
    names = {1: ("host", "MainThread"), 2: ("sim:0", "stream 0"), 3: ("sim:0", "collectives")}
    notes = [
        {"name": kind, "ph": "M", "pid": number, "tid": number, "args": {"name": name}}
        for number, pair in names.items()
        for kind, name in zip(("process_name", "thread_name"), pair)
    ]
    spans = [
        {"name": name, "cat": "forward", "ph": "X", "pid": track, "tid": track, "ts": start, "dur": duration}
        | {"args": {"forward_id": id, "module": "m"}}
        for track, name, id, start, duration in rows
    ]
    return "[\n" + ",\n".join(map(json.dumps, [*notes, *spans]))  # without its end, as a killed process leaves it


def test_own_times_and_what_the_device_waited_for(tmp_path):
    path = tmp_path / "op_elasped_info_pid1_x.json"
    path.write_text(
        events(
            (1, "outer", 1, 0, 100),
            (1, "inner", 2, 10, 30),
            (1, "data", 3, 150, 800),
            (1, "late", 4, 960, 10),
            (2, "outer", 1, 5, 100),
            (2, "inner", 2, 20, 30),
            (2, "late", 4, 1000, 50),
            (2, "queued", 1, 1100, 10),
        )
    )
    found = trace.read(path)
    assert found.own_times() == {(1, 0): 80.0, (2, 0): 30.0, (4, 0): 50.0, (3, 0): 800.0}
    waits = trace.Waits()
    waits.add(found)
    assert waits.span == 1105
    assert waits.busy == 160
    rows = [(row["op"], row["cause"], row["during"], row["time"]) for row in waits.rows()]
    assert rows == [("late", "host", "data", 0.895), ("queued", "queue", "", 0.05)]


def test_a_device_that_waited_for_a_collective(tmp_path):
    path = tmp_path / "op_elasped_info_pid1_x.json"
    path.write_text(
        events(
            (2, "backward", 1, 0, 100),
            (3, "c10d.allreduce_", 2, 90, 800),
            (2, "step", 3, 900, 50),
            (1, "step", 3, 895, 10),
        )
    )
    waits = trace.Waits()
    waits.add(trace.read(path))
    assert (waits.span, waits.busy) == (950, 150)
    rows = [(row["op"], row["cause"], row["during"], row["time"]) for row in waits.rows()]
    assert rows == [("step", "collective", "c10d.allreduce_", 0.8)]


@pytest.mark.parametrize("op", ["torch.distributed.distributed_c10d.all_reduce", "c10d.allreduce_"])
def test_time_in_collectives_is_no_time_in_which_a_rank_is_slow(op):
    def call(process, op):
        return Call(process, 0, op, 0, "", "", forward=500.0)

    found = ranks.of([call(0, "torch.add"), call(1, op)], {}, 2)
    assert [row["collectives"] for row in found] == [None, 0.5]
    assert [row["ops"] for row in found] == [{"torch.add": 0.5}, {}]


def test_a_line_of_a_file_that_was_edited_is_not_shown(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("a = 1\nb = 2\nc = 3\n")
    places = [f"{file}:2 f: b = 2", f"{file}:2 f: b = 5", "/etc/passwd:1 f: root", "<unknown>"]
    assert sources.contexts(places) == {places[0]: [1, ["a = 1", "b = 2", "c = 3"]]}


def test_calls_of_a_damaged_table_are_read_up_to_the_damage(tmp_path):
    runs.large(tmp_path, 10)
    [table] = tmp_path.glob("op_time_measure_result/*.csv")
    text = table.read_text()
    table.write_text(text[: len(text) - 40])
    [run] = contents.of([tmp_path]).runs
    assert run["calls"] == 10  # the comparison has the last one
    assert run["wrong"][0]["reason"] == "off by a factor of 1.1"
    assert run["wrong"][0]["what"] == "output"


def test_what_is_not_listed_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("ditorch_report.call_table.MAX_CALLS", 5)
    found = contents.of([runs.large(tmp_path, 30)])
    [run] = found.runs
    assert (run["calls"], run["listed"]) == (30, 5)
    assert found.pieces["run0.calls"]["columns"]["verdict"][-1] == 2  # a wrong call is always listed
    assert sum(row["calls"] for row in run["ops"]) == 30


JUNK = [
    "",
    "{",
    "[]",
    '{"wrong": 3, "tools": [], "next": {}, "processes": "x"}',
    '{"wrong": [{"op": [], "ranks": "a", "calls": NaN}, 7]}',
]


@pytest.mark.parametrize("junk", JUNK)
def test_damaged_files_are_passed_over(tmp_path, junk):
    runs.large(tmp_path, 10)
    for name in ("summary.json", "manifest.json"):
        (tmp_path / name).write_text(junk)
    [traced] = tmp_path.glob("op_time_measure_result/*.json")
    traced.write_text(
        f'{traced.read_text()[:300]}\n{{"ph": "X", "ts": NaN, "dur": 1e999}},\n{{"ph": "M", "args": 3}},\n{junk}'
    )
    [compared] = tmp_path.glob("op_autocompare_result/*.csv")
    compared.write_bytes(compared.read_bytes().replace(b"123,", b"nan,") + b"\x00\xff,,\r\n")
    page.write(contents.of([tmp_path]), tmp_path / "report.html")
    [run] = contents.of([tmp_path]).runs
    assert run["calls"] == 10


@pytest.mark.parametrize("kind", ["missing", "empty", "text"])
def test_what_is_no_run_is_said_in_one_sentence(tmp_path, kind):
    path = tmp_path / "it"
    if kind == "empty":
        path.mkdir()
    elif kind == "text":
        path.write_text("no run")
    with pytest.raises(
        ReportError, match=rf"{re.escape(str(path))} cannot be reported: (there is no|it holds nothing)"
    ):
        contents.of([path])


def test_statistics_of_two_runs_are_compared(tmp_path, device):
    folders = [tmp_path / "good", tmp_path / "bad"]
    for folder, factor in zip(folders, (1.0, 1.5)):
        torch.manual_seed(0)
        x, w = torch.randn(8, 8).to(device), torch.randn(8, 8).to(device)
        tool = op_tools.OpCapture(mode="statistics", verbose=0, out=folder)
        with faults.inject(f"aten.mm: scale={factor}", "sim"), tool:
            torch.relu(x @ w)
    found = contents.of(folders)
    assert found.pieces["comparison"]["first_divergence"]["op"] == "torch.Tensor.matmul"
    assert found.pieces["run1.details0"]["statistics"][0]
    saved = tmp_path / "compare.json"
    saved.write_text(json.dumps(found.pieces["comparison"]))
    assert contents.of([saved]).pieces["comparison"]["first_divergence"]["op"] == "torch.Tensor.matmul"


def test_the_policy_lets_the_page_load_nothing(tmp_path):
    page.write(contents.of([runs.large(tmp_path, 3)]), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "connect-src &#39;none&#39;" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<(link|img|iframe)\b|\bsrc=|@import|url\(", text)


def test_every_text_of_the_page_has_a_chinese_one():
    scripts = {path.name: path.read_text() for path in ASSETS.glob("*.js")}
    chinese = scripts.pop("chinese.js")
    known = set(re.findall(r'(?:"((?:[^"\\]|\\.)+)"|\b(\w+)): "', chinese))
    known = {quoted or plain for quoted, plain in known}
    used = {text for script in scripts.values() for text in re.findall(r'\bt\(\s*"((?:[^"\\]|\\.)+)"', script)}
    assert used - known == set()
    assert len(used) > 200


def test_the_libraries_are_the_ones_that_their_readme_names():
    folder = ASSETS.parent / "vendor"
    named = dict(re.findall(r"\| `([\w.]+)` \|.*\| `([0-9a-f]{64})` \|", (folder / "README.md").read_text()))
    import hashlib

    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.suffix != ".md"
    }
    assert named == found
    assert sum(path.stat().st_size for path in folder.iterdir()) < 300_000
