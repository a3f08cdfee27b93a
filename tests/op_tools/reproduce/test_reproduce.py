"""A captured call becomes a script that needs torch only, fails while the fault is there, and is small."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch.nn import functional

import op_tools
from ditorch.sim import faults
from ditorch_cli.reproduce import command
from op_tools.storage import store

from ... import bare


@pytest.fixture
def capture(device):
    """The folder of the last call of a function."""
    if device != "sim":
        pytest.skip("breaks kernels of the simulated device")

    def run(function):
        with op_tools.OpCapture(out="captured", verbose=0):
            function()
        return max(store.find_captures("captured"), key=lambda folder: int(folder.parent.name))

    return run


def invoked(*arguments):
    done = CliRunner().invoke(command, [*map(str, arguments), "--json"])
    assert done.exit_code in (0, 1), done.output
    return done.exit_code, json.loads(done.stdout)


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory):
    return bare.environment(tmp_path_factory.mktemp("bare"))


RUNS = """
import importlib.util, runpy, sys
assert not [name for name in ("ditorch", "op_tools", "numpy", "click") if importlib.util.find_spec(name)]
for command in sys.argv[1:]:
    sys.argv = command.split(",")
    try:
        runpy.run_path(sys.argv[0] + "/reproduce.py", run_name="__main__")
    except SystemExit as end:
        print("exit code", end.code)
"""


@pytest.fixture
def run_bare(bare_python):
    """Runs the folders' scripts in the bare environment: exit codes, and the text."""

    def run(*commands):
        clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        done = subprocess.run([bare_python, "-c", RUNS, *commands], capture_output=True, text=True, env=clean)
        assert done.returncode == 0, done.stderr
        return [int(line[-1]) for line in done.stdout.splitlines() if line.startswith("exit code")], done.stdout

    return run


def test_a_script_fails_with_torch_alone_by_what_was_recorded(device, capture, run_bare):
    weight = torch.randn(48, 64, device=device, requires_grad=True)
    with faults.inject("aten.mm: scale=1.01", device):
        folder = capture(lambda: functional.linear(torch.randn(32, 64, device=device), weight).sum().backward())
        folder = next(one for one in store.find_captures("captured") if "linear" in str(one))
        code, made = invoked(folder, "--device", device)
    assert (code, made["wrong"], made["op"]) == (1, True, "torch.nn.functional.linear")
    assert made["times_too_far"]["result 0"] > 10
    codes, printed = run_bare("reproduce", "reproduce,cpu")
    assert codes == [1, 0], printed
    assert "as recorded on sim" in printed
    assert "WRONG" in printed
    assert "expected   tensor" in printed
    text = Path("reproduce/report.md").read_text()
    assert text.startswith("# torch.nn.functional.linear gives wrong results on sim")
    assert f"| torch | {torch.__version__} |" in text
    assert "| device | sim (" in text
    row = re.search(r"\| result 0 \| [\d.e+]+ \| \[\d+, \d+\] \| (\S+) \| (\S+) \|", text)
    assert float(row[2]) == pytest.approx(1.01 * float(row[1]), rel=1e-4)
    assert "  difference tensor(" in printed


def test_shrunk_it_is_a_few_numbers_in_the_script_forward_and_backward(device, capture, run_bare):
    with faults.inject("aten.addmm: drop=self", device):
        layer = torch.nn.Linear(40, 48).to(device)
        capture(lambda: layer(torch.randn(24, 40, device=device)).square().sum().backward())
        folder = next(one for one in store.find_captures("captured") if "linear" in str(one))
        code, made = invoked(folder, "--device", device, "--shrink")
    assert code == 1
    assert made["elements"] <= 12
    assert [Path(file).name for file in made["files"]] == ["report.md", "reproduce.py"]
    text = Path("reproduce/reproduce.py").read_text()
    assert "torch.tensor([" in text
    assert text in Path("reproduce/report.md").read_text()
    shutil.move("reproduce", "forward")
    shutil.rmtree("captured")
    with faults.inject("aten.native_layer_norm_backward: scale=1.05", device):
        layer = torch.nn.LayerNorm(32).to(device)
        x = torch.randn(4, 8, 32, device=device, requires_grad=True)
        capture(lambda: layer(x).square().sum().backward())
        folder = next(one for one in store.find_captures("captured") if "layer_norm" in str(one))
        code, made = invoked(folder, "--device", device, "--shrink")
    assert code == 1
    assert any(ratio == "inf" or ratio > 1 for name, ratio in made["times_too_far"].items() if name.startswith("grad"))
    assert made["elements"] < 1024
    codes, printed = run_bare("forward", "reproduce")
    assert codes == [1, 1], printed


def test_a_fault_of_backward_alone_is_shrunk_where_shapes_depend_on_each_other(device, capture, run_bare):
    with faults.inject("aten.native_layer_norm_backward: tail=0.5", device):
        layer = torch.nn.LayerNorm(64).to(device)
        x = torch.randn(8, 32, 64, device=device, requires_grad=True)
        capture(lambda: layer(x).square().sum().backward())
        folder = next(one for one in store.find_captures("captured") if "layer_norm" in str(one))
        code, made = invoked(folder, "--device", device, "--shrink")
    assert (code, made["wrong"]) == (1, True)
    assert made["elements"] < 500
    assert run_bare("reproduce")[0] == [1]


def test_strides_views_and_odd_arguments_are_rebuilt(device, capture, run_bare):
    base = torch.randn(8, 12, device=device)
    for number, function in enumerate(
        (
            lambda: base.t()[2:7].add_(base.t()[2:7]),
            lambda: torch.cat([base, base[:, :6].repeat(1, 2)], dim=-1),
            lambda: base.softmax(-1, dtype=torch.float64),
            lambda: base[1:3, ..., None],
            lambda: torch.full((2, 3), 1.5, device=device),
            lambda: base.view(4, 24).expand(4, 24).sum(dim=(0, 1), keepdim=True),
        )
    ):
        with faults.inject("aten.neg: scale=2", device):
            folder = capture(function)
        code, made = invoked(folder, "--device", device, "--out", f"out{number}")
        assert (code, made["wrong"]) == (0, False), made
    codes, printed = run_bare(*(f"out{number}" for number in range(6)))
    assert codes == [0] * 6, printed


def test_a_fault_that_comes_and_goes_is_kept_as_it_was_recorded(device, capture):
    with faults.inject("aten.gelu: scale=1.1", device):
        folder = capture(lambda: functional.gelu(torch.randn(30, device=device)))
    code, made = invoked(folder, "--device", device, "--shrink")
    assert (code, made["wrong"]) == (1, True)
    assert made["shrunk"] == ["right when it is run again: the fault comes and goes, and what was recorded is kept"]


def test_arguments_go_to_their_defaults_and_the_only_capture_below_is_found(device, capture):
    with faults.inject("aten.native_layer_norm: scale=1.5", device):
        weight, bias = torch.rand(8, device=device), torch.rand(8, device=device)
        capture(lambda: functional.layer_norm(torch.randn(4, 8, device=device), (8,), weight, bias, 0.25))
        only = next(one for one in store.find_captures("captured") if "layer_norm" in str(one))
        shutil.copytree(only, "only/below")
        code, _ = invoked("only", "--device", device, "--shrink")
    assert code == 1
    # of one element a row the healthy result is the bias alone, so that one stays
    assert "return (x0, (1,)), {'bias': x1}\n" in Path("reproduce/reproduce.py").read_text()


def test_without_a_device_what_was_recorded_is_judged(device, capture):
    with faults.inject("aten.gelu: scale=1.1", device):
        folder = capture(lambda: functional.gelu(torch.randn(30, device=device)))
    code, _ = invoked(folder, "--recorded")
    assert code == 1
    compile(Path("reproduce/reproduce.py").read_text(), "reproduce.py", "exec")


def test_what_cannot_be_reproduced_is_said(device, capture, tmp_path):
    folder = capture(lambda: torch.ones(3, device=device).neg())

    def refused(*arguments):
        done = CliRunner().invoke(command, [*map(str, arguments)])
        assert (done.exit_code, done.stdout) == (2, "")
        return done.stderr

    assert "holds no captured call" in refused(tmp_path / "empty", "--recorded")
    dropped = capture(lambda: functional.dropout(torch.ones(30, device=device), 0.3))
    assert "torch.nn.functional.dropout cannot be reproduced: it draws random numbers" in refused(dropped, "--recorded")
    shutil.rmtree(dropped)
    capture(lambda: (torch.ones(3, device=device).neg(), torch.ones(3, device=device).exp()))
    assert "holds several captured calls: name one of them, such as\n  captured/" in refused("captured", "--recorded")
    assert "the op has to run on the device, and there is none" in refused(folder, "--recorded", "--shrink")
    (folder / "input.pth").write_bytes(b"PK\3\4 no")
    assert "cannot be used" in refused(folder, "--recorded")


def test_complex_and_bool_results_have_a_script_and_shrink(device, capture, run_bare):
    """They have no rounding, or no difference, in torch."""
    x = torch.randn(6, 40, dtype=torch.complex64, device=device)
    with faults.inject("aten.mm: scale=1.01", device):
        folder = capture(lambda: x @ x.mH)
        folder = next(one for one in store.find_captures("captured") if "matmul" in str(one))
        code, made = invoked(folder, "--device", device, "--shrink", "--out", "complex")
        assert (code, made["wrong"]) == (1, True)
        assert made["elements"] < 100
    other = torch.randn(30, device=device)
    code, made = invoked(capture(lambda: other > 0), "--device", device, "--out", "bool")
    assert (code, made["wrong"]) == (0, False)
    assert run_bare("complex", "complex,cpu", "bool", "bool,cpu")[0] == [1, 0, 0, 0]


def test_a_wrong_mask_has_a_script(device, capture, run_bare):
    x = torch.randn(30, device=device)
    with faults.inject("aten.abs: zero", device):
        code, made = invoked(capture(lambda: torch.isclose(x, x + 1)), "--device", device, "--shrink")
    assert (code, made["wrong"], made["elements"]) == (1, True, 2)
    assert run_bare("reproduce", "reproduce,cpu")[0] == [1, 0]
    assert "| False | True |" in Path("reproduce/report.md").read_text()


def test_complex_results_are_held_to_what_the_cpu_gives_in_double_precision(device, capture):
    """A sum in another order is as right as the CPU's own."""
    x = torch.randn(4, 4000, dtype=torch.complex64, device=device)
    with faults.inject("aten.*: remake", device):
        capture(lambda: x @ x.mH)
        folder = next(one for one in store.find_captures("captured") if "matmul" in str(one))
        code, made = invoked(folder, "--device", device)
    assert (code, made["wrong"]) == (0, False)


def test_a_copy_to_a_device_by_its_name_is_one_to_the_device_of_the_script(device, capture, run_bare):
    with faults.inject("aten.exp: scale=2", device):
        folder = capture(lambda: torch.randn(8, device=device).to(device, torch.float16))
    assert invoked(folder, "--device", device)[0] == 0
    assert run_bare("reproduce", "reproduce,cpu")[0] == [0, 0]
