"""`ditorch doctor`: what it says of a healthy machine, a broken kernel, and a machine without a choice."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time

import pytest
import torch
from click.testing import CliRunner

from ditorch import discover, doctor, surroundings
from ditorch.backend import Backend
from ditorch.backends import APPLE, SIM
from ditorch.errors import BackendError
from ditorch.sim import faults
from ditorch_cli.doctor import doctor as command
from ditorch_shared import matrix_units, native


@pytest.fixture(autouse=True)
def _chosen_is_sim(monkeypatch):
    monkeypatch.setenv("DITORCH_BACKEND", "sim")


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, arguments)
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
    assert "Wrong: mm, addmm, linear, autocast." in output


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
    assert check[:2] == ("cumsum", "raised NotImplementedError: aten::cumsum is not there")
    assert "OpFallback" in check.advice


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


def test_everything_is_told_as_json():
    code, output = invoke("--json")
    told = json.loads(output)
    assert code == 0
    assert told["schema"] == "ditorch.doctor/1"
    assert told["healthy"]
    assert (told["backend"], told["device_type"], told["problem"]) == ("sim", "sim", None)
    assert told["devices"][1]["name"] == "Simulated accelerator sim:1"
    names = [check["name"] for check in told["checks"]]
    others = ["CPU", "C++ compiler", "cache folder", "pin_memory", "autocast", "collective", "torch.compile"]
    assert names[14:] == [*others, "C++ helper of op_tools"]
    assert {(check["problem"], check["advice"]) for check in told["checks"]} == {(None, None)}


def test_a_wrong_machine_is_told_as_json_with_what_to_do(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DITORCH_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    wrong = {check.name: check for check in surroundings.look_around(SIM, False) if check.problem}
    assert list(wrong) == ["C++ compiler", "cache folder"]
    assert wrong["C++ compiler"].problem == "none is found (no-such-compiler)"
    assert "set CXX" in wrong["C++ compiler"].advice
    assert "NotADirectoryError" in wrong["cache folder"].problem
    assert "DITORCH_CACHE" in wrong["cache folder"].advice


def test_a_cpu_whose_matrix_units_kill_programs_is_told(monkeypatch):
    dies = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    monkeypatch.setattr(matrix_units, "are_announced", lambda: True)
    monkeypatch.setattr(matrix_units.kill_programs, "__defaults__", (dies,))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "")  # so that it is put back where it was not set
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    found = surroundings.look_at_cpu()
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "avx512_core_fp16"
    assert found.problem.startswith("its matrix units (AMX) are announced and do not work: a product in bfloat16 kills")
    assert found.advice == "set ONEDNN_MAX_CPU_ISA=avx512_core_fp16 for every program on this machine"


def test_a_cpu_without_matrix_units_is_not_tried(monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text("flags : fpu avx512f\n")
    assert not matrix_units.are_announced(tmp_path / "cpuinfo")
    assert not matrix_units.are_announced(tmp_path / "none")


@pytest.mark.parametrize(("fault", "name"), [("aten.mm: scale=2", "autocast"), ("aten.sin: scale=2", "torch.compile")])
def test_what_else_is_broken_is_named(fault, name):
    with faults.inject(fault):
        wrong = [check.name for check in surroundings.look_around(SIM, False) if check.problem]
    assert wrong == [name]


def test_memory_that_cannot_be_pinned_is_named(monkeypatch):
    def refused(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("Found no NVIDIA driver on your system.")

    monkeypatch.setattr(torch.Tensor, "pin_memory", refused)
    [wrong] = [check for check in surroundings.look_around(SIM, False) if check.problem]
    assert wrong.name == "pin_memory"
    assert wrong.problem == "raised RuntimeError: Found no NVIDIA driver on your system."
    assert "pin_memory=False" in wrong.advice


def test_a_device_that_hangs_is_left(monkeypatch):
    monkeypatch.setattr(surroundings, "CHECK_SECONDS", 0.2)
    go_on = threading.Event()
    questions = [
        surroundings.Asked("first", lambda: go_on.wait(30) and None),
        surroundings.Asked("second", lambda: None),
    ]
    checks = surroundings.answers_to(questions)
    assert surroundings.is_hanging()
    go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("ditorch doctor"):
            thread.join()
    assert not surroundings.is_hanging()
    assert [check.problem for check in checks] == ["did not finish within 0.2 s", "not tried, because first hangs"]
    assert all("restarting the device" in check.advice for check in checks)


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


HANGS = {
    "with Python going on": "import time\ntime.sleep(600)\n",
    "with Python standing still": "import ctypes\nctypes.PyDLL(None).sleep(600)\n",  # it keeps the GIL
}


@pytest.mark.slow
@pytest.mark.parametrize("how", HANGS)
def test_a_driver_that_hangs_does_not_hang_the_command(run_python, tmp_path, how):
    package = tmp_path / "torch_npu"
    package.mkdir()
    (package / "__init__.py").write_text(HANGS[how])
    search = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    code = "import sys; sys.argv[0] = 'ditorch'; from ditorch_cli.doctor import doctor; doctor()"
    environment = {"DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "", "PYTHONPATH": search}
    done = run_python(code, "--seconds", "8", check=False, fresh=True, **environment)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    if how == "with Python going on":
        told = " ".join(done.stdout.split())
        assert "No accelerator is chosen. Choosing an accelerator did not finish within 8 s; the vendor's" in told
        assert re.search(r"ascend Huawei Ascend fails looking for it did not finish within 8 s", told)
    else:
        assert "ditorch doctor: choosing an accelerator hangs, and not even Python can go on" in done.stderr


def test_a_build_is_no_hang(monkeypatch):
    monkeypatch.setattr(surroundings, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(native, "_under_way", ["sim"])
    check = surroundings.answered("compiling", lambda: time.sleep(0.5))
    assert check.problem is None
