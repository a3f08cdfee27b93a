"""Processes that a case spawns are forked off one that has imported the test file. In a worker.

A case of test/distributed spawns four processes, and each of them imports torch and the file: ten to twenty seconds of
a processor, of which the case itself needs one. A forked process has the variables, arguments and search path of its
parent, as a spawned one has; what the file decides when it is imported is decided once.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import context, forkserver, process
from pathlib import Path
from typing import Any

from ditorch_conformance import preloaded_file


def why_unavailable() -> str:
    """Empty where they can be had."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return "this platform's multiprocessing has no forkserver"
    if "spawn" not in getattr(context, "_concrete_contexts", ()):
        return "this Python's multiprocessing keeps its start methods elsewhere"
    return ""


def install(path: Path) -> None:
    """From now on "spawn" means this."""
    os.environ[preloaded_file.VARIABLE] = str(path)
    forkserver.set_forkserver_preload([preloaded_file.__name__])
    contexts: dict[str, Any] = context._concrete_contexts  # type: ignore[attr-defined]
    contexts["spawn"] = _Context()


class _Process(process.BaseProcess):
    """Carries the parent's variables along: the process that is forked has those of an earlier time."""

    _start_method = "spawn"

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 - multiprocessing's name
        return context.ForkServerProcess._Popen(process_obj)

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_variables, (dict(os.environ), type(self)), self.__dict__


class _Context(context.ForkServerContext):
    _name = "spawn"
    Process = _Process  # type: ignore[assignment]


def _with_variables(variables: dict[str, str], kind: type[_Process]) -> _Process:
    """Runs in the child before the case's own arguments are read."""
    os.environ.clear()
    os.environ.update(variables)
    return kind.__new__(kind)
