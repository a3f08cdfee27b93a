"""Where results land on disk: the layout of folders and file names."""

from __future__ import annotations

import os
import time
from pathlib import Path


def timestamp() -> str:
    """As it stands in the names of files and folders."""
    return time.strftime("%Y-%m-%d-%H-%M-%S")


def capture_folder(out: Path, op: str, forward_id: int, when: str) -> Path:
    """The folder of one captured call."""
    return out / "op_capture_results" / _as_file_name(op) / str(os.getpid()) / str(forward_id) / when


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


def _as_file_name(op: str) -> str:
    return op.replace(os.sep, "_")
