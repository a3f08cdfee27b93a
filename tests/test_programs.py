"""Real programs on the simulated accelerator: each prints what it prints on the CPU (docs/programs.md)."""

from __future__ import annotations

import dataclasses
import re
import shlex

import pytest
import torch
from programs import data, table
from programs.catalogue import ALL
from programs.record import HERE, Program, library
from programs.run import ProgramError, command_line, run


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", ALL, ids=lambda program: program.name)
def test_a_program_prints_on_sim_what_it_prints_on_the_cpu(program):
    missing = program.missing()
    if missing:
        pytest.skip(missing)
    result = run(program, "sim", timeout=250)
    assert result.status == "passed", result.message


def test_names_are_unique_and_scripts_are_there():
    assert len({program.name for program in ALL}) == len(ALL) >= 60
    scripts = {script.name for script in (HERE / "libraries").glob("*.py")}
    named = {word.rpartition("/")[2] for program in ALL for word in shlex.split(program.command)}
    assert scripts <= named
    for program in ALL:
        if not program.repository:
            assert set(re.findall(r"\w+\.py", program.command)) <= scripts, program.name
        assert program.tolerance <= 1e-2 or program.reason, f"{program.name}: why so far apart?"
        for call in program.data:
            assert call.split()[0] in data.FORMATS


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A program of one line, in a checkout of its own."""

    def write(source: str, **options: object) -> Program:
        checkout = tmp_path / "me__mine"
        checkout.mkdir(exist_ok=True)
        (checkout / "main.py").write_text(
            f"import torch\ndevice = 'cuda' if torch.cuda.is_available() else 'cpu'\n{source}\n"
        )
        monkeypatch.setattr("programs.record.SOURCES", tmp_path)
        return Program("mine", "a test", "python main.py", repository="me/mine", commit="1", **options)

    return write


def test_equal_numbers_pass(written):
    result = run(written("print('loss', torch.ones(3, device=device).sum().item() / 7)"), "sim", 200)
    assert (result.status, result.numbers, result.difference) == ("passed", 1, 0.0), result


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "print('loss', 1.5 if device == 'cuda' else 1.4, torch.ones(1, device=device).item())",
            "is 1.5, on the CPU 1.4",
        ),
        ("torch.ones(1, device=device); print('loss', float('nan') if device == 'cuda' else 1.0)", "nan"),
        ("print('loss', 1.5)", "without using the device"),
        ("torch.ones(1, device=device); print('done')", "no number to compare"),
        ("torch.ones(1, device=device); raise ValueError('so it ends')", "exit code 1: ValueError: so it ends"),
        ("import time; time.sleep(60)", "not done after 2 s"),
    ],
)
def test_what_is_not_right_fails_with_its_reason(written, source, message):
    result = run(written(source), "sim", 2 if "sleep" in source else 200)
    assert result.status == "failed"
    assert message in result.message


def test_a_missing_package_is_said():
    assert library("a", "b", "no-such-package").missing() == "not installed: no-such-package"


def test_ditorch_runs_the_program_under_torchrun_too():
    words = command_line(
        Program("a", "b", "A=1 torchrun --standalone --nproc_per_node=2 x.py --device={device}"), "sim"
    )
    assert words[:2] == ["env", "A=1"]
    assert words[words.index("-m", 4) :][:3] == ["-m", "ditorch_cli", "run"]
    assert words[-2:] == ["x.py", "--device=cuda"]
    assert "ditorch" not in command_line(Program("a", "b", "python x.py"), "cpu", plain=True)


def test_on_a_genuine_gpu_the_same_gpu_without_ditorch_is_the_reference():
    program = Program("a", "b", "python x.py --device={device}", only_cuda=True)
    assert command_line(program, "cuda", plain=True)[-2:] == ["x.py", "--device=cuda"]
    assert "ditorch_cli" not in command_line(program, "cuda", plain=True)
    assert "ditorch_cli" in command_line(program, "cuda")
    assert "ditorch_cli" in command_line(program, "cpu", plain=True)  # it knows CUDA only


def test_a_program_of_more_ranks_than_gpus_is_skipped(written, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    program = dataclasses.replace(written("print('loss 1.0')"), command="torchrun --nproc_per_node=2 main.py")
    result = run(program, "cuda", 1)
    assert (result.status, result.message) == ("skipped", "it takes 2 devices, here are 1")


@pytest.mark.parametrize(
    ("plainly", "status"), [("ValueError: 1", "broken"), ("ValueError: 2", "failed"), (None, "failed")]
)
def test_what_fails_without_ditorch_as_well_is_not_our_failure(written, monkeypatch, plainly, status):
    def output(program, backend, timeout, plain=False):
        if plain and plainly is None:
            return "loss 1.0"
        raise ProgramError(f"on cuda{' without ditorch' * plain}: {plainly if plain else 'ValueError: 1'}")

    monkeypatch.setattr("programs.run._output", output)
    result = run(written(""), "cuda", 1)
    assert result.status == status
    assert result.message.endswith("ValueError: 1")


def test_the_table_tells_a_version_that_is_not_the_one_on_sim():
    passed = {"status": "passed", "message": "", "difference": 0.0, "numbers": 3, "version": "1.1"}
    program = library("a", "b", "some-package")
    assert table._with_version(passed, passed, program) == "equal (3)"
    assert table._with_version({**passed, "version": "1.0"}, passed, program) == "1.0: equal (3)"
    assert table._with_version(None, passed, program) == "–"
