"""Replays every capture below a folder with the tools that were asked for, and collects what came out."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import torch

from ditorch_shared.collectives import is_collective
from op_tools import settings
from op_tools.autocompare.arguments import Arguments
from op_tools.autocompare.judging.comparer import Comparer, Comparison
from op_tools.autocompare.judging.limits import Tolerances
from op_tools.autocompare.observed import ObservedCall
from op_tools.autocompare.reference.runs import References
from op_tools.autocompare.report import Outcome
from op_tools.autocompare.tool import OpAutoCompare
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.core.modes import with_modes_aside
from op_tools.errors import OpToolsError, SettingError
from op_tools.ops.autocast_policy import dtype_by_policy
from op_tools.ops.cast_tables import read_cast_tables
from op_tools.output import messages, paths
from op_tools.replay import replay, time_spread
from op_tools.replay.replay import Replayable
from op_tools.replay.results import CallResult, ReplayResults, Wrong
from op_tools.replay.time_spread import TimeSpread
from op_tools.storage import store
from op_tools.timing.ledger import Total
from op_tools.timing.tool import OpTimeMeasure
from op_tools.values import trees

Told = Callable[[str], None]
Progress = Callable[[int, int], None]  # calls done, and of how many
_OP = re.compile(r"[A-Za-z_]\w*(\.\w+)+")
_MAX_NAMED = 6
Way = Callable[["Options", "list[Path]", ReplayResults, Progress], None]


@dataclass(frozen=True)
class Options:
    """What the command was asked for."""

    directory: Path
    run_times: int = 1
    forward_only: bool = False
    is_timed: bool = False
    is_compared: bool = False
    device: str | None = None
    trusted: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()  # names and regular expressions; none: all
    warm_up: int = 0  # runs of each call that do not count
    jobs: int = 1  # processes


def replay_these(options: Options, folders: list[Path], results: ReplayResults, progress: Progress) -> None:
    """In this process, one after the other."""
    runner = _Runner(options, _usable_device(results.device))
    with runner:
        for number, folder in enumerate(folders, 1):
            results.calls.append(runner.replay(folder))
            progress(number, len(folders))
    for call in results.calls:
        call.settle(options.is_compared)
    results.times = runner.times()
    results.time_spreads = runner.time_spreads()
    if settings.VERBOSE.get() < 2:  # else the tools have said so
        results.files += runner.files()


def _chosen(folders: list[Path], ops: tuple[str, ...]) -> list[Path]:
    """Those of these ops. One that no capture is of is an error: it is misspelt, or was not captured."""
    if not ops:
        return folders
    try:
        patterns = [re.compile(op) for op in ops]
    except re.error as error:
        raise SettingError(f"--ops {','.join(ops)} cannot be used: {error}") from None
    names = {folder: call_name(folder) for folder in folders}
    there = sorted(set(names.values()))
    for pattern in patterns:
        if not any(pattern.fullmatch(name) for name in there):
            some = ", ".join(there[:_MAX_NAMED]) + (" …" if len(there) > _MAX_NAMED else "")
            raise SettingError(f"--ops {pattern.pattern}: no call of it was captured; there are {some}")
    return [folder for folder in folders if any(pattern.fullmatch(names[folder]) for pattern in patterns)]


def call_name(folder: Path) -> str:
    return str(store.load_note(folder).get("name") or _op_in(folder))


def replay_all(
    options: Options, told: Told, progress: Progress = lambda done, total: None, way: Way = replay_these
) -> ReplayResults:
    """`told` is handed the line that names the framework; `way`: in this process, or in several (shares.py).

    Raises SettingError where nothing can be replayed.
    """
    framework, found = accelerator()
    device = _usable_device(options.device or found)
    told(f"ditorch.framework: {framework}")
    for package in options.trusted:
        _import(package)
    folders = list(store.find_captures(options.directory)) if options.directory.is_dir() else []
    if not folders:
        reason = "there is no such folder" if not options.directory.is_dir() else "no input.pth lies below it"
        raise SettingError(f"{options.directory} holds no capture: {reason}. OpCapture makes captures.")
    folders = _chosen(folders, options.ops)
    results = ReplayResults(
        str(options.directory), framework, str(device), options.run_times, options.forward_only,
        options.is_compared, options.is_timed,
    )  # fmt: skip
    way(options, folders, results, progress)
    results.save(settings.OUT.get())
    return results


def accelerator() -> tuple[str, str]:
    """What runs the ops, with its version; and its device. ditorch finds vendors' chips, and has a simulated one."""
    with contextlib.suppress(ImportError):
        backend = importlib.import_module("ditorch").install()
        module = backend.module or "torch"
        version = getattr(sys.modules.get(module), "__version__", torch.__version__)
        return f"{module}:{version}", backend.device_type
    current = getattr(getattr(torch, "accelerator", None), "current_accelerator", lambda: None)()
    return f"torch:{torch.__version__}", "cpu" if current is None else current.type


def _usable_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except Exception as error:  # noqa: BLE001  each backend raises what it likes
        raise SettingError(f"the device {name!r} cannot be used: {messages.in_short(error)}") from None
    return device


def _import(package: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise SettingError(f"--trust {package}: it cannot be imported ({error})") from None


class _Runner:
    """The tools, started, and one capture after the other."""

    def __init__(self, options: Options, device: torch.device) -> None:
        self._options = options
        self._device = device
        self._tells = settings.VERBOSE.get() == 2
        self._tools = contextlib.ExitStack()
        self._compared = _Compared(device, 2 if self._tells else 0) if options.is_compared else None
        self._timed = _Timed(device, 2 if self._tells else 0) if options.is_timed else None

    def __enter__(self) -> None:
        for tool in (self._compared, self._timed):
            if tool is not None:
                self._tools.enter_context(tool)

    def __exit__(self, *error: object) -> None:
        self._tools.close()

    def times(self) -> dict[str, Total]:
        return {} if self._timed is None else self._timed.totals()

    def time_spreads(self) -> dict[str, TimeSpread]:
        return {} if self._timed is None else self._timed.time_spreads()

    def files(self) -> list[str]:
        """What the tools wrote."""
        return [file for tool in (self._compared, self._timed) if tool is not None for file in tool.files()]

    def replay(self, folder: Path) -> CallResult:
        """Runs one capture. Whatever goes wrong belongs to it only, and the others go on."""
        if self._tells:
            messages.say(str(folder))
        name = call_name(folder)
        if is_collective(name):
            reason = "a collective runs together with the other processes of its group"
            return CallResult(str(folder), name, "left out", reason)
        try:
            capture = replay.load(folder, self._options.trusted)
        except OpToolsError as error:
            return CallResult(str(folder), name, "unusable", str(error))
        autocast = "" if capture.autocast is None else str(capture.autocast.dtype).partition(".")[2]
        place = (capture.where.line(), capture.where.module)
        result = CallResult(str(folder), capture.name, "ran", "", 0, [], autocast, *place)
        try:
            with torch._C.DisableTorchFunction():  # the tools see nothing of it
                for _ in range(self._options.warm_up):
                    replay.run(capture, self._device, self._options.forward_only)
            if self._compared is not None:
                self._compared.expect(capture, result)
            for _ in range(self._options.run_times):
                replay.run(capture, self._device, self._options.forward_only)
        except Exception as error:  # noqa: BLE001  whatever the op raises
            result.status, result.reason = "failed", f"on {self._device}: {messages.in_short(error)}"
        return result


def _op_in(folder: Path) -> str:
    """The op, where only the layout tells: {op}/{pid}/{forward_id}/{time}, or {time}/{op}/{forward_id}, or others."""
    return next((part for part in reversed(folder.parts) if _OP.fullmatch(part)), folder.name)


class _Timed(OpTimeMeasure):
    def __init__(self, device: torch.device, verbose: int) -> None:
        super().__init__(ops=None, verbose=verbose)
        self.sees_cpu = device.type == "cpu"

    def time_spreads(self) -> dict[str, TimeSpread]:
        return time_spread.of_table(self._ledger.rows.path)

    def totals(self) -> dict[str, Total]:
        return self._ledger.totals

    def files(self) -> list[str]:
        return [str(one.path) for one in (self._ledger.rows, self._ledger.trace) if one.written]


class _Compared(OpAutoCompare):
    """Notes what comes out by the capture that it came from, which a call's place tells.

    On the CPU there is no accelerator to judge: there, what the capture's own device gave is compared as well.
    """

    def __init__(self, device: torch.device, verbose: int) -> None:
        super().__init__(ops=None, verbose=verbose, fail=False)
        self.sees_cpu = device.type == "cpu"
        self._results: dict[int, CallResult] = {}
        self._captures: list[Replayable] = []  # kept: their places are known by their ids

    def files(self) -> list[str]:
        return self._report.files()

    def dumps(self) -> Path:
        return self.out / paths.REPLAYED

    def expect(self, capture: Replayable, result: CallResult) -> None:
        self._results[id(capture.where)] = result
        self._captures.append(Replayable(capture.name, None, (), {}, (), capture.where, None))
        if self.sees_cpu:
            for _, comparison in with_modes_aside(captured_results, Path(result.folder), capture):
                _note(result, comparison, "captured ")

    def take(self, call: OpCall, outcome: Outcome) -> None:
        result = self._results.get(id(call.where))
        if result is not None:
            _note(result, outcome.comparison)
        super().take(call, outcome)


def _note(result: CallResult, comparison: Comparison, whose: str = "") -> None:
    result.values += len(comparison.rows)
    if comparison.failure:
        result.reason = comparison.failure
    elif comparison.skipped and not result.reason:
        result.reason = f"{comparison.skipped}: there is nothing to compare it with"
    for row in comparison.rows:
        if row.is_wrong and row.verdict is not None:
            what = row.name.partition(" ")[2]
            result.wrong.append(Wrong(f"{whose}{what}", row.verdict.reason, row.verdict.severity))


def captured_results(folder: Path, capture: Replayable) -> list[tuple[str, Comparison]]:
    """What the device gave when the call was captured, compared with the CPU in higher precision, by phase.

    OpAutoCompare saves the phase that was wrong, and may have left out the other.
    """
    saved = store.load(folder)
    comparer = Comparer(Tolerances(), References(read_cast_tables().cast_table))
    active = None if capture.autocast is None else capture.autocast.dtype
    policy = (active, None if active is None else dtype_by_policy(capture.name, active))
    gave = None if saved.output is None else saved.output.args[0]

    def observed() -> ObservedCall:
        given = Arguments(capture.args, capture.kwargs).copied()
        return ObservedCall(capture.name, capture.func, given, None, gave, *policy, changed=True)  # if it did

    found = [] if saved.output is None else [("forward", comparer.forward(observed()))]
    is_comparable = not any(comparison.failure for _, comparison in found)
    if is_comparable and saved.grad_inputs is not None and saved.grad_outputs is not None:
        gradients = Gradients(list(saved.grad_inputs.args), list(saved.grad_outputs.args))
        if next(trees.tensors(gradients.outputs), None) is not None:
            found.append(("backward", comparer.backward(observed().for_backward(), gradients)))
    return found
