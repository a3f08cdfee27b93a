"""`ditorch attach`: tools in a program that runs already, at the same step of every rank."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from ditorch_cli import attach_target, manifest
from ditorch_cli.agreement import Conversation, DisagreementError
from ditorch_cli.attach import command
from ditorch_shared import control, waiting
from op_tools.core import running
from op_tools.core.steps import STEPS
from op_tools.run import start

PROGRAM = """
import os, sys, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
step = 0
while True:
    x, y = torch.randn(4, 8).cuda(), torch.randint(3, (4,)).cuda()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sys.stdout.write(f"{rank} {step} {loss.item().hex()}\\n")
    enough = torch.tensor(float(os.path.exists("enough")), device="cuda")  # the test's word
    dist.all_reduce(enough)  # both ranks end at the same step
    if enough:
        break
    step += 1
"""


@pytest.fixture
def run(tmp_path):
    """A run's folder, and what `ditorch attach` says about it."""
    manifest.write(tmp_path, manifest.begun(["train.py"], {}))

    def attach(*arguments, of=tmp_path):
        return CliRunner().invoke(command, [str(of), *arguments])

    return attach


class Rank(threading.Thread):
    """A process as the other side sees it: at the end of each of its steps, it looks, and answers."""

    def __init__(self, folder, rank, world_size=2, seconds=0.005, blind=0, problem=None):
        super().__init__()
        self.path, self.answer_path = (
            folder / "control/command.json",
            folder / f"control/host-rank{rank}-pid{rank}.json",
        )
        self.rank, self.world_size, self.seconds, self.blind, self.problem = rank, world_size, seconds, blind, problem
        self.is_over, self.armed = threading.Event(), []

    def run(self):
        step, known = 10 * self.rank, None
        while not self.is_over.wait(self.seconds):
            step += 1
            found = control.signature(str(self.path))
            if found in (None, known):
                continue
            known, asked = found, control.read(self.path, control.COMMAND_SCHEMA)
            if asked is None:
                continue
            if asked["start"] is not None and self.blind:  # what it learns, it learns too late
                self.blind -= 1
                step = asked["start"]
            armed = asked["start"] if asked["start"] and asked["start"] > step else None
            self.armed += [armed] if armed else []
            told = {"id": asked["id"], "rank": self.rank, "pid": self.rank, "world_size": self.world_size, "step": step}
            told.update(schema=control.ANSWER_SCHEMA, armed=armed, problem=self.problem, seconds_per_step=self.seconds)
            control.write(self.answer_path, told)


@pytest.fixture
def ranks(tmp_path):
    started = []

    def begin(*ranks):
        started.extend(ranks)
        for rank in ranks:
            rank.start()

    yield begin
    for rank in started:
        rank.is_over.set()
        rank.join()


def talk(folder, patience=20.0):
    return Conversation(folder, patience, lambda answers: None)


def test_ranks_at_different_steps_agree_on_one(ranks, tmp_path):
    first, second = Rank(tmp_path, 0), Rank(tmp_path, 1, seconds=0.05)
    ranks(first, second)
    step, answers = talk(tmp_path).switch("on", tool="time")
    assert [answer["armed"] for answer in answers] == [step, step]
    assert not (tmp_path / "control/command.json").exists()


def test_a_rank_that_learns_of_it_too_late_gets_a_later_step(ranks, tmp_path):
    first, second = Rank(tmp_path, 0), Rank(tmp_path, 1, blind=1)
    ranks(first, second)
    step, _ = talk(tmp_path).switch("on", tool="time")
    assert first.armed[-1] == second.armed[-1] == step
    assert len(second.armed) == 1


def test_a_rank_that_says_nothing_is_named(ranks, tmp_path):
    ranks(Rank(tmp_path, 0, world_size=3), Rank(tmp_path, 2, world_size=3))
    with pytest.raises(DisagreementError, match=r"ranks 1 did not answer within 1 s: .*Do they see the same folder\?"):
        talk(tmp_path, patience=1.0).ask("status")
    assert not (tmp_path / "control/command.json").exists()  # it must not take effect an hour later


def test_a_rank_that_cannot_is_named_with_its_reason(ranks, tmp_path):
    ranks(Rank(tmp_path, 0), Rank(tmp_path, 1, problem="no room"))
    with pytest.raises(DisagreementError, match="rank 1: no room"):
        talk(tmp_path).switch("on", tool="time")


def test_two_that_speak_with_one_run_do_not_mix(tmp_path):
    talk(tmp_path)
    (tmp_path / "control/command.json").write_text("{}")
    with pytest.raises(DisagreementError, match="another `ditorch attach` speaks with this run"):
        talk(tmp_path)


def losses(is_over, pause=0.0):
    """Of a program that trains until `is_over` of the number of its steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)).to("sim")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    while not is_over(len(found)):
        loss = model(torch.randn(4, 8).to("sim")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
        time.sleep(pause)
    return found


def test_a_program_without_tools_gets_one_for_three_steps(run, tmp_path, capsys):
    """In one process: the program trains here, and `ditorch attach` speaks with it from a thread."""
    manifest.write(tmp_path, {**manifest.begun(["train.py"], {}), "host": "elsewhere"})
    waiting.wait(tmp_path, lambda *counted: start.attach(tmp_path, "sim", None, *counted))
    over, said = threading.Event(), {}

    def speak():
        try:
            said["on"] = run("on", "autocompare", "--steps", "3")
            said["twice"] = run("on", "overflow", "--ops", "torch.nn.functional.linear")
            said["refused"] = run("on", "overflow")
            first = last = int(re.search(r"in steps (\d+)", said["on"].output)[1])
            while last < first + 4:
                said["status"] = run("status", "--json")
                last = min(rank["step"] for rank in json.loads(said["status"].output)["ranks"])
            said["table"] = run("status")
            said["off"] = run("off")
            said["nothing"] = run("off", "time")
        finally:
            over.set()

    speaker = threading.Thread(target=speak)
    try:
        speaker.start()
        found = losses(lambda count: over.is_set(), pause=0.005)
    finally:
        speaker.join()
        running.stop_everything()
        running._step_listeners.clear()
        STEPS.forget()
    assert all(one.exit_code == 0 for name, one in said.items() if name not in ("refused", "nothing")), said
    first = int(re.search(r"autocompare: on in steps (\d+) to \d+, in 1 process\n", said["on"].output)[1])
    assert "overflow is on already" in said["refused"].stderr
    assert "time is not on" in said["nothing"].stderr
    assert re.search(r"OpAutoCompare +off for steps", said["table"].output)
    [rank] = json.loads(said["status"].output)["ranks"]
    compared = rank["tools"][0]
    assert (compared["tool"], compared["is_on"], compared["steps"]) == ("OpAutoCompare", False, f"{first}-{first + 2}")
    assert compared["findings"] == 0
    [table] = (tmp_path / "op_autocompare_result").glob("*.csv")
    assert compared["calls"] > 0
    assert "torch.nn.functional.layer_norm" in table.read_text()
    assert found == losses(lambda count: count == len(found))
    assert capsys.readouterr().out == ""
    record = json.loads(next((tmp_path / "processes").iterdir()).read_text())
    assert [tool["tool"] for tool in record["tools"]] == ["OpAutoCompare", "OpOverflowCheck"]


@pytest.mark.slow
def test_both_ranks_of_a_job_switch_at_the_same_step_and_lose_no_bit(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    launch = ("-m", "ditorch", "run", "torchrun", "--standalone", "--nproc_per_node=2", "train.py")
    variables = {**os.environ, "DITORCH_BACKEND": "sim", "DITORCH_DISABLE_MOCK": "0"}

    def begin(out):
        with open(tmp_path / out, "w") as file:
            return subprocess.Popen([sys.executable, *launch], cwd=tmp_path, env=variables, stdout=file)

    def attach(*arguments):
        return CliRunner().invoke(command, [str(job.pid), *arguments, "--wait", "200"])

    job = begin("attached.txt")
    try:
        while not (tmp_path / "attached.txt").read_text() and job.poll() is None:
            time.sleep(0.1)
        said = attach("on", "autocompare", "--steps", "3")
        first = int(re.search(r"autocompare: on in steps (\d+) to \d+, on both ranks", said.output)[1])
        ranks = [{"step": 0}]
        while min(rank["step"] for rank in ranks) < first + 3:
            ranks = json.loads(attach("status", "--json").output)["ranks"]
    finally:
        (tmp_path / "enough").write_text("")
        job.wait(240)
    assert job.returncode == 0
    (tmp_path / "enough").unlink()
    losses = sorted((tmp_path / "attached.txt").read_text().splitlines())
    last = max(int(line.split()[1]) for line in losses)
    (tmp_path / "train.py").write_text(PROGRAM.replace('os.path.exists("enough")', f"step >= {last}"))
    assert begin("plain.txt").wait(240) == 0
    assert losses == sorted((tmp_path / "plain.txt").read_text().splitlines())
    for rank in ranks:
        [tool] = rank["tools"]
        assert (tool["is_on"], tool["steps"], tool["findings"]) == (False, f"{first}-{first + 2}", 0)
    assert len({rank["tools"][0]["calls"] for rank in ranks}) == 1
    [folder] = (tmp_path / "ditorch_runs").glob("*")  # the plain run made none
    tables = [path.read_text() for path in (folder / "op_autocompare_result").iterdir()]
    assert len(tables) == 2
    over = CliRunner().invoke(command, [str(folder), "status"])
    assert "is over: none of its processes is left on this machine" in over.stderr


_HOST = ("unshare", "--uts", "--pid", "--fork", "--mount-proc", "sh", "-c", 'hostname "$0" && exec "$@"')


@pytest.mark.slow
def test_two_machines_that_share_a_folder_switch_at_the_same_step(tmp_path):
    """Each with a name and process numbers of its own; both programs are number 1 there."""
    if subprocess.run([*_HOST, "node", "true"], capture_output=True).returncode:
        pytest.skip("namespaces of their own for names and processes need root: sudo")
    (tmp_path / "train.py").write_text(PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    variables = {**os.environ, "DITORCH_BACKEND": "sim", "DITORCH_DISABLE_MOCK": "0"}
    variables.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE="2", LOCAL_RANK="0")
    program = (sys.executable, "-u", "-m", "ditorch", "run", "--out", "shared", "train.py")
    outs = [open(tmp_path / f"{rank}.txt", "w") for rank in range(2)]  # noqa: SIM115
    machines = [
        subprocess.Popen(
            [*_HOST, f"node{rank}", *program], cwd=tmp_path, env={**variables, "RANK": str(rank)}, stdout=out
        )
        for rank, out in enumerate(outs)
    ]
    for out in outs:
        out.close()

    def attach(*arguments):
        return CliRunner().invoke(command, [str(tmp_path / "shared"), *arguments, "--wait", "200"])

    try:
        while not (tmp_path / "0.txt").read_text() and machines[0].poll() is None:
            time.sleep(0.1)
        said = attach("on", "time", "--steps", "3")
        assert "on both ranks" in said.output, said.output
        first = int(re.search(r"time: on in steps (\d+) to", said.output)[1])
        ranks = [{"step": 0}]
        while min(rank["step"] for rank in ranks) < first + 3:
            ranks = json.loads(attach("status", "--json").output)["ranks"]
    finally:
        (tmp_path / "enough").write_text("")
        ended = [machine.wait(240) for machine in machines]
    assert ended == [0, 0]
    assert [(rank["host"], rank["pid"]) for rank in ranks] == [("node0", 1), ("node1", 1)]
    for rank in ranks:
        [tool] = rank["tools"]
        assert (tool["is_on"], tool["steps"]) == (False, f"{first}-{first + 2}")
        assert tool["calls"] > 0
    tables = [path.read_text() for path in (tmp_path / "shared" / "op_time_measure_result").glob("*.csv")]
    assert len(tables) == 2
    assert all("c10d.allreduce_" in table for table in tables)


def test_what_is_no_run_is_told(run, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    assert "is neither a folder nor the number of a process" in run("status", of=tmp_path / "none").stderr
    assert "is no folder of `ditorch run`: it has no manifest.json" in run("status", of=other).stderr
    assert "there is no process 999999999 on this machine" in run("status", of=999999999).stderr
    with subprocess.Popen(["sleep", "100"]) as stranger:
        assert "was not started by `ditorch run`: start the program with it" in run("status", of=stranger.pid).stderr
        stranger.kill()
    manifest.write(other, {**manifest.begun(["train.py"], {}), "host": "elsewhere", "ended": 0.0, "status": 3})
    assert re.search(r"ended at \S+ \S+ with status 3: see summary.txt there", run("status", of=other).stderr)
    assert "none of its processes is left on this machine" in run("status").stderr
    assert run("status").exit_code == 2


def test_slips_in_the_tools_name_are_told(run):
    assert "there is no tool autocompar; did you mean autocompare?" in run("on", "autocompar").stderr
    assert "there is no tool x; these are: autocompare, capture, time" in run("on", "x").stderr
    assert "autocompare can be cpu, device, device,cpu, identities, and not gpu" in run("on", "autocompare=gpu").stderr
    assert "time takes no value" in run("on", "time=1").stderr
    assert "fallback needs a value: fallback=OPS" in run("on", "fallback").stderr
    assert run("on", "time", "--steps", "0").exit_code == 2


def test_another_users_run_is_refused(run, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    name = control.user(os.getuid())
    assert f"belongs to {name}: only who started a run can attach to it" in run("status").stderr
    assert f"process {os.getpid()} belongs to {name}" in run("status", of=os.getpid()).stderr


@pytest.mark.parametrize("harm", ["writable file", "writable folder", "link", "foreign"])
def test_a_control_file_that_others_may_have_written_is_not_obeyed(harm, tmp_path, monkeypatch):
    folder = control.open_folder(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    path = folder / control.COMMAND
    message = {"schema": control.COMMAND_SCHEMA, "id": "1", "action": "on", "tool": "time"}
    control.write(path, message)
    assert path.stat().st_mode & 0o777 == 0o600
    assert control.read(path, control.COMMAND_SCHEMA) == message
    if harm == "writable file":
        path.chmod(0o620)
    elif harm == "writable folder":
        folder.chmod(0o777)
    elif harm == "link":
        path.rename(tmp_path / "other.json")
        path.symlink_to(tmp_path / "other.json")
        assert control.read(path, control.COMMAND_SCHEMA) is None
        return
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(control.ControlError, match=r"is refused: (others may write it|it belongs to another user)"):
        control.read(path, control.COMMAND_SCHEMA)


def test_a_number_means_a_process_and_its_run_is_found_in_its_environment(tmp_path):
    code = "import time; print(flush=True); time.sleep(60)"
    variables = {**os.environ, "DITORCH_CONTROL": str(tmp_path / "run")}
    with subprocess.Popen([sys.executable, "-S", "-c", code], env=variables, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            found = attach_target.found(str(process.pid))
        finally:
            process.kill()
    assert (found.run, found.pids) == (tmp_path / "run", (process.pid,))
    assert "time.sleep" in json.loads((tmp_path / "run/manifest.json").read_text())["command"]


@pytest.fixture
def sleeping():
    """Starts processes that belong to runs: they do nothing."""
    started = []

    def begin(*runs):
        code = "import time; print(flush=True); time.sleep(300)"
        for run in runs:
            variables = {**os.environ, "DITORCH_CONTROL": str(run)}
            process = subprocess.Popen([sys.executable, "-S", "-c", code], env=variables, stdout=subprocess.PIPE)
            started.append(process)
            process.stdout.readline()
        return started

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_a_number_above_several_runs_is_no_guess(sleeping, run, tmp_path):
    """A shell, or process 1, has started more than one run: which of them is meant?"""
    sleeping(tmp_path / "first", tmp_path / "second")
    told = run("on", "time", of=os.getpid()).stderr
    assert f"process {os.getpid()} has started 2 runs: give the folder of one: {tmp_path}/first, {tmp_path}/sec" in told
    assert not (tmp_path / "first").exists()


def test_a_run_that_ends_while_it_is_asked_is_told_at_once(sleeping, run, tmp_path):
    [process] = sleeping(tmp_path)
    ending = threading.Timer(1.0, process.kill)
    ending.start()
    told = run("status", "--wait", "300")
    ending.join()
    assert told.exit_code == 2
    assert f"the run in {tmp_path} ended before it answered: none of its processes is left" in told.stderr
    assert not (tmp_path / "control" / control.COMMAND).exists()
