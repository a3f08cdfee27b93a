"""`python op_tools/run_op_from_data.py DIR`: run by its path, as users of a checkout do, with nothing installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch

import op_tools

SOURCE = Path(op_tools.__file__).parent.parent


def a_checkout(place):
    return SOURCE


def the_root(place):
    return SOURCE.parent


def a_link(place):
    (place / "op_tools").symlink_to(SOURCE / "op_tools")
    return place


def a_copy(place):
    """At the root of a checkout, where the other packages lie in src."""
    shutil.copytree(SOURCE / "op_tools", place / "op_tools", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "src").mkdir()
    for package in SOURCE.iterdir():
        if package.name.startswith("ditorch"):
            (place / "src" / package.name).symlink_to(package)
    return place


@pytest.mark.parametrize("folder", [a_checkout, the_root, a_link, a_copy])
def test_the_script_runs_by_its_path(device, tmp_path, folder):
    with op_tools.OpCapture(out="captures", verbose=0):
        torch.ones(2, device=device).mul(2)
    (tmp_path / "root").mkdir()
    script = folder(tmp_path / "root") / "op_tools" / "run_op_from_data.py"
    # without `site`, an installed ditorch is not found; torch and click are
    installed = {str(Path(module.__file__).parent.parent) for module in (torch, click)}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(installed), "DITORCH_DISABLE_MOCK": ""}
    done = subprocess.run(
        [sys.executable, "-S", str(script), "captures", "--sync_time_measure"],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ditorch.framework: " in done.stdout
    assert "torch.Tensor.mul" in done.stdout
    assert "captured calls ran, 1 time each" in done.stdout
