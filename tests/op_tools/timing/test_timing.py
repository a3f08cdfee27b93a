"""OpTimeMeasure: whose time it is, when the device is asked for it, and what is written."""

from __future__ import annotations

import csv
import gc
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import op_tools
from ditorch.demo import GPT, batches
from ditorch.sim import faults
from op_tools.core import graphs
from op_tools.core.steps import STEPS
from op_tools.device import queues
from op_tools.errors import SettingError
from op_tools.timing import ledger, signature

CONTRACT = [
    "name",
    "forward_id",
    "forward_elasped",
    "backward_elasped",
    "unit",
    "input",
    "output",
    "grad_inputs",
    "grad_outputs",
]


pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def in_python(way):
    if way == "native":
        pytest.skip("looks into the clock that is written in Python")


def tables(folder="op_tools_results"):
    """Every table, the oldest first, as a list of rows."""
    files = sorted(Path(folder, "op_time_measure_result").glob("*.csv"), key=lambda path: (path.stat().st_mtime, path))
    return [list(csv.DictReader(path.read_text(encoding="utf-8").splitlines(keepends=True))) for path in files]


def table():
    (rows,) = tables()
    return rows


def trace():
    (path,) = Path("op_tools_results/op_time_measure_result").glob("*.json")
    return json.loads(path.read_text())


def row_of(rows, name):
    (row,) = [row for row in rows if row["name"] == name]
    return row


class Double(torch.autograd.Function):
    """An op with ops inside."""

    @staticmethod
    def forward(ctx, x):
        return torch.exp(x) + x

    @staticmethod
    def backward(ctx, gradient):
        return torch.exp(gradient)


DOUBLE = f"{__name__}.Double.apply"


class TestTable:
    def test_header_and_row_of_a_call_with_backward(self, device):
        x = torch.ones(4, 3, device=device, requires_grad=True)
        with op_tools.OpTimeMeasure(verbose=0):
            (x * 2).sum().backward()
        (path,) = Path("op_tools_results/op_time_measure_result").glob("*.csv")
        assert re.fullmatch(rf"op_elasped_info_pid{os.getpid()}_\d{{4}}(-\d\d){{5}}(_\d+)?\.csv", path.name)
        assert path.read_text().splitlines()[0].split(",")[: len(CONTRACT)] == CONTRACT
        row = row_of(table(), "torch.Tensor.mul")
        assert re.fullmatch(r"\d+\.\d{8}", row["forward_elasped"])
        assert re.fullmatch(r"\d+\.\d{8}", row["backward_elasped"])
        assert re.fullmatch(r"\d+\.\d{8}", row["forward_host_elasped"])
        assert row["unit"] == "ms"
        given = json.loads(row["input"])
        assert given["args"][0] == {
            "shape": [4, 3],
            "stride": [3, 1],
            "dtype": "float32",
        }
        assert given["args"][1] == 2
        assert json.loads(row["output"])["shape"] == [4, 3]
        (gradient, nothing) = json.loads(row["grad_inputs"])[0], json.loads(row["grad_inputs"])[1:]
        assert gradient["shape"] == [4, 3]
        assert nothing == []
        assert json.loads(row["grad_outputs"])[0]["stride"] == [0, 0]  # the gradient of a sum is expanded
        assert "(x * 2).sum().backward()" in row["where"]

    def test_a_call_without_backward_has_no_backward_time(self, device):
        x = torch.ones(3, device=device)
        with op_tools.OpTimeMeasure(verbose=0):
            x.exp()
        row = row_of(table(), "torch.Tensor.exp")
        assert float(row["forward_elasped"]) >= 0
        assert (row["backward_elasped"], row["grad_inputs"], row["grad_outputs"]) == ("", "", "")

    def test_module_and_step(self, device):
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).to(device)
        with op_tools.OpTimeMeasure(verbose=0):
            step = op_tools.step()
            model(torch.ones(2, 3, device=device))
        row = row_of(table(), "torch.nn.functional.relu")
        assert (row["module"], row["step"]) == ("1", str(step))

    def test_a_second_pass_is_a_row_without_forward(self, device):
        x = torch.ones(3, device=device, requires_grad=True)
        with op_tools.OpTimeMeasure(verbose=0):
            y = x.exp()
            y.backward(torch.ones_like(y), retain_graph=True)
            y.backward(torch.ones_like(y))
        first, second = (row for row in table() if row["name"] == "torch.Tensor.exp")
        assert first["forward_id"] == second["forward_id"]
        assert first["forward_elasped"]
        assert first["backward_elasped"]
        assert not second["forward_elasped"]
        assert second["backward_elasped"]

    def test_calls_at_one_place_have_their_own_words(self, device):
        """Also where the one before was almost the same."""
        x, nan = torch.ones(2, 3, device=device), float("nan")
        given = [(x, 1), (x, 1.0), (x, True), (x.t(), 1), (x, 2**40), (x, 0.5), (x, nan), (x, nan), (x, 1)]
        with op_tools.OpTimeMeasure(verbose=0):
            for args in given:
                torch.mul(*args)
        assert [row["input"] for row in table()] == [signature.of_call(args, {}) for args in given]

    def test_gradients_at_one_place_have_their_own_words(self, device):
        shapes = [(2, 3), (3, 2), (3, 2), (6,), (), (1, 1, 1, 6), (2, 3)]
        with op_tools.OpTimeMeasure(verbose=0):
            for shape in shapes:
                x, y = (torch.ones(shape, device=device, requires_grad=needed) for needed in (True, len(shape) == 2))
                torch.mul(x, y).backward(torch.ones(shape, device=device))
        rows = [row for row in table() if row["name"] == "torch.mul"]
        assert [row["grad_inputs"] for row in rows] == [
            signature.of([torch.ones(shape), torch.ones(shape) if len(shape) == 2 else None]) for shape in shapes
        ]
        assert [row["grad_outputs"] for row in rows] == [signature.of([torch.ones(shape)]) for shape in shapes]

    def test_a_factory_and_an_upload_are_timed(self, device):
        with op_tools.OpTimeMeasure(verbose=0):
            torch.ones(3, device=device).exp()
            torch.ones(3).to(device)
            torch.ones(3)
        assert [row["name"] for row in table()] == ["torch.ones", "torch.Tensor.exp", "torch.Tensor.to"]

    def test_a_failing_call_is_not_counted(self, device):
        x = torch.ones(3, device=device)
        with op_tools.OpTimeMeasure(verbose=0):
            with pytest.raises(RuntimeError):
                x.view(7)
            x.exp()
        assert [row["name"] for row in table()] == ["torch.Tensor.exp"]

    def test_an_optimizers_lists_are_shortened(self, device):
        weights = [torch.ones(3, device=device) for _ in range(50)]
        with op_tools.OpTimeMeasure(verbose=0):
            torch._foreach_mul_(weights, 2.0)
        (listed, factor) = json.loads(table()[0]["input"])["args"]
        assert [type(part) for part in listed] == [dict, dict, str]
        assert listed[-1] == "… 50 in all"
        assert factor == 2.0

    def test_started_again_writes_another_file(self, device):
        tool = op_tools.OpTimeMeasure(verbose=0)
        x = torch.ones(3, device=device)
        for function in (torch.exp, torch.sin):
            tool.start()
            function(x)
            tool.stop()
        assert [[row["name"] for row in rows] for rows in tables()] == [["torch.exp"], ["torch.sin"]]

    def test_a_folder_that_cannot_be_written_ends_no_run(self, device, tmp_path, capsys):
        (tmp_path / "taken").write_text("")
        with op_tools.OpTimeMeasure(out=tmp_path / "taken"):
            torch.ones(3, device=device)
        text = capsys.readouterr()
        assert text.err.count("cannot be written") == 2  # the table and the trace
        assert "saved to" not in text.out

    def test_no_call_no_file(self):
        with op_tools.OpTimeMeasure():
            pass
        assert not Path("op_tools_results").exists()


@pytest.fixture
def calls_in_python(monkeypatch):
    """Names of calls that go through Python."""
    seen = []

    def before(tool, call, original=op_tools.OpTimeMeasure.before):
        seen.append(call.name)
        return original(tool, call)

    monkeypatch.setattr(op_tools.OpTimeMeasure, "before", before)
    return seen


@pytest.fixture
def with_shortcut(way):
    if way == "python":
        pytest.skip("there is none in Python")


UNLIKE = ("forward_id", "forward_elasped", "backward_elasped", "forward_host_elasped", "backward_host_elasped")


def likeness(rows):
    """Rows without what differs from run to run."""
    return sorted(tuple(value for key, value in row.items() if key not in UNLIKE) for row in rows)


@pytest.mark.usefixtures("with_shortcut")
class TestShortcut:
    """A second call of an op that nothing else watches takes no Python of ours."""

    def test_rows_are_those_of_the_way_through_python(self, device, calls_in_python):
        def steps():
            model = GPT(vocabulary=512, width=16, heads=2, layers=2, length=8).to(device)
            optimizer = torch.optim.AdamW(model.parameters())
            with op_tools.OpTimeMeasure(verbose=0):
                for tokens, targets in itertools.islice(batches(2, 8), 3):
                    optimizer.zero_grad()
                    model.loss(tokens.to(device), targets.to(device)).backward()
                    optimizer.step()
                    op_tools.step()

        steps()
        (with_it,) = tables()
        few = len(calls_in_python)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(op_tools.OpTimeMeasure, "shortcut", lambda self, name, report, otherwise: None)
            patch.setattr(STEPS, "current", STEPS.current - 3)
            steps()
        without = tables()[-1]
        assert likeness(with_it) == likeness(without)
        assert [row["backward_elasped"] != "" for row in with_it].count(True) > 20
        assert few < (len(calls_in_python) - few) / 2

    def test_only_the_first_call_goes_through_python(self, device, calls_in_python):
        x = torch.ones(3, device=device)
        with op_tools.OpTimeMeasure(verbose=0):
            for _ in range(5):
                x.exp()
        assert calls_in_python == ["torch.Tensor.exp"]
        assert [row["name"] for row in table()] == ["torch.Tensor.exp"] * 5

    def test_an_error_of_the_op_goes_on_to_the_user(self, device):
        x = torch.ones(3, device=device)
        with op_tools.OpTimeMeasure(verbose=0):
            for _ in range(3):
                x.reshape(3)
                with pytest.raises(RuntimeError, match="invalid for input of size 3"):
                    x.reshape(7)
        assert len(table()) == 3

    def test_an_operator_that_is_not_for_these_operands(self, device):
        class Other:
            def __radd__(self, left):
                return "mine"

        x = torch.ones(3, device=device)
        with op_tools.OpTimeMeasure(verbose=0):
            assert [x + Other() for _ in range(3)] == ["mine"] * 3

    @pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*is deprecated:DeprecationWarning")
    def test_calls_that_are_left_alone_are(self, device):
        x = torch.ones(3, device=device)
        with op_tools.OpTimeMeasure(verbose=0):
            x.exp()
            torch.ones(3).exp()
            torch.ones(3, device="meta").exp()
            torch.func.vmap(torch.Tensor.exp)(x)
            torch.func.grad(lambda x: x.exp()[0])(x)
            torch.jit.trace(lambda x: x.exp(), (x,), check_trace=False)
        assert len(table()) == 1

    @pytest.mark.parametrize(("capturing", "expected"), [(True, 2), (False, 3)])
    def test_a_stream_on_which_a_graph_is_captured(self, device, monkeypatch, capturing, expected):
        """The driver is asked on streams that are not the default one."""
        monkeypatch.setattr(graphs, "HAS_CUDA", True)
        monkeypatch.setattr(graphs, "_cuda_device", lambda: 0)
        monkeypatch.setattr(graphs, "_cuda_stream", lambda index: 7)
        answers = [False]
        monkeypatch.setattr(graphs, "_cuda_is_capturing", lambda: answers[-1])
        x = torch.ones(3, device=device)
        module = getattr(torch, device)
        with op_tools.OpTimeMeasure(verbose=0):
            x.exp()  # the usual way, which finds the shortcut
            answers.append(capturing)
            x.exp()
            with module.stream(module.Stream()):
                x.exp()
        assert len(table()) == expected

    def test_a_dispatch_mode_sees_the_op_and_nothing_of_ours(self, device):
        class Seen(TorchDispatchMode):
            names: ClassVar[list[str]] = []

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                self.names.append(str(func))
                return func(*args, **(kwargs or {}))

        x = torch.ones(3, device=device)
        with op_tools.OpTimeMeasure(verbose=0):
            x.exp()
            with Seen():
                x.exp()
        assert Seen.names == ["aten.exp.default"]
        assert len(table()) == 2

    def test_another_tool_beside_it_sees_every_call(self, device):
        x = torch.ones(3, device=device)
        with op_tools.OpTimeMeasure(verbose=0), op_tools.OpCapture(verbose=0, mode="statistics"):
            x.exp()
            x.exp()
        with op_tools.OpTimeMeasure(verbose=0):
            x.exp()
            with op_tools.OpFallback(verbose=0):
                x.exp()
        assert [len(rows) for rows in tables()] == [2, 2]

    def test_a_failure_of_ours_is_said_and_ends_nothing(self, device, monkeypatch, capsys):
        class Strange(int):
            pass

        def fails(*arguments):
            raise ValueError("cannot describe it")

        x = torch.ones(3, 2, device=device)
        monkeypatch.setattr(signature, "of_call", fails)
        with op_tools.OpTimeMeasure():
            x.sum(0)
            result = x.sum(Strange(1))
        assert torch.equal(result.cpu(), torch.full((3,), 2.0))
        assert "OpTimeMeasure could not deal with torch.Tensor.sum" in capsys.readouterr().err
        assert len(table()) == 1

    def test_nothing_is_left_of_a_tool_that_has_stopped(self, device):
        x = torch.ones(3, device=device, requires_grad=True)
        with op_tools.OpTimeMeasure(verbose=0) as tool:
            for _ in range(3):
                x.exp().sum().backward()
        known = weakref.ref(tool)
        del tool
        gc.collect()
        assert known() is None


@pytest.fixture
def ticking(device, monkeypatch, in_python):
    """A clock that goes on by 1 ms each time it is asked."""
    ticks = itertools.count(1)

    class Event:
        def record(self):
            self.tick = next(ticks)

        def query(self):
            return True

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return float(other.tick - self.tick)

    made = queues.DeviceQueue(torch.device(device, 0), Event, lambda index: None)
    monkeypatch.setattr(queues, "_queues", {torch.device(device, 0): made})


class TestWhoseTime:
    def test_backward_is_that_of_the_ops_whole_subgraph(self, device):
        """linear on three dimensions: its last autograd node is a view, the matrix products are in others."""
        weight = torch.ones(4, 4, device=device, requires_grad=True)
        x = torch.ones(2, 3, 4, device=device, requires_grad=True)
        with op_tools.OpTimeMeasure(verbose=0):
            total = functional.linear(x, weight).sum()
            with faults.inject("aten.mm: slow=20ms", device):
                total.backward()
        assert float(row_of(table(), "torch.nn.functional.linear")["backward_elasped"]) > 36  # two products

    def test_time_of_a_kernel_is_the_devices_own(self, device):
        x = torch.ones(3, device=device)
        with op_tools.OpTimeMeasure(verbose=0), faults.inject("aten.exp: slow=20ms", device):
            x.exp()
        assert float(row_of(table(), "torch.Tensor.exp")["forward_elasped"]) > 18

    def test_ops_inside_an_op_are_counted_once(self, device, capsys, ticking):
        """By a clock that goes on by 1 ms each time it is asked."""
        x = torch.ones(3, device=device, requires_grad=True)
        with op_tools.OpTimeMeasure():
            Double.apply(x).sum().backward()
        # forward: Double 1 to 6, with exp 2 to 3 and add 4 to 5 inside; backward: exp inside again
        row = row_of(table(), DOUBLE)
        assert (float(row["forward_elasped"]), float(row["backward_elasped"])) == (5, 3)
        summary = {name: cells for name, *cells in summary_of(capsys.readouterr().out)}
        assert summary[DOUBLE] == ["1", "3.000", "2.000", "5.000", "5.000", "50.0%", "ms", "8.000"]
        assert summary["torch.exp"] == ["2", "2.000", "0.000", "2.000", "1.000", "20.0%", "ms", ""]
        assert summary["torch.Tensor.add"][:4] == ["1", "1.000", "0.000", "1.000"]
        assert summary["torch.Tensor.sum"][:4] == ["1", "1.000", "1.000", "2.000"]

    def test_ops_inside_an_op_have_their_own_time(self, device, capsys):
        x = torch.ones(3, device=device, requires_grad=True)
        with op_tools.OpTimeMeasure(), faults.inject("aten.exp: slow=50ms", device):
            Double.apply(x).sum().backward()
        summary = {name: cells for name, *cells in summary_of(capsys.readouterr().out)}
        calls, _, _, own, *_, with_inner = summary[DOUBLE]
        assert calls == "1"
        assert float(own) < 45 < 75 < float(with_inner)  # exp in forward and in backward
        assert float(summary["torch.exp"][3]) > 90

    def test_nodes_of_one_op_that_follow_each_other_are_one_stretch(self, device, ticking):
        weight = torch.ones(4, 4, device=device, requires_grad=True)
        x = torch.ones(2, 3, 4, device=device, requires_grad=True)
        with op_tools.OpTimeMeasure(verbose=0):
            functional.linear(x, weight).sum().backward()
        spans = [event["cat"] for event in trace() if event["ph"] == "X" and event["name"].endswith("linear")]
        assert spans.count("backward") == 2  # host and device

    def test_an_op_with_nodes_that_are_not_needed_has_its_time(self, device):
        x = torch.randn(2, 3, 4, device=device, requires_grad=True)
        weight = torch.randn(5, 4, device=device, requires_grad=True)
        with op_tools.OpTimeMeasure(verbose=0):
            for wanted in (x, weight, (x, weight)):
                torch.autograd.grad(functional.linear(x, weight).exp().sum(), wanted)
        for name in ("torch.nn.functional.linear", "torch.Tensor.exp"):
            times = [float(row["backward_elasped"]) for row in table() if row["name"] == name]
            assert len(times) == 3
            assert min(times) > 0

    def test_checkpointed_layer(self, device):
        """Ops that are run again inside a node of backward, some of which stop in the middle."""
        layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).to(device)
        x = torch.ones(2, 4, device=device, requires_grad=True)
        tool = op_tools.OpTimeMeasure(verbose=0)
        with tool:
            for reentrant in (True, False):
                for _ in range(3):
                    torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
        tanh = [row for row in table() if row["name"] == "torch.Tensor.tanh" or row["name"] == "torch.tanh"]
        assert len(tanh) == 12
        assert sum(bool(row["backward_elasped"]) for row in tanh) == 6

    def test_two_threads_keep_their_calls_apart(self, device, tmp_path):
        x = torch.ones(3, device=device, requires_grad=True)

        def work(function, out):
            with op_tools.OpTimeMeasure(verbose=0, out=out):
                for _ in range(50):
                    function(x).sum().backward()

        threads = [
            threading.Thread(target=work, args=(getattr(torch, name), tmp_path / name)) for name in ("exp", "sin")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in ("exp", "sin"):
            (rows,) = tables(tmp_path / name)
            assert {row["name"] for row in rows} == {f"torch.{name}", "torch.Tensor.sum"}
            assert len(rows) == 100
            assert all(row["backward_elasped"] for row in rows)

    def test_two_streams_have_times_of_their_own(self, device):
        module = torch.get_device_module(device)
        streams = [module.Stream(), module.Stream()]
        x = torch.ones(3, device=device)
        module.synchronize()
        with op_tools.OpTimeMeasure(verbose=0):
            with module.stream(streams[0]), faults.inject("aten.exp: slow=50ms", device):
                x.exp()
            with module.stream(streams[1]):
                x.sin()
        assert float(row_of(table(), "torch.Tensor.exp")["forward_elasped"]) > 45
        names = {event["tid"]: event["args"]["name"] for event in trace() if event["name"] == "thread_name"}
        used = {event["name"]: names[event["tid"]] for event in trace() if event["ph"] == "X" and event["pid"] == 0}
        assert used["torch.Tensor.exp"] == f"stream {streams[0].stream_id}"
        assert used["torch.Tensor.sin"] == f"stream {streams[1].stream_id}"

    def test_a_device_without_events_is_timed_by_the_host(self, device, monkeypatch, capsys, in_python):
        monkeypatch.setattr(queues, "_queues", {torch.device(device, 0): None})
        x = torch.ones(3, device=device, requires_grad=True)
        with op_tools.OpTimeMeasure():
            x.exp().sum().backward()
            Double.apply(x.detach())
        row = row_of(table(), "torch.Tensor.exp")
        assert row["forward_elasped"] == row["forward_host_elasped"]
        inner, outer = (float(row_of(table(), name)["forward_elasped"]) for name in ("torch.exp", DOUBLE))
        assert outer > inner
        summary = {name: cells for name, *cells in summary_of(capsys.readouterr().out)}
        assert float(summary[DOUBLE][-1]) > float(summary[DOUBLE][3])  # with and without the ops inside
        assert float(row["backward_elasped"]) > 0
        assert {event["pid"] for event in trace()} == {os.getpid()}

    def test_events_of_the_devices_own_module_will_do(self, device, monkeypatch, in_python):
        """An older torch, or a backend that does not know torch.Event."""

        def unknown(device):
            raise NotImplementedError

        monkeypatch.setattr(queues, "_queues", {})
        monkeypatch.setattr(queues, "_torchs_events", unknown)
        x = torch.ones(3, device=device)
        with op_tools.OpTimeMeasure(verbose=0), faults.inject("aten.exp: slow=20ms", device):
            x.exp()
        assert float(row_of(table(), "torch.Tensor.exp")["forward_elasped"]) > 18


@pytest.fixture
def waits(device, monkeypatch, in_python):
    """How often the host waited for the device."""
    counted = []
    module = torch.get_device_module(device)
    monkeypatch.setattr(module, "synchronize", lambda *_: counted.append("device"))
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *_: counted.append("accelerator"))

    class Event:
        """torch.Event itself cannot be patched."""

        def __init__(self, event):
            self.event = event

        def synchronize(self):
            counted.append("event")
            self.event.synchronize()

        def __getattr__(self, name):
            return getattr(self.event, name)

    def kind(device, original=queues._torchs_events):
        make, stream_of = original(device)
        return lambda: Event(make()), stream_of

    monkeypatch.setattr(Event, "elapsed_time", lambda self, other: self.event.elapsed_time(other.event), raising=False)
    monkeypatch.setattr(queues, "_torchs_events", kind)
    monkeypatch.setattr(queues, "_queues", {})
    return counted


class TestWaiting:
    def test_the_device_is_not_waited_for_at_each_call(self, device, waits):
        x = torch.ones(3, device=device, requires_grad=True)
        with op_tools.OpTimeMeasure(verbose=0):
            x.exp()
            began = len(waits)  # the clock is set once
            for _ in range(1000):
                x.exp().sum().backward()
            assert len(waits) == began
        assert len(waits) == began + 1  # at the end, once for the one stream
        assert len(table()) == 2001

    def test_a_device_far_behind_is_waited_for(self, device, waits, monkeypatch):
        """Otherwise events would pile up."""
        monkeypatch.setattr(ledger, "READ_AT_ENTRIES", 8)
        monkeypatch.setattr(ledger, "MAX_UNREAD_ENTRIES", 32)
        x = torch.ones(3, device=device)
        with op_tools.OpTimeMeasure(verbose=0):
            x.exp()
            began = len(waits)
            with faults.inject("aten.exp: slow=5ms", device):
                for _ in range(60):
                    x.exp()
            assert 1 <= len(waits) - began <= 8
        assert len(table()) == 61

    def test_events_are_used_again(self, device, monkeypatch, in_python):
        monkeypatch.setattr(ledger, "READ_AT_ENTRIES", 8)
        monkeypatch.setattr(queues, "_queues", {})
        x = torch.ones(3, device=device)
        with op_tools.OpTimeMeasure(verbose=0):
            for _ in range(500):
                x.exp()
                x.sum().item()  # the device keeps up
        (used,) = queues._queues.values()
        assert len(used._free) < 100


def caught_up(tool):
    """Returns when the thread that reads has nothing to do."""
    reader = getattr(tool._ledger, "_reader", None)
    while reader is not None and reader.is_busy():
        time.sleep(0.001)


class TestMemory:
    def test_rows_are_written_while_the_program_runs(self, device, monkeypatch):
        monkeypatch.setenv("OP_TOOLS_MAX_CACHE_SIZE", "10")
        monkeypatch.setattr(ledger, "READ_AT_ENTRIES", 16)
        x = torch.ones(3, device=device, requires_grad=True)
        with op_tools.OpTimeMeasure(verbose=0) as tool:
            for _ in range(100):
                x.exp().sum().backward()
                x.sum().item()
                caught_up(tool)
            assert len(table()) > 200
            assert tool._ledger.timer.unread() < 50
            assert len(tool._ledger.rows._rows) < 10
        assert len(table()) == 400

    def test_calls_whose_gradients_never_flow_do_not_pile_up(self, device, monkeypatch, way):
        module = torch.get_device_module(device)
        monkeypatch.setattr(ledger, "MAX_WAITING_CALLS", 20)
        monkeypatch.setattr(ledger, "READ_AT_ENTRIES", 16)
        x = torch.ones(3, device=device, requires_grad=True)
        kept = []
        with op_tools.OpTimeMeasure(verbose=0) as tool:
            for _ in range(100):
                kept.append(x.exp())
                module.synchronize()
                caught_up(tool)
                waiting = tool._ledger.timer.waiting() if way == "native" else len(tool._ledger._waiting)
                assert waiting <= 40
            kept[0].sum().backward()  # long given up
        rows = table()
        forward = [row for row in rows if row["name"] == "torch.Tensor.exp" and row["forward_elasped"]]
        late = [row for row in rows if row["name"] == "torch.Tensor.exp" and not row["forward_elasped"]]
        assert len(forward) == 100
        assert [bool(row["backward_elasped"]) for row in late] == [True]

    def test_no_tensor_is_held(self, device):
        module = torch.get_device_module(device)
        weight = torch.ones(1000, device=device, requires_grad=True)
        (weight * 2).sum().backward()
        weight.grad = None
        before = module.memory_allocated()
        with op_tools.OpTimeMeasure(verbose=0):
            loss = (weight * 2).sum()
            loss.backward()
            del loss
            weight.grad = None
            assert module.memory_allocated() == before


class TestTrace:
    def test_events(self, device):
        x = torch.ones(3, device=device, requires_grad=True)
        with op_tools.OpTimeMeasure(verbose=0):
            (x * 2).sum().backward()
        events = trace()
        processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        assert processes == {os.getpid(): "host", 0: f"{device}:0"}
        spans = [event for event in events if event["ph"] == "X"]
        assert sorted((event["name"], event["cat"], event["pid"] == 0) for event in spans) == [
            (name, phase, on_device)
            for name in ("torch.Tensor.mul", "torch.Tensor.sum")
            for phase in ("backward", "forward")
            for on_device in (False, True)
        ]
        by_id = {row["forward_id"]: row["name"] for row in table()}
        for event in spans:
            assert by_id[str(event["args"]["forward_id"])] == event["name"]
            assert event["dur"] >= 0

    def test_device_and_host_share_a_time_line(self, device):
        x = torch.ones(3, device=device)
        with op_tools.OpTimeMeasure(verbose=0):
            for _ in range(5):
                x.exp()
        spans = [event for event in trace() if event["ph"] == "X"]
        host = {event["args"]["forward_id"]: event["ts"] for event in spans if event["pid"] != 0}
        began = [event["ts"] - host[event["args"]["forward_id"]] for event in spans if event["pid"] == 0]
        assert all(-1000 < late < 10_000_000 for late in began)

    def test_each_thread_has_a_track(self, device):
        x = torch.ones(3, device=device, requires_grad=True)
        x.register_hook(lambda gradient: threading.current_thread() and None)  # as logging does
        with op_tools.OpTimeMeasure(verbose=0):
            x.exp().sum().backward()
        names = {event["args"]["name"] for event in trace() if event["name"] == "thread_name"}
        assert "MainThread" in names
        assert any(name.startswith("autograd") for name in names)

    def test_it_ends_at_the_given_number_of_events(self, device, monkeypatch, capsys):
        monkeypatch.setattr("op_tools.timing.trace.EVENTS_PER_WRITE", 10)
        x = torch.ones(3, device=device)
        with op_tools.OpTimeMeasure(verbose=0, trace_events=20):
            for _ in range(100):
                x.exp()
        assert 20 <= len(trace()) <= 30
        assert capsys.readouterr().err.count("OP_TIME_MEASURE_TRACE_EVENTS") == 1
        assert len(table()) == 100

    @pytest.mark.parametrize("by", ["argument", "variable"])
    def test_none_is_written_where_none_is_wanted(self, device, monkeypatch, by):
        monkeypatch.setenv("OP_TIME_MEASURE_TRACE_EVENTS", "0" if by == "variable" else "7")
        with op_tools.OpTimeMeasure(verbose=0, trace_events=0 if by == "argument" else None):
            torch.ones(3, device=device)
        assert not list(Path("op_tools_results/op_time_measure_result").glob("*.json"))
        assert len(table()) == 1

    def test_after_kill_the_files_are_whole(self, device, tmp_path):
        program = f"""
import os
from pathlib import Path
import torch
from ditorch import sim
import op_tools
from op_tools.timing import ledger, trace
if {device!r} == "sim":
    sim.start()
ledger.READ_AT_ENTRIES, trace.EVENTS_PER_WRITE = 16, 16
os.environ["OP_TOOLS_MAX_CACHE_SIZE"] = "5"
x = torch.ones(3, device={device!r}, requires_grad=True)
op_tools.OpTimeMeasure(verbose=0).start()
while True:
    x.exp().sum().backward()
    x.sum().item()
    if [bool(path.stat().st_size) for path in Path("op_tools_results").rglob("*.*")] == [True, True]:
        print("ready", flush=True)
"""
        child = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        rows = table()
        assert rows
        assert all(row["unit"] == "ms" for row in rows)
        (path,) = Path("op_tools_results/op_time_measure_result").glob("*.json")
        text = path.read_text()
        assert json.loads(text if text.endswith("]\n") else text + "]")


def summary_of(text):
    """The cells of the summary's rows."""
    lines = text.splitlines()
    first = next(index for index, line in enumerate(lines) if "share" in line)
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


class TestPrinted:
    def test_summary_and_where_the_table_is(self, device, capsys):
        x = torch.ones(3, device=device, requires_grad=True)
        with op_tools.OpTimeMeasure(), faults.inject("aten.exp: slow=10ms", device):
            for _ in range(3):
                x.exp().sum().backward()
        text = capsys.readouterr().out
        assert "apply OpTimeMeasureHook on torch.Tensor.exp" in text
        header = next(line for line in text.splitlines() if "share" in line)
        columns = [cell.strip() for cell in header.strip("|").split("|")]
        assert columns == ["name", "calls", "forward", "backward", "total", "mean", "share", "unit"]
        rows = summary_of(text)
        assert [row[0] for row in rows] == ["torch.Tensor.exp", "torch.Tensor.sum"]
        assert rows[0][1] == "3"
        assert float(rows[0][4]) > 27
        assert float(rows[0][5]) > 9
        assert abs(sum(float(row[6].rstrip("%")) for row in rows) - 100) < 0.2
        (path,) = Path("op_tools_results/op_time_measure_result").glob("*.csv")
        assert f"op elasped info saved to {path}\n" in text

    def test_nothing_at_verbosity_0(self, device, capsys):
        with op_tools.OpTimeMeasure(verbose=0):
            torch.ones(3, device=device)
        assert "saved" not in capsys.readouterr().out

    def test_every_call_at_verbosity_2(self, device, capsys):
        x = torch.ones(2, 3, device=device, requires_grad=True)
        with op_tools.OpTimeMeasure(verbose=2):
            (x * 2).backward(torch.ones_like(x))
        text = capsys.readouterr().out
        text = re.sub(r"\b\d+\.\d{8}\b", "0.00000000", text)
        blocks = [block.strip("\n") for block in re.split(r"\n{4,}", text)]
        forward = next(block for block in blocks if "mul inputs[0]" in block)
        where, *tables_shown = forward.splitlines()
        assert where == f"{__file__}:{line_of('(x * 2).backward')} test_every_call_at_verbosity_2: " + (
            "(x * 2).backward(torch.ones_like(x))"
        )
        identity = re.search(r"torch.Tensor.mul \| +(\d+)", forward)[1]
        # as wide as the numbers were, which a busy device makes long
        narrow = [re.sub("-+", "-", re.sub(" +", " ", line)) for line in tables_shown[-5:]]
        assert narrow == [
            "+-+-+-+-+",
            "| name | forward_id | forward_elasped | unit |",
            "+-+-+-+-+",
            f"| torch.Tensor.mul | {identity} | 0.00000000 | ms |",
            "+-+-+-+-+",
        ]
        backward = next(block for block in blocks if "backward_elasped" in block and "grad_outputs" in block)
        assert "torch.Tensor.mul grad_outputs [0][0]" in backward
        assert "torch.Tensor.mul grad_inputs [0][0]" in backward
        assert re.search(rf"\| torch.Tensor.mul \| +{identity} +\| +0\.00000000 +\|  ms  \|", backward)
        assert re.search(r"name +\| +forward_id +\| forward_elasped \| backward_elasped \| unit", text)


def line_of(text):
    return next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.strip().startswith(text))


def test_a_program_for_cuda_that_ditorch_runs_elsewhere(run_python, tmp_path):
    program = """
        import torch, ditorch, op_tools
        x = torch.ones(3, device="cuda", requires_grad=True)
        with op_tools.OpTimeMeasure():
            x.exp().sum().backward()
        """
    done = run_python(program, DITORCH_DISABLE_MOCK="0", DITORCH_BACKEND="sim", OP_TOOLS_OUT=str(tmp_path))
    assert [row[0] for row in summary_of(done.stdout)].count("torch.Tensor.exp") == 1
    (rows,) = tables(tmp_path)
    assert all(row["backward_elasped"] for row in rows)
    assert "op_tools:" not in done.stderr


class TestSettings:
    @pytest.mark.parametrize("value", ["-1", "many", "1.5"])
    def test_a_variable_that_cannot_be_understood(self, monkeypatch, value):
        monkeypatch.setenv("OP_TIME_MEASURE_TRACE_EVENTS", value)
        with pytest.raises(SettingError, match="OP_TIME_MEASURE_TRACE_EVENTS"):
            op_tools.OpTimeMeasure().start()

    @pytest.mark.parametrize("value", [-1, "many", 1.5])
    def test_an_argument_that_cannot_be_understood(self, value):
        with pytest.raises(SettingError, match="trace_events"):
            op_tools.OpTimeMeasure(trace_events=value).start()


def losses(device, steps=3):
    torch.manual_seed(0)
    model = GPT(width=32, heads=2, length=16).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, targets = (x.to(device) for x in next(batches(2, 16)))
    values = []
    for _ in range(steps):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model.loss(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values, [weight.detach().cpu() for weight in model.parameters()]


def test_training_is_the_same_to_the_last_bit(device):
    expected, expected_weights = losses(device)
    with op_tools.OpTimeMeasure(verbose=0):
        got, weights = losses(device)
    assert got == expected
    assert all(torch.equal(a, b) for a, b in zip(weights, expected_weights))


class TestSignature:
    def test_numbers_that_are_equal_read_differently(self):
        assert [signature.of(value) for value in (1, 1.0, True)] == ["1", "1.0", "true"]

    def test_values_of_all_kinds(self, device):
        args = (slice(1, None), (2, 3), torch.float32, ..., float("-inf"), {"a": None}, torch.Size([4]))
        assert json.loads(signature.of_call(args, {"dim": -1})) == {
            "args": ["1::", [2, 3], "torch.float32", "Ellipsis", "-inf", {"a": None}, [4]],
            "kwargs": {"dim": -1},
        }

    def test_calls_that_differ_read_differently(self, device):
        x = torch.ones(3, device=device)
        assert len({signature.of_call((x, tuple(range(100)), last), {}) for last in (1, 1.0, True, 2)}) == 4
        assert signature.of_call((x.clone(),), {}) == signature.of_call((x,), {})

    @pytest.mark.filterwarnings("ignore")  # torch says that these are new
    def test_tensors_without_strides_or_shape(self):
        compressed = json.loads(signature.of(torch.eye(3).to_sparse_csr()))
        nested = json.loads(signature.of(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])))
        assert (compressed["shape"], compressed["stride"]) == ([3, 3], None)
        assert (nested["shape"], nested["stride"]) == (None, None)
