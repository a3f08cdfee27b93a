"""Programs written for CUDA, run as they are: examples/train_*.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
PROGRAM = [sys.executable, "-m", "ditorch", "run"]


def run(command, monkeypatch):
    monkeypatch.setenv("DITORCH_DISABLE_MOCK", "0")
    monkeypatch.setenv("DITORCH_BACKEND", "sim")
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_mixed_precision_on_one_device(monkeypatch):
    done = run([*PROGRAM, str(EXAMPLES / "train_amp.py")], monkeypatch)
    assert "2 GPUs, training on cuda:0" in done.stdout
    assert "checkpoint restored on cuda:0" in done.stdout
    assert done.stderr.count("ditorch: sim (simulated accelerator)") == 1


@pytest.mark.slow
def test_data_parallel_with_nccl(monkeypatch):
    done = run([*PROGRAM, str(EXAMPLES / "train_ddp.py")], monkeypatch)
    assert "2 GPUs agree on the weights" in done.stdout
    assert done.stderr.count("ditorch: sim (simulated accelerator)") == 3  # the program and its two children


@pytest.mark.slow
def test_fully_sharded_under_torchrun(monkeypatch):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = run([*torchrun, *PROGRAM[1:], str(EXAMPLES / "train_fsdp2.py")], monkeypatch)
    assert "DeviceMesh((2,), 'cuda'" in done.stdout
