"""The op matrix: every status blames one cause, by what was done to a kernel of the simulated accelerator."""

from __future__ import annotations

import itertools
import json
import warnings

import pytest
import torch

from ditorch_conformance import causes, journal
from ditorch_conformance.errors import ConformanceError
from ditorch_conformance.ops import recipe

pytest.importorskip("expecttest")
pytest.importorskip("numpy")

FAULTS = {
    "aten.erfinv.default": "unimplemented",
    "aten.expm1.default": "scale=1.01",
    "aten.tanh_backward.default": "scale=1.01",
    "aten.acosh_.default": "negate",
    "aten.asinh.out": "negate",
    "aten.i0.default": "assert",  # fails on the device, and with it every later call of the process
}
EXPECTED = {
    "erfinv": ("unsupported", "aten::erfinv", "forward: NotImplementedError"),
    "expm1": ("wrong", "forward", "forward: output: off by a factor of 1.01"),
    "tanh": ("wrong", "backward", "backward: grad: off by a factor of 1.01"),
    "acosh": ("wrong", "in-place", "in-place: "),
    "asinh": ("wrong", "out=", "out=: "),
    "i0": ("crash", None, "the device no longer works"),
    "neg": ("right", None, ""),
    "nn.Softplus": ("right", None, ""),
    "optim.SGD": ("right", None, ""),
    "_refs.abs": ("right", None, ""),
}


def test_a_status_blames_one_cause(ditorch_command, tmp_path):
    out = tmp_path / "out"
    command = ["conformance", "ops", "--ops", ",".join(EXPECTED), "--dtypes", "float32", "--samples", "2"]
    done = ditorch_command(
        *(*command, "--out", out, "--tries", "1", "--json"),
        DITORCH_FAULTS="; ".join(f"{kernel}: {fault}" for kernel, fault in FAULTS.items()),
    )
    assert done.returncode == 1, done.stderr
    found = {result.case.classname: result for result in journal.read(out).results()}
    told = {
        name: (result.status, result.details.get("raising"), result.message[: len(EXPECTED[name][2])])
        for name, result in found.items()
        if result.status != "crash"
    }
    assert told == {name: expected for name, expected in EXPECTED.items() if expected[0] != "crash"}
    assert found["i0"].status == "crash"
    assert "the device no longer works" in found["i0"].message
    summed = json.loads(done.stdout)
    assert summed["dtypes"] == {"float32": {"right": 4, "wrong": 4, "unsupported": 1, "crash": 1}}
    blamed = next(cause for cause in summed["causes"] if cause["kind"] == "unsupported")
    assert (blamed["raising"], blamed["ops"]) == ("aten::erfinv", {"erfinv": 1})
    assert blamed["reproducer"].startswith("ditorch conformance ops --ops erfinv --dtypes float32")

    details = found["neg"].details
    assert details["deterministic"] is True
    assert details["kernels"] == ["aten::neg"]
    assert set(details["checks"]) == {
        *("forward", "backward", "double backward", "in-place", "out=", "non-contiguous", "empty", "deterministic"),
    }
    assert details["device_ms"] > 0
    assert details["cpu_ms"] > 0
    assert found["nn.Softplus"].details["max_ulp"] > 0
    page = (out / "report.html").read_text()
    assert "<th scope='row'>expm1</th>" in page


def test_a_misspelt_dtype_is_named():
    with pytest.raises(ConformanceError, match="no dtype 'float31' in the op matrix; there are float64, float32"):
        recipe.choice("", "float31", 0)


def test_a_choice_of_ops():
    assert recipe.choice("torch.add, nn.functional.*", "", 3)["ops"] == ["add", "nn.functional.*"]
    assert recipe.is_chosen("nn.functional.gelu", ["add", "nn.functional.*"])
    assert not recipe.is_chosen("nn.Linear", ["add", "nn.functional.*"])


@pytest.fixture
def suite(monkeypatch):
    from ditorch_conformance.ops import suite

    monkeypatch.setenv("PYTORCH_TESTING_DEVICE_ONLY_FOR", "cpu")  # as it sets it
    with warnings.catch_warnings():  # it silences them in its worker
        made = suite.OpSuite("ops", {"device": "cpu", **recipe.choice("neg,_refs.neg,optim.SGD", "float32", 0)})
        yield made


def test_the_cpu_is_right_by_its_own_references(suite):
    assert suite.cases() == [("neg", "float32"), ("optim.SGD", "float32"), ("_refs.neg", "float32")]
    found = suite.run("neg", "float32")
    assert found["status"] == "right"
    assert found["details"]["checks"]["empty"] == {"right": 1}  # torch's list has none: it is ours


def test_inputs_that_cannot_be_made_and_errors_of_ours_are_not_the_devices_fault(suite, monkeypatch):
    from ditorch_conformance.ops import samples

    entry = suite._entries["neg"]

    def calls(dtype):
        yield samples.Call("torch.neg", torch.neg, (torch.ones(2),))
        raise RuntimeError("no numbers today")

    monkeypatch.setattr(entry, "_calls", calls)
    found = suite.run("neg", "float32")
    assert (found["status"], found["info"]) == ("input-generator", "RuntimeError")
    assert "could not make the inputs: no numbers today" in found["message"]
    assert found["details"]["checks"]["forward"] == {"right": 1}

    monkeypatch.setattr(entry, "_calls", lambda dtype: [samples.Call("torch.neg", torch.neg, (torch.ones(2),))])
    monkeypatch.setattr(suite._checker, "_comparer", None)
    found = suite.run("neg", "float32")
    assert (found["status"], found["info"]) == ("harness", "AttributeError")


def checks_of(name, device, samples=4):
    """Statuses by check, of an entry of torch's list in float32."""
    from ditorch_conformance.ops.checks import Checker
    from ditorch_conformance.ops.databases import entries

    torch.manual_seed(0)
    calls = itertools.islice(entries([name], False)[name].calls("float32"), samples)
    found = [finding for call in calls for finding in Checker(torch.device(device)).check(call).findings]
    return {(finding.check, finding.status) for finding in found}


def test_an_op_whose_gradient_has_another_formula_while_it_is_watched_is_deterministic(device):
    found = checks_of("prod", device)
    assert ("deterministic", "right") in found
    assert ("deterministic", "wrong") not in found


def test_of_memory_that_nobody_has_written_no_bits_are_expected(device):
    found = checks_of("empty_like", device)
    assert {status for check, status in found} == {"right"}
    assert "deterministic" not in {check for check, _ in found}


def test_equal_values_may_be_sorted_in_any_order(device):
    from ditorch.sim import faults
    from ditorch_conformance.ops import samples
    from ditorch_conformance.ops.checks import BACKWARD, FORWARD, SECOND, Checker

    numbers = torch.randn(20, 10, generator=torch.Generator().manual_seed(0))
    x = numbers.mul(3).round().to(torch.bfloat16).requires_grad_()  # many are equal
    call = samples.Call("torch.msort", torch.msort, (x,), has_gradient=True, has_second_gradient=True)
    with faults.inject("aten.sort.*: remake", device):
        findings = Checker(torch.device(device)).check(call).findings
    found = {finding.check: finding.status for finding in findings}
    assert found[FORWARD] == "right"
    assert found[BACKWARD] in ("right", "skipped")
    assert found[SECOND] == "skipped"


def test_what_optimizers_compute_does_not_hang_on_a_rounding_error():
    from torch.testing._internal.common_optimizers import optim_db

    from ditorch_conformance.ops import samples

    info = next(info for info in optim_db if info.name == "LBFGS")  # it looks for its way by what it met before
    for call in samples.of_optimizer(info, torch.float32):
        weights, gradients = call.args
        moved = call.function([weight * (1 + 2**-22) for weight in weights], gradients)
        for one, other in zip(call.function(weights, gradients), moved):
            torch.testing.assert_close(one, other, atol=1e-3, rtol=0)


def test_what_the_redirect_raises_is_its_own_fault():
    from ditorch.errors import DitorchError
    from ditorch_conformance.ops import attempts

    def status_of(error):
        try:
            raise error
        except Exception as raised:  # noqa: BLE001
            return attempts._whose(raised)

    assert status_of(DitorchError("torch.cuda.nvtx is not available")) == "redirect"
    assert status_of(NotImplementedError("Could not run 'aten::x'")) == "unsupported"
    assert status_of(RuntimeError("CUDA out of memory")) == "harness"


def test_a_case_of_the_matrix_has_its_dtype_and_a_command():
    from ditorch_conformance.results import Case, dtype_of

    case = Case("ops", "nn.functional.gelu", "bfloat16")
    assert dtype_of(case) == "bfloat16"
    assert (
        causes.reproducer(case)
        == 'ditorch conformance ops --ops nn.functional.gelu --dtypes bfloat16 --out "$(mktemp -d)"'
    )


@pytest.mark.parametrize(
    ("name", "number", "kernel", "allowed"),
    [
        ("GRU", 5, "aten._thnn_fused_gru_cell", "noise=1e-5"),
        ("Conv2d", 0, "aten.convolution_overrideable", "scale=1.000005"),
    ],
)
def test_a_module_is_held_to_the_limits_of_its_op(device, name, number, kernel, allowed):
    """Libraries compute these less precisely in float32, which OpAutoCompare allows the op."""
    from torch.testing._internal.common_modules import module_db

    from ditorch.sim import faults
    from ditorch_conformance.ops import samples
    from ditorch_conformance.ops.checks import FORWARD, Checker

    info = next(info for info in module_db if info.module_cls.__name__ == name)
    torch.manual_seed(0)
    call = [*samples.of_module(info, torch.float32)][number]

    def found(fault):
        with faults.inject(f"{kernel}: {fault}", device):
            findings = Checker(torch.device(device)).check(call).findings
        return next(finding.status for finding in findings if finding.check == FORWARD)

    assert found(allowed) == "right"
    assert found("noise=1e-3") == "wrong"
