"""What the tools say reaches the reader, whatever the terminal can show."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from op_tools.output import messages


@pytest.fixture
def written(monkeypatch):
    """What standard output and error were given; their encoding is chosen by the test."""

    def streams(encoding):
        made = [io.TextIOWrapper(io.BytesIO(), encoding, newline="\n") for _ in range(2)]
        monkeypatch.setattr(sys, "stdout", made[0])
        monkeypatch.setattr(sys, "stderr", made[1])

        def read():
            for stream in made:
                stream.flush()
            return [stream.buffer.getvalue() for stream in made]

        return read

    return streams


def test_characters_that_the_terminal_lacks_do_not_cost_a_summary(written):
    read = written("ascii")
    messages.say("模型.py:3 loss → 1.5")
    messages.complain("cannot read 权重")
    assert read() == [rb"\u6a21\u578b.py:3 loss \u2192 1.5" + b"\n", rb"op_tools: cannot read \u6743\u91cd" + b"\n"]


def test_bytes_of_a_path_that_are_no_characters(written):
    read = written("utf-8")
    messages.say("/data/\udcff.py:3")
    assert read()[0] == rb"/data/\udcff.py:3" + b"\n"


PROGRAM = """
import torch
from ditorch import sim
sim.start()
import op_tools
def 除(x): return x / 0
x = torch.ones(3, device="sim", requires_grad=True)
with op_tools.OpTimeMeasure(), op_tools.OpCapture(), op_tools.OpAutoCompare(), op_tools.OpOverflowCheck():
    除(x).sum().backward()
with op_tools.OpCapture(mode="statistics"):
    除(x)
"""


def test_a_program_whose_path_the_terminal_cannot_show(tmp_path):
    """Neither the name of its function, nor a byte of its file's name that is no character at all."""
    path = os.fsencode(tmp_path / "模型") + b"\xff.py"
    with open(path, "w", encoding="utf-8") as file:
        file.write(PROGRAM)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run([sys.executable, path], capture_output=True, env=environment, cwd=tmp_path, timeout=600)
    said = done.stdout.decode("ascii")
    assert done.returncode == 0, done.stderr
    assert "OpAutoCompare: nothing wrong in 4 calls" in said
    assert "OpCapture: 8 files of 2 calls" in said
    assert r"\u6a21\u578b\udcff.py:6 \u9664" in said  # where Inf was made
    assert "op elasped info saved to" in said
    assert "OpCapture: statistics of 2 tensors in 1 calls" in said
    assert done.stderr == b""
    (table,) = tmp_path.rglob("op_elasped_info_*.csv")
    assert "模型\\udcff.py:6 除" in table.read_text(encoding="utf-8")
