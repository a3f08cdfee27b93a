"""A tool's own failure never ends the user's run: it is said once, and training goes on."""

from __future__ import annotations

import os
from typing import Any, Callable

from op_tools.core.call import OpCall
from op_tools.core.modes import with_modes_aside
from op_tools.core.watcher import AnyWatcher
from op_tools.device import failure
from op_tools.errors import StopTraining
from op_tools.output import messages


def guarded(tool: AnyWatcher, call: OpCall, function: Callable[..., Any], *arguments: Any) -> Any:
    """A tool's own failure is reported once and never ends the user's run."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001  see above
        report(tool, call, error)
        return None


def told(tool: AnyWatcher, method: Callable[..., None], *args: Any) -> None:
    """Tells a tool of something that is no call: a step that begins, a backward pass that ends."""
    try:
        with_modes_aside(method, *args)
    except StopTraining:
        raise
    except Exception as error:  # noqa: BLE001  see above
        reason = messages.in_short(error)
        messages.complain_once("step", tool.hook, text=f"{type(tool).__name__} could not end or begin a step: {reason}")


def report(tool: AnyWatcher, call: OpCall, error: Exception) -> None:
    """Says that a tool failed; an error that is meant to end the run goes on."""
    if isinstance(error, StopTraining):
        raise error
    if failure.is_noticed(error):
        return
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    at = f" ({os.path.basename(place.tb_frame.f_code.co_filename)}:{place.tb_lineno})" if place is not None else ""
    messages.complain_once(
        "failed",
        tool.hook,
        call.name,
        text=f"{type(tool).__name__} could not deal with {call.name} (forward_id {call.id}, {call.where.line()}): "
        f"{type(error).__name__}: {str(error).partition(chr(10))[0]}{at}; training goes on without it",
    )
