"""`ditorch run --watch`: on an unedited program, also one that is killed, and with torchrun."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.slow  # each starts processes

PROGRAM = """
import os, sys, signal, time, torch
from torch import nn
torch.manual_seed(0)
if "RANK" in os.environ:
    torch.distributed.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).cuda()
if "RANK" in os.environ:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(8):
    if step == 5 and "spoil" in sys.argv:
        model[2].weight.data[0, 0] = float("nan")
    x, y = torch.randn(4, 8).cuda(), torch.randint(3, (4,)).cuda()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), flush=True)
if "kill" in sys.argv:
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
if "RANK" in os.environ:
    torch.distributed.destroy_process_group()
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    return "train.py"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_alerts_are_on_the_screen_in_the_file_and_at_the_command(ditorch_command, program, tmp_path):
    plain = ditorch_command("run", program, "spoil")
    options = ("--watch-every", "1", "--on-alert", "cat >> told; echo >> told", "--out", "out")
    run = ditorch_command("run", *options, program, "spoil")
    assert run.stdout == plain.stdout, "the same losses, to the bit"
    assert "op_tools: ALERT at step 5: NaN or Inf in activations (first in 2)" in run.stderr
    assert "TrainingWatch: 1 alert in 8 steps" in run.stderr
    assert "Alerts, the first ones first" in run.stderr
    (told,) = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines() if line]
    (path,) = (tmp_path / "out").glob("watch_result/*/alerts.jsonl")
    assert [told] == lines(path)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    (alert,) = summary["alerts"]
    assert (alert["step"], alert["rule"], alert["module"], alert["ranks"]) == (5, "nan", "2", [0])
    assert summary["next"][0] == "ditorch run --overflow --steps 4:6 train.py spoil"
    assert summary["usage"][0]["host_memory_peak"] > 0
    manifest = (tmp_path / "out" / "manifest.json").read_text()
    assert "OP_WATCH_ON_ALERT" not in manifest, "an address would hold a secret"


def test_what_a_killed_process_has_written_stays(ditorch_command, program, tmp_path):
    run = ditorch_command("run", "--watch", "--out", "out", program, "spoil", "kill")
    assert run.returncode == -9
    (path,) = (tmp_path / "out").glob("watch_result/*/steps.jsonl")
    assert [line["step"] for line in lines(path) if "step" in line] == list(range(8))
    (alerts,) = (tmp_path / "out").glob("watch_result/*/alerts.jsonl")
    assert lines(alerts)[0]["text"] == "NaN or Inf in loss", "tensors were not due in that step"
    report = ditorch_command("report", "out")
    assert report.returncode == 0, report.stderr


def test_ranks_of_torchrun_and_a_run_to_compare_with(ditorch_command, program, tmp_path):
    options = ("torchrun", "--standalone", "--nproc_per_node=2", program)
    first = ditorch_command("run", "--watch-every", "1", "--out", "first", *options)
    assert first.returncode == 0, first.stderr
    assert len(list((tmp_path / "first").glob("watch_result/*/steps.jsonl"))) == 2
    checksums = [lines(path) for path in (tmp_path / "first").glob("watch_result/*/checksums.jsonl")]
    assert len(checksums) == 2
    assert checksums[0][1:] == checksums[1][1:], "of every step"
    assert len(checksums[0]) == 9
    assert json.loads((tmp_path / "first" / "summary.json").read_text())["alerts"] == []
    assert "ALERT" not in first.stderr
    second = ditorch_command("run", "--watch-against", "first", "--out", "second", *options)
    assert "no alerts in 16 steps" in second.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--watch-against", "nowhere"), "--watch-against: nowhere does not exist: give the folder of a run."),
        (("--watch-rules", "spikes=2"), "there is no rule spikes; these are: nan, spike, norm, dead, parting, ranks"),
        (("--on-alert", "ftp://x"), "an address must begin with http:// or https://"),
        (("--watch-to", "email"), "it must be tensorboard or wandb"),
    ],
)
def test_bad_options_are_one_message(ditorch_command, program, options, said):
    run = ditorch_command("run", *options, "--out", "out", program)
    assert run.returncode != 0
    assert said in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr
