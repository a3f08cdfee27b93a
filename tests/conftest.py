"""Shared by all tests: the simulated accelerator, and the check that a test leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Callable

import pytest
import torch

os.environ["DITORCH_DISABLE_MOCK"] = "1"  # each test says itself what it installs

from ditorch import sim
from ditorch_shared import matrix_units

from .leaks import snapshot

if "PYTEST_XDIST_WORKER" not in os.environ and matrix_units.kill_programs():  # workers inherit what is set here
    matrix_units.leave_alone()
torch.set_num_threads(1)  # the tests run in parallel already, and results then do not depend on the machine


# The device that tests of the `device` fixture run on: the simulated one, or a real one, such as cuda.
DEVICE = os.environ.get("DITORCH_TEST_DEVICE", "sim")


@pytest.fixture(scope="session", autouse=True)
def _simulated_accelerator() -> None:
    if DEVICE == "sim":
        sim.start()
    else:
        torch.backends.cudnn.deterministic = True  # tests compare two runs bit by bit
    torch.zeros(1, device=DEVICE)  # CUDA initializes itself on first use, which is nothing that a test leaves behind


@pytest.fixture
def device() -> str:
    return DEVICE


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    torch.manual_seed(0)
    before = snapshot()
    yield
    after = snapshot()
    changed = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
    assert not changed, f"the test left something behind (before, after): {changed}"


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python code in a process of its own: for what ends a process, or can be done once in one."""

    def run(code: str, *arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env={**os.environ, **environment})
        if check:
            assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
