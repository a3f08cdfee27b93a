"""`ditorch monitor`: memory and utilisation of a process that knows nothing of it."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ditorch_shared
from ditorch_shared import nvidia_smi, processes

BUSY = """
import subprocess, sys, time
held = bytearray(60_000_000)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"])
until = time.process_time() + 0.4
while time.process_time() < until: pass
child.wait()
sys.exit(7)
"""


@pytest.fixture
def watch(tmp_path):
    """Runs the command, which needs no torch, without the packages that have it."""

    def run(*arguments):
        folder = os.path.dirname(os.path.dirname(ditorch_shared.__file__))
        code = f"import sys; sys.modules['torch'] = None; sys.path.insert(0, {folder!r})\n"
        code += "from ditorch_cli import main; main()"
        command = [sys.executable, "-c", code, "monitor", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)

    return run


def test_a_command_is_watched_with_what_it_starts(watch, tmp_path):
    done = watch("--interval", "0.05", "--json", sys.executable, "-c", BUSY)
    assert done.returncode == 7  # the command's own
    found = json.loads(done.stdout)
    assert found["schema"] == "ditorch.monitor/1"
    first, *others = found["processes"]
    assert first["host_memory_peak"] > 60_000_000
    assert first["cpu_seconds"] >= 0.3
    assert first["samples"] > 3
    assert [other["pid"] != first["pid"] for other in others] == [True]
    path = tmp_path / found["file"]
    assert path.parent.relative_to(tmp_path).as_posix() == "op_tools_results/process_monitor_result"
    assert path.name.startswith(f"process_monitor_result_pid{first['pid']}_")
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(process["samples"] for process in found["processes"])
    # the three that scripts in the field read
    assert list(rows[0])[:3] == ["runningtime(Seconds)", "time_str", "time(Seconds)"]
    assert json.loads(path.with_suffix(".json").read_text()) == found


# Ends when it has been sampled, however long the command takes to start.
SAMPLED = """
import pathlib, time
while not any(path.read_text().count("\\n") > 2 for path in pathlib.Path().rglob("*.csv")): time.sleep(0.01)
"""


def test_a_process_is_watched_until_it_ends(watch, tmp_path):
    environment = {**os.environ, "RANK": "3"}
    with subprocess.Popen([sys.executable, "-c", SAMPLED], env=environment, cwd=tmp_path) as child:
        done = watch("--pid", str(child.pid), "--interval", "0.1")
    assert done.returncode == 0
    assert re.search(rf"^ +3 +{child.pid} +python", done.stderr, re.MULTILINE)  # the rank, the process, its name
    assert ".csv saved" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give either --pid PID or a command to start."),
        (("--pid", "1", "true"), "give either --pid PID or a command to start."),
        (("--pid", "4194304"), "there is no process 4194304."),
        (("no-such-program",), "no-such-program cannot be started: No such file or directory."),
        (("--out", "/proc/nothing", "true"), "cannot be written (No such file or directory): give another folder"),
    ],
)
def test_misuse_is_one_message(watch, arguments, said):
    done = watch(*arguments)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_device_memory_is_what_nvidias_command_says(tmp_path, monkeypatch):
    script = tmp_path / "nvidia-smi"
    processes_told = "echo '12, 300'; echo '12, 200'; echo '13, [N/A]'"
    gpus_told = "echo '40, 900, 61'; echo '[N/A], 1, 70'"
    script.write_text(f"#!/bin/sh\ncase $1 in *compute-apps*) {processes_told};; *) {gpus_told};; esac\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (usage,) = nvidia_smi.by_process().values()
    assert usage == (500 * 2**20, None, 901 * 2**20, 40.0, 70.0)


def test_a_process_that_has_ended_uses_nothing():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        while processes.usage(child.pid) is not None:  # None as soon as it has ended, before anybody waits for it
            pass
    assert processes.usage(child.pid) is None
    assert processes.usage(os.getpid()).pid == os.getpid()


def test_a_process_that_has_given_back_its_memory_has_ended(tmp_path, monkeypatch):
    """While it exits, Linux lists it as running, without memory and environment: its rank would be 0, its peak, too."""
    told = tmp_path / "7"
    told.mkdir()
    for name in ("status", "stat", "environ"):
        (told / name).write_bytes(Path("/proc/self", name).read_bytes())
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    (tmp_path / "stat").write_bytes(Path("/proc/stat").read_bytes())
    assert processes.usage(7) is not None
    lines = (told / "status").read_text().splitlines()
    (told / "status").write_text("\n".join(line for line in lines if not line.startswith("Vm")))
    (told / "environ").write_bytes(b"")
    assert processes.usage(7) is None
