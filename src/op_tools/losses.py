"""LossLog: the loss of every backward pass, as the program goes. `ditorch run --losses` has it in every process.

    {"step": 0, "loss": 4.8519}
    {"step": 1, "loss": 4.8327}

With several ranks each has a file of its own, whose lines tell how many there are (`ranks`).
A loss is a scalar tensor from which backward begins without a given gradient: the program need not say what it is.
Values are read half a second later at the earliest, a few at once: reading one waits for the device.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from op_tools import settings
from op_tools.core import backward_passes
from op_tools.core.modes import with_modes_aside
from op_tools.core.steps import STEPS
from op_tools.output import messages, process
from op_tools.output.results import Results, finite

FOLDER = "losses"
_SECONDS_BETWEEN_WRITES = 0.5


class LossLog:
    """`start()` and `stop()`. One line of JSON for each loss; of a process that is killed, what was read by then."""

    def __init__(self, out: Path | None = None) -> None:
        self._out = settings.OUT.get() if out is None else out
        self._is_listening = False
        self._waiting: list[tuple[int, Tensor]] = []
        self._rows: list[tuple[int, float]] = []
        self._path: Path | None = None
        self._written = 0.0

    def start(self) -> LossLog:
        """Hears of every backward pass of this process from now on."""
        if not self._is_listening:
            self._is_listening = True
            backward_passes.listen(self)
        return self

    def stop(self) -> None:
        """Torch is as it was."""
        if self._is_listening:
            self._is_listening = False
            backward_passes.leave(self)
            with_modes_aside(self._write)

    @property
    def results(self) -> Results:
        files = [] if self._path is None else [str(self._path)]
        return Results("LossLog", ("step", "loss"), self._rows, len(self._rows), files=files)

    def backward_begins(self, tensors: Any, gradients: Any) -> None:
        """A failure of ours never ends a training run."""
        if gradients is not None:
            return
        try:
            for loss in backward_passes.losses_of(tensors):
                self._waiting.append((STEPS.current, loss))
            if time.monotonic() - self._written >= _SECONDS_BETWEEN_WRITES:
                self._write()
        except Exception as error:  # noqa: BLE001  whatever it is, training goes on
            self._waiting.clear()
            text = f"a loss could not be noted: {messages.in_short(error)}; training goes on"
            messages.complain_once("losses", text=text)

    def backward_ended(self) -> None:
        """The loss is known before."""

    def _write(self) -> None:
        """Reads the losses that wait, and appends them to the file."""
        self._written = time.monotonic()
        waiting, self._waiting = self._waiting, []
        read = [(step, float(loss.item())) for step, loss in waiting]
        self._rows += read
        if not read:
            return
        ranks = process.world_size()
        about = {"ranks": ranks} if ranks > 1 else {}
        lines = "".join(json.dumps(finite({"step": step, "loss": loss, **about})) + "\n" for step, loss in read)
        try:
            self._path = self._path or self._new_path()
            with self._path.open("a", encoding="utf-8") as file:
                file.write(lines)
        except OSError as error:
            messages.complain_once("losses", text=f"losses cannot be written ({error.strerror}); training goes on")

    def _new_path(self) -> Path:
        folder = self._out.absolute() / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "{host}-rank{rank}-pid{pid}.jsonl".format(**process.identity())
