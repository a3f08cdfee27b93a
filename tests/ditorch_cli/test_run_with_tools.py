"""`ditorch run` with tools: on an unedited program and its children, with a summary at the end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from ditorch_cli import screen, summary, tool_options

PROGRAM = """
import os, sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x, y = torch.randn(4, 8).cuda(), torch.randint(3, (4,)).cuda()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
"""
FAULT = {"DITORCH_FAULTS": "aten.native_layer_norm: scale=1.1"}


@pytest.fixture
def program(tmp_path):
    def write(more=""):
        (tmp_path / "train.py").write_text(PROGRAM + more)
        return "train.py"

    return write


def the_run(tmp_path):
    [folder] = (tmp_path / "ditorch_runs").iterdir()
    return folder


def summary_of(tmp_path):
    return json.loads((the_run(tmp_path) / "summary.json").read_text())


def test_the_guilty_op_is_named_and_the_program_stays_its_own(ditorch_command, program, tmp_path):
    plain = ditorch_command("run", program(), **FAULT)
    run = ditorch_command("run", "--autocompare", program("sys.exit(3)"), **FAULT)
    assert run.stdout == plain.stdout  # the same losses, to the bit, and nothing of ours
    assert run.returncode == 3
    assert "ended with exit code 3" in run.stderr
    named = r"1\. torch.nn.functional.layer_norm: output, .+ \(3 calls,\s+step \d\)\n   off by a factor of 1.1"
    assert re.search(named, run.stderr)
    assert re.search(named, (the_run(tmp_path) / "summary.txt").read_text())
    assert "   in 1: train.py:9 <module>: loss = nn.functional.cross_entropy(model(x), y)\n" in run.stderr
    found = summary_of(tmp_path)
    assert found["schema"] == "ditorch.summary/1"
    assert {row["op"] for row in found["wrong"]} == {"torch.nn.functional.layer_norm"}
    # the commands that it ends with can be typed
    assert [line.strip() for line in run.stderr.splitlines()[-3:]] == found["next"]
    replay, workaround, report = found["next"]
    the_first = the_run(tmp_path).relative_to(tmp_path)
    assert ditorch_command(*replay.split()[1:]).returncode == 0  # without the fault, the call is right
    mended = ditorch_command(*workaround.split()[1:], **FAULT)
    assert mended.stdout == ditorch_command("run", program()).stdout
    assert report == f"ditorch report {the_first} --open"


def test_the_first_nan_comes_first(ditorch_command, program):
    run = ditorch_command("run", "--overflow", program("(x.sum() - x.sum()).log().sub(1).sqrt()\n"))
    assert "1. torch.Tensor.log: made Inf out of finite inputs, forward (1 call" in run.stderr
    assert re.search(r"ditorch run --autocompare --steps \d+:\d+ train.py", run.stderr)


def test_several_tools_on_a_healthy_program(ditorch_command, program, tmp_path):
    before = time.time()
    options = (
        "--autocompare",
        "--overflow",
        "--time",
        "--capture=statistics",
        "--fallback",
        "torch.nn.functional.linear",
    )
    cast = ("--cast", "torch.nn.functional.layer_norm:torch.float32->torch.float64")
    variables = {"OP_TIME_MEASURE_TRACE_EVENTS": "0", "WANDB_API_KEY": "x", "OP_TOKEN": "x"}
    run = ditorch_command("run", *options, *cast, program(), **variables)
    assert run.returncode == 0
    said = " ".join(run.stderr.split())  # a terminal's lines are short
    assert re.search(
        r"OpAutoCompare: nothing wrong in \d+ calls, \d+ values compared; [\d.]+ % of all calls were", said
    )
    assert "Wrong" not in run.stderr
    found = summary_of(tmp_path)
    assert set(found["tools"]) == {
        "LossLog", "OpAutoCompare", "OpCapture", "OpDtypeCast", "OpFallback", "OpOverflowCheck", "OpTimeMeasure"
    }  # fmt: skip
    assert {row["op"] for row in found["elsewhere"]} == {
        "torch.nn.functional.linear",
        "torch.nn.functional.layer_norm",
    }
    assert sum(row["share"] for row in found["slow"]) == pytest.approx(1)

    manifest = json.loads((the_run(tmp_path) / "manifest.json").read_text())
    assert manifest["schema"] == "ditorch.run/1"
    assert manifest["command"].endswith("train.py")
    assert list(manifest["files"]) == ["train.py"]
    assert manifest["torch"].startswith(manifest["packages"]["torch"].partition("+")[0])
    assert manifest["device"]["backend"] == "sim"
    assert manifest["variables"]["OP_TIME_MEASURE_TRACE_EVENTS"] == "0"
    assert "x" not in manifest["variables"].values()  # no secrets
    assert list(manifest["seeds"].values()) == [0]
    assert manifest["world_size"] == 1
    assert before < manifest["started"] < manifest["ended"]

    again = ditorch_command("run", "--time", "--out", the_run(tmp_path), program())
    assert again.returncode == 2
    assert "holds a run already: give another folder, or remove it." in again.stderr


def test_memory_and_time_of_a_run(ditorch_command, program, tmp_path):
    run = ditorch_command("run", "--monitor", program(), OP_TOOLS_MONITOR_INTERVAL="0.05")
    assert run.returncode == 0
    assert "Memory and CPU: the most that was used, and how busy" in run.stderr
    (row,) = summary_of(tmp_path)["usage"]
    assert row["device_memory_peak"] > 0
    assert row["host_memory_peak"] > 50_000_000
    assert len(list((the_run(tmp_path) / "process_monitor_result").glob("*.csv"))) == 1
    assert summary_of(tmp_path)["processes"][0]["steps"] == 3


def test_lists_choose_ops(ditorch_command, program, tmp_path):
    ditorch_command("run", "--capture", "--ops", r"torch\.nn\..*", "--skip", ".*linear", program())
    captured = {path.name for path in (the_run(tmp_path) / "op_capture_results").iterdir()}
    assert captured == {"torch.nn.functional.layer_norm", "torch.nn.functional.cross_entropy"}


def test_what_the_tools_print_is_asked_for(ditorch_command, program):
    assert "torch.nn.functional.linear inputs[0]" in ditorch_command("run", "--observe", program()).stdout
    talkative = ditorch_command("run", "--time", program(), OP_TOOLS_VERBOSE="1")
    assert "apply OpTimeMeasureHook on torch.nn.functional.linear" in talkative.stdout


@pytest.mark.parametrize("launcher", ["inside", pytest.param("outside", marks=pytest.mark.slow)])
def test_ranks_of_torchrun_have_one_summary(ditorch_command, program, tmp_path, launcher):
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    own = ("-m", "ditorch", "run", "--autocompare")
    name = program()
    if launcher == "inside":
        run = ditorch_command(*launch, name, python=own, **FAULT)
    else:
        run = ditorch_command(*own, name, python=launch, **FAULT)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("ditorch run: ended") == 1
    found = summary_of(tmp_path)
    assert [record["rank"] for record in found["processes"]] == [0, 1]
    assert found["wrong"][0]["ranks"] == [0, 1]
    assert re.search(r"ranks\s+0-1\)", run.stderr)


def test_ranks_and_their_devices_are_told_in_short():
    assert screen._ranges([7, 0, 1, 2, 9, 10]) == "0-2,7,9-10"
    chips = [{"name": "chip 0"}, {"name": "chip 1"}, {"backend": "sim"}, {"name": "chip 0"}]
    assert screen._devices(chips[:1] * 4) == "chip 0"
    assert screen._devices(chips) == "chip 0 and 2 more"


def test_many_tensors_of_a_list_are_named_in_short():
    named = screen._values(["input[2]", "grad", *(f"input[{number}]" for number in (0, 1, 5, 7, 6)), "output[0]"])
    assert named == "input[0-2,5-7], grad, output[0]"
    assert screen._values(["grad[1]", "grad[0]", "grad weight"]) == "grad[1], grad[0], grad weight"


def test_ops_that_take_no_time_are_not_called_slow():
    def row(op, share):
        return {"op": op, "calls": 1, "forward": share, "backward": 0.0, "total": share, "share": share}

    table = screen._slow(
        [row("torch.sort", 0.97), row("torch.mm", 0.025), *(row(f"torch.op{i}", 0.001) for i in range(5))]
    )
    assert (table.row_count, table.caption) == (2, "… and 5 more in summary.json")
    assert screen._slow([row(f"torch.op{i}", 0.001) for i in range(1000)]).row_count == 1


def test_a_cast_that_nothing_needed_is_told():
    assert screen._verdict("OpDtypeCast", {"calls": 3}) == "3 calls cast"
    nothing = "0 calls cast: none of these ops ran in a dtype that is to be cast"
    assert screen._verdict("OpDtypeCast", {"calls": 0}) == nothing


def test_a_traceback_is_the_programs_own(ditorch_command, program, tmp_path):
    run = ditorch_command("run", "--time", program("raise RuntimeError('my own')\n"))
    assert run.returncode == 1
    [traceback] = re.findall(r"Traceback.*?RuntimeError: my own", run.stderr, re.DOTALL)
    assert "op_tools" not in traceback
    assert "ditorch" not in traceback
    assert summary_of(tmp_path)["tools"]["OpTimeMeasure"]["calls"] > 10


def test_a_program_that_is_killed_is_summed_up(ditorch_command, program, tmp_path):
    run = ditorch_command("run", "--autocompare", program("os.kill(os.getpid(), 9)\n"), **FAULT)
    assert run.returncode == -signal.SIGKILL
    assert "ended by SIGKILL" in run.stderr
    found = summary_of(tmp_path)
    assert {row["op"] for row in found["wrong"]} == {"torch.nn.functional.layer_norm"}  # what it had found until then
    [killed] = [row for row in found["not_looked_at"] if row["reason"] == "the process was killed"]
    assert re.fullmatch(r"rank 0 \(pid \d+ on .*\) after step [123]", killed["what"])


DIES_EARLY = PROGRAM.replace("    optimizer.step()", "    os.kill(os.getpid(), 9 * (os.environ.get('RANK') != '0'))")


def test_a_program_that_is_killed_in_its_first_step_is_told(ditorch_command, tmp_path):
    (tmp_path / "train.py").write_text(DIES_EARLY)
    run = ditorch_command("run", "--time", "train.py")
    assert "Nothing is known of it: it was killed before the end of its first training step." in run.stderr


@pytest.mark.slow
def test_a_rank_that_left_no_record_is_missed(ditorch_command, tmp_path):
    (tmp_path / "train.py").write_text(DIES_EARLY)
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    ditorch_command("run", "--time", *launch, "train.py")
    [missed] = [row["what"] for row in summary_of(tmp_path)["not_looked_at"] if "left no record" in row["reason"]]
    assert missed == "rank 1"


def test_signals_reach_the_program(program, tmp_path):
    more = """
import signal
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
print("ready", flush=True)
while True:
    signal.pause()
"""
    command = [sys.executable, "-m", "ditorch", "run", "--time", program(more)]
    environment = {**os.environ, "DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "sim"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as process:
        while b"ready" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 7
    assert b"ended with exit code 7" in errors


def test_a_program_that_uses_no_accelerator_is_told(ditorch_command, tmp_path):
    (tmp_path / "plain.py").write_text("import torch\nprint(torch.ones(2).sum())\n")
    assert "No op call on an accelerator was seen" in ditorch_command("run", "--time", "plain.py").stderr


@pytest.mark.parametrize(
    ("asked", "variable"),
    [
        (("--time", "--ops", "torch.Tensor.mv"), "OP_TOOLS_LIST=torch.Tensor.mv"),
        (("--time", "--steps", "7"), "OP_TOOLS_STEPS=7"),
        (("--fallback", "torch.Tensor.mv"), "OP_FALLBACK_LIST=torch.Tensor.mv"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_a_program_without_the_ops_or_steps_asked_for_is_told(ditorch_command, tmp_path, asked, variable):
    (tmp_path / "inference.py").write_text("import torch\nprint(torch.ones(2).cuda().sum())\n")
    told = " ".join(ditorch_command("run", *asked, "inference.py").stderr.split())
    assert f"No op call on an accelerator was seen: either none is in {variable}, or the program uses none" in told


def test_a_folder_that_cannot_be_written_is_one_message(ditorch_command, program, tmp_path):
    (tmp_path / "file").write_text("")
    run = ditorch_command("run", "--time", "--out", "file/folder", program())
    assert run.returncode == 2
    assert "cannot be written (Not a directory)" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps", "a:b", "train.py"), "OP_TOOLS_STEPS='a:b' cannot be used"),
        (("--autocompare=gpu", "train.py"), "'gpu' is not one of 'cpu', 'device', 'device,cpu'"),
        (("--fallback", "(", "train.py"), "'(' is neither a name nor a regular expression"),
        (("--time",), "Missing argument 'PROGRAM'"),
    ],
)
def test_bad_options_are_one_message(ditorch_command, program, arguments, message):
    program()
    run = ditorch_command("run", *(("--time",) if "--steps" in arguments else ()), *arguments)
    assert run.returncode != 0
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_an_option_without_a_value_takes_that_of_its_variable(ditorch_command, program, monkeypatch, tmp_path):
    program()
    monkeypatch.setenv("OP_AUTOCOMPARE_REFERENCE", "identities")
    run = ditorch_command("run", "--autocompare", "--out", "run", "train.py")
    assert run.returncode == 0, run.stderr
    variables = json.loads((tmp_path / "run" / "manifest.json").read_text())["variables"]
    assert variables["OP_AUTOCOMPARE_REFERENCE"] == "identities"
    monkeypatch.setenv("OP_AUTOCOMPARE_REFERENCE", "gpu")
    run = ditorch_command("run", "--autocompare", "train.py")
    assert run.returncode == 2
    assert "OP_AUTOCOMPARE_REFERENCE=gpu cannot be used with --autocompare: it is one of cpu, device" in run.stderr


def test_every_option_stands_for_variables():
    values = {
        "autocompare": "device",
        "time": True,
        "cast": "torch.add:torch.float16->torch.float32",
        "fallback": "auto",
        "steps": "1:2",
        "out": None,
    }
    assert tool_options.variables(values) == {
        "OP_TOOLS": "autocompare,time,fallback,cast",
        "OP_AUTOCOMPARE_REFERENCE": "device",
        "OP_FALLBACK_AUTO": "1",
        "OP_DTYPE_CAST_DICT": "torch.float16->torch.float32",
        "OP_DTYPE_CAST_LIST": "torch.add",
        "OP_TOOLS_STEPS": "1:2",
    }
    assert tool_options.variables({"time": False}) == {}


def test_what_was_not_compared_has_its_share_of_calls_and_of_time(tmp_path):
    (tmp_path / "processes").mkdir()
    (tmp_path / "manifest.json").write_text(json.dumps({"command": "python train.py"}))
    left_out = {"what": "torch.rand", "calls": 3, "reason": "random", "share": 0.5}
    compared = {"tool": "OpAutoCompare", "calls": 6, "all_calls": 6, "compared_calls": 3, "values": 7,
                "wrong_calls": 0, "rows": []}  # fmt: skip
    timed = [{"op": "torch.rand", "calls": 4, "forward": 2.0, "backward": 0.0, "total": 2.0},
             {"op": "torch.mm", "calls": 2, "forward": 4.0, "backward": 2.0, "total": 6.0}]  # fmt: skip
    tools = [{**compared, "files": [], "not_looked_at": [left_out]},
             {"tool": "OpTimeMeasure", "calls": 6, "files": [], "not_looked_at": [], "rows": timed}]  # fmt: skip
    for rank in range(2):
        record = {"schema": "ditorch.process/1", "rank": rank, "started": 1.0, "ended": 2.0, "host": "a", "pid": rank,
                  "steps": 4, "torch": "2.13.0", "device": {"name": "chip"}, "world_size": 2, "seed": 0,
                  "not_seen": ["a CUDA graph is replayed"], "tools": tools}  # fmt: skip
        (tmp_path / "processes" / f"{rank}.json").write_text(json.dumps(record))
    found = summary.of(tmp_path, 0)
    random, graph = found["not_looked_at"]
    assert (random["share"], random["time_share"]) == (0.5, 0.1875)  # three of four calls, which took a quarter
    assert graph["share"] is None
    [line] = [line for line in screen.text(found, 100).splitlines() if "random" in line]
    assert line.split() == ["torch.rand", "6", "50", "%", "18.7", "%", "random", "OpAutoCompare"]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_screen_fits_the_terminal_and_keeps_commands_whole(tmp_path, width):
    (tmp_path / "processes").mkdir()
    (tmp_path / "manifest.json").write_text(json.dumps({"command": "python train.py"}))
    row = {
        "op": "torch.nn.functional.scaled_dot_product_attention",
        "what": "output",
        "where": "/home/someone/project/models/attention.py:120 forward: return f(q, k, v)",
        "module": "model.layers.0.attention",
        "forward_id": 12,
        "step": 3,
        "reason": "off by a factor of 1.1 as a whole; 3.8e-06 more or less is usual",
        "severity": "inf",
        "calls": 1234567,
        "capture": "/home/someone/project/run/op_capture_results/torch.nn.functional.scaled_dot_product_attention/1/2",
    }
    tools = [{"tool": "OpAutoCompare", "calls": 5, "values": 7, "wrong_calls": 2, "rows": [row] * 30, "files": [],
              "not_looked_at": [{"what": "torch.rand", "calls": 3, "reason": "random"}]},
             {"tool": "OpCapture", "calls": 9, "rows": [], "not_looked_at": [],
              "files": [f"{tmp_path}/op_capture_results/op_capture_statistics_pid1_x.pack"]}]  # fmt: skip
    record = {"schema": "ditorch.process/1", "rank": 0, "started": 1.0, "ended": 2.0, "host": "a", "pid": 1, "steps": 4,
              "torch": "2.13.0", "device": {"name": "[bold]chip"}, "world_size": 1, "seed": 0,
              "not_seen": ["a CUDA graph is replayed"], "tools": tools}  # fmt: skip
    (tmp_path / "processes" / "a.json").write_text(json.dumps(record))
    (tmp_path / "processes" / "b.json").write_text("{half")
    found = summary.of(tmp_path, 0)
    assert "processes/b.json" in [row["what"] for row in found["not_looked_at"]]
    lines = screen.text(found, width).splitlines()
    assert len(lines) < 40
    first = next(number for number, line in enumerate(lines) if line.startswith("1. torch.nn.functional.scaled_dot"))
    assert lines[first + 1].startswith("   ")  # what belongs to an entry is indented
    commands = [f"  {command}" for command in found["next"]]
    assert set(commands) <= set(lines)
    captured = f"{tmp_path}/op_capture_results/op_capture_statistics_pid1_x.pack"
    paths = [f"  {tmp_path}", f"OpCapture: 9 calls saved: {captured}"]
    assert set(paths) <= set(lines)  # neither a command nor a path is broken: both are to be copied
    assert max(len(line) for line in lines if line not in (*commands, *paths)) <= width
    assert "[bold]chip" in "\n".join(lines)  # what others wrote is text
