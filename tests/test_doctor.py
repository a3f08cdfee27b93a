"""`ditorch doctor`: what it says of a healthy machine, a broken kernel, and a machine without a choice."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from ditorch import discover, doctor
from ditorch.backend import Backend
from ditorch.backends import APPLE, SIM
from ditorch.errors import BackendError
from ditorch.sim import faults
from ditorch_cli.doctor import doctor as command


@pytest.fixture(autouse=True)
def _chosen_is_sim(monkeypatch):
    monkeypatch.setenv("DITORCH_BACKEND", "sim")


def invoke() -> tuple[int, str]:
    result = CliRunner().invoke(command)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_a_healthy_device_passes_every_check():
    checks = doctor.check_health("sim")
    assert [check for check in checks if check.problem] == []
    assert len(checks) == 14


def test_a_wrong_kernel_is_named():
    with faults.inject("aten.mm: scale=1.01"):
        code, output = invoke()
    assert code == 1
    assert "WRONG mm: output is off by 1.0% of the largest value" in output
    assert "ok    softmax" in output
    assert "Wrong: mm, addmm, linear." in output


def test_a_kernel_that_is_wrong_only_in_backward_is_named():
    with faults.inject("aten.native_layer_norm_backward: scale=1.05"):
        wrong = {check.name: check.problem for check in doctor.check_health("sim") if check.problem}
    assert list(wrong) == ["layer_norm"]
    assert wrong["layer_norm"].startswith("gradient 0 is off by ")


def test_a_kernel_that_raises_is_named_with_what_it_raised(monkeypatch):
    def missing(*args: object, **kwargs: object) -> None:
        raise NotImplementedError("aten::cumsum\nis not there")

    monkeypatch.setattr(torch, "cumsum", missing)
    [check] = [check for check in doctor.check_health("sim") if check.problem]
    assert check == doctor.Check("cumsum", "raised NotImplementedError: aten::cumsum is not there")


def test_results_that_are_not_numbers_are_named():
    with faults.inject("aten.gelu: nan"):
        [check] = [check for check in doctor.check_health("sim") if check.problem]
    assert check.name == "gelu"
    assert "output is not finite" in check.problem


def test_a_device_that_unties_weights_is_named(monkeypatch):
    # what PyTorch answers for a device whose tensors it cannot swap inside a parameter
    monkeypatch.setattr(torch, "_has_compatible_shallow_copy_type", lambda *_: False)
    [check] = [check for check in doctor.check_health("sim") if check.problem]
    assert check.name == "module.to keeps tied weights"
    assert check.problem == "two modules that shared a weight have one each afterwards"


def test_the_check_leaves_the_random_numbers_alone():
    before = torch.get_rng_state(), torch.get_device_module("sim").get_rng_state()
    doctor.check_health("sim")
    assert torch.equal(before[0], torch.get_rng_state())
    assert torch.equal(before[1], torch.get_device_module("sim").get_rng_state())


def test_a_healthy_machine_is_told_in_full():
    code, output = invoke()
    assert code == 0
    assert f"torch {torch.__version__}" in output
    assert "torch_npu is not installed" in output
    assert "sim (chosen)" in output
    assert "sim:1  Simulated accelerator sim:1" in output
    assert "collectives: simccl is available" in output
    assert output.endswith("All checks passed.\n")


def test_a_machine_where_nothing_can_be_chosen_is_told_why(monkeypatch):
    def refuse() -> Backend:
        raise BackendError("There is more than one accelerator here: [red] and blue.")

    monkeypatch.setattr(discover, "choose", refuse)
    code, output = invoke()
    assert code == 1
    assert "No accelerator is chosen. There is more than one accelerator here: [red] and blue." in output
    assert "Health check" not in output


def test_the_command_breaks_the_kernels_that_the_environment_names(run_python):
    code = "import sys; sys.argv[0] = 'ditorch'; from ditorch_cli.doctor import doctor; doctor()"
    done = run_python(code, check=False, DITORCH_DISABLE_MOCK="0", DITORCH_FAULTS="aten.gelu: scale=1.1")
    assert done.returncode == 1
    assert done.stdout.endswith("Wrong: gelu.\n")


def test_the_command_reports_a_choice_that_cannot_be_used(run_python):
    code = "import sys; sys.argv[0] = 'ditorch'; from ditorch_cli.doctor import doctor; doctor()"
    done = run_python(code, check=False, DITORCH_DISABLE_MOCK="0", DITORCH_BACKEND="ascend")
    assert done.returncode == 1
    assert "No accelerator is chosen. DITORCH_BACKEND=ascend: Huawei Ascend cannot be used here, because" in done.stdout
    assert "Traceback" not in done.stderr


def chip(**facts: object) -> Backend:
    return Backend(name="chip", title="a chip", device_type="sim", **facts)


def test_the_first_lines_of_the_vendors_command_are_shown():
    told = doctor.command_output(chip(commands=("no-such-smi", "seq 100")))
    assert told == "\n".join(["seq 100", *map(str, range(1, doctor.COMMAND_LINES + 1))])


def test_a_vendors_command_that_fails_says_so():
    told = doctor.command_output(chip(commands=("sh -c 'echo no driver >&2; exit 3'",)))
    assert told == "sh -c 'echo no driver >&2; exit 3' (exit code 3)\nno driver"


def test_a_vendors_command_that_is_missing_says_so():
    assert doctor.command_output(chip(commands=("no-such-smi info",))) == "no-such-smi: not found"
    assert doctor.command_output(chip()) is None


def test_a_vendors_command_that_hangs_is_left(monkeypatch):
    monkeypatch.setattr(doctor, "COMMAND_SECONDS", 0.1)
    assert "timed out" in doctor.command_output(chip(commands=("sleep 30",)))


def test_collectives_are_told_as_they_are(monkeypatch):
    assert doctor.collectives(SIM) == "simccl is available"
    assert doctor.collectives(chip(collectives="noccl")) == "noccl is not available"
    assert doctor.collectives(APPLE) == "Apple GPU has none"
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    assert doctor.collectives(SIM) == "this PyTorch is built without torch.distributed"


def test_a_device_module_that_tells_little_is_shown_with_what_it_tells():
    class Reticent:
        def get_device_name(self, _: int) -> str:
            raise RuntimeError("no driver")

    assert doctor._device(Reticent(), 1) == doctor.Device("device 1", None, None)


def test_the_version_of_a_vendors_package_is_found_by_its_module():
    assert doctor._version("rich.console") == doctor._version("rich")
    assert doctor._version("no_such_package") is None
