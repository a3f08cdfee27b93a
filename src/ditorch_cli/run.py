"""`ditorch run train.py …`: the program as Python would run it, with ditorch in it and in its child processes.

    ditorch run train.py --epochs 3
    ditorch run -m package.train --epochs 3
    torchrun --nproc_per_node=8 -m ditorch run train.py --epochs 3

This process becomes `python train.py …`, with two more environment variables: Python itself parses, runs and ends the
program, so that its arguments, tracebacks, exit code and signals are what they always were. ditorch comes in when the
program imports torch: see ditorch/autoload/sitecustomize.py, also for the limits.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import click


def _autoload() -> str:
    """The folder ditorch/autoload, found without importing ditorch, and thereby torch."""
    found = importlib.util.find_spec("ditorch")
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent / "autoload")


_AUTOLOAD = _autoload()


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is the name of a module, as in `python -m`.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(is_module: bool, program: str, arguments: tuple[str, ...]) -> None:
    """Run PROGRAM as `python PROGRAM ARGUMENTS…` would, on the accelerator that is here, without an edit to it.

    What it starts in other Python processes runs there, too. All that follows PROGRAM is the program's own.
    """
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise click.UsageError("Python was started with -I, -E or -S, and `ditorch run` cannot work under these.")
    command = [sys.executable, *_interpreter_options(), *(["-m"] if is_module else []), program, *arguments]
    os.execve(sys.executable, command, {**os.environ, **_environment()})  # noqa: S606 - what the user asked to run


def _interpreter_options() -> list[str]:
    """The options that this Python was started with, such as -O, -X dev and torchrun's -u."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [*options, *(["-u"] if getattr(sys.stdout, "write_through", False) else [])]


def _environment() -> dict[str, str]:
    """What makes this program, and the Python processes that it starts, run autoload/sitecustomize.py."""
    before = os.environ.get("PYTHONPATH", "")
    others = [folder for folder in before.split(os.pathsep) if folder != _AUTOLOAD] if before else []
    return {"DITORCH_RUN": "1", "PYTHONPATH": os.pathsep.join([_AUTOLOAD, *others])}
