"""How OpAutoCompare is set, and how it fails a run."""

from __future__ import annotations

import pytest
import torch

import op_tools
from ditorch.sim import faults
from op_tools.errors import DifferenceFound, SettingError
from tests.op_tools.autocompare.net import rows_of

pytestmark = pytest.mark.usefixtures("who_looks")


def test_a_wrong_call_can_fail_the_run(device):
    x = torch.randn(8, 8, device=device)
    with (
        faults.inject("aten.mm: scale=1.01"),
        pytest.raises(DifferenceFound, match=r"1 op calls are wrong, the worst: torch\.Tensor\.matmul output: off by"),
        op_tools.OpAutoCompare(verbose=0, fail=True),
    ):
        x @ x
    with op_tools.OpAutoCompare(verbose=0, fail=True):
        x @ x


def test_the_programs_own_error_goes_first(device):
    x = torch.randn(8, 8, device=device)

    def program():
        with op_tools.OpAutoCompare(verbose=0, fail=True):
            x @ x
            raise KeyError

    with faults.inject("aten.mm: scale=1.01"), pytest.raises(KeyError):
        program()


PROGRAM = """
import sys, torch
from ditorch import sim
from ditorch.sim import faults
import op_tools
device = sys.argv[1]
if device == "sim":
    sim.start()
x = torch.randn(8, 8, device=device)
with faults.inject("aten.mm: scale=1.01"):
    op_tools.OpAutoCompare(verbose=0, worker=int(sys.argv[2])).start()
    x @ x
print("the program goes on")
"""


@pytest.mark.parametrize("worker", ["0", "1"])
def test_the_exit_code_tells_that_something_is_wrong(device, run_python, worker):
    done = run_python(PROGRAM, device, worker, check=False, OP_AUTOCOMPARE_FAIL="1")
    assert done.returncode == 1
    assert "the program goes on" in done.stdout
    assert "op_tools: 1 op calls are wrong, the worst: torch.Tensor.matmul output" in done.stderr


def test_the_exit_code_is_the_programs_own_where_nobody_asked(device, run_python):
    assert run_python(PROGRAM, device, "1").returncode == 0


@pytest.mark.parametrize(
    ("options", "variable", "value"),
    [
        ({"reference": "gpu"}, "OP_AUTOCOMPARE_REFERENCE", "gpu"),
        ({"every": 0}, "OP_AUTOCOMPARE_EVERY", "0"),
        ({"worker": 1, "reference": "device"}, "OP_AUTOCOMPARE_WORKER", "-1"),
        ({"worker": -1}, "OP_AUTOCOMPARE_MEMORY", "much"),
        ({"memory": 0}, "OP_AUTOCOMPARE_ONCE", "yes"),
        ({"every": "often"}, "OP_AUTOCOMPARE_FAIL", "2"),
    ],
)
def test_mistakes_are_errors_at_start(monkeypatch, options, variable, value):
    with pytest.raises(SettingError):
        op_tools.OpAutoCompare(**options).start()
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingError, match=variable):
        op_tools.OpAutoCompare().start()


def test_the_dtype_of_the_reference_can_be_chosen(device, monkeypatch, capfd):
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.bfloat16->torch.float32")
    monkeypatch.setenv("MUL_OP_DTYPE_CAST_DICT", "torch.bfloat16->torch.float64")
    x = torch.ones(3, device=device, dtype=torch.bfloat16)
    with op_tools.OpAutoCompare(verbose=2):
        x + x
        x * x
    printed = capfd.readouterr().out
    assert "{torch.bfloat16: torch.float32}" in printed
    assert "{torch.bfloat16: torch.float64}" in printed


def test_tolerances_come_from_the_environment(device, monkeypatch):
    monkeypatch.setenv("MUL_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32", "1e-2,2e-2")
    with op_tools.OpAutoCompare(verbose=0):
        torch.ones(3, device=device) * 2
    assert rows_of()[-1]["atol"] == "0.010000000"
    assert rows_of()[-1]["rtol"] == "0.020000000"
