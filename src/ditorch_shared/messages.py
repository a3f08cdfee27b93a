"""What we print goes to a file as well: messages.txt in the folder of `ditorch run`, which DITORCH_MESSAGES names."""

from __future__ import annotations

import contextlib
import os
import time

VARIABLE = "DITORCH_MESSAGES"


def keep(text: str) -> None:
    """Appends to the file, if there is one; in one piece, since several processes write."""
    path = os.environ.get(VARIABLE)
    if path and text.strip():
        append(path, text)


def append(path: str, text: str) -> None:
    """With the time and the rank in front. A disk that is full is no reason to stop."""
    rank = f" rank {os.environ['RANK']}" if os.environ.get("RANK") else ""
    line = f"[{time.strftime('%H:%M:%S')}{rank}] {text.strip()}\n"
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            os.write(descriptor, line.encode("utf-8", "replace"))
        finally:
            os.close(descriptor)
