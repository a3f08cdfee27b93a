"""Captured calls run again: `python -m op_tools.run_op_from_data`, or `ditorch replay`."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional

import op_tools
from ditorch.sim import faults
from op_tools import run_op_from_data
from op_tools.errors import CaptureError, UnknownOpError
from op_tools.ops.lookup import torch_op
from op_tools.replay import replay, runner
from op_tools.storage import store

from ..recorder import Recorder


@pytest.fixture
def run(device, monkeypatch):
    """The command, on the device of the tests."""
    monkeypatch.setattr(runner, "accelerator", lambda: ("torch:0", device))
    monkeypatch.setenv("COLUMNS", "100")

    def invoke(*arguments, code=0):
        result = CliRunner().invoke(run_op_from_data.command, [str(argument) for argument in arguments])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.output

    return invoke


def captured(function, out="captures"):
    with op_tools.OpCapture(out=out, verbose=0):
        function()
    folders = sorted(store.find_captures(Path(out)), key=lambda folder: int(folder.parent.name))
    assert folders
    return folders


CALLS = {
    "linear": lambda x: functional.linear(x, x[0], x[0, :, 0]).sum().backward(),
    "in place": lambda x: (x * 1).mul_(2).sum().backward(),
    "in place on a plain tensor": lambda x: x.detach().clone().add_(1),
    "several results": lambda x: x.sort()[0].sum().backward(),
    "split": lambda x: x.split(1)[0].sum().backward(),
    "list": lambda x: torch.cat([x, x * 2]).sum().backward(),
    "slices": lambda x: x[0, 1:, ::2].sum().backward(),
    "mask": lambda x: x[x > 0].sum().backward(),
    "keyword": lambda x: torch.std(x, dim=-1, keepdim=True).sum().backward(),
    "out": lambda x: torch.add(x.detach(), 1, out=torch.empty_like(x)),
    "same twice": lambda x: torch.mul(x, x).sum().backward(),
    "expanded": lambda x: (x[:, :1].expand(-1, 4, -1) * 2).sum().backward(),
    "setitem": lambda x: x.detach().clone().__setitem__(0, 1.0),
    "foreach": lambda x: torch._foreach_add([x.detach().clone(), x.detach().clone()], 2),
    "factory": lambda x: torch.full((2, 3), 7.0, device=x.device),
    "to another dtype": lambda x: x.to(torch.bfloat16).float().sum().backward(),
    "attention": lambda x: functional.scaled_dot_product_attention(x, x, x).sum().backward(),
    "aten": lambda x: torch.ops.aten.add.Tensor(x.detach(), x.detach()),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_runs_again_with_the_same_results(device, call):
    x = torch.randn(2, 4, 4, device=device, requires_grad=True)
    for folder in captured(lambda: CALLS[call](x)):
        capture = replay.load(folder)
        if "empty" in capture.name:
            continue
        with Recorder(verbose=0) as recorder:
            replay.run(capture, torch.device(device), forward_only=False)
        assert recorder.names == [capture.name]
        expected = list(_tensors(store.load_part(folder / "output.pth").args))
        got = list(_tensors(recorder.calls[0].result))
        assert len(expected) == len(got)
        for right, result in zip(expected, got):
            assert torch.equal(result.cpu(), right)
        if (folder / "grad_inputs.pth").exists():
            expected = store.load_part(folder / "grad_inputs.pth").args
            for right, result in zip(expected, recorder.backward[0][1].inputs):
                assert (right is None) == (result is None)
                assert right is None or torch.allclose(result.cpu(), right)


def _tensors(value):
    from op_tools.values import trees

    return trees.tensors(value)


def test_a_call_keeps_the_place_it_had(device):
    x = torch.randn(2, 3, device=device)
    folder = captured(lambda: x.exp())[0]
    with Recorder(verbose=0) as recorder:
        replay.run(replay.load(folder), torch.device(device), forward_only=True)
    assert recorder.calls[0].where.line().endswith("<lambda>: folder = captured(lambda: x.exp())[0]")


def test_the_command_runs_everything_below_a_folder(device, run):
    x = torch.randn(2, 3, device=device, requires_grad=True)
    captured(lambda: (x * 2).exp().sum().backward())
    output = run("captures")
    assert output.startswith("ditorch.framework: torch:0\n")
    assert "3 of 3 captured calls ran, 1 time each" in output


def test_times(device, run):
    x = torch.randn(2, 3, device=device, requires_grad=True)
    captured(lambda: x.exp().sum().backward())
    output = run("captures", "--run_times", 3, "--sync_time_measure")
    assert re.search(r"\| +name +\| +calls +\| +ran +\| +forward ms +\| +p90 +\| +backward ms +\| +p90 +\|", output)
    assert re.search(r"\| +torch.Tensor.exp +\| +1 +\| +1 +(\| +\d+\.\d+ +){4}\|", output)
    assert "2 of 2 captured calls ran, 3 times each" in output
    (table,) = Path("op_tools_results/op_time_measure_result").glob("*.csv")
    assert table.read_text().count("torch.Tensor.exp,") == 3


def test_every_call_is_shown_where_that_is_asked_for(device, run, monkeypatch):
    x = torch.randn(2, 3, device=device, requires_grad=True)
    captured(lambda: x.exp().sum().backward())
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "2")
    output = run("captures", "--run_times", 3, "--sync_time_measure")
    assert len(re.findall(r"\| +torch.Tensor.exp +\| +\d+ +\| +\d+\.\d+ +\| +ms +\|", output)) >= 3
    assert "forward_elasped" in output
    assert "backward_elasped" in output
    assert "op elasped info saved to" in output


@pytest.mark.parametrize(
    ("arguments", "backwards"),
    [
        (["captures"], 1),
        (["captures", "--only_run_forward"], 0),
        (["--only_run_forward", "captures"], 0),
        (["captures", "--only_run_forward", "True"], 0),
        (["--only_run_forward", "True", "captures"], 0),
        (["captures", "--only_run_forward=true"], 0),
        (["captures", "--only-run-forward", "false"], 1),
    ],
)
def test_forward_only_is_a_flag_with_and_without_a_value(device, run, arguments, backwards):
    x = torch.randn(2, 3, device=device, requires_grad=True)
    captured(lambda: x.exp().sum().backward())
    with Recorder(verbose=0) as recorder:
        run(*arguments)
    assert recorder.names.count("torch.Tensor.exp") == 1
    assert sum(call.name == "torch.Tensor.exp" for call, _ in recorder.backward) == backwards


def test_forward_only_takes_no_other_value(device, run):
    assert "--only_run_forward is a flag" in run("captures", "--only_run_forward=maybe", code=2)


def test_a_healthy_device_passes_and_a_broken_kernel_is_named(device, run):
    x = torch.randn(8, 32, device=device, requires_grad=True)
    weight = torch.randn(8, 32, device=device)
    captured(lambda: (functional.layer_norm(x, (32,)) * weight).sum().backward())
    output = run("captures", "--acc_check")
    assert re.search(r"3 of 3 captured calls ran, 1 time each; \d+ values compared, 0 calls wrong$", output.strip())
    assert "wrong: " not in output
    assert len(output.splitlines()) < 15
    with faults.inject("aten.native_layer_norm_backward: scale=1.01"):
        output = run("captures", "--acc_check", code=1)
    assert "wrong: torch.nn.functional.layer_norm: grad" in output
    assert "wrong: torch.Tensor." not in output
    assert max(map(len, output.partition("+-")[2].partition("op_tools_results")[0].splitlines())) <= 100


class TestDamage:
    @pytest.fixture
    def folders(self, device):
        x = torch.randn(2, 3, device=device)
        return captured(lambda: x.exp().sin())

    def test_a_damaged_capture_is_named_and_the_others_run(self, run, folders, capsys):
        path = folders[0] / "input.pth"
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content[: len(content) // 2])
        output = run("captures", code=1)
        assert "1 of 2 captured calls ran" in output
        assert f"unusable: torch.Tensor.exp\n    {path} cannot" in output
        assert "be used: its end is missing" in output.replace("\n    ", " ")

    def test_a_file_of_something_else(self, folders):
        path = folders[0] / "input.pth"
        path.unlink()
        torch.save({"weight": torch.ones(2)}, path)
        with pytest.raises(CaptureError, match=re.escape(str(path))):
            replay.load(folders[0])

    def test_nothing_in_a_capture_can_run_code(self, folders, tmp_path):
        class Evil:
            def __reduce__(self):
                return (Path.touch, (tmp_path / "evil",))

        path = folders[0] / "input.pth"
        path.unlink()
        torch.save({"name": "torch.exp", "args": (Evil(),), "kwargs": {}, "identifier": ""}, path)
        with pytest.raises(CaptureError):
            replay.load(folders[0])
        assert not (tmp_path / "evil").exists()

    @pytest.mark.parametrize("name", ["os.system", "builtins.eval", "torch.load", "torch.ops.aten.save", "torch"])
    def test_only_ops_may_be_named(self, name):
        with pytest.raises(UnknownOpError, match="is no op of torch, so a file may not name it"):
            torch_op(name)

    @pytest.mark.parametrize(
        "name",
        [
            "torch.from_file",
            "torch.ops.aten.from_file",
            "torch.ops.aten.from_file.out",
            "aten.from_file.default",
            "aten::_print",
            "profiler._record_function_enter",
        ],
    )
    def test_only_functions_of_tensors_may_be_named(self, name):
        with pytest.raises(UnknownOpError, match=r"may not be run from a file|may not name it"):
            torch_op(name)

    def test_a_library_of_a_third_party_is_judged_likewise(self):
        """Torchvision's image.write_file is such an op."""
        library = torch.library.Library("test_purity", "DEF")
        for definition in ("write_file(str path, Tensor data) -> ()", "read_file(str path) -> Tensor"):
            library.define(definition)
            library.impl(definition.partition("(")[0], lambda *_: None, "CompositeImplicitAutograd")
        library.define("fused(Tensor x, str mode) -> Tensor")
        library.impl("fused", lambda x, mode: x, "CompositeImplicitAutograd")
        assert torch_op("test_purity.fused.default") is torch.ops.test_purity.fused.default
        for name in ("test_purity.write_file", "test_purity.read_file.default"):
            with pytest.raises(UnknownOpError, match="it does more than compute with tensors"):
                torch_op(name)

    def test_a_hostile_capture_writes_no_file(self, run, tmp_path):
        hostile = {
            "torch.ops.aten.save": ("text", "hostile/saved"),
            "torch.ops.aten.from_file": ("hostile/created", True, 100),
            "torch.ops.aten.save.default": ("hello", "hostile/saved"),
        }
        for number, (name, args) in enumerate(hostile.items()):
            folder = Path("hostile", "op_capture_results", name, "1", str(number), "2026-01-01-00-00-00")
            folder.mkdir(parents=True)
            torch.save({"name": name, "args": args, "kwargs": {}, "identifier": ""}, folder / "input.pth")
        output = run("hostile", code=1)
        assert "unusable: torch.ops.aten.from_file\n" in output
        assert [path.name for path in Path("hostile").iterdir()] == ["op_capture_results"]

    def test_a_missing_note_is_no_error(self, folders, device):
        (folders[0] / "input.pth.json").unlink()
        replay.run(replay.load(folders[0]), torch.device(device), forward_only=True)

    def test_no_folder_and_no_capture(self, run, tmp_path):
        assert "holds no capture: there is no such folder" in run("nowhere", code=2)
        (tmp_path / "empty").mkdir()
        assert "holds no capture: no input.pth lies below it" in run("empty", code=2)

    def test_an_op_that_fails_on_this_device_is_named(self, run, folders):
        with faults.inject("aten.exp: unimplemented"):
            output = run("captures", code=1)
        assert "1 of 2 captured calls ran" in output
        assert "failed: torch.Tensor.exp\n    on " in output


def test_a_capture_of_another_machine(device, folder_of_another_machine):
    capture = replay.load(folder_of_another_machine)
    with Recorder(verbose=0) as recorder:
        replay.run(capture, torch.device(device), forward_only=True)
    assert recorder.calls[0].result.device.type == device


@pytest.fixture
def folder_of_another_machine(device):
    """As if captured on a vendor's device that is not here."""
    folder = captured(lambda: torch.full((2,), 1.0, device=device), out="other")[0]
    note = json.loads((folder / "input.pth.json").read_text())
    assert note
    copy = Path("elsewhere") / folder.name
    shutil.copytree(folder, copy)
    return copy


def test_a_function_of_another_package_needs_trust(device, tmp_path, monkeypatch, run):
    (tmp_path / "trusted_package.py").write_text("def fused(x):\n    return x + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    handle = op_tools.apply_feature("trusted_package.fused", "op_capture")
    import trusted_package

    trusted_package.fused(torch.ones(3, device=device))
    handle.remove()
    assert "--trust trusted_package" in run("op_tools_results", code=1)
    assert "1 of 1 captured calls ran" in run("op_tools_results", "--trust", "trusted_package")


def test_as_a_new_user_runs_it(run_python, device, tmp_path):
    x = torch.randn(2, 3, device=device)
    captured(lambda: x.exp())
    code = "import runpy, sys; sys.argv[0] = 'x'; runpy.run_module('op_tools.run_op_from_data', run_name='__main__')"
    done = run_python(code, "captures", "--acc_check", DITORCH_DISABLE_MOCK="0")
    assert re.search(r"^ditorch.framework: \S+:\S+", done.stdout, re.MULTILINE)
    assert "1 of 1 captured calls ran" in done.stdout


class TestAutocast:
    @pytest.fixture
    def folders(self, device):
        layer = torch.nn.Linear(16, 16).to(device)
        x = torch.randn(4, 16, device=device)

        def forward():
            with torch.autocast(device, torch.float16):
                first = functional.linear(x, layer.weight, layer.bias)
                second = functional.linear(first, layer.weight, layer.bias)
            (first.float().sum() + second.float().sum()).backward()

        return [folder for folder in captured(forward) if "linear" in str(folder)]

    def test_it_is_noted_beside_the_tensors(self, folders, device):
        note = json.loads((folders[0] / "input.pth.json").read_text())
        assert note["autocast"] == {"device": device, "dtype": "float16", "cache": True}

    def test_a_call_runs_in_the_dtype_it_had(self, folders, device):
        for folder in folders:
            with Recorder(verbose=0) as recorder:
                replay.run(replay.load(folder), torch.device(device), forward_only=False)
            assert recorder.calls[0].result.dtype == torch.float16
            assert torch.equal(recorder.calls[0].result.cpu(), store.load_part(folder / "output.pth").args[0])
            assert len(recorder.backward) == 1

    def test_calls_outside_of_it_have_none(self, device):
        x = torch.randn(2, 3, device=device)
        folder = captured(lambda: x.exp())[0]
        assert "autocast" not in json.loads((folder / "input.pth.json").read_text())
        assert replay.load(folder).autocast is None

    def test_a_note_that_makes_no_sense_is_named(self, folders):
        path = folders[0] / "input.pth.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "autocast": {"dtype": "load"}}))
        with pytest.raises(CaptureError, match=r"input.pth.json cannot be used: autocast cannot have been"):
            replay.load(folders[0])

    def test_observe_shows_it(self, device, capsys):
        x = torch.randn(2, 3, device=device)
        with op_tools.OpObserve(), torch.autocast(device, torch.bfloat16):
            x.exp()
        assert re.search(r"torch.Tensor.exp    forward_id: \d+    autocast: bfloat16\n", capsys.readouterr().out)


class TestOnTheCpu:
    """Without an accelerator: what the device had given is compared with the CPU."""

    @pytest.fixture
    def x(self, device):
        return torch.randn(8, 32, device=device, requires_grad=True)

    def test_it_compares(self, x, run):
        captured(lambda: functional.layer_norm(x, (32,)).mul_(2).sum().backward())
        output = run("captures", "--device", "cpu", "--acc_check")
        assert int(re.search(r"(\d+) values compared, 0 calls wrong", output)[1]) >= 12

    def test_a_device_that_was_wrong_is_found(self, x, run):
        with faults.inject("aten.native_layer_norm: scale=1.01"):
            captured(lambda: functional.layer_norm(x, (32,)).detach().sum())
        output = run("captures", "--device", "cpu", "--acc_check", code=1)
        assert "wrong: torch.nn.functional.layer_norm: captured output" in output
        assert "wrong: torch.Tensor.sum" not in output

    def test_wrong_gradients_are_found(self, x, run):
        with faults.inject("aten.native_layer_norm_backward: scale=1.01"):
            captured(lambda: functional.layer_norm(x, (32,)).square().sum().backward())
        output = run("captures", "--device", "cpu", "--acc_check", code=1)
        assert "wrong: torch.nn.functional.layer_norm: captured grad" in output

    def test_nothing_but_captured_calls_is_looked_at(self, x, run):
        """Judging is done with ops of the CPU, too, and each of them was compared in turn."""
        with faults.inject("aten.native_layer_norm_backward: noise=0.1"):
            captured(lambda: functional.layer_norm(x, (32,)).sin().sum().backward())
        run("captures", "--device", "cpu", "--acc_check", code=1)
        (table,) = Path("op_tools_results/op_autocompare_result").glob("*.csv")
        calls = {row.split(",")[1].split(" ")[0] for row in table.read_text().splitlines()[1:]}
        assert calls == {"torch.nn.functional.layer_norm", "torch.Tensor.sin", "torch.Tensor.sum"}

    def test_gradients_that_training_found_wrong_are_found(self, x, run):
        """OpAutoCompare saves the backward pass alone where forward was right."""
        with faults.inject("aten.native_layer_norm_backward: scale=1.01"), op_tools.OpAutoCompare(verbose=0):
            functional.layer_norm(x, (32,)).square().sum().backward()
        assert not list(Path("op_tools_results").rglob("output.pth"))
        output = run("op_tools_results", "--device", "cpu", "--acc_check", code=1)
        assert "wrong: torch.nn.functional.layer_norm: captured grad" in output

    def test_times(self, x, run):
        captured(lambda: functional.layer_norm(x, (32,)).sum().backward())
        output = run("captures", "--device", "cpu", "--sync_time_measure")
        assert re.search(r"\| +torch.nn.functional.layer_norm +\| +1 +\| +1 +\| +\d+\.\d+ +\| +\d+\.\d+ +\|", output)

    def test_calls_under_autocast(self, x, run, device):
        layer, last = torch.nn.Linear(32, 32).to(device), torch.nn.Linear(32, 32).to(device)

        def forward():
            with torch.autocast(device, torch.bfloat16):
                last(functional.gelu(layer(x))).sum().backward()

        captured(forward)
        assert "0 calls wrong" in run("captures", "--device", "cpu", "--acc_check")


def test_many_wrong_calls_are_one_page(device, run):
    x = torch.randn(8, 32, device=device)

    def calls():
        for _ in range(30):
            x.exp()
        for _ in range(2):
            x.exp()

    captured(calls)
    with faults.inject("aten.exp: scale=1.01"):
        lines = run("captures", "--acc_check", code=1).splitlines()
    # one entry for each line of the program
    assert [line for line in lines if line.startswith("wrong: ")] == [
        "wrong: torch.Tensor.exp: output (30 calls)",
        "wrong: torch.Tensor.exp: output (2 calls)",
    ]
    assert "    off by a factor of 1.01 as a whole" in "\n".join(lines)
    assert lines[-1].endswith("values compared, 32 calls wrong")
    assert len(lines) < 40
    assert all(len(line) <= 100 for line in lines if not line.startswith(("    captures/", "op_tools_results/")))


def test_autocast_is_replayed_by_the_command(device, run):
    layer = torch.nn.Linear(16, 16).to(device)
    x = torch.randn(4, 16, device=device)

    def forward():
        with torch.autocast(device, torch.float16):
            first = layer(x)
            second = functional.linear(first, layer.weight, layer.bias)
        (first.float().sum() + second.float().sum()).backward()

    captured(forward)
    document = json.loads(run("captures", "--acc_check", "--json"))
    linear = [call for call in document["calls"] if call["name"] == "torch.nn.functional.linear"]
    assert [(call["status"], call["autocast"]) for call in linear] == [("right", "float16")] * 2


def test_what_replay_writes_is_not_replayed(device, run):
    x = torch.randn(8, 32, device=device)
    captured(lambda: x.exp(), out="op_tools_results")
    for _ in range(3):
        with faults.inject("aten.exp: scale=1.01"):
            assert "1 of 1 captured calls ran" in run("op_tools_results", "--acc_check", code=1)
    dumps = list(Path("op_tools_results/op_replay_results").rglob("device/output.pth"))
    assert len(dumps) == 3


def test_what_training_found_wrong_is_replayed_once(device, run):
    x = torch.randn(8, 32, device=device)
    with faults.inject("aten.exp: scale=1.01"), op_tools.OpAutoCompare(verbose=0):
        x.exp()
    assert "1 of 1 captured calls ran" in run("op_tools_results", "--acc_check")


def test_results_as_json_and_as_a_file(device, run):
    x = torch.randn(8, 32, device=device)
    captured(lambda: x.exp().sin())
    with faults.inject("aten.exp: scale=1.01"):
        document = json.loads(run("captures", "--acc_check", "--json", "--sync_time_measure", code=1))
    assert document["schema"] == "ditorch.replay/1"
    assert document["exit_code"] == 1
    assert {name: count for name, count in document["counts"].items() if count} == {"found": 2, "wrong": 1, "right": 1}
    wrong = next(call for call in document["calls"] if call["status"] == "wrong")
    assert (wrong["name"], wrong["wrong"][0]["what"]) == ("torch.Tensor.exp", "output")
    assert {time["name"] for time in document["times"]} == {"torch.Tensor.exp", "torch.Tensor.sin"}
    table = Path(document["files"][0]).read_text().splitlines()
    assert table[0].startswith("folder,name,status,reason,values")
    assert len(table) == 3


def test_a_pipe_among_captures_is_named(device, run):
    x = torch.randn(2, 3, device=device)
    (folder,) = captured(lambda: x.exp())
    (folder / "input.pth").unlink()
    os.mkfifo(folder / "input.pth")
    assert "it is no regular file" in run("captures", code=1)


@pytest.mark.parametrize("name", ["nonsense", "npu", "sim:99", ""])
def test_a_device_that_is_not_there_is_one_line(device, run, name, capsys):
    x = torch.randn(2, 3, device=device)
    captured(lambda: x.exp())
    if name:
        output = run("captures", "--device", name, code=2)
        assert f"ditorch replay: the device {name!r} cannot be used: " in output
        assert len(output.strip().splitlines()) == 1
    else:
        run("captures", "--device", name)


def test_collectives_are_left_out(device, run):
    x = torch.randn(2, 3, device=device)
    captured(lambda: x.exp())
    store.save(Path("captures/reduce"), "input", "torch.distributed.distributed_c10d.all_reduce", (x,), {}, "")
    output = run("captures")
    assert "1 of 2 captured calls ran" in output
    assert "a collective runs together with" in output
