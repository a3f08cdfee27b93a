"""A process of `ditorch run` without tools: it counts steps, and looks at the end of each for `ditorch attach`.

That is one os.stat for a step. op_tools is imported only when something is asked for: that takes a second.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable

from ditorch_shared import control, optimizer_hooks
from ditorch_shared.optimizer_hooks import OptimizerHooks
from ditorch_shared.steps import Steps

TakeOver = Callable[[Steps, OptimizerHooks], None]


def wait(run: Path, take_over: TakeOver) -> None:
    """`take_over` is called once, when a command has come; `run`: the run's folder."""
    path = str(run / control.FOLDER / control.COMMAND)
    known, steps = control.signature(path), Steps()  # an old command is not for us

    def stepped(optimizer: Any) -> None:
        if steps.optimizer_stepped(optimizer) is None or control.signature(path) in (None, known):
            return
        hooks.after = optimizer_hooks.ignore
        try:
            take_over(steps, hooks)
        except Exception as error:  # noqa: BLE001  the program goes on as without us
            sys.stderr.write(f"ditorch: ditorch attach cannot switch tools on in this process: {error}\n")

    hooks = OptimizerHooks(optimizer_hooks.ignore, stepped)
