"""Builds our C++ once per torch release and keeps it: for ditorch and for op_tools, which know nothing of each other.

The source is part of the package. It is compiled against the user's own torch on first use, tried out in a process of
its own (a library that does not fit its torch may end the process that loads it), and only then put in its place in the
cache by a rename: what lies in the cache is whole and has worked. Processes that start at once wait for one to build.
A builder that is killed leaves a folder that the next one clears away, and no lock: the system takes that back.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import glob
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock, Timeout  # torch depends on it

from ditorch_shared import messages

_SECONDS_ALONE = 50.0  # that the compiler takes with a core of its own
_SECONDS_TO_WAIT_SILENTLY = 2.0  # for another process that builds
_SECONDS_BETWEEN_LINES = 30.0  # in a log; on a terminal each second is shown


_under_way: list[str] = []


def is_building() -> bool:
    """Whether this process builds something now, which takes its time."""
    return bool(_under_way)


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

    def path(self, wanted_next: NativeLibrary | None = None) -> Path:
        """Where it lies; it is built now if need be. A NativeError says what went wrong and what to do.

        `wanted_next` is one that will be asked for soon, most likely: where there is a core for it, and something to
        wait for, it is built meanwhile.
        """
        path = self._place()
        if path.exists():
            return path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._alone(path):
                if not path.exists():  # nobody else built it while we waited
                    beside = wanted_next if wanted_next and wanted_next._can_be_built_beside() else None
                    if beside is not None:
                        _Background(beside).start()
                    self._build(path, beside)
        except OSError as error:
            raise NativeError(
                f"{self.title} cannot be kept in {path.parent}: {error.strerror or error}. "
                "Set DITORCH_CACHE to a folder that can be written to and has 10 MB free."
            ) from error
        return path

    def _place(self) -> Path:
        return cache_folder() / f"{self.name}-{self._fingerprint()}.so"

    def _can_be_built_beside(self) -> bool:
        has_core = len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else False
        return has_core and self.main.exists() and not self._place().exists()

    @contextlib.contextmanager
    def _alone(self, path: Path) -> Iterator[None]:
        """Nobody else builds meanwhile; where somebody does, that is said and waited for."""
        lock = FileLock(path.with_suffix(".lock"))
        try:
            lock.acquire(timeout=_SECONDS_TO_WAIT_SILENTLY)
        except Timeout:
            if os.environ.get("LOCAL_RANK", "0") == "0":  # the other ranks wait as well
                self._note(f"waiting for {_lower(self.title)}, which is being built already: {_how_long()} at most …")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _fingerprint(self) -> str:
        """Names what a build depends on: the torch release and build, its C++ ABI, the machine, and our source."""
        digest = hashlib.sha256(str(torch.version.git_version).encode())
        for file in sorted(self.main.parent.iterdir()):
            digest.update(file.read_bytes())
        python = f"-{sys.implementation.cache_tag}" if self.uses_python else ""
        return f"torch{torch.__version__}-abi{_abi()}-{platform.machine()}{python}-{digest.hexdigest()[:12]}"

    def _build(self, path: Path, beside: NativeLibrary | None = None) -> None:
        _under_way.append(self.name)
        try:
            self._compile(path, beside)
        finally:
            _under_way.remove(self.name)

    def _compile(self, path: Path, beside: NativeLibrary | None) -> None:
        compiler = self._compiler()
        both = _lower(self.title) + (f" and, beside it, {_lower(beside.title)}" if beside else "")
        if not isinstance(threading.current_thread(), _Background):  # of that one, it is said beforehand
            self._note(f"building {both} for torch {torch.__version__}, once: {_how_long(1 + (beside is not None))} …")
        began = time.monotonic()
        # only who holds the lock builds: what is there is of one that was killed
        prefix = f"building-{path.stem}-"
        for left in path.parent.glob(f"{glob.escape(prefix)}*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=prefix) as folder:
            fresh = Path(folder) / path.name
            self._run(self._command(compiler, fresh), f"compiling it with {compiler} failed", folder)
            self._run([sys.executable, "-m", self.probe, str(fresh)], "it was built, but does not work here", folder)
            with open(fresh, "rb") as file:
                os.fsync(file.fileno())  # a machine that loses its power keeps no half of it under the name
            os.replace(fresh, path)
        self._note(f"{_lower(self.title)} was built in {time.monotonic() - began:.0f} s, kept in {path.parent}")

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

    def _run(self, command: list[str], complaint: str, folder: str) -> None:
        search = os.pathsep.join(filter(None, sys.path))
        # the probe loads the library by itself; the compiler's own files go where they are cleared away
        environment = {**os.environ, "PYTHONPATH": search, "DITORCH_DISABLE_MOCK": "1", "TMPDIR": folder}
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
        with process, _killed_at_exit(process):
            try:
                out, err = self._finished(process)
            except BaseException:  # also Ctrl-C: the build is given up
                _kill(process)
                process.wait()
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
        """What it printed. Meanwhile a terminal shows the seconds, and a log that it is still at it."""
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        is_shown = not self.quiet and not isinstance(threading.current_thread(), _Background)
        began = time.monotonic()
        while True:
            try:
                out, err = process.communicate(timeout=1.0 if is_terminal else _SECONDS_BETWEEN_LINES)
                break
            except subprocess.TimeoutExpired:
                seconds = f"{time.monotonic() - began:.0f} s"
                if is_shown and is_terminal:
                    sys.stderr.write(f"\rditorch: {seconds} …")
                    sys.stderr.flush()
                elif is_shown:
                    self._note(f"still building {_lower(self.title)}, since {seconds} …")
        if is_shown and is_terminal:
            sys.stderr.write("\r\033[K")
        return out, err

    def _note(self, text: str) -> None:
        if not self.quiet:
            sys.stderr.write(f"ditorch: {text}\n")
            sys.stderr.flush()
            messages.keep(f"ditorch: {text}")


class _Background(threading.Thread):
    """Builds a library while another one is being built. Where it fails, whoever asks for it will be told.

    At the program's end it is given up: what it has started is killed, and its folder removed.
    """

    def __init__(self, library: NativeLibrary) -> None:
        super().__init__(name=f"building {library.name}", daemon=True)
        self._library = library

    def start(self) -> None:
        super().start()
        atexit.register(self.join, _SECONDS_TO_CLEAR_AWAY)  # runs after those that kill, which are registered later

    def run(self) -> None:
        with contextlib.suppress(NativeError, OSError):
            self._library.path()


_SECONDS_TO_CLEAR_AWAY = 2.0


@contextlib.contextmanager
def _killed_at_exit(process: subprocess.Popen[str]) -> Iterator[None]:
    kill = functools.partial(_kill, process)
    atexit.register(kill)
    try:
        yield
    finally:
        atexit.unregister(kill)


def _kill(process: subprocess.Popen[str]) -> None:
    """With what it has started: g++ is a driver, and the compiler proper would go on without it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _how_long(builds: int = 1) -> str:
    """A guess: others share the cores with the compiler."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    seconds = _SECONDS_ALONE * max(1.0, (os.getloadavg()[0] + builds) / cores)
    minutes = max(1, round(seconds / 60))
    return "about a minute" if minutes == 1 else f"about {minutes} minutes, for the machine is busy"


def torch_release() -> tuple[int, int]:
    """(2, 13) for 2.13.0+cpu."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def _abi() -> int:
    return int(torch.compiled_with_cxx11_abi())


def _lower(title: str) -> str:
    return title[0].lower() + title[1:]
