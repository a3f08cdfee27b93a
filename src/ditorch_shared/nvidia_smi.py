"""What NVIDIA's command tells of memory, utilisation and temperature, for who sees a GPU from outside only."""

from __future__ import annotations

import shutil
import subprocess
from typing import NamedTuple

from ditorch_shared.monitoring import DeviceUsage

_MAX_SECONDS = 10  # for the command
_MIB = 2**20


class Gpu(NamedTuple):
    utilization: float | None = None  # per cent
    used: int | None = None  # bytes, of all processes
    temperature: float | None = None  # °C


def by_process() -> dict[int, DeviceUsage]:
    """Of the processes that the command knows: in a container it may have other numbers for them."""
    if not is_there():
        return {}
    held: dict[int, int] = {}
    for pid, mebibytes in _asked("--query-compute-apps=pid,used_gpu_memory"):
        if pid.isdigit() and mebibytes.isdigit():
            held[int(pid)] = held.get(int(pid), 0) + int(mebibytes) * _MIB
    found = gpus()
    used = sum(gpu.used or 0 for gpu in found)
    return {pid: DeviceUsage(bytes, None, used, *most(found)) for pid, bytes in held.items()}


def gpus(names: tuple[str, ...] = ()) -> list[Gpu]:
    """All, or those with these names, such as GPU-5f8a…"""
    chosen = (f"--id={','.join(names)}",) if names else ()
    rows = _asked("--query-gpu=utilization.gpu,memory.used,temperature.gpu", *chosen)
    return [Gpu(_number(row[0]), _bytes(row[1]), _number(row[2])) for row in rows if len(row) == 3]


def most(found: list[Gpu]) -> tuple[float | None, float | None]:
    """How busy the busiest is, and how hot the hottest."""
    busy = [gpu.utilization for gpu in found if gpu.utilization is not None]
    heat = [gpu.temperature for gpu in found if gpu.temperature is not None]
    return max(busy, default=None), max(heat, default=None)


def is_there() -> bool:
    return shutil.which("nvidia-smi") is not None


def _number(cell: str) -> float | None:
    return float(cell) if cell.replace(".", "", 1).isdigit() else None


def _bytes(mebibytes: str) -> int | None:
    found = _number(mebibytes)
    return None if found is None else int(found) * _MIB


def _asked(*options: str) -> list[tuple[str, ...]]:
    try:
        query = ["nvidia-smi", *options, "--format=csv,noheader,nounits"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=_MAX_SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [tuple(cell.strip() for cell in line.split(",")) for line in done.stdout.splitlines()]
