"""Starts the tools that OP_TOOLS names, in a program that knows nothing of them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Protocol

from ditorch_shared.optimizer_hooks import OptimizerHooks
from ditorch_shared.steps import Steps
from op_tools import settings
from op_tools.core import spelling
from op_tools.core.running import go_on_counting, tell
from op_tools.core.steps import STEPS
from op_tools.losses import LossLog
from op_tools.monitor import ProcessMonitor
from op_tools.perturbation import Perturbation
from op_tools.run.control import Control
from op_tools.run.record import Finder, ProcessRecord
from op_tools.run.tools import TOOLS, made


class _Other(Finder, Protocol):
    """What watches a program beside the tools."""

    def stop(self) -> None: ...


def start(backend: str, command: str | None) -> None:
    """`backend`: the accelerator's name; `command`: its vendor's, which shows the devices."""
    names = settings.TOOLS.get()
    tools = []
    for name in [name for name in names if name in TOOLS]:
        tool = made(name, backend)
        tool.start()
        if not tool.verbose:  # else it has done so itself
            spelling.check(type(tool).__name__, tool.selection, [one.prefix for one in TOOLS.values()])
        tools.append(tool)
    # what a run is to be compared by later
    has_statistics = "capture" in names and settings.CAPTURE_MODE.get() == "statistics"
    others: list[_Other] = [ProcessMonitor().start()] if {"monitor", "watch"} & {*names} else []
    others += [Perturbation().start()] if "perturb" in names else []
    if "modules" in names:
        others.append(importlib.import_module("module_tools.lockstep").from_settings().start())
    others += [LossLog().start()] if "losses" in names or has_statistics else []
    if names:
        _tell([*tools, *others], others, settings.OUT.get().absolute(), backend, command)


def attach(run: Path, backend: str, command: str | None, steps: Steps, hooks: OptimizerHooks) -> None:
    """`ditorch attach` asks for something in a process that had no tools: what has been counted so far goes on."""
    go_on_counting(steps, hooks)
    _tell([], [], run, backend, command, is_known=False)


def _tell(
    found: list[Finder], others: list[_Other], run: Path, backend: str, command: str | None, is_known: bool = True
) -> None:
    """Keeps the record of the process, and listens to `ditorch attach`."""
    record, control = ProcessRecord(found, run, backend, command), Control(run, found, backend, is_known)

    def began(step: int) -> None:
        control.step_began(step)
        record.step_began(step)

    def end() -> None:
        for one in others:
            one.stop()
        record.end()

    tell(began, end)
    if not is_known:
        began(STEPS.current)
