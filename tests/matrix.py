"""Runs the redirect's tests and some of the tools' with other Pythons and other releases of PyTorch (make test-matrix).

    python tests/matrix.py                 every pair below
    python tests/matrix.py 3.9:2.4.1       one of them

Each pair gets an environment in .matrix, made once. PyTorch's wheels on PyPI are built with CUDA: gigabytes, and the
case of a CUDA build on a machine without a GPU. What cannot be had here (a Python, a wheel, room on the disk) is said,
and skipped; tests that fail make the exit code 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

# the oldest Python with the oldest torch that the simulated accelerator takes, and the newest of both
PAIRS = ("3.9:2.4.1", "3.13:2.15.0")
TESTS = (
    "tests/ditorch/redirect",
    *(f"tests/ditorch/sim/test_{name}.py" for name in ("collectives", "devices", "graphs", "streams", "training")),
    "tests/op_tools/autocompare/test_autocompare.py",
    "tests/op_tools/core/test_source_line.py",
    "tests/op_tools/replay/test_replay.py",
)
PACKAGES = ("pytest", "pytest-timeout", "pytest-xdist", "numpy", "expecttest", "hypothesis", "click", "rich")
ROOM = 12 * 2**30  # bytes for one environment
ROOT = Path(__file__).parent.parent


class UnavailableError(Exception):
    """Why a pair cannot be tried on this machine."""


def interpreter(version: str) -> str:
    """A Python of this version: on the path, or of pyenv."""
    found = shutil.which(f"python{version}")
    if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:  # pyenv's stand-ins may fail
        return found
    versions = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    for path in sorted(versions.glob(f"{version}.*/bin/python")):
        return str(path)
    raise UnavailableError(f"there is no Python {version} here")


def environment(python: str, torch: str) -> Path:
    """The Python of an environment with this torch, made if need be."""
    folder = ROOT / ".matrix" / f"python{python}-torch{torch}"
    own = folder / "bin" / "python"
    done = folder / ".installed"
    if done.exists():
        return own
    base = interpreter(python)
    folder.parent.mkdir(exist_ok=True)
    if shutil.disk_usage(folder.parent).free < ROOM:
        raise UnavailableError(f"less than {ROOM // 2**30} GiB are free")
    if subprocess.run([base, "-m", "venv", str(folder)]).returncode:
        raise UnavailableError(f"{base} cannot make environments: its venv is missing")
    pip = [str(own), "-m", "pip", "install", "--quiet"]
    if subprocess.run([*pip, f"torch=={torch}"]).returncode or subprocess.run([*pip, *PACKAGES]).returncode:
        raise UnavailableError(f"torch {torch} or what the tests need cannot be installed for Python {python}")
    done.touch()
    return own


def run(pair: str) -> str:
    """What became of one pair, in a few words."""
    python, _, torch = pair.partition(":")
    try:
        own = environment(python, torch)
    except UnavailableError as reason:
        return f"skipped: {reason}"
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    surroundings = {**os.environ, "PYTHONPATH": path}
    # built here, because a test has a limit on its time
    subprocess.run([str(own), "-c", "import ditorch"], env={**surroundings, "DITORCH_BACKEND": "sim"})
    command = [str(own), "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    code = subprocess.run(command, cwd=ROOT, env=surroundings).returncode
    return "passed" if code == 0 else f"FAILED (exit code {code})"


def main() -> int:
    results = {}
    for pair in sys.argv[1:] or PAIRS:
        print(f"== Python and torch {pair}", flush=True)
        results[pair] = run(pair)
    for pair, result in results.items():
        python, _, torch = pair.partition(":")
        print(f"Python {python}, torch {torch}: {result}")
    return int(any(result.startswith("FAILED") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
