"""Runs to report on: a real one with a broken kernel, and one with as many calls as wanted, written as the tools do."""

from __future__ import annotations

import csv
import io
import json
import random

import torch
from torch import nn

import op_tools
from ditorch.sim import faults
from op_tools.autocompare.report import CSV
from op_tools.timing.ledger import COLUMNS


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.relu(self.up(self.norm(x)))


def train(device, steps):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(Block(), Block(), Block()), nn.Linear(8, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        nn.functional.cross_entropy(model(torch.randn(4, 8).to(device)), torch.randint(3, (4,)).to(device)).backward()
        optimizer.step()
        optimizer.zero_grad()


def broken(folder):
    """What the tools leave of a few steps in which the backward of layer_norm is wrong."""
    tools = (op_tools.OpAutoCompare, op_tools.OpTimeMeasure, op_tools.OpOverflowCheck)
    compare, timing, overflow = (tool(verbose=0, out=folder) for tool in tools)
    with faults.inject("aten.native_layer_norm_backward: tail=0.5", "sim"), compare, timing, overflow:
        train("sim", 2)
    return folder


def with_nan(folder):
    """The third block's weight is infinite: its product makes NaN, which reaches all that follows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(Block(), Block(), Block()), nn.Linear(8, 3)).to("sim")
    with op_tools.OpOverflowCheck(verbose=0, out=folder), op_tools.OpTimeMeasure(verbose=0, out=folder):
        x = model[0][0](torch.randn(4, 8).to("sim"))
        x = torch.log(x * 0 - 1)
        model[1](model[0][2](model[0][1](x))).sum().backward()
    return folder


def large(
    folder, calls, op="torch.nn.functional.linear", module="blocks.{layer}.mlp", where="/x/train.py:7 f: y = f(x)"
):
    """As many calls as wanted, each with three compared values, in the columns of the tools; the last one is wrong."""
    numbers = random.Random(0)  # noqa: S311 - no secrets
    signature = json.dumps({"args": [{"shape": [8, 64], "stride": [64, 1], "dtype": "float32"}], "kwargs": {}})
    times = {"unit": "ms", "input": signature, "output": signature, "where": where, "host": "h", "rank": "0"}
    timed, compared = Csv((*COLUMNS, "host", "rank"), times), Csv((*CSV, "host", "rank"), {"where": where, "host": "h"})
    events = []
    for number in range(1, calls + 1):
        name, path = op if number % 3 else "torch.Tensor.add", module.format(layer=number % 48)
        place = {"forward_id": number, "step": number // 1000, "module": path}
        forward, backward = numbers.expovariate(10), numbers.expovariate(10)
        timed.add(name=name, forward_elasped=f"{forward:.8f}", backward_elasped=f"{backward:.8f}", **place)
        for what in ("input[0]", "output", "grad[0]"):
            judged = ("wrong", "123", "off by a factor of 1.1") if number == calls and what == "output" else ("right",)
            judged = dict(zip(("verdict", "severity", "reason"), (*judged, f"{numbers.random():.4g}")))
            differences = (f"{numbers.random() / 1e6:.9f}", f"{numbers.random() / 1e5:.9f}")
            measures = dict(zip(("max_abs_diff", "max_relative_diff"), differences))
            compared.add(name=f"{name} {what}", **place, **measures, **judged)
        about = json.dumps({"forward_id": number, "module": path})
        start = f'"ph": "X", "pid": 9, "tid": 1, "ts": {1000 * number}, "dur": 400'
        events.append(f'{{"name": {json.dumps(name)}, "cat": "forward", {start}, "args": {about}}}')
    for part, file, text in (
        ("op_time_measure_result", "op_elasped_info_pid9_x.csv", timed.text.getvalue()),
        ("op_autocompare_result", "op_autocompare_info_pid9_x.csv", compared.text.getvalue()),
        ("op_time_measure_result", "op_elasped_info_pid9_x.json", "[\n" + ",\n".join(events) + "\n]\n"),
    ):
        (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / part / file).write_text(text, newline="")
    return folder


class Csv:
    """A table in which most cells are alike."""

    def __init__(self, columns, usual):
        self.text = io.StringIO()
        self._writer = csv.writer(self.text)
        self._writer.writerow(columns)
        self._columns, self._usual = columns, [usual.get(column, "") for column in columns]

    def add(self, **cells):
        row = list(self._usual)
        for name, value in cells.items():
            row[self._columns.index(name)] = value
        self._writer.writerow(row)
