"""The printed lines, tables, CSV files and folders of the contract, compared with the files in golden/.

A difference is shown line by line. Where it is meant and the contract allows it, write the files anew, and read them:

    DITORCH_WRITE_GOLDEN=1 python -m pytest tests/op_tools/test_golden.py -n0
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from pathlib import Path

import pytest
import torch

import op_tools
from op_tools.core.call import OpCall
from op_tools.core.steps import STEPS
from op_tools.core.where import NOWHERE

from .golden import program
from .golden.normal import Normal

_FOLDER = Path(__file__).parent / "golden"
_WRITES = os.environ.get("DITORCH_WRITE_GOLDEN") == "1"
_RESULTS = Path("op_tools_results")


def compare(name, text):
    """`text` must be what is in the file of that name."""
    file = _FOLDER / f"{name}.txt"
    if _WRITES:
        file.write_text(text, encoding="utf-8")
    expected = file.read_text(encoding="utf-8") if file.exists() else ""
    if text != expected:
        difference = difflib.unified_diff(
            expected.splitlines(True), text.splitlines(True), f"golden/{file.name}", "now", n=2
        )
        pytest.fail(
            f"the output is not that of golden/{file.name}:\n\n{''.join(difference)}\n"
            "If this is meant and the contract allows it: DITORCH_WRITE_GOLDEN=1 python -m pytest "
            "tests/op_tools/test_golden.py -n0",
            pytrace=False,
        )


def announced_first(text):
    """What OpCapture's writer and the device find comes when it comes, between other lines."""
    lines = text.splitlines(True)
    announced = [line for line in lines if line.startswith(("apply ", "skip ", "the condition "))]
    return "".join(announced + [line for line in lines if line not in announced])


@pytest.fixture
def normal(device, monkeypatch):
    monkeypatch.setattr(STEPS, "current", 0)
    return Normal(device, OpCall("", print, (), {}, NOWHERE, 0).id)


@pytest.fixture
def shown(capsys, normal):
    """What was printed since, normalised. Nothing may have been complained about."""

    def text():
        printed = capsys.readouterr()
        assert "op_tools:" not in printed.err
        return announced_first(normal.text(printed.out))

    return text


TOOLS = ("OpCapture", "OpAutoCompare", "OpTimeMeasure", "OpFallback", "OpObserve")


@pytest.mark.parametrize("verbose", [1, 2])
@pytest.mark.parametrize("tool", TOOLS)
def test_a_training_step(shown, device, tool, verbose):
    model, x = program.model_and_input(device)
    with getattr(op_tools, tool)(verbose=verbose):
        program.train(model, x)
    compare(f"{tool}_{verbose}", shown())


@pytest.mark.parametrize("verbose", [1, 2])
def test_a_training_step_in_another_dtype(shown, device, verbose, monkeypatch):
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.float32->torch.bfloat16")
    model, x = program.model_and_input(device)
    with op_tools.OpDtypeCast(verbose=verbose):
        program.train(model, x)
    compare(f"OpDtypeCast_{verbose}", shown())


@pytest.mark.parametrize("verbose", [1, 2])
def test_an_overflow(shown, device, verbose):
    x = torch.tensor([1.0, 2.0, 5.0], device=device, requires_grad=True)
    with op_tools.OpOverflowCheck(verbose=verbose):
        program.overflow(x)
    compare(f"OpOverflowCheck_{verbose}", shown())


def test_lists(shown, device, monkeypatch):
    monkeypatch.setenv("OP_CAPTURE_LIST", "torch.Tensor.s.*")
    monkeypatch.setenv("OP_CAPTURE_DISABLE_LIST", "torch.Tensor.sum")
    model, x = program.model_and_input(device)
    with op_tools.OpCapture():
        program.train(model, x)
    compare("lists", shown())


def test_files_of_a_capture(normal, device):
    model, x = program.model_and_input(device)
    with op_tools.OpCapture(verbose=0):
        program.train(model, x)
    compare("OpCapture_files", normal.tree(_RESULTS))


def test_files_of_statistics(normal, device, monkeypatch):
    monkeypatch.setenv("OP_CAPTURE_MODE", "statistics")
    model, x = program.model_and_input(device)
    with op_tools.OpCapture(verbose=0):
        program.train(model, x)
    compare("OpCapture_statistics_files", normal.tree(_RESULTS))


def test_a_wrong_call(shown, device, monkeypatch):
    monkeypatch.setitem(sys.modules, "program", program)
    feature = op_tools.apply_feature("program.halved", "autocompare")
    program.third_party(torch.ones(2, 2, device=device))
    feature.remove()
    compare("OpAutoCompare_wrong", shown())


def test_files_of_a_wrong_call(normal, device, monkeypatch):
    monkeypatch.setitem(sys.modules, "program", program)
    feature = op_tools.apply_feature("program.halved", "autocompare")
    program.third_party(torch.ones(2, 2, device=device))
    feature.remove()
    compare("OpAutoCompare_wrong_files", normal.tree(_RESULTS))


def test_csv_of_a_comparison(normal, device):
    model, x = program.model_and_input(device)
    with op_tools.OpAutoCompare(verbose=0):
        program.train(model, x)
    (table,) = _RESULTS.glob("op_autocompare_result/*.csv")
    compare("OpAutoCompare_csv", normal.rows(table, 9) + normal.tree(_RESULTS))


def test_csv_of_times(normal, device):
    model, x = program.model_and_input(device)
    with op_tools.OpTimeMeasure(verbose=0):
        program.train(model, x)
    (table,) = _RESULTS.glob("op_time_measure_result/*.csv")
    compare("OpTimeMeasure_csv", normal.rows(table, 9) + normal.tree(_RESULTS))


FEATURES = ("fallback", "cast_dtype", "op_capture", "autocompare", "dump_op_args", "measure_op_time", "overflow_check")


@pytest.mark.parametrize("feature", FEATURES)
def test_apply_feature(shown, device, feature, monkeypatch):
    """As in the reference's own example: the condition holds for one call and not for the other."""
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "2")
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.float32->torch.float16")
    matrix, vector = torch.ones(2, 2, device=device), torch.ones(2, device=device)
    handle = op_tools.apply_feature("torch.add", feature, program.is_matrix)
    program.conditional(matrix, vector)
    handle.remove()
    compare(f"apply_feature_{feature}", shown())


def test_run_op_from_data(device, run_python):
    model, x = program.model_and_input(device)
    with op_tools.OpCapture(ops=["torch.Tensor.sort"], verbose=0):
        program.train(model, x)
    (capture,) = _RESULTS.glob("op_capture_results/*/*/*")
    command = f"""
        import runpy, sys
        sys.argv = ["run_op_from_data", "{_RESULTS}", "--acc_check", "--sync_time_measure", "--run_times", "2"]
        runpy.run_module("op_tools.run_op_from_data", run_name="__main__")
    """
    # wide enough for times of any length: a narrow table cuts its names
    done = run_python(command, DITORCH_BACKEND=device, OP_TOOLS_VERBOSE="2", COLUMNS="120")
    assert all(line.startswith("ditorch: ") for line in done.stderr.splitlines()), done.stderr
    first = min(map(int, re.findall(r"forward_id: (\d+)", done.stdout)))
    text = done.stdout.replace(f"/{capture.name}/", f"/{first}/")
    compare("run_op_from_data", Normal("cuda", first - 1).text(text))  # ditorch calls the device cuda
