"""TensorBoard and Weights & Biases get the curves as well, where they are installed and asked for."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

from op_tools.errors import SettingError
from op_tools.output import messages, process
from op_tools.watch.statistics import StepStatistics

SECONDS_BETWEEN_MODULES = 5.0  # figures by module: some hundred scalars are some milliseconds of Python
_BY_MODULE = ("rms", "absmax", "zeros")


class Receivers:
    """An error of theirs is told once, and they get nothing more."""

    def __init__(self, names: tuple[str, ...], folder: Path) -> None:
        self._receivers = {name: _MAKERS[name](folder) for name in names}
        self._told_modules = -math.inf

    def add(self, found: StepStatistics) -> None:
        if not self._receivers or process.this_rank() != 0:
            return
        scalars = dict(found.scalars())
        if time.monotonic() - self._told_modules >= SECONDS_BETWEEN_MODULES:
            self._told_modules = time.monotonic()
            scalars.update(_by_module(found))
        for name, receiver in list(self._receivers.items()):
            self._tell(name, receiver.add, scalars, found.step)

    def close(self) -> None:
        for name, receiver in list(self._receivers.items()):
            self._tell(name, receiver.close)

    def _tell(self, name: str, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001  whatever others do, training goes on
            self._receivers.pop(name, None)
            messages.complain(f"{name} gets no more curves: {messages.in_short(error)}")


def _by_module(found: StepStatistics) -> Iterator[tuple[str, float]]:
    for kind, table in found.tables.items():
        for figure in _BY_MODULE:
            for module, value in zip(table.modules, getattr(table, figure)):
                yield f"{kind}_{figure}/{module}", value


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        try:
            self._module: Any = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            raise SettingError("OP_WATCH_TO=tensorboard needs its package: pip install tensorboard") from None
        self._folder = folder
        self._writer: Any = None

    def add(self, scalars: dict[str, float], step: int) -> None:
        if self._writer is None:
            self._writer = self._module.SummaryWriter(str(self._folder / "tensorboard"))
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Wandb:
    """Into the program's own run, if it has one; else into a new one, with the settings of the surroundings."""

    def __init__(self, folder: Path) -> None:
        try:
            self._module: Any = importlib.import_module("wandb")
        except ImportError:
            raise SettingError("OP_WATCH_TO=wandb needs its package: pip install wandb") from None
        self._folder = folder
        self._run: Any = None

    def add(self, scalars: dict[str, float], step: int) -> None:
        if self._module.run is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._run = self._module.init(project="ditorch", dir=str(self._folder))
            self._run.define_metric("watch/step")
            self._run.define_metric("watch/*", step_metric="watch/step")
        told = {"watch/step": step, **{f"watch/{name}": value for name, value in scalars.items()}}
        # the program's own run counts its own steps: ours go into its next row
        self._module.run.log(told, commit=self._run is not None)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()


_MAKERS: dict[str, Callable[[Path], Any]] = {"tensorboard": _TensorBoard, "wandb": _Wandb}
