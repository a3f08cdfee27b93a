"""The tools that are at work in this process: each hears of every step, and all are stopped when the program ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Callable, Protocol

from ditorch_shared.optimizer_hooks import OptimizerHooks
from ditorch_shared.steps import Steps
from op_tools.core import interruption, termination
from op_tools.core.guard import told
from op_tools.core.steps import STEPS, OptimizerSteps
from op_tools.core.watcher import AnyWatcher
from op_tools.errors import StopTraining
from op_tools.output import messages, writer


class Watched(Protocol):
    """What a tool joins: a session, or a function of a third party."""

    def add(self, tool: AnyWatcher) -> None: ...

    def remove(self, tool: AnyWatcher) -> None: ...

    def step_began(self) -> None: ...


_running: list[tuple[AnyWatcher, Watched]] = []  # in the order of their start
_stops: list[threading.Event] = []  # of tools that are writing their reports
_optimizer_steps: OptimizerSteps | None = None
_step_listeners: list[Callable[[int], None]] = []
_end_listeners: list[Callable[[], None]] = []
_lock = threading.RLock()
_has_ended = False  # the program is at its end


def tell(when_step_begins: Callable[[int], None], when_all_has_stopped: Callable[[], None]) -> None:
    """Has these called, for who keeps a record of the process. Steps are counted for it, also without a tool."""
    with _lock:
        _step_listeners.append(when_step_begins)
        _end_listeners.append(when_all_has_stopped)
        _attend()


def go_on_counting(counted: Steps, hooks: OptimizerHooks) -> None:
    """Steps have been counted elsewhere until now, by these hooks; the one that begins is not told."""
    global _optimizer_steps
    with _lock:
        STEPS.go_on_from(counted)
        if _optimizer_steps is None:
            _optimizer_steps = OptimizerSteps(_step_began, _parameters_will_change, hooks)


def _attend() -> None:
    """Counts steps, and hears SIGTERM."""
    global _optimizer_steps
    if _optimizer_steps is None:
        _optimizer_steps = OptimizerSteps(_step_began, _parameters_will_change)
    termination.watch(stop_everything)


def add(tool: AnyWatcher, watched: Watched) -> None:
    """The tool is at work from now on."""
    with _lock:
        tool.is_awake()
        watched.add(tool)
        _running.append((tool, watched))
        _attend()
        if _has_ended:  # by a function for the program's end that comes after ours
            name = type(tool).__name__
            messages.complain(f"{name} was started after the program's end: only stop() writes what it finds")


def remove(tool: AnyWatcher, watched: Watched) -> None:
    """It is not any more. The last one leaves the process as it was."""
    with stopping(tool, watched):
        pass


@contextlib.contextmanager
def stopping(tool: AnyWatcher, watched: Watched) -> Iterator[None]:
    """The same, for a tool that writes its report meanwhile: SIGTERM waits for it."""
    written = threading.Event()
    with _lock:
        _stops.append(written)
    try:
        with _lock:
            if (tool, watched) in _running:
                _running.remove((tool, watched))
            watched.remove(tool)
        yield
    finally:
        with _lock:
            _stops.remove(written)
            _leave_where_none_is_left()
        written.set()


def _leave_where_none_is_left() -> None:
    global _optimizer_steps
    if not _running and not _stops and not _end_listeners:
        if _optimizer_steps is not None:
            _optimizer_steps.close()
            _optimizer_steps = None
        termination.leave()


def step() -> int:
    """Marks the beginning of the next training step, for tools limited to some steps and for reports by step.

    Without it, steps are counted at the end of each optimizer step.
    """
    number = STEPS.advance()
    _step_began(number)
    return number


def _parameters_will_change() -> None:
    for tool, _ in _running[:]:
        told(tool, tool.parameters_will_change)


def _step_began(number: int) -> None:
    for tool, _ in _running[:]:
        tool.is_awake()
        told(tool, tool.step_began, number)
    for watched in {id(watched): watched for _, watched in _running[:]}.values():
        watched.step_began()
    for listener in _step_listeners:
        listener(number)


def stop_everything() -> None:
    """Stops every tool of every thread, at the end of the program."""
    with interruption.ctrl_c_waits("op_tools"):
        for tool, _ in reversed(_running[:]):
            try:
                tool.stop()
            except Exception as error:  # noqa: BLE001  the others have something to say as well
                messages.complain(str(error) if isinstance(error, StopTraining) else messages.in_short(error))
        if threading.current_thread() is not threading.main_thread():  # SIGTERM's, which ends the process soon
            for written in _stops[:]:
                written.wait()
        while _end_listeners:
            _end_listeners.pop()()
        writer.finish_all(termination.GRACE_SECONDS)
        with _lock:
            _leave_where_none_is_left()


def _abandon_everything() -> None:
    """In a forked child: the parent's tools, files and threads are not ours."""
    global _lock
    _lock = threading.RLock()  # another thread of the parent's may hold it
    termination.abandon()
    writer.forget_all()
    _stops.clear()
    _step_listeners.clear()
    _end_listeners.clear()
    for tool, watched in _running[:]:
        tool.abandon()
        remove(tool, watched)


def _at_exit() -> None:
    global _has_ended
    _has_ended = True
    stop_everything()
    termination.wait()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_abandon_everything)
