from __future__ import annotations

import os
import subprocess
import sys
from typing import Callable

import pytest


@pytest.fixture
def ditorch_command(tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `python -m ditorch …` in an empty folder, as a user would, on the simulated accelerator."""

    def run(*arguments, python=("-m", "ditorch"), input="", **environment) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *python, *map(str, arguments)],
            capture_output=True,
            text=True,
            input=input,
            timeout=240,
            cwd=tmp_path,
            env={**os.environ, "DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "sim", **environment},
        )

    return run
