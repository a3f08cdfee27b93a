"""Builds our C++ once per torch release and keeps it: for ditorch and for op_tools, which know nothing of each other.

The source is part of the package. It is compiled against the user's own torch on first use, tried out in a process of
its own (a library that does not fit its torch may end the process that loads it), and only then put in its place in the
cache by a rename: what lies in the cache is whole and has worked. Processes that start at once wait for one to build.
"""

from __future__ import annotations

import glob
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock  # torch depends on it

_HOW_LONG = "half a minute to two minutes, by how busy the machine is"


class NativeError(RuntimeError):
    """C++ of ours cannot be built or does not work with this torch."""


def cache_folder() -> Path:
    """DITORCH_CACHE, or `ditorch` in the user's own cache folder."""
    users_own = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    chosen = os.environ.get("DITORCH_CACHE", "").strip()
    return Path(chosen).expanduser() if chosen else Path(users_own, "ditorch")


@dataclass(frozen=True)
class NativeLibrary:
    """A shared library of ours."""

    name: str  # of the file in the cache: "sim"
    title: str  # in messages: "The simulated accelerator"
    main: Path  # the source file; all files beside it count as its source
    probe: str  # the module that tries it out: python -m PROBE LIBRARY
    uses_torch: bool = True  # includes torch's headers and links with it
    uses_python: bool = False  # is a module of Python's
    quiet: bool = False  # builds in a moment: nobody needs to be told

    def path(self) -> Path:
        """Where it lies; it is built now if need be. A NativeError says what went wrong and what to do."""
        path = cache_folder() / f"{self.name}-{self._fingerprint()}.so"
        if path.exists():
            return path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_suffix(".lock")):
                if not path.exists():  # nobody else built it while we waited
                    self._build(path)
        except OSError as error:
            raise NativeError(
                f"{self.title} cannot be kept in {path.parent}: {error.strerror or error}. "
                "Set DITORCH_CACHE to a folder that can be written to and has 10 MB free."
            ) from error
        return path

    def _fingerprint(self) -> str:
        """Names what a build depends on: the torch release and build, its C++ ABI, the machine, and our source."""
        digest = hashlib.sha256(str(torch.version.git_version).encode())
        for file in sorted(self.main.parent.iterdir()):
            digest.update(file.read_bytes())
        python = f"-{sys.implementation.cache_tag}" if self.uses_python else ""
        return f"torch{torch.__version__}-abi{_abi()}-{platform.machine()}{python}-{digest.hexdigest()[:12]}"

    def _build(self, path: Path) -> None:
        compiler = self._compiler()
        self._note(f"building {_lower(self.title)} for torch {torch.__version__}, once: {_HOW_LONG} …")
        began = time.monotonic()
        # only who holds the lock builds: what is there is of one that was killed
        prefix = f"building-{path.stem}-"
        for left in path.parent.glob(f"{glob.escape(prefix)}*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=prefix) as folder:
            fresh = Path(folder) / path.name
            self._run(self._command(compiler, fresh), f"compiling it with {compiler} failed")
            self._run([sys.executable, "-m", self.probe, str(fresh)], "it was built, but does not work here")
            os.replace(fresh, path)
        self._note(f"built in {time.monotonic() - began:.0f} s, kept in {path.parent}")

    def _compiler(self) -> str:
        wanted = os.environ.get("CXX")
        for name in [wanted] if wanted else ["g++", "clang++", "c++"]:
            if shutil.which(name.split()[0]):
                return name
        looked_for = f"CXX={wanted}" if wanted else "g++, clang++ or c++"
        raise NativeError(
            f"{self.title} is compiled on first use, and no C++ compiler was found ({looked_for}). "
            "Install one (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++) or set CXX."
        )

    def _command(self, compiler: str, target: Path) -> list[str]:
        # torch's headers need C++20 from 2.14 on; older compilers do not have it, so not before
        standard = "c++20" if torch_release() >= (2, 14) else "c++17"
        # -w: torch's headers warn, and are not ours to mend
        command = [*compiler.split(), f"-std={standard}", "-O2", "-fPIC", "-shared", "-w"]
        command += [f"-D_GLIBCXX_USE_CXX11_ABI={_abi()}", str(self.main), "-o", str(target)]
        if not self.uses_torch:
            return command
        root = Path(torch.__file__).parent
        if torch.distributed.is_available():
            command.append("-DDITORCH_DISTRIBUTED")
        command += [f"-I{root / 'include'}", f"-I{root / 'include' / 'torch' / 'csrc' / 'api' / 'include'}"]
        command += [f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10"]
        if self.uses_python:
            command += [f"-I{sysconfig.get_path('include')}", "-ltorch_python"]
        return command

    def _run(self, command: list[str], complaint: str) -> None:
        search = os.pathsep.join(filter(None, sys.path))
        # the probe loads the library by itself
        environment = {**os.environ, "PYTHONPATH": search, "DITORCH_DISABLE_MOCK": "1"}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env=environment
        )
        with process:
            try:
                out, err = self._finished(process)
            except BaseException:  # also Ctrl-C: nobody waits for it any more
                process.kill()
                raise
        if process.returncode == 0:
            return
        said = (err.strip() or out.strip()).splitlines()
        errors = [line for line in said if re.search(r"error:|Error:|what\(\):", line)] or said[-5:]
        raise NativeError(
            f"{self.title} cannot be used with torch {torch.__version__}: {complaint} "
            f"(exit code {process.returncode}).\n  command: {' '.join(command)}\n  "
            + "\n  ".join(errors[:5] or ["(it printed nothing)"])
        )

    def _finished(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        """What it printed. Meanwhile a terminal shows that it is still at it."""
        is_shown = not self.quiet and sys.stderr is not None and sys.stderr.isatty()
        began = time.monotonic()
        while True:
            try:
                out, err = process.communicate(timeout=1.0 if is_shown else None)
                break
            except subprocess.TimeoutExpired:
                sys.stderr.write(f"\rditorch: {time.monotonic() - began:.0f} s …")
                sys.stderr.flush()
        if is_shown:
            sys.stderr.write("\r\033[K")
        return out, err

    def _note(self, text: str) -> None:
        if not self.quiet:
            sys.stderr.write(f"ditorch: {text}\n")
            sys.stderr.flush()


def torch_release() -> tuple[int, int]:
    """(2, 13) for 2.13.0+cpu."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def _abi() -> int:
    return int(torch.compiled_with_cxx11_abi())


def _lower(title: str) -> str:
    return title[0].lower() + title[1:]
