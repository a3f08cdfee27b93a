"""How one backend is chosen among all of them, on machines that are made up."""

from __future__ import annotations

import re
import sys
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest

import ditorch
from ditorch import discover
from ditorch.backend import Backend
from ditorch.backends import CUDA, SIM
from ditorch.errors import BackendError


class Imaginary(Backend):
    """Is there, or is not for a reason, or raises."""

    outcomes: ClassVar = {}

    def unavailable(self):
        outcome = self.outcomes[self.name]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def start(self):
        pass


@pytest.fixture
def machine(monkeypatch):
    """Puts imaginary chips in the place of the built-in ones: a reason each, None where the chip is there."""

    def furnish(**outcomes):
        monkeypatch.setattr(Imaginary, "outcomes", outcomes)
        chips = [Imaginary(name=name, title=f"{name} chip", device_type=name) for name in outcomes]
        monkeypatch.setattr(discover, "ACCELERATORS", tuple(chips))
        monkeypatch.setattr(discover, "BUILT_IN", {chip.name: chip for chip in (*chips, SIM)})

    monkeypatch.delenv("DITORCH_BACKEND", raising=False)
    return furnish


@pytest.fixture
def plug_ins(monkeypatch, tmp_path):
    """Entry points of other packages: name="what the module's BACKEND is"."""

    def install(**sources):
        for name, source in sources.items():
            (tmp_path / f"plug_in_{name}.py").write_text(f"from ditorch.backend import Backend\nBACKEND = {source}\n")
        found = {name: [EntryPoint(name, f"plug_in_{name}:BACKEND", discover.GROUP)] for name in sources}
        monkeypatch.setattr(discover, "_entry_points", lambda: found)

    monkeypatch.syspath_prepend(tmp_path)
    yield install
    for name in [name for name in sys.modules if name.startswith("plug_in_")]:
        del sys.modules[name]


def test_the_only_accelerator_is_taken(machine):
    machine(first="it is not there", second=None)
    assert discover.choose().name == "second"


def test_without_an_accelerator_the_simulated_one_is_taken(machine):
    machine(first="it is not there")
    assert discover.choose() is SIM


def test_two_accelerators_without_a_choice_are_an_error(machine):
    machine(first=None, second=None, third="it is not there")
    expected = (
        "There is more than one accelerator here: first (first chip) and second (second chip). "
        "Choose one, such as DITORCH_BACKEND=first."
    )
    with pytest.raises(BackendError, match=re.escape(expected)):
        discover.choose()


def test_the_choice_decides_between_two(machine, monkeypatch):
    machine(first=None, second=None)
    monkeypatch.setenv("DITORCH_BACKEND", "second")
    assert discover.choose().name == "second"


def test_a_choice_that_is_not_there_says_why(machine, monkeypatch):
    machine(first="its driver is missing")
    monkeypatch.setenv("DITORCH_BACKEND", "first")
    with pytest.raises(BackendError, match=r"first: first chip cannot be used here, because its driver is missing[.]$"):
        discover.choose()


def test_a_probe_that_raises_is_passed_over_aloud(machine, capsys):
    machine(first=ImportError("libchip.so:\n  cannot open."), second=None)
    assert discover.choose().name == "second"
    assert capsys.readouterr().err == (
        "ditorch: first (first chip) is passed over: its probe raised ImportError: libchip.so: cannot open\n"
    )


def test_a_choice_whose_probe_raises_is_an_error_with_the_reason(machine, monkeypatch):
    machine(first=OSError("no such device"), second=None)
    monkeypatch.setenv("DITORCH_BACKEND", "first")
    with pytest.raises(BackendError, match=r"because its probe raised OSError: no such device[.]$"):
        discover.choose()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("asend", "ascend"), ("npu", "ascend"), ("Ascend", "ascend"), ("torch_mlu", "cambricon"), ("mps", "apple")],
)
def test_an_unknown_name_lists_the_known_ones_and_a_close_one(monkeypatch, wrong, right):
    monkeypatch.setenv("DITORCH_BACKEND", wrong)
    with pytest.raises(BackendError) as caught:
        discover.choose()
    assert f"DITORCH_BACKEND={wrong}: there is no such backend. Did you mean {right}? There are " in str(caught.value)
    assert "apple, ascend, biren, cambricon, cpu, cuda" in str(caught.value)


def test_an_unknown_name_that_is_like_nothing_lists_the_known_ones(monkeypatch):
    monkeypatch.setenv("DITORCH_BACKEND", "quux17")
    with pytest.raises(BackendError, match=r"there is no such backend[.] There are apple, "):
        discover.choose()


def test_the_survey_tells_what_became_of_every_backend(machine, plug_ins):
    machine(first=None, second="it is not there", third=RuntimeError("broken driver"))
    plug_ins(fourth="Backend(name='fourth', title='fourth chip', device_type='fourth', modules=('torch_fourth',))")
    found = {finding.name: (finding.reason, finding.failed) for finding in discover.survey()}
    assert found == {
        "first": (None, False),
        "second": ("it is not there", False),
        "third": ("its probe raised RuntimeError: broken driver", True),
        "fourth": ("torch_fourth is not installed", False),
        "sim": (None, False),
    }


def test_plug_ins_of_others_are_not_imported_once_a_backend_is_chosen(machine, plug_ins, monkeypatch):
    machine(first=None)
    plug_ins(second="1 / 0")
    monkeypatch.setenv("DITORCH_BACKEND", "first")
    assert discover.choose().name == "first"
    assert "plug_in_second" not in sys.modules


def test_a_plug_in_that_cannot_be_loaded_is_passed_over_aloud(machine, plug_ins, capsys):
    machine(first=None)
    plug_ins(second="1 / 0")
    assert discover.choose().name == "first"
    assert capsys.readouterr().err == (
        "ditorch: second (plug-in) is passed over: loading its plug-in raised ZeroDivisionError: division by zero\n"
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("'toy'", "its entry point plug_in_second:BACKEND is a str; it must be a ditorch Backend"),
        (
            "Backend(name='other', title='other', device_type='other')",
            "its entry point plug_in_second:BACKEND is the backend other; the names must be the same",
        ),
    ],
)
def test_a_plug_in_that_is_not_the_backend_it_promises_says_so(machine, plug_ins, monkeypatch, source, reason):
    machine(first=None)
    plug_ins(second=source)
    monkeypatch.setenv("DITORCH_BACKEND", "second")
    with pytest.raises(BackendError, match=re.escape(reason)):
        discover.choose()


def test_a_plug_in_takes_the_place_of_the_built_in_backend_of_its_name(machine, plug_ins):
    machine(first="it is not there")
    plug_ins(first="Backend(name='first', title='from the vendor', device_type='sim')")
    assert discover.choose().title == "from the vendor"


def test_two_plug_ins_of_one_name_are_an_error(machine, monkeypatch):
    machine(first=None)
    both = [EntryPoint("toy", f"{package}:BACKEND", discover.GROUP) for package in ("one", "other")]
    monkeypatch.setattr(discover, "_entry_points", lambda: {"toy": both})
    monkeypatch.setenv("DITORCH_BACKEND", "toy")
    with pytest.raises(BackendError, match="two packages bring a backend named toy, one:BACKEND and other:BACKEND"):
        discover.choose()


def test_torch_cuda_that_ditorch_itself_provides_is_not_taken_for_cuda(monkeypatch):
    monkeypatch.setattr(CUDA.device_module(), "is_available", lambda: True)
    monkeypatch.setattr(ditorch, "_backend", SIM)
    [finding] = [finding for finding in discover.survey() if finding.name == "cuda"]
    assert finding.reason == "torch.cuda stands for sim here, by ditorch"


def test_looking_for_accelerators_imports_no_package_that_is_not_chosen(run_python, tmp_path):
    (tmp_path / "torch_npu.py").write_text("1 / 0")
    run_python("import ditorch", PYTHONPATH=str(tmp_path), DITORCH_DISABLE_MOCK="0", DITORCH_BACKEND="sim")


def test_a_vendors_package_that_cannot_be_imported_leaves_the_simulated_accelerator(run_python, tmp_path):
    (tmp_path / "torch_npu.py").write_text("raise ImportError('libhccl.so: cannot open shared object file')")
    code = "import ditorch; print(ditorch.backend().name)"
    done = run_python(code, PYTHONPATH=str(tmp_path), DITORCH_DISABLE_MOCK="0", DITORCH_BACKEND="")
    assert done.stdout == "sim\n"
    assert done.stderr.startswith(
        "ditorch: ascend (Huawei Ascend) is passed over: its probe raised ImportError: libhccl.so: cannot open"
    )
