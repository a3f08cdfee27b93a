"""One call takes one way through few files: F.linear, forward and backward, under each tool, counted and not timed.

Of the functions of op_tools that the call passes, in their order: how many modules they are in, how often the way hops
to another module, and how often that is one where it has been before. A newcomer who follows it opens so many files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import op_tools
from op_tools import native

SOURCE = str(Path(op_tools.__file__).parent)
LINEAR = "torch.nn.functional.linear"

TOOLS = {
    "compare": lambda **common: op_tools.OpAutoCompare(**common),
    "compare_device": lambda **common: op_tools.OpAutoCompare(reference="device", **common),
    "capture": lambda **common: op_tools.OpCapture(**common),
    "statistics": lambda **common: op_tools.OpCapture(mode="statistics", **common),
    "time": lambda **common: op_tools.OpTimeMeasure(**common),
    "observe": lambda **common: op_tools.OpObserve(**common),
    "overflow": lambda **common: op_tools.OpOverflowCheck(**common),
}
# modules, hops, revisits: forward and backward. A limit is raised for a good reason only, never by habit
LIMITS = {
    # with `import ditorch`, a few more; that no node of ours comes into the program's graph takes core/modes.py, and
    # reference/roots.py where the reference has a graph
    "compare": ((22, 74, 44), (22, 80, 50)),
    "compare_device": ((17, 60, 44), (26, 120, 95)),  # whatever waits is decided when the backward pass ends
    "capture": ((20, 73, 54), (17, 47, 31)),
    "statistics": ((12, 30, 19), (14, 17, 4)),
    "time": ((1, 0, 0), (3, 3, 1)),
    "observe": ((8, 17, 10), (9, 10, 2)),
    "overflow": ((11, 35, 25), (12, 29, 18)),
}


class Walk:
    """The modules of op_tools that are passed while it watches, one for each call of a function."""

    def __init__(self) -> None:
        self.passed: list[str] = []

    def watch(self) -> None:
        """From now on, in this thread."""
        sys.setprofile(self._note)

    def _note(self, frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            self.passed.append(frame.f_code.co_filename)

    def counts(self) -> tuple[int, int, int]:
        been, revisits, hops = set(self.passed[:1]), 0, 0
        for one, following in zip(self.passed, self.passed[1:]):
            if one != following:
                hops += 1
                revisits += following in been
                been.add(following)
        return len(set(self.passed)), hops, revisits


def walks(device: str) -> tuple[Walk, Walk]:
    """Of a call's third time, when nothing is new."""
    x = torch.randn(4, 8, device=device, requires_grad=True)
    weight = torch.randn(3, 8, device=device, requires_grad=True)
    gradient = torch.ones(4, 3, device=device)
    forward, backward = Walk(), Walk()
    for time in range(3):
        is_last = time == 2
        if is_last:
            forward.watch()
        y = functional.linear(x, weight)
        sys.setprofile(None)
        if is_last:
            y.register_hook(lambda _: backward.watch())  # in the thread in which backward runs
            backward.watch()
        y.backward(gradient)
        sys.setprofile(None)
    return forward, backward


@pytest.mark.parametrize("tool", TOOLS)
def test_a_call_takes_a_short_way(tool, device, tmp_path, capsys):
    if native.library() is None or torch.device(device).type != "sim":
        pytest.skip("the limits are for the simulated accelerator, with the C++ helper")
    before = sys.getprofile()
    try:
        with TOOLS[tool](ops=[LINEAR], out=str(tmp_path), verbose=1):
            forward, backward = walks(device)
    finally:
        sys.setprofile(before)
        end = torch.ones(1, device=device, requires_grad=True) * 2
        end.register_hook(lambda _: sys.setprofile(None))
        end.backward()
    for name, walk, limits in zip(("forward", "backward"), (forward, backward), LIMITS[tool]):
        counts = walk.counts()
        assert walk.passed, f"{tool} {name}: nothing was seen"
        assert all(map(int.__le__, counts, limits)), f"{tool} {name}: {counts} (modules, hops, revisits) over {limits}"
