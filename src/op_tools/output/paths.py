"""Where results land on disk: the layout of folders and file names."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path


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
    return _not_taken(capture_root(out) / f"op_capture_statistics_pid{os.getpid()}_{timestamp()}.pack")


def autocompare_folder(out: Path, op: str, forward_id: int, when: str) -> Path:
    """The folder of one call that is not close; `device` and `cpu` are below it."""
    call = Path("op_capture_results", _as_file_name(op), str(os.getpid()), "autocompare", str(forward_id), when)
    return out / call


def autocompare_csv(out: Path) -> Path:
    """A table of comparisons."""
    return _not_taken(out / "op_autocompare_result" / f"op_autocompare_info_pid{os.getpid()}_{timestamp()}.csv")


def time_measure_csv(out: Path) -> Path:
    """A table of times; the spelling is the one that scripts in the field look for."""
    return _not_taken(out / "op_time_measure_result" / f"op_elasped_info_pid{os.getpid()}_{timestamp()}.csv")


_taken: set[Path] = set()
_lock = threading.Lock()


def _not_taken(path: Path) -> Path:
    """Two tables of one process may begin within a second; the process is in the name, so no other can take it."""
    with _lock:
        unused, number = path, 1
        while unused.absolute() in _taken:
            number += 1
            unused = path.with_name(f"{path.stem}_{number}{path.suffix}")
        _taken.add(unused.absolute())
        return unused


def _as_file_name(op: str) -> str:
    return op.replace(os.sep, "_")
