"""Options of `ditorch replay`: which ops, warm-up, how times spread, several processes; captures of other layouts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional

import op_tools
from ditorch_cli.replay import command
from op_tools.replay import runner, shares, time_spread
from op_tools.replay.results import CallResult

from .test_replay import captured


@pytest.fixture
def replayed(device, monkeypatch):
    """What the command prints as JSON."""
    monkeypatch.setattr(runner, "accelerator", lambda: ("torch:0", device))

    def invoke(*arguments, code=0):
        done = CliRunner().invoke(command, [*map(str, arguments), "--json"])
        assert done.exit_code == code, done.output
        return json.loads(done.stdout) if code < 2 else done.stderr

    return invoke


def test_only_some_ops(device, replayed):
    x = torch.randn(4, device=device)
    captured(lambda: (x.exp(), x.log1p(), functional.softmax(x, 0)))
    names = [call["name"] for call in replayed("captures", "--ops", r"torch.Tensor.exp,.*soft\w+")["calls"]]
    assert sorted(names) == ["torch.Tensor.exp", "torch.nn.functional.softmax"]
    assert "--ops exp: no call of it was captured; there are torch.Tensor.exp, torch.Tensor.log1p," in replayed(
        "captures", "--ops", "exp", code=2
    )
    assert "--ops (( cannot be used" in replayed("captures", "--ops", "((", code=2)


def test_warm_up_is_not_looked_at_and_times_spread(device, replayed):
    x = torch.randn(4, device=device, requires_grad=True)
    captured(lambda: x.exp().sum().backward())
    found = replayed("captures", "--warm_up", 3, "--run_times", 5, "--sync_time_measure", "--acc_check")
    times = {row["name"]: row for row in found["times"]}["torch.Tensor.exp"]
    assert times["runs"] == 5
    assert 0 <= times["forward_median"] <= times["forward_p90"]
    assert 0 <= times["backward_median"] <= times["backward_p90"]
    (table,) = Path("op_tools_results/op_time_measure_result").glob("*.csv")
    assert table.read_text().count("torch.Tensor.exp,") == 5


def test_median_and_the_90th_percentile(tmp_path):
    table = tmp_path / "times.csv"
    rows = "".join(f"torch.mm,{n},{n}.0,,ms\n" for n in range(1, 21)) + "torch.add,1,-,3.5,ms\n"
    table.write_text("name,forward_id,forward_elasped,backward_elasped,unit\n" + rows)
    found = time_spread.of_table(table)
    assert found["torch.mm"] == (10.5, 18.0, None, None)
    assert found["torch.add"] == (None, None, 3.5, 3.5)
    table.write_text("something else\n1\n")
    assert time_spread.of_table(table) == time_spread.of_table(tmp_path / "missing.csv") == {}


REFERENCE_LAYOUTS = (
    "op_tools_results/op_capture_results/{op}/283699/161/2024-10-09-11-42-15",
    "op_capture_result/{op}/366650/3",
    "op_capture_result/0/2024-08-06--11-46/{op}/29",
)


@pytest.mark.parametrize("layout", REFERENCE_LAYOUTS)
def test_captures_of_the_reference_implementation(device, replayed, layout):
    """Written by hand after its README: the four files, no JSON beside them, in each of its layouts."""
    torch.manual_seed(0)
    x, weight = torch.randn(3, 5, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    y = functional.linear(x, weight)
    given = torch.randn(3, 4)
    gradients = torch.autograd.grad(y, (x, weight), given)
    values = torch.randn(6)

    def write(op, number, **parts):
        folder = Path(layout.format(op=op)).with_name(str(number)) if "29" in layout else Path(layout.format(op=op))
        folder.mkdir(parents=True)
        for part, (args, kwargs) in parts.items():
            content = {"name": op, "args": args, "kwargs": kwargs, "identifier": f"{op}/{number}"}
            torch.save(content, folder / f"{part}.pth")

    write(
        "torch.nn.functional.linear", 1, input=((x, weight), {}), output=((y.detach(),), {}),
        grad_inputs=(gradients, {}), grad_outputs=((given,), {}),
    )  # fmt: skip
    write(
        "torch.Tensor.sort", 2, input=((values,), {"descending": True}), output=((*values.sort(descending=True),), {})
    )
    found = replayed(Path(layout).parts[0], "--acc_check", "--ops", "torch.*")
    assert {call["name"]: call["status"] for call in found["calls"]} == {
        "torch.nn.functional.linear": "right",
        "torch.Tensor.sort": "right",
    }


def test_captures_of_a_chip_that_is_not_here(device, replayed):
    """Its device stands in the file, in arguments, and where tensors were: it is this machine's now."""
    folder = Path("op_capture_results/torch.full/7/1/2026-01-01-00-00-00")
    folder.mkdir(parents=True)
    content = {"name": "torch.full", "args": ((2, 3), 7.0), "kwargs": {"device": "npu:0"}, "identifier": "x"}
    torch.save(content, folder / "input.pth")
    other = folder.with_name("2026-01-01-00-00-01")
    other.mkdir()
    torch.save({**content, "name": "torch.neg", "args": (torch.ones(3),), "kwargs": {}}, other / "input.pth")
    saved = (other / "input.pth").read_bytes()
    assert saved.count(b"cpu") == 1
    (other / "input.pth").write_bytes(saved.replace(b"cpu", b"npu"))  # as torch.save notes where a tensor was
    statuses = [call["status"] for call in replayed("op_capture_results", "--acc_check")["calls"]]
    assert statuses.count("unusable") + statuses.count("failed") == 0, statuses


def test_jobs_and_times_exclude_each_other():
    done = CliRunner().invoke(command, ["captures", "--jobs", "2", "--sync_time_measure"])
    assert (done.exit_code, "needs the device for itself: leave --jobs out" in done.output) == (2, True)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_in_several_processes_the_same_comes_out_and_a_crash_costs_one_call(device, tmp_path, monkeypatch):
    if device != "sim":
        pytest.skip("breaks kernels of the simulated device")
    (tmp_path / "fragile.py").write_text(
        "import os\ndef op(x):\n    return os._exit(9) if 'CRASH' in os.environ else x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OP_TOOLS_OUT", "captures")
    handle = op_tools.apply_feature("fragile.op", "op_capture")
    import fragile

    fragile.op(torch.ones(3, device=device))
    handle.remove()
    monkeypatch.delenv("OP_TOOLS_OUT")
    x = torch.randn(4, 4, device=device, requires_grad=True)
    captured(lambda: [(x.exp() @ x).sum().backward() for _ in range(6)])

    def typed(*options, **environment):
        done = subprocess.run(
            [sys.executable, "-c", "from ditorch_cli import main; main()", "replay", "captures", "--json", *options],
            capture_output=True, text=True,
            env={
                **os.environ, "DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "sim", "PYTHONPATH": str(tmp_path),
                "DITORCH_FAULTS": "aten.exp: scale=1.1", **environment,
            },
        )  # fmt: skip
        assert done.returncode == 1, done.stderr
        return {call["folder"]: (call["name"], call["status"]) for call in json.loads(done.stdout)["calls"]}

    options = ("--acc_check", "--trust", "fragile")
    alone = typed(*options)
    assert typed(*options, "--jobs", "2") == alone
    assert {name for name, status in alone.values() if status == "wrong"} == {"torch.Tensor.exp"}
    crashed = typed(*options, "--jobs", "2", CRASH="1")
    assert list(crashed) == list(alone)
    lost = [value for value in crashed.values() if value not in alone.values()]
    assert lost == [("fragile.op", "failed")]


def test_after_a_crash_only_the_calls_to_blame_are_lost_in_few_processes(monkeypatch):
    folders = [Path(f"call{number:03}") for number in range(100)]
    bad, ran = {folders[17], folders[64]}, []

    def run(options, groups, results, progress):
        done = [group for group in groups if not bad.intersection(group)]
        ran.extend(groups)
        return {str(folder): CallResult(str(folder), "op", "right", "") for group in done for folder in group}

    monkeypatch.setattr(shares, "_run", run)
    results = SimpleNamespace(calls=[])
    shares.replay(SimpleNamespace(jobs=2), folders, results, lambda done, total: None)
    assert [call.folder for call in results.calls] == list(map(str, folders))
    assert {call.folder for call in results.calls if call.status == "failed"} == set(map(str, bad))
    assert len(ran) < 40
