"""Lockstep: chosen modules of an unedited program are given what they were given in another run.

    ditorch run --modules 'blocks.*' --out good train.py                          on the device that is right
    ditorch run --modules 'blocks.*' --inputs-from good --out bad train.py        on yours

In the second run each of them gets the first run's inputs and, in backward, its gradients; and so does what follows it.
So what a module gives differs by its own error, what would have arrived at it by the error of what was computed since
the last ones, and nothing is carried. recording.py records, comparison.py compares.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import Any

from torch.nn import Module

from module_tools.comparison import COLUMNS, compared, saved
from module_tools.fixed_inputs import FixedInputs
from module_tools.recording import ALL_LAYERS, EXPECTED, REAL, Recorder, layers
from op_tools import settings
from op_tools.core import module_calls
from op_tools.core.steps import STEPS
from op_tools.errors import CaptureError, SettingError
from op_tools.output import messages, process
from op_tools.output.results import Results

FOLDER = "modules"


class Lockstep(Recorder):
    """`modules`: names and regular expressions with commas, each of a whole name with or without the model's class.

    Without `inputs_from`, a run's folder, it records what other runs are given. `steps`: training steps, the first one
    where there is None. A module is found when the outermost one is called, so the program has nothing to say.
    """

    def __init__(self, modules: str, inputs_from: Path | None, steps: Container[int] | None, out: Path) -> None:
        self._patterns = _patterns(modules)
        self._steps: Container[int] = (0,) if steps is None else steps
        self._inputs_from = inputs_from
        if inputs_from is not None and not (inputs_from / FOLDER).is_dir():
            raise SettingError(
                f"OP_TOOLS_INPUTS_FROM={inputs_from} holds no modules: make it with `ditorch run --modules PATTERNS`"
            )
        super().__init__(out.absolute() / FOLDER, None)
        self._benchmark: Path | None = None
        self._known: weakref.WeakSet[Module] = weakref.WeakSet()
        self._roots: Counter[str] = Counter()
        self._names: list[str] = []
        self._chosen: dict[str, bool] = {}
        self._calls: Counter[tuple[str, int]] = Counter()
        self._is_listening = False
        self._compared: Results | None = None

    def start(self) -> Lockstep:
        """Hears of every call of a module from now on."""
        if not self._is_listening:
            self._is_listening = True
            module_calls.listen(self)
        return self

    def stop(self) -> None:
        """Torch is as it was; compares, where there is something to compare with."""
        if not self._is_listening:
            return
        self._is_listening = False
        module_calls.leave(self)
        self.remove_hook()
        if self._names and not any(self._chosen.values()):
            named = ", ".join(self._names[:6])
            messages.complain(f"no module is called so (OP_TOOLS_MODULES): there are {named} …")
        if self._benchmark is not None and self._ran:
            self._compared = self._comparison(self._benchmark)

    @property
    def results(self) -> Results:
        """The modules' own errors; while it runs, how many calls there were."""
        if self._compared is not None:
            return self._compared
        return Results("Lockstep", COLUMNS, (), len(self._ran), files=[str(self.folder)])

    def label(self, name: str) -> str | None:
        step = STEPS.current
        if step not in self._steps or not self._chosen[name]:
            return None
        number = self._calls[name, step]
        self._calls[name, step] += 1
        return f"{name}@{step}.{number}" if step or number else name

    def module_called(self, module: Module, is_outermost: bool) -> None:
        """An outermost module is about to run: it may be one that nobody has seen yet."""
        if not is_outermost or module in self._known:
            return
        try:
            self._found(module)
        except Exception as error:  # noqa: BLE001  whatever it is, training goes on
            text = f"{type(module).__name__} cannot be watched: {messages.in_short(error)}; training goes on"
            messages.complain_once("lockstep", type(module).__name__, text=text)

    def module_returned(self, module: Module, result: Any) -> None:
        """Hooks see what it gave."""

    def _found(self, module: Module) -> None:
        if not self._names:
            self._open()
        for each in module.modules():
            self._known.add(each)
        root = module_calls.unwrapped(module)
        kind = type(root).__name__
        self._roots[kind] += 1
        title = kind if self._roots[kind] == 1 else f"{kind}_{self._roots[kind]}"
        found = [(name, each) for name, each in layers(root, title)]
        self._chosen.update((name, self._is_meant(name)) for name, _ in found)
        self._names += [name for name, _ in found]
        self._write(ALL_LAYERS, self._names)
        self.hook((name, each) for name, each in found if self._chosen[name])

    def _open(self) -> None:
        """Now the rank is known: its own folder, and that of the same rank in the other run."""
        rank = f"rank{process.this_rank()}"
        self.folder = self.folder / rank / (EXPECTED if self._inputs_from is None else REAL)
        if self._inputs_from is not None:
            self._benchmark = self._inputs_from / FOLDER / rank / EXPECTED
            self._fixed = FixedInputs(self._benchmark, on_both_sides=True)

    def _is_meant(self, name: str) -> bool:
        return any(pattern.fullmatch(one) for pattern in self._patterns for one in (name, name.partition(".")[2]))

    def _comparison(self, benchmark: Path) -> Results:
        missing: list[tuple[str, int, str]] = []
        try:
            rows = list(compared((benchmark, self.folder), process.this_rank(), missing))
        except CaptureError as error:
            messages.complain(str(error))
            return Results("Lockstep", COLUMNS, (), len(self._ran), [("all modules", len(self._ran), str(error))])
        # the worst first: nothing is carried, so each is to blame for what it shows; but for what arrived at it
        rows.sort(key=lambda row: (row["allclose"], _has_arrived(row["what"]), -_size(row["relative_error"])))
        return saved("Lockstep", self.folder.parent / "own_errors.csv", rows, missing)


def _size(error: float) -> float:
    return float("inf") if error != error else error


def _has_arrived(what: str) -> bool:
    """Computed between the chosen modules, not by this one."""
    return what.startswith("arrived")


def _patterns(text: str) -> list[re.Pattern[str]]:
    try:
        found = [re.compile(part.strip()) for part in text.split(",") if part.strip()]
    except re.error as error:
        raise SettingError(f"OP_TOOLS_MODULES={text} cannot be used: {error}") from None
    if not found:
        raise SettingError("OP_TOOLS_MODULES is empty: name modules, such as blocks.0, or use '.*' for all")
    return found


def from_settings() -> Lockstep:
    """As `ditorch run` asks for it."""
    return Lockstep(settings.MODULES.get(), settings.INPUTS_FROM.get(), settings.STEPS.get(), settings.OUT.get())
