"""Starts the tools that OP_TOOLS names, in a program that knows nothing of them."""

from __future__ import annotations

import importlib
from typing import Protocol

from op_tools import settings
from op_tools.autocompare.tool import OpAutoCompare
from op_tools.capture.tool import OpCapture
from op_tools.core import spelling
from op_tools.core.running import tell
from op_tools.core.tool import AnyTool
from op_tools.losses import LossLog
from op_tools.monitor import ProcessMonitor
from op_tools.observe import OpObserve
from op_tools.overflow.tool import OpOverflowCheck
from op_tools.perturbation import Perturbation
from op_tools.reroute.cast import OpDtypeCast
from op_tools.reroute.fallback import OpFallback
from op_tools.run.record import Finder, Record
from op_tools.timing.tool import OpTimeMeasure
from op_tools.watch import TrainingWatch

_TOOLS: dict[str, type[AnyTool]] = {
    "autocompare": OpAutoCompare,
    "capture": OpCapture,
    "time": OpTimeMeasure,
    "overflow": OpOverflowCheck,
    "observe": OpObserve,
    "fallback": OpFallback,
    "cast": OpDtypeCast,
    "watch": TrainingWatch,
}


class _Other(Finder, Protocol):
    """What watches a program beside the tools."""

    def stop(self) -> None: ...


def start(backend: str, command: str | None) -> None:
    """`backend`: the accelerator's name; `command`: its vendor's, which shows the devices."""
    names = settings.TOOLS.get()
    tools = []
    for name in [name for name in names if name in _TOOLS]:
        # `ditorch run` makes the tools silent, since its summary says it all; what OpObserve prints is its purpose
        tool = _TOOLS[name](verbose=max(1, settings.VERBOSE.get()) if name == "observe" else None)
        # a run on the plain CPU is what others are compared with
        tool.sees_cpu = backend == "cpu" and name == "capture"
        tool.start()
        if not tool.verbose:  # else it has done so itself
            spelling.check(type(tool).__name__, tool.selection, [one.prefix for one in _TOOLS.values()])
        tools.append(tool)
    # what a run is to be compared by later
    has_statistics = "capture" in names and settings.CAPTURE_MODE.get() == "statistics"
    others: list[_Other] = [ProcessMonitor().start()] if {"monitor", "watch"} & {*names} else []
    others += [Perturbation().start()] if "perturb" in names else []
    if "modules" in names:
        others.append(importlib.import_module("module_tools.lockstep").from_settings().start())
    others += [LossLog().start()] if "losses" in names or has_statistics else []
    if names:
        record = Record([*tools, *others], settings.OUT.get(), backend, command)

        def end() -> None:
            for one in others:
                one.stop()
            record.end()

        tell(record.step_began, end)
