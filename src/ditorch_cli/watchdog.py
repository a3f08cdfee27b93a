"""Lets the rest of a command run in a child, which is given up where it hangs.

A driver that hangs while a vendor's package is imported does not even let Python go on: no thread of the same process
could notice. So this is called before torch is imported. The child tells what it is at; who says nothing for too long
hangs.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import Callable, NoReturn

Tell = Callable[[str], None]


def guarded(seconds: float, complaint: Callable[[str], str]) -> Tell:
    """Returns in a child, with a function by which it tells what it begins now, or "" that it is still right to wait.

    The process that called this waits for the child, and ends as it ends. Where the child has told nothing for so many
    seconds, it is killed, and `complaint` of what it told last is the last word.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        _wait(child, reader, seconds, complaint)
    os.close(reader)
    return lambda text: _write(writer, text)


def _write(writer: int, text: str) -> None:
    os.write(writer, f"{text}\n".encode())


def _wait(child: int, reader: int, seconds: float, complaint: Callable[[str], str]) -> NoReturn:
    doing, until = "", time.monotonic() + seconds
    while True:
        try:
            is_told, _, _ = select.select([reader], [], [], max(0.0, until - time.monotonic()))
            told = os.read(reader, 4096) if is_told else None
        except KeyboardInterrupt:  # the child got it as well
            continue
        if told is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            print(complaint(doing), file=sys.stderr)
            sys.exit(1)
        if not told:  # it has ended
            status = os.waitpid(child, 0)[1]
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            sys.exit(code)
        doing = next(filter(None, reversed(told.decode().split("\n"))), doing)
        until = time.monotonic() + seconds
