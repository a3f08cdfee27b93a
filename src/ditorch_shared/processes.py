"""What a process uses of the host, as Linux tells in /proc: memory, threads, CPU time. Nothing is installed for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class Usage(NamedTuple):
    """Of one process, now."""

    pid: int
    rank: int  # of a distributed run; 0 where it is none
    command: str
    started: float  # seconds since 1970
    memory: int  # bytes that are in the host's memory
    peak_memory: int  # the most so far
    swapped: int  # bytes that are not any more
    threads: int
    cpu_seconds: float  # of all threads together


def usage(pid: int) -> Usage | None:
    """None where there is no such process, or it has ended and only waits for its parent to notice."""
    try:
        rank = _rank(pid)
        status = dict(_pairs((_PROC / str(pid) / "status").read_text(errors="replace")))
        words = _stat(pid)
        # who exits gives back memory and environment first, together: with memory now, the rank above was there, too
        if words[0] in ("Z", "X") or "VmRSS" not in status:
            return None
        return Usage(
            pid=pid,
            rank=rank,
            command=status["Name"],
            started=_boot_time() + int(words[19]) / _ticks(),
            memory=_bytes(status["VmRSS"]),
            peak_memory=_bytes(status["VmHWM"]),
            swapped=_bytes(status.get("VmSwap", "0")),
            threads=int(status["Threads"]),
            cpu_seconds=(int(words[11]) + int(words[12])) / _ticks(),
        )
    except (FileNotFoundError, ProcessLookupError):
        return None


def family(pid: int) -> list[int]:
    """The process, and what it has started, and what those have started."""
    parents: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(_stat(int(entry.name))[1])
            except OSError:
                continue  # it has just ended
    found = [pid]
    for one in found:  # grows as we go
        found += [child for child, parent in parents.items() if parent == one]
    return found


def is_known() -> bool:
    """Whether this system tells at all."""
    return (_PROC / "self" / "status").exists()


def _stat(pid: int) -> list[str]:
    """The fields behind the name, which may hold anything."""
    return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        yield name, value.strip()


def _bytes(text: str) -> int:
    return int(text.split()[0]) * 1024


def _rank(pid: int) -> int:
    """As its launcher has set it; the environment of others' processes is not for everyone to read."""
    try:
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return 0
    ranks = [each[5:] for each in variables if each.startswith(b"RANK=")]
    return int(ranks[0]) if ranks and ranks[0].isdigit() else 0


@lru_cache(maxsize=1)
def _boot_time() -> float:
    lines = (_PROC / "stat").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("btime")).split()[1])


@lru_cache(maxsize=1)
def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")
