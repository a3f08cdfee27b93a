"""The record of one process in the run's folder: what its tools found, and on what. `ditorch run` sums them up.

It is written after the first step, then every few seconds at the end of a step, and when the process ends: one that is
killed leaves the last one. docs/run.md describes it.
"""

from __future__ import annotations

import contextlib
import json
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from op_tools import settings
from op_tools.core.modes import with_modes_aside
from op_tools.core.steps import STEPS
from op_tools.output import csv_files, messages, process
from op_tools.output.results import Results, finite
from op_tools.storage import files

SCHEMA = "ditorch.process/1"
_MAX_SHARE = 0.02  # of the time, for writing it
_MAX_SECONDS = 10.0  # without writing it, whatever it costs
_MAX_ROWS = 200  # of each tool
OUTSIDE = ("model", "first_inputs")  # what OpCapture tells of the process, not of calls


class Finder(Protocol):
    """A tool, or whatever else finds something."""

    @property
    def results(self) -> Results: ...


class ProcessRecord:
    def __init__(self, tools: Sequence[Finder], run: Path, backend: str, command: str | None) -> None:
        self._tools = tools
        self._folder = run.absolute() / "processes"
        self._device = {"backend": backend, "command": command}
        self._started = time.time()
        self._written = 0.0
        self._cost = 0.0  # of writing it, in seconds
        self._interval = settings.RECORD_INTERVAL.get()

    def step_began(self, step: int) -> None:
        # less in the beginning: who is killed early shall leave something, too
        pause = min(self._interval, max(0.5, (time.time() - self._started) / 5))
        began = time.monotonic()
        if began - self._written >= max(pause, min(self._cost / _MAX_SHARE, _MAX_SECONDS)):
            with_modes_aside(self._write, None)
            self._cost = time.monotonic() - began

    def end(self) -> None:
        with_modes_aside(self._write, time.time())

    def _write(self, ended: float | None) -> None:
        self._written = time.monotonic()
        csv_files.write_out()
        results = [tool.results for tool in self._tools]
        if not any(found.calls for found in results) and not STEPS.ended_by_optimizers:
            return  # a process that only helps, such as a launcher or a loader of data
        rows = [finite(one.as_dictionary(_MAX_ROWS)) for one in results]
        about = {key: tool.pop(key) for tool in rows for key in OUTSIDE if key in tool}
        found = {**self._facts(ended), **about, "tools": rows}
        path = self._folder / "{host}-rank{rank}-pid{pid}.json".format(**process.identity())
        try:
            files.put(str(path), [json.dumps(found, indent=1).encode()])
        except OSError as error:
            text = f"{path} cannot be written ({error.strerror}): the summary of the run lacks this process"
            messages.complain_once("record", text=text)

    def _facts(self, ended: float | None) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            **process.identity(),
            "world_size": process.world_size(),
            "arguments": sys.argv,
            "started": self._started,
            "ended": ended,
            "steps": STEPS.current,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": {**self._device, **_device()},
            "seed": torch.initial_seed(),
            "not_seen": list(messages.not_seen),
        }


def _device() -> dict[str, Any]:
    """The accelerator, if the program has used it: asking would start it."""
    found: dict[str, Any] = {"cuda": torch.version.cuda, "hip": torch.version.hip}
    with contextlib.suppress(Exception):  # not every backend tells, and each fails in its own way
        if torch.cuda.is_initialized():
            found["name"], found["count"] = torch.cuda.get_device_name(), torch.cuda.device_count()
    return found
