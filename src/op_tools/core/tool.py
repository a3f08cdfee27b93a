"""Tool: what users start and stop. It reads its settings and joins the session of its thread."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from op_tools import settings
from op_tools.core.modes import with_modes_aside
from op_tools.core.session import this_threads_session
from op_tools.core.watcher import AnyWatcher, Condition, Kept, State, Watcher
from op_tools.device import failure
from op_tools.errors import SettingError
from op_tools.ops.selection import Ops, selection
from op_tools.output import messages

Self = TypeVar("Self", bound="AnyTool")


class Watched(Protocol):
    """What a tool joins: a session, or a function of a third party."""

    def add(self, tool: AnyWatcher) -> None: ...

    def remove(self, tool: AnyWatcher) -> None: ...


class Tool(Watcher[State, Kept]):
    """Base of the tools.

    Every argument has a variable that stands in for it: `ops` and `skip` have the tool's two lists, the others are in
    op_tools.settings.
    """

    feature: ClassVar[str]  # its name in apply_feature

    def __init_subclass__(cls) -> None:
        if "feature" in cls.__dict__:
            FEATURES[cls.feature] = cls

    def __init__(
        self,
        *,
        ops: Ops | None = None,
        skip: Ops | None = None,
        out: str | os.PathLike[str] | None = None,
        steps: Container[int] | None = None,
        ranks: Container[int] | None = None,
        verbose: int | None = None,
        condition: Condition | None = None,
    ) -> None:
        self._arguments = (ops, skip, out, steps, ranks, verbose)
        self.condition = condition
        self._joined: Watched | None = None

    def start(self: Self) -> Self:
        """Begins to watch this thread. Variables are read now; one that cannot be understood is an error now."""
        self.join(this_threads_session())
        return self

    def stop(self) -> None:
        """Ends watching, writes out what is left and shows the summary."""
        if self._joined is None:
            return
        joined, self._joined, self.active = self._joined, None, False
        joined.remove(self)
        self._name_unmatched_entries()
        failure.check()  # it gives memory back
        with failure.tolerated():
            with_modes_aside(self.stopped)

    end = stop

    def __enter__(self: Self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def join(self, watched: Watched) -> None:
        """Begins to watch what a session sees, or the calls of one function."""
        if self._joined is None and self._read_settings():
            with_modes_aside(self.started)
            self._joined, self.active = watched, True
            watched.add(self)

    def abandon(self) -> None:
        super().abandon()
        self._joined = None

    def _read_settings(self) -> bool:
        """False where this rank is not to be watched."""
        ops, skip, out, steps, ranks, verbose = self._arguments
        self.selection = selection(self.prefix, ops, skip)
        self.out = settings.OUT.get() if out is None else Path(out)
        self.steps = settings.STEPS.get() if steps is None else steps
        self.verbose = settings.VERBOSE.get() if verbose is None else verbose
        self.print_stack = settings.PRINT_STACK.get()
        if self.verbose not in (0, 1, 2):
            raise SettingError(f"verbose={self.verbose!r} cannot be used: it must be 0, 1 or 2")
        if self.steps is not None and not hasattr(self.steps, "__contains__"):
            raise SettingError(f"steps={self.steps!r} cannot be used: give a range or a set of step numbers")
        wanted_ranks = settings.RANKS.get() if ranks is None else ranks
        return wanted_ranks is None or this_rank() in wanted_ranks

    def _name_unmatched_entries(self) -> None:
        unmatched = self.selection.unmatched()
        if unmatched and self.verbose >= 1:
            messages.complain(
                f"{type(self).__name__}: no op that was called matches {', '.join(unmatched)} in its list "
                f"({self.prefix}_LIST); full names look like torch.Tensor.add or torch.nn.functional.linear"
            )


AnyTool = Tool[Any, Any]
# the tools by their names in apply_feature; each puts itself here when it is imported
FEATURES: dict[str, type[AnyTool]] = {}


def this_rank() -> int:
    """This process's rank in a distributed run; 0 where there is none."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    rank = os.environ.get("RANK", "0")
    return int(rank) if rank.isdigit() else 0
