"""Tool: what all tools have in common. It is started and stopped, chooses ops, and hears of their calls."""

from __future__ import annotations

import os
import threading
from collections.abc import Container
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, ClassVar, TypeVar

import torch

from op_tools import settings
from op_tools.core import unusual
from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.errors import SettingError
from op_tools.ops.selection import Ops, Selection, selection
from op_tools.output import messages

Self = TypeVar("Self", bound="Tool")
Condition = Callable[..., Any]


class Tool:
    """Base of the tools. A subclass overrides `before`, `after`, `flowed` to watch, or `run` to change what happens.

    Every argument has a variable that stands in for it: `ops` and `skip` have the tool's two lists, the others are in
    op_tools.settings.
    """

    hook: ClassVar[str]  # as printed: `apply OpCaptureHook on torch.Tensor.mul`
    prefix: ClassVar[str]  # of its variables: OP_CAPTURE
    innermost: ClassVar[bool] = False  # its `before` and `after` stand closest to the op: a clock
    watches_gradients: ClassVar[bool] = False  # `flowed` is called
    times_gradients: ClassVar[bool] = False  # `begins` and `ends` are called as well
    changes: ClassVar[bool] = False  # `run` is called
    runs_again: ClassVar[bool] = False  # it runs the op elsewhere, or a second time

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
        self._session: Any = None
        self.selection: Selection
        self.out: Path
        self.steps: Container[int] | None = None
        self.verbose = 1
        self.print_stack = False

    # -- for users ----------------------------------------------------------------------------------------------------

    def start(self: Self) -> Self:
        """Begins to watch this thread. Variables are read now; one that cannot be understood is an error now."""
        from op_tools.core.session import this_threads_session

        self.join(this_threads_session())
        return self

    def stop(self) -> None:
        """Ends watching, writes out what is left and shows the summary."""
        if self._session is None:
            return
        session, self._session = self._session, None
        session.remove(self)
        self._name_unmatched_entries()
        unusual.with_modes_aside(self.stopped)

    end = stop

    def __enter__(self: Self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def active(self) -> bool:
        """True between start and stop."""
        return self._session is not None

    def join(self, session: Any) -> None:
        """Begins to watch what `session` sees."""
        if self._session is None and self._read_settings():
            unusual.with_modes_aside(self.started)
            self._session = session
            session.add(self)

    # -- for subclasses -----------------------------------------------------------------------------------------------

    def started(self) -> None:
        """Called by `start`: reads further settings, opens files."""

    def stopped(self) -> None:
        """Called by `stop`: shows the summary, closes files."""

    def step_began(self, step: int) -> None:
        """Called by op_tools.step()."""

    def before(self, call: OpCall) -> Any:
        """Called before the op runs; what it returns is handed to `after` or `failed`."""

    def after(self, call: OpCall, state: Any) -> Any:
        """Called with the op's result; what it returns (not None) is handed to `flowed` when gradients flow."""

    def failed(self, call: OpCall, state: Any) -> None:
        """Called instead of `after` when the op raised `call.error`."""

    def run(self, call: OpCall, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called in place of the op; `proceed(*args, **kwargs)` runs it. Only for tools with `changes`."""
        return proceed(*args, **kwargs)

    def flowed(self, call: OpCall, state: Any, gradients: Gradients) -> None:
        """Called in backward with the gradients at the op's edge. `call` has let go of its tensors."""

    def shortcut(self, name: str, report: Callable[[Exception], None], otherwise: object) -> Callable[..., Any] | None:
        """Where it is the only tool for an op: what takes (func, args, kwargs) the whole way, if there is such.

        It returns `otherwise`, with nothing done, for a call that must go the usual way.
        """
        return None

    def begins(self, call: OpCall, state: Any) -> None:
        """Called before each autograd node of the op, in backward."""

    def ends(self, call: OpCall, state: Any) -> None:
        """Called after each autograd node of the op, in backward."""

    # -----------------------------------------------------------------------------------------------------------------

    def _read_settings(self) -> bool:
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


def this_rank() -> int:
    """This process's rank in a distributed run; 0 where there is none."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    rank = os.environ.get("RANK", "0")
    return int(rank) if rank.isdigit() else 0


class Steps:
    """Counts training steps, for the whole process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.current = 0

    def advance(self) -> int:
        with self._lock:
            self.current += 1
            return self.current


STEPS = Steps()
