"""`ditorch diagnose`: from a good run and a bad loss to a script that proves it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ditorch_cli.demo import _FAULT as DEMOS_FAULT
from ditorch_cli.diagnose import command
from ditorch_diagnosis.errors import DiagnosisError
from ditorch_diagnosis.stages import Stages, asked

from .. import bare
from .test_commands import typed

LAYER_NORM = "torch.nn.functional.layer_norm"
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_demos_fault_ends_with_a_script_that_fails_with_torch_alone(tmp_path):
    shutil.copy(ROOT / "examples" / "train_gpt.py", "train.py")
    program = ("train.py", "--steps", 4)
    done = typed("run", "--capture=statistics", "--out", "good", *program, DITORCH_BACKEND="cpu")
    assert done[0] == 0, done[2]
    command = ("diagnose", "--good", "good", "--out", "found", "--json", *program)
    code, printed, told = typed(*command, DITORCH_FAULTS=DEMOS_FAULT)
    found = json.loads(printed)
    assert (code, found["verdict"], found["op"], found["is_confirmed"]) == (1, "found", LAYER_NORM, True), told
    assert found["place"]["phase"] == "backward"
    assert [stage["stage"] for stage in found["stages"]] == [
        "statistics", "compare", "data", "settle", "replay", "reproduce", f"confirm {LAYER_NORM}"
    ]  # fmt: skip
    python = bare.environment(tmp_path / "bare")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "DITORCH"))}
    proof = subprocess.run([python, found["reproducer"]], capture_output=True, text=True, env=clean)
    assert (proof.returncode, "WRONG" in proof.stdout) == (1, True), proof.stdout + proof.stderr
    assert "| gradient " in Path("found/reproduce/report.md").read_text()

    # the same again is known; what was stopped goes on
    lines = Path("found/stages.jsonl").read_text().splitlines(keepends=True)
    Path("found/stages.jsonl").write_text("".join(lines[:-1]) + lines[-1][:9])
    code, printed, told = typed(*command, DITORCH_FAULTS=DEMOS_FAULT)
    assert (code, told.count("[known]")) == (1, 6)
    again = json.loads(printed)
    assert {**again, "stages": 0} == {**found, "stages": 0}

    code, printed, told = typed("diagnose", "--good", "good", *program)
    assert (code, "nothing to find: the runs agree within rounding" in printed) == (0, True), printed + told


def refused(*arguments):
    done = CliRunner().invoke(command, list(map(str, arguments)))
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    return done.output


def test_bad_input_is_one_clear_message():
    assert "--good nowhere is no folder: make it with `ditorch run --capture=statistics" in refused(
        "--good", "nowhere", "train.py"
    )
    assert "Missing option '--good'" in refused("train.py")
    Path("good").mkdir()
    Path("search").mkdir()
    pack = Path("good/op_capture_statistics_pid1.pack")
    pack.write_bytes(b"op_tools statistics 3\n{}\n")
    for content, message in (("", "is damaged: remove it"), ("{}\n", "is damaged"), ("[1]\n", "is damaged")):
        Path("search/stages.jsonl").write_text(content)
        assert message in refused("--good", "good", "--out", "search", "train.py")
    pack.unlink()
    for content, message in (
        (None, "--good: "),
        (b"op_tools statistics 9\n{}\n", "a later release of op_tools wrote it"),
        (b"PK\3\4", "it holds no statistics that OpCapture wrote"),
    ):
        if content is not None:
            pack.write_bytes(content)
        assert message in refused("--good", "good", "--out", "unused", "train.py")
        assert not Path("unused").exists(), "the program has run for nothing"
    pack.write_bytes(b"op_tools statistics 3\n{}\n")
    quiet = (sys.executable, "-c", "import sys; sys.exit('no such data set')")
    assert "the program ran no op that was captured: no such data set; see " in refused("--good", "good", "--", *quiet)


def test_a_stage_is_done_once(tmp_path):
    lines = []
    first = Stages(tmp_path, "same", lines.append)
    assert first.stage("one", "count", lambda: {"n": 1}, lambda result: f"{result['n']}") == {"n": 1}
    again = Stages(tmp_path, "same", lines.append)
    assert again.stage("one", "count", lambda: {"n": 2}, lambda result: f"{result['n']}") == {"n": 1}
    assert lines[0] == "1. count …"
    assert lines[-1] == "   1 [known]"
    with pytest.raises(DiagnosisError, match="holds the search of another command"):
        Stages(tmp_path, "another", lines.append)


def test_what_a_command_complains_of_is_handed_on(tmp_path):
    with pytest.raises(DiagnosisError, match=r"`ditorch compare` cannot go on: ditorch compare: .*nowhere"):
        asked("compare", tmp_path / "nowhere", tmp_path / "nowhere", codes=(0, 1))
