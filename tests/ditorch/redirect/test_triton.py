"""Triton's kernels on the simulated accelerator, and what has_triton() says; with a triton of our own where none is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = Path(__file__).parent / "triton_kernels.py"
SIM = {"DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "sim"}
HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="the triton package is not installed")

# A package that stands for triton where only its presence, its back ends and its settings matter.
BACKENDS = """
class Backend:
    def __init__(self, driver):
        self.driver = driver
from .nvidia.driver import CudaDriver
backends = {"nvidia": Backend(CudaDriver)}
"""
NVIDIA = """
class CudaDriver:
    @staticmethod
    def is_active():
        import torch
        return torch.cuda.is_available()
"""
VENDOR = BACKENDS + "class Ours:\n    is_active = staticmethod(lambda: True)\nbackends['ours'] = Backend(Ours)\n"
ASK = """
    import os, sys, torch, ditorch
    print("triton" in sys.modules, os.environ.get("TRITON_INTERPRET"))
    from torch.utils._triton import has_triton
    print(has_triton())
    ditorch.uninstall()
    print(os.environ.get("TRITON_INTERPRET"))
"""


@pytest.fixture
def installed(tmp_path):
    """Writes a package named triton and returns the path to find it by."""

    def install(backends=BACKENDS):
        (tmp_path / "triton" / "backends" / "nvidia").mkdir(parents=True)
        (tmp_path / "triton" / "__init__.py").write_text("__version__ = '3.0.0'\n")
        (tmp_path / "triton" / "backends" / "__init__.py").write_text(backends)
        (tmp_path / "triton" / "backends" / "nvidia" / "__init__.py").write_text("")
        (tmp_path / "triton" / "backends" / "nvidia" / "driver.py").write_text(NVIDIA)
        return ":".join([str(tmp_path), *sys.path])

    return install


def asked(run_python, path, **environment):
    return run_python(ASK, PYTHONPATH=path, **{**SIM, **environment}).stdout.split()


def test_kernels_are_interpreted_and_the_import_stays_light(run_python, installed):
    assert asked(run_python, installed()) == ["False", "1", "True", "None"]


def test_interpreting_can_be_switched_off(run_python, installed):
    assert asked(run_python, installed(), DITORCH_SIM_TRITON="off") == ["False", "None", "False", "None"]


def test_a_chips_own_back_end_is_the_truth(run_python, installed):
    assert asked(run_python, installed(), DITORCH_BACKEND="cpu") == ["False", "None", "False", "None"]


def test_a_back_end_for_the_chip_is_found(run_python, installed):
    assert asked(run_python, installed(VENDOR), DITORCH_BACKEND="cpu") == ["False", "None", "True", "None"]


@pytest.mark.skipif(HAS_TRITON, reason="the triton package is installed")
def test_without_the_package_there_is_none(run_python):
    assert asked(run_python, ":".join(sys.path)) == ["False", "None", "False", "None"]


def test_a_wrong_setting_is_explained(run_python, installed):
    done = run_python("import ditorch", check=False, PYTHONPATH=installed(), DITORCH_SIM_TRITON="compile", **SIM)
    assert "DITORCH_SIM_TRITON='compile' cannot be used: it must be interpret or off" in done.stderr


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("order", ["first", "late"])
def test_kernels_give_right_results(order):
    done = subprocess.run(
        [sys.executable, str(KERNELS), order], capture_output=True, text=True, timeout=280, env={**os.environ, **SIM}
    )
    assert done.stdout.splitlines() == ["right"], done.stderr[-3000:]
