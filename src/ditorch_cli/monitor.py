"""`ditorch monitor --pid PID` or `ditorch monitor COMMAND…`: memory and utilisation of a run, watched from outside.

Also known as `python -m op_tools.process_monitor`. It imports no torch and asks nothing of the process. What others can
know of a device from outside, NVIDIA's command tells; for other chips `ditorch run --monitor` asks from inside.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ditorch_shared import nvidia_smi, processes
from ditorch_shared.monitoring import DeviceUsage, Log

SCHEMA = "ditorch.monitor/1"


@click.command(name="monitor", context_settings={"allow_interspersed_args": False})
@click.option("--pid", type=click.IntRange(1), help="The process to watch, with all that it starts.")
@click.option(
    "--interval", type=click.FloatRange(0.01), default=1.0, show_default=True, help="Seconds between samples."
)
@click.option("--out", type=click.Path(path_type=Path), help="The folder for results; op_tools_results where unset.")
@click.option("--json", "as_json", is_flag=True, help=f"Print the summary as JSON ({SCHEMA}), and nothing else.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND…]")
def command(pid: int | None, interval: float, out: Path | None, as_json: bool, arguments: tuple[str, ...]) -> None:
    """Watch a process by its PID, or a COMMAND that is started, until it ends or you press Ctrl-C.

    Host memory, CPU time and, on NVIDIA, device memory of the process and all that it starts: a CSV file with every
    sample, and one summary.
    """
    if (pid is None) == (not arguments):
        raise click.UsageError("give either --pid PID or a command to start.")
    if not processes.is_known():
        raise click.UsageError("this system has no /proc to read from: it has to be Linux.")
    child = _started(arguments) if arguments else None
    watched = child.pid if child is not None else pid or 0
    if processes.usage(watched) is None and child is None:
        raise click.UsageError(f"there is no process {watched}.")
    log = Log(out or Path(os.environ.get("OP_TOOLS_OUT") or "op_tools_results"), watched)
    try:
        log.begin()
        _watch(log, watched, interval, child)
    except OSError as error:
        raise click.UsageError(
            f"{log.path} cannot be written ({error.strerror}): give another folder (--out)."
        ) from None
    _finish(log, as_json)
    if child is not None:
        status = child.wait()
        sys.exit(status if status >= 0 else 128 - status)


def _started(arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(arguments)
    except OSError as error:
        raise click.UsageError(f"{arguments[0]} cannot be started: {error.strerror}.") from None


def _watch(log: Log, pid: int, interval: float, child: subprocess.Popen[bytes] | None) -> None:
    try:
        while (usage := processes.usage(pid)) is not None:
            devices = nvidia_smi.by_process()
            log.add(usage, devices.get(pid, DeviceUsage()))
            for other in processes.family(pid)[1:]:
                if (usage := processes.usage(other)) is not None:
                    log.add(usage, devices.get(other, DeviceUsage()))
            if child is None:
                time.sleep(interval)
            else:
                _wait(child, interval)
    except KeyboardInterrupt:  # a terminal sends it to the command, too
        if child is not None and not sys.stdin.isatty():
            child.send_signal(signal.SIGINT)


def _wait(child: subprocess.Popen[bytes], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(seconds)


def _finish(log: Log, as_json: bool) -> None:
    rows = log.rows()
    document = {"schema": SCHEMA, "file": str(log.path), "processes": rows}
    text = json.dumps(document, indent=1)
    log.path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    if as_json:
        print(text)
        return
    console = Console(stderr=True)
    console.print(table(rows))
    console.print(f"{log.path} saved", soft_wrap=True)


def table(rows: list[dict[str, Any]]) -> Table:
    """One line for each process."""
    found = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    columns = ("rank", "pid", "command", "seconds", "host memory", "CPU", "device memory", "device busy", "°C")
    for name in columns:
        found.add_column(name, justify="left" if name == "command" else "right", overflow="fold")
    for row in rows:
        busy = row["device_utilization"]
        found.add_row(
            str(row["rank"]),
            str(row["pid"]),
            row["command"],
            f"{row['seconds']:.1f}",
            _gigabytes(row["host_memory_peak"]),
            f"{row['cpu_percent']:.0f} %",
            _gigabytes(row["device_memory_peak"]),
            "" if busy is None else f"{busy:.0f} %",
            "" if row.get("device_temperature_peak") is None else f"{row['device_temperature_peak']:.0f}",
        )
    return found


def _gigabytes(bytes: int | None) -> str:
    """The most that was seen."""
    return "" if bytes is None else f"{bytes / 1e9:.2f} GB"
