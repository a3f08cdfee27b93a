"""What the tools say reaches the reader, whatever the terminal can show."""

from __future__ import annotations

import io
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
