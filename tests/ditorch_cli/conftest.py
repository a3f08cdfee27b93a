from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest


@pytest.fixture
def ditorch_command(tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `ditorch …` in an empty folder, as a user would, on the simulated accelerator; or Python, with arguments."""
    command = Path(sys.executable).with_name("ditorch")

    def run(*arguments, python=None, input="", **environment) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*([command] if python is None else [sys.executable, *python]), *map(str, arguments)],
            capture_output=True,
            text=True,
            input=input,
            timeout=240,
            cwd=tmp_path,
            env={**os.environ, "DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "sim", **environment},
        )

    return run
