"""A backend of another package, installed by pip as a user would do it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples/third_party_backend"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> str:
    """A folder with the example package installed in it."""
    pytest.importorskip("setuptools", reason="pip needs it to install the example without a network")
    source = tmp_path_factory.mktemp("source") / "example"
    shutil.copytree(EXAMPLE, source)  # setuptools leaves a build folder beside the source
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "--target", str(target), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(target)


@pytest.mark.parametrize("wanted", ["", "toy"], ids=["found", "asked for"])
def test_an_installed_package_adds_its_backend(run_python, site, wanted):
    code = """
        import torch, ditorch
        assert (torch.ones(2, device="toy") + 1).tolist() == [2, 2]
        print(ditorch.backend().name, ditorch.backend().title)
    """
    done = run_python(code, PYTHONPATH=site, DITORCH_DISABLE_MOCK="0", DITORCH_BACKEND=wanted)
    assert done.stdout == "toy toy accelerator\n"


def test_a_plug_in_that_is_not_chosen_is_not_imported(run_python, site):
    code = "import sys, ditorch; assert 'toy_backend' not in sys.modules; print(ditorch.backend().name)"
    done = run_python(code, PYTHONPATH=site, DITORCH_DISABLE_MOCK="0", DITORCH_BACKEND="sim")
    assert done.stdout == "sim\n"


def test_the_error_for_an_unknown_name_knows_the_plug_in(run_python, site):
    done = run_python("import ditorch", check=False, PYTHONPATH=site, DITORCH_DISABLE_MOCK="0", DITORCH_BACKEND="toi")
    assert "there is no such backend. Did you mean toy? There are apple, " in done.stderr
    assert "tecorigin, toy." in done.stderr
