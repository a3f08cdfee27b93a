"""`ditorch run train.py …`: the program as Python would run it, with ditorch and tools in it and in its children.

    ditorch run train.py --epochs 3
    ditorch run --autocompare --steps 0:2 train.py --epochs 3
    ditorch run --time torchrun --nproc_per_node=8 train.py
    torchrun --nproc_per_node=8 -m ditorch run --time train.py

Without a tool, this process becomes `python train.py …`, with two more environment variables: Python itself parses,
runs and ends the program, so that its arguments, tracebacks, exit code and signals are what they always were. With
tools it runs as a child (supervisor.py), so that there is a summary even of a program that was killed. ditorch comes in
when the program imports torch: see ditorch/autoload/sitecustomize.py, also for the limits.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from ditorch_cli import completion
from ditorch_cli.tool_options import ToolCommand, variables


def _autoload() -> str:
    """The folder ditorch/autoload, found without importing ditorch, and thereby torch."""
    found = importlib.util.find_spec("ditorch")
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent / "autoload")


_AUTOLOAD = _autoload()
_MACHINE_CODE = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")  # how files of Linux and macOS begin


@click.command(cls=ToolCommand, context_settings={"allow_interspersed_args": False})
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is the name of a module, as in `python -m`.")
@click.argument("program", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=completion.files)
def run(is_module: bool, program: str, arguments: tuple[str, ...], **tools: Any) -> None:
    """Run PROGRAM as `python PROGRAM ARGUMENTS…` would, on the accelerator that is here, without an edit to it.

    PROGRAM may also be a command, such as torchrun or python. What it starts in other Python processes runs there, too.
    All that follows PROGRAM is the program's own. With tools, a summary of what they found ends the run.
    """
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise click.UsageError("Python was started with -I, -E or -S, and `ditorch run` cannot work under these.")
    command = command_line(is_module, program, arguments)
    environment = {**os.environ, **run_variables(), "PATH": search_path(), **variables(tools)}
    has_tools = bool(environment.get("OP_TOOLS", "").strip())
    if tools["live"] and not has_tools:
        raise click.UsageError("--live shows what tools find: add one, such as --time or --autocompare.")
    chosen = environment.get("OP_TOOLS_OUT") if has_tools else tools["out"]
    folder = Path(chosen or _new_folder(program, has_tools))
    environment["DITORCH_CONTROL"] = str(folder.absolute())  # also for children with another working directory
    is_missing = command[0] == sys.executable and not is_module and not Path(program).exists()
    if not has_tools or is_missing:  # of a file that is not there, Python says so, and there is nothing to sum up
        if chosen and not is_missing:
            _make_known(folder, command, environment)
        executable = shutil.which(command[0], path=environment["PATH"]) or command[0]
        os.execve(executable, command, environment)  # noqa: S606 - what the user asked to run
    else:
        from ditorch_cli.supervisor import supervise

        environment.setdefault("OP_TOOLS_VERBOSE", "0")  # the summary says it all
        environment["OP_TOOLS_OUT"] = str(folder.absolute())
        supervise(command, environment, folder, is_live=tools["live"])


def _make_known(folder: Path, command: list[str], environment: dict[str, str]) -> None:
    """A folder that was asked for is there from the start, so that `ditorch attach` finds it from any machine."""
    from ditorch_cli import manifest

    with contextlib.suppress(OSError):  # another rank was faster; where it cannot be made, attach will say so
        if not (folder / manifest.FILE).exists():
            folder.mkdir(parents=True, exist_ok=True)
            manifest.write(folder, manifest.begun(command, environment))


def command_line(is_module: bool, program: str, arguments: tuple[str, ...]) -> list[str]:
    """What runs PROGRAM: a script, a module or a command."""
    return [*_interpreter(is_module, program), *(["-m"] if is_module else []), program, *arguments]


def _interpreter(is_module: bool, program: str) -> list[str]:
    """What runs the program: this Python, unless it is a command of another kind."""
    python = [sys.executable, *_interpreter_options()]
    if is_module or Path(program).exists() or os.sep in program:
        return [] if not is_module and _is_machine_code(program) else python
    found = shutil.which(program, path=search_path())
    if found is None:
        return python  # which says that there is no such file
    return []


def _is_machine_code(program: str) -> bool:
    """Whether it is an executable of the system, such as /usr/bin/python3, and no script."""
    try:
        with open(program, "rb") as file:
            return file.read(4) in _MACHINE_CODE
    except OSError:
        return False


def _interpreter_options() -> list[str]:
    """The options that this Python was started with, such as -O, -X dev and torchrun's -u."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [*options, *(["-u"] if getattr(sys.stdout, "write_through", False) else [])]


def run_variables() -> dict[str, str]:
    """What makes this program, and the Python processes that it starts, run autoload/sitecustomize.py."""
    before = os.environ.get("PYTHONPATH", "")
    others = [folder for folder in before.split(os.pathsep) if folder != _AUTOLOAD] if before else []
    return {"DITORCH_RUN": "1", "PYTHONPATH": os.pathsep.join([_AUTOLOAD, *others])}


def search_path() -> str:
    """Where commands are found: this Python's own last, for torchrun in an environment that is not activated."""
    folders = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder]
    own = os.path.dirname(sys.executable)
    return os.pathsep.join(folders if own in folders else [*folders, own])


def _new_folder(program: str, has_tools: bool) -> str:
    """A folder for this run, the same for all ranks that one launcher has started. Without tools, it is only a name."""
    moment, is_one_of_several = time.time(), "LOCAL_RANK" in os.environ
    if is_one_of_several:
        try:
            moment = os.stat(f"/proc/{os.getppid()}").st_ctime  # when the launcher began
        except OSError:
            moment -= moment % 60
    name = re.sub(r"[^\w.-]+", "_", Path(program).stem) or "run"
    first = Path("ditorch_runs") / f"{name}-{time.strftime('%Y-%m-%d-%H-%M-%S', time.localtime(moment))}"
    if not has_tools:
        return f"{first}-pid{os.getppid() if is_one_of_several else os.getpid()}"
    folder, number = first, 1
    while folder.exists() and not is_one_of_several:  # two runs within a second
        number += 1
        folder = first.with_name(f"{first.name}_{number}")
    return str(folder)
