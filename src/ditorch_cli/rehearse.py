"""`ditorch rehearse --profile chip.json -- python train.py`: what will this program meet on that chip?

The program runs on the simulated accelerator, which behaves like the chip of the profile (ditorch/sim/rehearsal.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable

import click
from rich.console import Console
from rich.markup import escape

from ditorch_cli.exit_codes import FAILED, FINE, FOUND
from ditorch_cli.run import command_line, run_variables, search_path

SCHEMA = "ditorch.rehearsal/1"
PROCESS_SCHEMA = "ditorch.rehearsal.process/1"  # as ditorch/sim/rehearsal.py writes it
# Errors this many times those of a sound kernel are called wrong by OpAutoCompare (its judging/limits.py: ratio)
DRIFT_LIMITS = {"float32": 32.0, "bfloat16": 4.0, "float16": 4.0}
_MAX_ROWS = 20

Row = dict[str, Any]


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--profile", required=True, help="The chip: a file of `ditorch conformance profile`, or a name.")
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is the name of a module, as in `python -m`.")
@click.option("--json", "as_json", is_flag=True, help=f"Print one JSON object (schema {SCHEMA}).")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(profile: str, is_module: bool, as_json: bool, program: str, arguments: tuple[str, ...]) -> None:
    """Run PROGRAM as it is on the simulated accelerator, which behaves like another chip.

    Then say which kernels it will miss there, where it will drift, and how long a step will take, by kernel. A kernel
    that is missing there runs all the same here, so that one run finds all. Exit code 0: nothing found; 1: something is
    missing or drifts; 2: the program or the profile failed.
    """
    _check(profile)
    with tempfile.TemporaryDirectory(prefix="ditorch-rehearsal-") as folder:
        path = Path(profile).expanduser()
        variables = {
            "DITORCH_BACKEND": "sim",
            "DITORCH_DISABLE_MOCK": "0",
            "DITORCH_SIM_PROFILE": str(path.absolute()) if path.exists() else profile,
            "DITORCH_REHEARSAL": folder,
        }
        # what the program prints is not what this command prints
        output = sys.stderr if as_json else None
        try:
            done = subprocess.run(
                command_line(is_module, program, arguments),
                env={**os.environ, **run_variables(), "PATH": search_path(), **variables},
                stdout=output,
                check=False,
            )
        except OSError as error:
            raise click.UsageError(f"{program} cannot be started: {error.strerror}.") from None
        found = summed(_records(Path(folder)), done.returncode)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        _show(found)
    sys.exit(found["exit_code"])


def _check(profile: str) -> None:
    """A mistake is said now, and not by the program's traceback."""
    from ditorch.errors import SettingError
    from ditorch.sim.chip_profile import ChipProfile

    try:
        ChipProfile.read(profile)
    except SettingError as error:
        raise click.UsageError(str(error)) from None


def _records(folder: Path) -> list[Row]:
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [record for record in records if record["schema"] == PROCESS_SCHEMA]


def summed(records: list[Row], status: int) -> Row:
    """All processes together; times are those of the process that takes longest."""
    kernels: dict[tuple[str, str], Row] = {}
    for record in records:
        for row in record["kernels"]:
            known = kernels.setdefault((row["kernel"], row["dtype"]), dict(row))
            if known is not row and "drift" in row:
                known["drift"] = max(known.get("drift", 0.0), row["drift"])
    slowest = max(records, key=lambda record: sum(row["seconds"] for row in record["kernels"]), default=None)
    missing = [_told(row, "missing") for row in kernels.values() if "missing" in row]
    drifting = [
        {**_told(row, "drift"), "is_wrong": row["drift"] > DRIFT_LIMITS.get(row["dtype"], 4.0)}
        for row in kernels.values()
        if "drift" in row
    ]
    found: Row = {
        "schema": SCHEMA,
        "chip": records[0]["chip"] if records else None,
        "source": records[0]["source"] if records else None,
        "status": status,
        "missing": sorted(missing, key=lambda row: -row["calls"]),
        "falls_back": [_told(row) for row in kernels.values() if row.get("falls_back")],
        "drift": sorted(drifting, key=lambda row: -row["drift"]),
        **_times(slowest),
    }
    is_found = found["missing"] or any(row["is_wrong"] for row in drifting)
    found["exit_code"] = FAILED if status or not records else FOUND if is_found else FINE
    return found


def _told(row: Row, *keys: str) -> Row:
    return {key: row[key] for key in ("kernel", "dtype", "calls", "where", *keys)}


def _times(record: Row | None) -> Row:
    if record is None:
        return {"steps": 0, "step_seconds": None, "times": [], "calls_without_time": 0}
    steps = max(record["steps"], 1)
    rows = [
        {
            "kernel": row["kernel"],
            "dtype": row["dtype"],
            "calls": row["calls"] / steps,
            "seconds": row["seconds"] / steps,
        }
        for row in sorted(record["kernels"], key=lambda row: -row["seconds"])
        if row["seconds"]
    ]
    total = sum(row["seconds"] for row in rows)
    unknown = sum(row["unknown"] for row in record["kernels"])
    return {"steps": record["steps"], "step_seconds": total or None, "times": rows, "calls_without_time": unknown}


# ---- in words --------------------------------------------------------------------------------------------------------


def _show(found: Row) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if found["chip"] is None:
        console.print(f"The program used no accelerator; it ended with exit code {found['status']}.")
        return
    console.print(f"\n[bold]Rehearsal on {escape(found['chip'])}[/], by a profile that was {found['source']}")
    if found["status"]:
        console.print(f"The program ended with exit code {found['status']}: this is what was seen until then.")
    _show_rows(console, "Missing there", found["missing"], lambda row: f": {row['missing']}")
    _show_rows(console, "Run on the CPU there", found["falls_back"], lambda row: "")
    _show_rows(console, "Less precise there", found["drift"], _drift)
    if found["step_seconds"] is None:
        console.print("The profile has no times.")
        return
    what = f"a step ({found['steps']} steps)" if found["steps"] else "the whole program"
    console.print(f"\n{1e3 * found['step_seconds']:,.3f} ms of device time for {what}, estimated:")
    for row in found["times"][:_MAX_ROWS]:
        share = 100 * row["seconds"] / found["step_seconds"]
        kernel = f"{row['kernel']} {row['dtype']}"
        console.print(f"  {share:5.1f} %  {1e3 * row['seconds']:9.3f} ms  {row['calls']:8.1f} calls  {escape(kernel)}")


def _drift(row: Row) -> str:
    judged = ", which is wrong" if row["is_wrong"] else ""
    return f": errors {row['drift']:,.1f} times those of a sound kernel{judged}"


def _show_rows(console: Console, what: str, rows: list[Row], words: Callable[[Row], str]) -> None:
    console.print(f"\n{what}: {len(rows) or 'nothing'}")
    for row in rows[:_MAX_ROWS]:
        calls = f"{row['calls']} call{'s' if row['calls'] > 1 else ''}"
        console.print(f"  [bold]{escape(row['kernel'])}[/] {row['dtype']}, {calls}{escape(words(row))}")
        console.print(f"      {escape(row['where'])}")
    if len(rows) > _MAX_ROWS:
        console.print(f"  … and {len(rows) - _MAX_ROWS} more; --json has all")
