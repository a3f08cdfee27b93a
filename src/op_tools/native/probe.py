"""Tries out the C++ helper in a process of its own, before it is put into the cache: python -m … LIBRARY."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from op_tools.native import load


class _ProbeListener:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def begins(self) -> None:
        self.heard.append("begins")

    def ends(self) -> None:
        self.heard.append("ends")

    def received(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        self.heard.append((inputs[0].tolist(), outputs[0].tolist()))


def main(library: str) -> None:
    native = load(Path(library))
    x = torch.ones(2, requires_grad=True)
    timer, listener = native.Timer(None, 0, None, None, None, 0, 1), _ProbeListener()
    edges = native.edges_of_inputs((x, 3.0), {})
    span = timer.begin(7, 0, "torch.Tensor.mul", "module", "line", (x, 3.0), {})
    result = x * 3.0
    assert span.finish(result, True)
    assert edges.watch(result, listener, True, (span,))
    result.sum().backward()
    assert listener.heard == ["begins", "ends", ([3.0, 3.0], [1.0, 1.0])], listener.heard
    timer.read(True, 1000)
    rows, count, *_ = timer.fetch()
    assert (rows.split(b",")[:2], count) == ([b"torch.Tensor.mul", b"7"], 1), rows
    assert native.describe_call((x, 3.0), {}).endswith('"dtype": "float32"}, 3.0], "kwargs": {}}')
    assert native.edges_of_inputs((1, [torch.ones(1)]), {}) is None
    lines = torch.zeros(2, 27, dtype=torch.int64)
    native.digest([torch.arange(1000.0), torch.arange(7)], lines, 0)
    assert lines[:, 4:6].view(torch.float64).tolist() == [[0.0, 999.0], [0.0, 6.0]], lines
    rows = torch.zeros(1, 6, dtype=torch.int64)
    native.moments([torch.tensor([3.0, -4.0, 0.0])], rows)
    assert rows[:, 3:5].tolist() == [[2, 0]], rows


if __name__ == "__main__":
    main(sys.argv[1])
