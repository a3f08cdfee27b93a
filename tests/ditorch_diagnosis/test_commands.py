"""`ditorch bisect` as it is typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from ditorch_cli.bisect import command

PROGRAM = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    x, y = torch.randn(4, 8).cuda(), torch.randint(3, (4,)).cuda()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss={loss.item():.6f}", flush=True)
"""
FAULT = "aten.gelu: scale=1.5"
GELU = "torch.nn.functional.gelu"


def typed(*arguments, **environment):
    """Its exit code, what it prints, and what it complains of."""
    done = subprocess.run(
        [sys.executable, "-c", "from ditorch_cli import main; main()", *map(str, arguments)],
        capture_output=True, text=True, timeout=1000,
        env={**os.environ, "DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "sim", **environment},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def program():
    Path("train.py").write_text(PROGRAM)
    return "train.py"


def test_what_no_op_does_is_said_and_what_passes_has_nothing_to_find():
    code, printed, _ = typed("bisect", "--out", "one", "--", sys.executable, "-c", "raise SystemExit(3)")
    assert code == 2
    assert "no set of ops explains it: with every op on the CPU: the program's exit code is 3 (3 trials)" in printed
    code, printed, _ = typed("bisect", "--", sys.executable, "-c", "print(1)")
    assert (code, "nothing to find: the check passes as it is" in printed) == (0, True)
    code, printed, _ = typed("bisect", "--timeout", 1, "--", sys.executable, "-c", "import time; time.sleep(60)")
    assert (code, "exit code is 124" in printed) == (2, True)


@pytest.mark.slow
def test_a_suspect_is_confirmed_with_a_log_of_a_good_run(program):
    Path("good.txt").write_text(typed("run", program, 2)[1])
    options = ("--good", "good.txt", "--suspects", GELU, "--json")
    code, printed, told = typed("bisect", *options, "--", program, 2, DITORCH_FAULTS=FAULT)
    found = json.loads(printed)
    assert (code, found["verdict"], found["ops"]) == (1, "found", [GELU]), told
    assert (found["schema"], found["exit_code"], len(found["trials"])) == ("ditorch.bisect/1", 1, 4)
    assert found["next"][0] == f"ditorch run --fallback {GELU} {program} 2"
    assert "1 op on the CPU: torch.nn.functional.gelu: passes" in told


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_by_noted_losses_of_a_program_that_trains_for_ever(program):
    assert typed("run", "--losses", "--out", "good", program, 3)[0] == 0
    command = ("bisect", "--good", "good", sys.executable, program, 100_000)
    code, printed, told = typed(*command, DITORCH_FAULTS=FAULT)
    assert (code, f"\n  {GELU}\n" in printed) == (1, True), printed + told
    assert "trials are known from before" in typed(*command, DITORCH_FAULTS=FAULT)[1]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_search_that_was_killed_goes_on(program):
    Path("good.txt").write_text(typed("run", program, 2)[1])
    options = ("bisect", "--good", "good.txt", "--json", program, 2)
    environment = {"DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "sim", "DITORCH_FAULTS": FAULT}
    words = [sys.executable, "-c", "from ditorch_cli import main; main()", *map(str, options)]
    with subprocess.Popen(words, env={**os.environ, **environment}, stdout=-3, stderr=-3) as search:
        while search.poll() is None:
            journal = next(Path().glob("ditorch_runs/bisect-*/trials.jsonl"), None)
            if journal is not None and len(journal.read_text().splitlines()) > 3:  # the head, and three trials
                search.kill()
            time.sleep(0.05)
    with journal.open("a") as file:
        file.write('{"ops": ["half a li')
    code, printed, told = typed(*options, **environment)
    resumed = json.loads(printed)
    assert (code, resumed["ops"]) == (1, [GELU]), told
    assert "3 trials are known from before" in told
    assert all(Path(one["folder"]).exists() for one in resumed["trials"])
    assert "trials are known from before" in typed(*options, **environment)[2]


NAN = {"DITORCH_FAULTS": "aten.native_layer_norm: nan@one"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_by_a_command_that_looks_at_what_two_ranks_print(program):
    judge = f"{sys.executable} -c 'import sys; sys.exit(\"nan\" in sys.stdin.read())'"
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    launcher = (torchrun, "--nproc_per_node=2", "--master-port=0", program, 2)
    suspects = "torch.nn.functional.layer_norm"
    code, printed, told = typed("bisect", "--check", judge, "--suspects", suspects, *launcher, **NAN)
    assert (code, "\n  torch.nn.functional.layer_norm\n" in printed) == (1, True), printed + told


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_by_the_first_nan_and_by_what_no_op_does(program):
    code, printed, told = typed("bisect", "--no-nan-by", 1, program, 100_000, **NAN)
    assert (code, "\n  torch.nn.functional.layer_norm\n" in printed) == (1, True), printed + told
    code, printed, _ = typed("bisect", program, "two", **NAN)
    assert (code, "no set of ops explains it" in printed, "ValueError" in printed) == (2, True, True)


def refused(*arguments):
    done = CliRunner().invoke(command, list(map(str, arguments)))
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    return done.output


def test_bad_input_is_one_clear_message(program, monkeypatch):
    assert "nowhere does not exist: give the folder of a good run" in refused("--good", "nowhere", program)
    Path("empty").mkdir()
    assert "empty holds no losses: make it with `ditorch run --losses`" in refused("--good", "empty", program)
    Path("log.txt").write_text("nothing of the kind")
    assert "log.txt holds no losses: --pattern says how they are written" in refused("--good", "log.txt", program)
    Path("log.txt").write_text("loss 1.0")
    assert "is no regular expression" in refused("--good", "log.txt", "--pattern", "((", program)
    assert "has no group" in refused("--good", "log.txt", "--pattern", "loss", program)
    assert "which is no number" in refused("--good", "log.txt", "--pattern", "(loss)", program)
    assert "give one check" in refused("--good", "log.txt", "--no-nan-by", 3, program)
    assert "--tolerance is for --good" in refused("--tolerance", 0.1, program)
    assert "it goes with --good or --no-nan-by" in refused("--pattern", "loss ({})", program)
    assert "there is no such file" in refused("--suspects", "missing.json", program)
    (Path("empty") / "losses").mkdir()
    Path("empty/losses/h-rank0-pid1.jsonl").write_text('{"step": 0}\n')
    assert "cannot be used: line 1 is no loss" in refused("--good", "empty", program)
    Path("empty/losses/h-rank0-pid1.jsonl").write_text('{"step": 0, "loss": 1.0}\n{"st')
    Path("search").mkdir()
    Path("search/trials.jsonl").write_text('{"schema": "ditorch.trials/9", "identity": ""}\n')
    assert "is of another release" in refused("--good", "empty", "--out", "search", program)
    Path("search/trials.jsonl").write_text("")
    assert "is damaged: remove it" in refused("--good", "empty", "--out", "search", program)
    Path("file").write_text("")
    assert "cannot be written" in refused("--out", "file", program)
