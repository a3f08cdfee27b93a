"""Where results land on disk: the layout of folders and file names.

Processes of several machines may share a folder, even with the same pid, and tools may be nested: a file or a folder is
its maker's alone. Who comes second gets a name with `_2` behind it.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

MAX_NAME_BYTES = 200  # systems take 255
REPLAYED = "op_replay_results"  # the folder of what replay writes, which it must not replay


def resolved(out: str | os.PathLike[str]) -> Path:
    """The folder that is meant now, also when the program changes its working directory."""
    try:
        return Path(os.path.abspath(out))
    except FileNotFoundError:  # the working directory has been deleted
        return Path(out)


def shown(path: str | os.PathLike[str]) -> str:
    """As it is told to users: relative to the working directory if it is below it, ready to be copied."""
    path = os.fspath(path)
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # no working directory any more, or another drive
        return path
    return path if relative.startswith(os.pardir) else relative


def timestamp() -> str:
    """As it stands in the names of files and folders."""
    return time.strftime("%Y-%m-%d-%H-%M-%S")


def capture_root(out: Path) -> Path:
    """The folder of all captured calls."""
    return out / "op_capture_results"


def capture_folder(out: Path, op: str, forward_id: int, when: str) -> Path:
    """The folder of one captured call."""
    return capture_root(out) / _as_file_name(op) / str(os.getpid()) / str(forward_id) / when


def capture_statistics(out: Path) -> Path:
    """A file with statistics of tensors."""
    return capture_root(out) / f"op_capture_statistics_pid{os.getpid()}_{timestamp()}.pack"


def autocompare_folder(out: Path, op: str, forward_id: int, when: str) -> Path:
    """The folder of one call that is not close; `device` and `cpu` are below it."""
    call = Path("op_capture_results", _as_file_name(op), str(os.getpid()), "autocompare", str(forward_id), when)
    return out / call


def autocompare_csv(out: Path) -> Path:
    """A table of comparisons."""
    return out / "op_autocompare_result" / f"op_autocompare_info_pid{os.getpid()}_{timestamp()}.csv"


def time_measure_csv(out: Path) -> Path:
    """A table of times; the spelling is the one that scripts in the field look for."""
    return out / "op_time_measure_result" / f"op_elasped_info_pid{os.getpid()}_{timestamp()}.csv"


def overflow_csv(out: Path) -> Path:
    """A table of the calls that NaN or Inf reached."""
    return out / "op_overflow_result" / f"op_overflow_info_pid{os.getpid()}_{timestamp()}.csv"


def create(path: Path) -> tuple[int, Path]:
    """A new file, open for appending, under this name or the next one that is free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for name in _names(path):
        try:
            return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666), name
        except FileExistsError:
            continue
    raise AssertionError("there is always another name")


class OwnFolder:
    """The folder of a call, which is made when it is first asked for, by any thread."""

    __slots__ = ("_layout", "_lock", "_path", "_wanted")

    def __init__(self, layout: Callable[[Path, str, int, str], Path], out: Path, op: str, id: int, when: str) -> None:
        self._layout = layout
        self._wanted = (out, op, id, when)  # no path yet: this stands on the way of every call
        self._lock = threading.Lock()
        self._path: Path | None = None

    def path(self) -> Path:
        """Under its name, or the next one that is free."""
        with self._lock:
            if self._path is None:
                self._path = _made(self._layout(*self._wanted))
            return self._path


def _made(folder: Path) -> Path:
    for name in _names(folder):
        try:
            _make(name)
            return name
        except FileExistsError:
            continue
    raise AssertionError("there is always another name")


def _make(folder: Path) -> None:
    try:
        os.mkdir(folder)
    except FileNotFoundError:
        folder.parent.mkdir(parents=True, exist_ok=True)
        os.mkdir(folder)


def _names(path: Path) -> Iterator[Path]:
    yield path
    for number in itertools.count(2):
        yield path.with_name(f"{path.stem}_{number}{path.suffix}")


def _as_file_name(op: str) -> str:
    name = op.replace(os.sep, "_").replace("\0", "_")
    if len(os.fsencode(name)) <= MAX_NAME_BYTES:
        return name
    kept = os.fsencode(name)[: MAX_NAME_BYTES - 9].decode("utf-8", "ignore")
    return f"{kept}-{zlib.crc32(os.fsencode(name)):08x}"  # two long names stay two
