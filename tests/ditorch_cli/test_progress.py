"""The last line of a terminal during `ditorch run`, and the file with all that was printed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import termios

import pytest

from ditorch_cli import progress, summary
from ditorch_cli.progress import ProgressLine
from ditorch_shared import messages

OURS = re.compile(rb"\x1b7.*?\x1b8", re.DOTALL)  # between saving and restoring the cursor


@pytest.fixture
def terminal():
    """A terminal's two sides: what a person sees, and the stream that we print to."""
    person, ours = os.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    with open(ours, "w") as stream:
        yield person, stream
    os.close(person)


def seen_by(person):
    """All that is on the terminal by now."""
    os.set_blocking(person, False)
    parts = []
    with contextlib.suppress(BlockingIOError):
        while True:
            parts.append(os.read(person, 65536))
    return b"".join(parts)


def record(rank=0, steps=7, **tool):
    return {"rank": rank, "started": 0, "steps": steps, "tools": [{"tool": "OpAutoCompare", "calls": 600, **tool}]}


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], "ditorch: no step has ended yet, 1:01:01"),
        ([record()], "ditorch: step 7, 600 calls, nothing found, 1:01:01"),
        (
            [record(wrong_calls=1), record(1, 8, wrong_calls=1)],
            "ditorch: step 8, 1,200 calls, 2 findings, 2 ranks, 1:01:01",
        ),
    ],
)
def test_the_line_has_step_calls_and_findings(records, expected):
    assert progress.text(records, 3661.0)[0] == expected


def test_what_the_program_prints_stays_its_own(terminal, tmp_path, monkeypatch):
    person, stream = terminal
    monkeypatch.setattr(progress, "SECONDS_BETWEEN", 0.001)
    monkeypatch.setattr(summary, "records", lambda folder, most: [record(wrong_calls=3)])
    line = ProgressLine(tmp_path, stream)
    line.begin()
    printed = [b"loss %d\n" % step for step in range(20)]
    for text in printed:
        os.write(stream.fileno(), text)
    line.end()
    seen = seen_by(person)
    drawn = OURS.findall(seen)
    assert b"\x1b[24;1H\x1b[31mditorch: step 7, 600 calls, 3 findings, 0:00:00\x1b[0m\x1b[K" in drawn[1]
    assert all(b"\x1b[1;23r" in sequence for sequence in drawn[:-1])  # the rest scrolls
    assert drawn[-1] == b"\x1b7\x1b[r\x1b[24;1H\x1b[K\x1b8"  # everything as it was
    assert OURS.sub(b"", seen) == b"\r\n\x1b[1A" + b"".join(printed).replace(b"\n", b"\r\n")


def test_a_long_line_is_cut_at_the_terminals_width(terminal, tmp_path, monkeypatch):
    person, stream = terminal
    monkeypatch.setattr(summary, "records", lambda folder, most: [record(rank, 10**20) for rank in range(9)])
    line = ProgressLine(tmp_path, stream)
    line.begin()
    line.end()
    [words] = re.findall(rb"ditorch: step [^\x1b]*", seen_by(person))
    assert len(words) == 59


def test_where_there_is_no_terminal_there_is_no_line(terminal, tmp_path, monkeypatch):
    _, stream = terminal
    monkeypatch.setenv("TERM", "xterm")
    assert progress.is_wanted(stream)
    assert not progress.is_wanted(None)
    with open(tmp_path / "log", "w") as log:
        assert not progress.is_wanted(log)
    monkeypatch.setenv("DITORCH_PROGRESS", "0")
    assert not progress.is_wanted(stream)
    monkeypatch.setenv("DITORCH_PROGRESS", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert not progress.is_wanted(stream)


def test_what_is_printed_is_kept_with_time_and_rank(tmp_path, monkeypatch, capsys):
    from op_tools.output import messages as tools

    path = tmp_path / "messages.txt"
    monkeypatch.setenv("DITORCH_MESSAGES", str(path))
    tools.say("one table\nof two lines")
    monkeypatch.setenv("RANK", "3")
    tools.complain("a disk is full")
    monkeypatch.setenv("DITORCH_MESSAGES", str(tmp_path))  # a folder cannot be written: that is no error
    messages.keep("lost")
    assert re.fullmatch(
        r"\[\d\d:\d\d:\d\d\] one table\nof two lines\n\[\d\d:\d\d:\d\d rank 3\] op_tools: a disk is full\n",
        path.read_text(),
    )
    assert capsys.readouterr().out == "one table\nof two lines\n"
