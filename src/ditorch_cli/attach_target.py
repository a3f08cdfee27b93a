"""Which run `ditorch attach` means: by the number of one of its processes, or by its folder."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ditorch_cli import manifest
from ditorch_shared import control, processes

VARIABLE = b"DITORCH_CONTROL="


class NoSuchRunError(Exception):
    """What was given is no run that can be attached to: the message says why, and what to do."""


@dataclass(frozen=True)
class Target:
    run: Path
    pids: tuple[int, ...]  # its processes on this machine


def found(given: str) -> Target:
    """`given`: a process number or a folder. A folder that has the name of a number is meant with ./ before it."""
    return _of_process(int(given)) if given.isdigit() else _of_folder(Path(given))


def _of_process(pid: int) -> Target:
    if not processes.is_known():
        raise NoSuchRunError(
            "this system has no /proc to read from: give the run's folder in place of a process number"
        )
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        raise NoSuchRunError(f"there is no process {pid} on this machine") from None
    if owner != os.geteuid():
        raise NoSuchRunError(f"process {pid} belongs to {control.user(owner)}: only who started a run can attach to it")
    own = _run_of(pid)
    runs = [own] if own else sorted({run for one in processes.family(pid) if (run := _run_of(one)) is not None})
    if len(runs) > 1:
        raise NoSuchRunError(
            f"process {pid} has started {len(runs)} runs: give the folder of one: {', '.join(map(str, runs))}"
        )
    if not runs:
        raise NoSuchRunError(
            f"process {pid} was not started by `ditorch run`: start the program with it (ditorch run …)"
        )
    run = runs[0]
    _make(run, pid)
    return Target(run, _members(run))


def _run_of(pid: int) -> Path | None:
    """The folder of the run that a process belongs to, as its environment tells."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or it has just ended
        return None
    told = [one[len(VARIABLE) :] for one in variables if one.startswith(VARIABLE)]
    return Path(os.fsdecode(told[0])) if told and told[0] else None


def _make(run: Path, pid: int) -> None:
    """A run that began without tools has no folder yet."""
    if (run / manifest.FILE).exists():
        return
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    run.mkdir(parents=True, exist_ok=True)
    known = manifest.begun([os.fsdecode(word) for word in words], {})
    manifest.write(run, {**known, "folder": None, "git": None, "files": {}})  # its words mean files of its own folder


def is_over(target: Target) -> bool:
    """Whether all its processes on this machine have ended since it was found."""
    return bool(target.pids) and not _members(target.run)


def _members(run: Path) -> tuple[int, ...]:
    pids = (
        [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()] if processes.is_known() else []
    )
    return tuple(pid for pid in pids if _run_of(pid) == run)


def _of_folder(folder: Path) -> Target:
    if not folder.is_dir():
        raise NoSuchRunError(f"{folder} is neither a folder nor the number of a process")
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        raise NoSuchRunError(f"{folder} belongs to {control.user(owner)}: only who started a run can attach to it")
    try:
        told: dict[str, Any] = json.loads((folder / manifest.FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise NoSuchRunError(
            f"{folder} is no folder of `ditorch run`: it has no {manifest.FILE} that can be read"
        ) from None
    if told.get("ended") is not None:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(told["ended"]))
        raise NoSuchRunError(
            f"the run in {folder} ended at {when} with status {told.get('status')}: see summary.txt there"
        )
    pids = _members(folder.absolute())
    if not pids and told.get("host") == socket.gethostname() and processes.is_known():
        raise NoSuchRunError(f"the run in {folder} is over: none of its processes is left on this machine")
    return Target(folder.absolute(), pids)
