"""The control folder of a run, by which `ditorch attach` and the run's processes talk: files, and nothing else.

    control/command.json               what is asked for; replaced when the step is agreed on, removed in the end
    control/HOST-rankR-pidP.json       what one process answers, at the end of a step

Both sides are of one user: a folder or a file that somebody else owns, or may write, is refused. docs/attach.md tells
how the processes agree on a step.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any

FOLDER = "control"
COMMAND = "command.json"
COMMAND_SCHEMA = "ditorch.control/1"
ANSWER_SCHEMA = "ditorch.control.answer/1"
MAX_BYTES = 2**20
Message = dict[str, Any]


class ControlError(Exception):
    """A file or folder that must not be trusted, or cannot be read or written: the message says which, and why."""


def open_folder(run: Path) -> Path:
    """The control folder of a run, made where there is none."""
    folder = run / FOLDER
    try:
        run.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        check(folder)
    except OSError as error:
        raise ControlError(f"{folder} cannot be made ({error.strerror})") from None
    return folder


def check(path: Path, status: os.stat_result | None = None) -> None:
    """Refuses what belongs to another user, or what others may write."""
    status = status or os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        raise ControlError(f"{path} is refused: it is a symbolic link")
    if status.st_uid != os.geteuid():
        raise ControlError(f"{path} is refused: it belongs to another user ({user(status.st_uid)})")
    if status.st_mode & 0o022:
        raise ControlError(f"{path} is refused: others may write it (chmod go-w)")


def user(number: int) -> str:
    """The user's name, where the system knows it."""
    import pwd  # not on every system, and not at import

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def signature(path: str) -> tuple[int, int, int] | None:
    """It changes when the file does; None where there is none. This is all that waiting costs."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def read(path: Path, schema: str) -> Message | None:
    """A message; None where there is none, or it is of another release."""
    try:
        check(path.parent)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        check(path, status)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise ControlError(f"{path} is refused: it is no file of ditorch attach")
        try:
            found = json.loads(file.read())
        except (OSError, ValueError):
            return None
    return found if isinstance(found, dict) and found.get("schema") == schema else None


def write(path: Path, message: Message) -> None:
    """A reader sees the old file or the new one, and only its owner may read either."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(unfinished, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(message, file)
        unfinished.replace(path)
    except OSError as error:
        raise ControlError(f"{path} cannot be written ({error.strerror})") from None


def remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
