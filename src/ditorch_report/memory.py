"""Memory, CPU time and utilisation over time: samples of `ditorch run --monitor`."""

from __future__ import annotations

from ditorch_report import run_folder
from ditorch_report.packing import short
from ditorch_report.run_folder import Row, RunFolder, number, whole

MAX_SAMPLES = 5_000  # of a process
_FIGURES = {
    "host_memory": "host_memory",
    "device_memory": "device_memory",
    "device_reserved": "device_memory_reserved",
    "cpu": "cpu_percent",
    "device_busy": "device_utilization",
    "temperature": "device_temperature",
}


def read(folder: RunFolder) -> list[Row]:
    """For each process its samples; times are seconds since 1970."""
    found: dict[tuple[str, int, int], Row] = {}
    for path in folder.files("memory"):
        for row in run_folder.rows(path):
            time = number(row.get("time(Seconds)"))
            if time is None:
                continue
            key = (row.get("host", ""), whole(row.get("rank")), whole(row.get("pid")))
            one = found.setdefault(key, {"host": key[0], "rank": key[1], "pid": key[2], "time": []})
            one["time"].append(round(time, 2))
            for name, column in _FIGURES.items():
                one.setdefault(name, []).append(short(number(row.get(column)), 5))
    return [_thinned(one) for _, one in sorted(found.items())]


def _thinned(one: Row) -> Row:
    """Every n-th sample, where there are too many."""
    every = len(one["time"]) // MAX_SAMPLES + 1
    return {name: value[::every] if isinstance(value, list) else value for name, value in one.items()}
