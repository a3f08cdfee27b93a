"""Shared by all tests: the simulated accelerator, and the check that a test leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Callable

# Tests run in parallel already, and what they start does, too: threads that wait for a core would spin. Results then do
# not depend on the machine either.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["DITORCH_DISABLE_MOCK"] = "1"  # each test says itself what it installs

import pytest
import torch

from ditorch import sim
from ditorch_shared import libraries, matrix_units
from op_tools import native

from .leaks import changes, snapshot
from .python_server import Server

if "PYTEST_XDIST_WORKER" not in os.environ and matrix_units.kill_programs():  # workers inherit what is set here
    matrix_units.leave_alone()
torch.set_num_threads(1)  # also where torch was imported before this file

# The device that tests of the `device` fixture run on: the simulated one, or a real one, such as cuda.
DEVICE = os.environ.get("DITORCH_TEST_DEVICE", "sim")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Builds our C++ before the first test, whose time limit the compiler would use up on a busy machine."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        if DEVICE == "sim":
            libraries.simulator()
        native.library()


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
    changed = changes(before, snapshot())
    assert not changed, f"the test left something behind (before, after): {changed}"


@pytest.fixture(scope="session")
def _python_server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def run_python(_python_server: Server) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python code in a process of its own: for what ends a process, or can be done once in one.

    torch is imported in it already, which saves seconds; not if it is to be `fresh`.
    """

    def run(
        code: str, *arguments: str, check: bool = True, fresh: bool = False, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        code, environment = textwrap.dedent(code), {**os.environ, **environment}
        if fresh or not _python_server.can(environment):
            command = [sys.executable, "-c", code, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
        else:
            done = _python_server.run(code, arguments, environment, timeout=900)
        if check:
            assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
