"""Memory and utilisation over time: samples in a CSV file, and what came of them in one row for each process."""

from __future__ import annotations

import csv
import io
import os
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

from ditorch_shared.processes import Usage

FOLDER = "process_monitor_result"
COLUMNS = (
    "runningtime(Seconds)",
    "time_str",
    "time(Seconds)",
    "pid",
    "command",
    "host_memory",
    "host_memory_peak",
    "host_swap",
    "threads",
    "cpu_seconds",
    "cpu_percent",
    "device_memory",
    "device_memory_reserved",
    "device_memory_used",
    "device_utilization",
    "host",
    "rank",
    "device_temperature",
)


class DeviceUsage(NamedTuple):
    """Of the devices that a process uses, all together. What nobody tells is None."""

    memory: int | None = None  # bytes of its tensors, or of all that it holds where only that is known
    reserved: int | None = None  # what its allocator holds
    used: int | None = None  # of all processes
    utilization: float | None = None  # per cent
    temperature: float | None = None  # of the hottest, in °C


class Log:
    """Samples of one or several processes. Each is written at once: who is killed leaves a whole file."""

    def __init__(self, out: Path, pid: int) -> None:
        when = time.strftime("%Y-%m-%d-%H-%M-%S")
        self.path = out / FOLDER / f"process_monitor_result_pid{pid}_{when}.csv"
        self._before: dict[int, tuple[float, float]] = {}  # when a process was looked at, and its CPU time then
        self._found: dict[int, dict[str, Any]] = {}
        self._utilization: dict[int, list[float]] = {}

    def begin(self) -> None:
        """Makes the file; an OSError says why there can be none."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._append(COLUMNS)

    def add(self, usage: Usage, device: DeviceUsage) -> None:
        """One sample."""
        now = time.time()
        then, cpu_then = self._before.get(usage.pid, (usage.started, 0.0))
        self._before[usage.pid] = (now, usage.cpu_seconds)
        percent = 100 * (usage.cpu_seconds - cpu_then) / max(now - then, 1e-3)
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        host_side = (usage.memory, usage.peak_memory, usage.swapped, usage.threads, round(usage.cpu_seconds, 2))
        *known, temperature = ("" if value is None else value for value in device)
        times = (f"{now - usage.started:.7f}", clock, f"{now:.3f}")
        self._sum_up(usage, device, now)
        command = (usage.pid, usage.command)
        place = (socket.gethostname(), usage.rank, temperature)
        self._append((*times, *command, *host_side, round(percent, 1), *known, *place))

    def rows(self) -> list[dict[str, Any]]:
        """For each process what it used at most, and how busy it was from its start to the last sample."""
        return [
            {**row, "device_utilization": sum(found) / len(found) if (found := self._utilization[pid]) else None}
            for pid, row in self._found.items()
        ]

    def _sum_up(self, usage: Usage, device: DeviceUsage, now: float) -> None:
        seconds = now - usage.started
        before = self._found.get(usage.pid, {})
        self._found[usage.pid] = {
            "pid": usage.pid,
            "rank": usage.rank,
            "command": usage.command,
            "samples": before.get("samples", 0) + 1,
            "seconds": round(seconds, 3),
            "host_memory_peak": usage.peak_memory,
            "cpu_seconds": round(usage.cpu_seconds, 2),
            "cpu_percent": round(100 * usage.cpu_seconds / max(seconds, 1e-3), 1),
            "device_memory_peak": _larger(before.get("device_memory_peak"), device.memory),
            "device_memory_reserved_peak": _larger(before.get("device_memory_reserved_peak"), device.reserved),
            "device_temperature_peak": _larger(before.get("device_temperature_peak"), device.temperature),
        }
        known = self._utilization.setdefault(usage.pid, [])
        if device.utilization is not None:
            known.append(device.utilization)

    def _append(self, row: tuple[Any, ...]) -> None:
        line = io.StringIO()
        csv.writer(line).writerow(row)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            os.write(descriptor, line.getvalue().encode())
        finally:
            os.close(descriptor)


def _larger(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return max(known, default=None)
