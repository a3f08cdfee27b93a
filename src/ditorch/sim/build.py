"""Builds the simulated accelerator once per torch release and keeps it.

The C++ source is part of the package. It is compiled against the user's own torch on first use, tried out in a process
of its own (a wrong registration would end the process that loads it), and only then put in its place in the cache by a
rename: what lies in the cache is whole and has worked. Processes that start at once wait for one of them to build.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from filelock import FileLock  # torch depends on it

from ditorch.errors import SimulatorError
from ditorch.settings import CACHE

_SOURCE = Path(__file__).parent / "csrc"
_OLDEST_TORCH = (2, 4)
_WAY_ON = "To go on without it, on the plain CPU: DITORCH_BACKEND=cpu."


def library() -> Path:
    """The path of the library for this torch, built now if need be."""
    _check_torch()
    path = CACHE.get() / f"sim-{_fingerprint()}.so"
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():  # nobody else built it while we waited
                _build(path)
    except OSError as error:
        raise SimulatorError(
            f"The simulated accelerator cannot be kept in {path.parent}: {error.strerror or error}. "
            f"Set DITORCH_CACHE to a folder that can be written to and has 10 MB free. {_WAY_ON}"
        ) from error
    return path


def _torch_release() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def _check_torch() -> None:
    if _torch_release() < _OLDEST_TORCH:
        raise SimulatorError(
            f"The simulated accelerator needs torch {'.'.join(map(str, _OLDEST_TORCH))} or newer, and this is "
            f"{torch.__version__}. {_WAY_ON}"
        )


def _fingerprint() -> str:
    """Names what a build depends on: the torch release and build, its C++ ABI, the machine, and our source."""
    digest = hashlib.sha256(str(torch.version.git_version).encode())
    for file in sorted(_SOURCE.iterdir()):
        digest.update(file.read_bytes())
    return f"torch{torch.__version__}-abi{_abi()}-{platform.machine()}-{digest.hexdigest()[:12]}"


def _abi() -> int:
    return int(torch.compiled_with_cxx11_abi())


def _compiler() -> str:
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted else ["g++", "clang++", "c++"]:
        if shutil.which(name):
            return name
    looked_for = f"CXX={wanted}" if wanted else "g++, clang++ or c++"
    raise SimulatorError(
        f"The simulated accelerator is compiled on first use, and no C++ compiler was found ({looked_for}). "
        "Install one (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++) or set CXX. "
        f"{_WAY_ON}"
    )


def _command(compiler: str, target: Path) -> list[str]:
    root = Path(torch.__file__).parent
    # torch's headers need C++20 from 2.14 on; older compilers do not have it, so not before
    standard = "c++20" if _torch_release() >= (2, 14) else "c++17"
    return [
        *compiler.split(),
        f"-std={standard}",
        "-O2",
        "-fPIC",
        "-shared",
        "-w",  # torch's headers, not ours to mend
        f"-D_GLIBCXX_USE_CXX11_ABI={_abi()}",
        *(["-DDITORCH_DISTRIBUTED"] if torch.distributed.is_available() else []),
        f"-I{root / 'include'}",
        f"-I{root / 'include' / 'torch' / 'csrc' / 'api' / 'include'}",
        str(_SOURCE / "simulator.cpp"),
        "-o",
        str(target),
        f"-L{root / 'lib'}",
        "-ltorch_cpu",
        "-lc10",
    ]


def _build(path: Path) -> None:
    compiler = _compiler()
    _note(f"building the simulated accelerator for torch {torch.__version__}, once, in less than a minute …")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="building-") as folder:
        fresh = Path(folder) / path.name
        _run(_command(compiler, fresh), f"compiling it with {compiler} failed")
        _run([sys.executable, "-m", "ditorch.sim.probe", str(fresh)], "it was built, but does not work here")
        os.replace(fresh, path)
    _note(f"built in {time.monotonic() - began:.0f} s, kept in {path.parent}")


def _run(command: list[str], complaint: str) -> None:
    search = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": search, "DITORCH_DISABLE_MOCK": "1"}  # the probe starts it by itself
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode == 0:
        return
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    errors = [line for line in said if re.search(r"error:|Error:|what\(\):", line)] or said[-5:]
    raise SimulatorError(
        f"The simulated accelerator cannot be used with torch {torch.__version__}: {complaint} "
        f"(exit code {done.returncode}).\n  command: {' '.join(command)}\n  "
        + "\n  ".join(errors[:5] or ["(it printed nothing)"])
        + f"\n{_WAY_ON}"
    )


def _note(text: str) -> None:
    print(f"ditorch: {text}", file=sys.stderr, flush=True)
