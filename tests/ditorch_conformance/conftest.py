from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Callable

import pytest

from ditorch_conformance import devices, pytorch_tests
from ditorch_conformance.process import Recipe

from ..ditorch_cli.conftest import ditorch_command  # noqa: F401


@pytest.fixture
def checkout(tmp_path) -> Callable[..., Path]:
    """Makes a folder like a checkout of PyTorch: test files by name, each with its source."""

    def make(**sources: str) -> Path:
        folder = tmp_path / "pytorch" / "test"
        folder.mkdir(parents=True, exist_ok=True)
        for name, source in sources.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(source))
        return folder.parent

    return make


@pytest.fixture
def recipes() -> Callable[..., list[tuple[str, Recipe]]]:
    """How the files of such a folder are run: plain Python, no device."""

    def make(source: Path, *names: str) -> list[tuple[str, Recipe]]:
        files = pytorch_tests.files(source, names or ["test_*"])
        return [(file, pytorch_tests.recipe(source, file, devices.CPU, {})) for file in files]

    return make
