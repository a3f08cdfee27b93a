"""What the tools cost, counted and not timed: kernels, waits, allocations, bytes, files, calls of Python functions.

A small GPT is trained under each tool and mode, and what the tool adds to the plain step is compared with counts.json,
which holds figures without the C++ helper ("python") and with it ("native"). More than 15 % above is a failure. Python
calls may double: extracting a function is free. Where a tool has become cheaper, or dearer for a good reason, write the
figures anew (on the simulated accelerator) and read the difference:

    DITORCH_WRITE_COUNTS=1 python -m pytest tests/op_tools/test_counts.py -n0

Python 3.9 to 3.11 count most, because a list comprehension is a call there: the figures are theirs.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections import Counter
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch

import op_tools
from ditorch.demo import GPT, batches
from op_tools import native
from op_tools.capture import statistics
from op_tools.core.tool import Tool
from op_tools.watch import TrainingWatch

FILE = Path(__file__).with_name("counts.json")
WRITES = os.environ.get("DITORCH_WRITE_COUNTS") == "1"
SLACK = {"python calls": 2.0}
USUAL_SLACK = 1.15
WARM_UP = 2
STEPS = 2

TOOLS = {
    "OpTimeMeasure": lambda: op_tools.OpTimeMeasure(),
    "OpTimeMeasure, one op": lambda: op_tools.OpTimeMeasure(ops="torch.nn.functional.gelu"),
    "OpObserve": lambda: op_tools.OpObserve(),
    "OpOverflowCheck": lambda: op_tools.OpOverflowCheck(),
    "OpDtypeCast": lambda: op_tools.OpDtypeCast(),
    "OpDtypeCast, every op": lambda: op_tools.OpDtypeCast(casts="torch.float32->torch.float64"),
    "OpFallback": lambda: op_tools.OpFallback(),
    "OpCapture": lambda: op_tools.OpCapture(),
    "OpCapture, statistics": lambda: op_tools.OpCapture(mode="statistics"),
    "OpAutoCompare": lambda: op_tools.OpAutoCompare(),
    "OpAutoCompare, device": lambda: op_tools.OpAutoCompare(reference="device"),
    "OpAutoCompare, once": lambda: op_tools.OpAutoCompare(once=True),
    "TrainingWatch": lambda: TrainingWatch(),
    "TrainingWatch, every step": lambda: TrainingWatch(every=1),
}
# what is counted for each op call, and what for each step; and which of it is the same on every device
PER_CALL = ("python calls", "kernels", "waits", "copies", "device allocations")
PER_STEP = ("bytes written", "files written", "bytes printed")
ON_EVERY_DEVICE = ("python calls", "waits", *PER_STEP)


@pytest.fixture(autouse=True)
def _where_the_counts_are_from(device):
    if device != "sim":
        pytest.skip("the table holds the counts of the simulated accelerator")


def training_step(device):
    model = GPT(vocabulary=16, width=16, heads=2, layers=1, length=4).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    tokens, targets = (x.to(device) % 16 for x in next(batches(1, 4)))

    def step():
        optimizer.zero_grad()
        model.loss(tokens, targets).backward()
        optimizer.step()

    return step


class Counting(Tool):
    """How many op calls there are."""

    hook = "CountingHook"
    prefix = "OP_COUNTING"
    calls = 0

    def after(self, call, state):
        self.calls += 1


@contextmanager
def python_calls(counts):
    """Counts calls of Python functions in this thread; and waits for the device, a stream or an event."""

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            counts["python calls"] += 1
            counts["waits"] += frame.f_code.co_name == "synchronize"
        elif event == "c_call":
            counts["waits"] += argument.__name__ == "synchronize"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextmanager
def kernels(counts):
    """Counts what this thread asks of torch: all ops, waits for a number, and copies."""
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
        torch.profiler.record_function("this thread"),
    ):
        yield
    events = profile.events()
    # the writers of OpCapture have threads of their own, and are in no one's way
    [here] = [event.thread for event in events if event.name == "this thread"]
    for event in events:
        if event.thread == here and event.name.startswith("aten::"):
            counts["kernels"] += 1
            counts["waits"] += event.name == "aten::_local_scalar_dense"  # a number that is read
            counts["copies"] += event.name == "aten::copy_"


def written():
    sizes = [path.stat().st_size for path in Path().rglob("*") if path.is_file()]
    return sum(sizes), len(sizes)


def allocations(device):
    return torch.get_device_module(device).memory_stats()["allocation.all.allocated"]


def count(step, device):
    """Everything that two steps need; each is counted in steps of its own, so that counting is not counted."""
    counts: Counter[str] = Counter()
    for _ in range(WARM_UP):
        step()
    before = allocations(device)
    for _ in range(STEPS):
        step()
    counts["device allocations"] = allocations(device) - before
    for counting in (python_calls(counts), kernels(counts)):
        with counting:
            for _ in range(STEPS):
                step()
    return counts


def added_by(make, device):
    """What a tool adds to the plain step: for each op call, or for each step."""
    step = training_step(device)
    plain = count(step, device)
    with Counting(verbose=0) as counting:
        step()
    printed = io.StringIO()
    steps = WARM_UP + 3 * STEPS
    with redirect_stdout(printed), make():
        with_tool = count(step, device)
    size, files = written()
    added = {name: (with_tool[name] - plain[name]) / STEPS / counting.calls for name in PER_CALL}
    added.update(zip(PER_STEP, (size / steps, files / steps, len(printed.getvalue()) / steps)))
    return {name: round(value, 2) for name, value in added.items()}


@pytest.fixture
def _one_thread():
    """Backward runs in this thread, where it can be counted."""
    with torch.autograd.set_multithreading_enabled(False):
        yield


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("way", ["python", "native"])
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_costs_no_more_than_it_did(device, tool, way, monkeypatch):
    monkeypatch.setenv("OP_TOOLS_NATIVE", str(int(way == "native")))
    if way == "native" and native.library() is None:
        pytest.skip("there is no C++ helper here")
    monkeypatch.setattr(
        statistics, "_MAX_SECONDS_UNWRITTEN", math.inf
    )  # what is written by the clock is another count each time
    now = added_by(TOOLS[tool], device)
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    if WRITES:
        known.setdefault(way, {})[tool] = now
        FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    before = known[way][tool]
    compared = now if device == "sim" else ON_EVERY_DEVICE
    grown = [
        f"{name}: from {before[name]} to {now[name]} for each {'step' if name in PER_STEP else 'op call'}"
        for name in compared
        if now[name] > before[name] * SLACK.get(name, USUAL_SLACK) + 0.05
    ]
    if grown:
        pytest.fail(f"{tool} ({way}) costs more than it did: " + "; ".join(grown), pytrace=False)
