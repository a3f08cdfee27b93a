"""Tool: what users start and stop. It reads its settings and joins the session of its thread."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import threading
from collections.abc import Container
from types import TracebackType
from typing import Any, Callable, ClassVar, TypeVar, Union, cast

from op_tools import settings
from op_tools.core import interruption, running, spelling
from op_tools.core.modes import with_modes_aside
from op_tools.core.running import Watched
from op_tools.core.session import this_threads_session
from op_tools.core.steps import STEPS
from op_tools.core.watcher import Condition, Kept, State, Watcher
from op_tools.device import failure
from op_tools.errors import SettingError, StopTraining
from op_tools.ops.selection import Ops, selection
from op_tools.output import messages, paths
from op_tools.output.process import this_rank, world_size
from op_tools.output.results import Results

Self = TypeVar("Self", bound="AnyTool")
Function = TypeVar("Function", bound=Callable[..., Any])
MAX_NAMED = 8  # entries of a list that no op matched
Numbers = Union[str, Container[int]]  # "0,10-12", a range, a set


class Tool(Watcher[State, Kept]):
    """Base of the tools: a context manager, a decorator, or `start()` and `stop()`.

    Arguments of every tool, each with the variable that stands in for it:
        ops        full names or patterns of the ops to look at, or functions (the tool's own _LIST)
        skip       those to leave alone; they win over `ops` (the tool's own _DISABLE_LIST)
        out        the folder for results (OP_TOOLS_OUT)
        steps      the training steps to look at: "0,10-12", a range or a set (OP_TOOLS_STEPS)
        ranks      the ranks of a distributed run to look at, in the same forms (OP_TOOLS_RANKS)
        verbose    0: errors only; 1: what was found, and summaries; 2: every call (OP_TOOLS_VERBOSE)
        condition  takes an op's own arguments and says whether to look at this call
    """

    feature: ClassVar[str]  # its name in apply_feature
    _given: dict[str, Any]  # the arguments it was made with

    def __init_subclass__(cls) -> None:
        if "feature" in cls.__dict__:
            FEATURES[cls.feature] = cls
        _tell_all_arguments(cls)

    def __new__(cls: type[Self], *positional: Any, **arguments: Any) -> Self:
        """Says what cannot be an argument; `@OpCapture` without brackets is the usual mistake."""
        try:
            inspect.signature(cls).bind(*positional, **arguments)
        except TypeError as error:
            known = [name for name in inspect.signature(cls).parameters if name not in arguments]
            close = [name for given in arguments for name in difflib.get_close_matches(given, known, 1)]
            hint = f"did you mean {close[0]}?" if close else "they are given by name, such as ops=..."
            name = cls.__name__
            raise SettingError(
                f"{name} does not take these arguments: {error}; {hint} help({name}) lists them, and as a decorator it "
                f"is @{name}(), with brackets"
            ) from None
        made = super().__new__(cls)
        made._given = arguments
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also of one that is running, is a tool with the same arguments that has not been started."""
        return functools.partial(type(self), **self._given), ()

    def __init__(
        self,
        *,
        ops: Ops | None = None,
        skip: Ops | None = None,
        out: str | os.PathLike[str] | None = None,
        steps: Numbers | None = None,
        ranks: Numbers | None = None,
        verbose: int | None = None,
        condition: Condition | None = None,
    ) -> None:
        self._arguments = (ops, skip, out, steps, ranks, verbose)
        self.condition = condition
        self._joined: Watched | None = None
        self._starting = threading.RLock()  # several threads may start it at once: the first one does
        self._was_started = False
        self._entered: list[bool] = []  # for each `with` that is open: whether it is the one that started the tool

    def start(self: Self) -> Self:
        """Begins to watch this thread. Variables are read now; one that cannot be understood is an error now."""
        if not interruption.put_off(self._start):
            self._start()
        return self

    def _start(self) -> None:
        self.join(this_threads_session())

    def stop(self) -> None:
        """Ends watching, writes out what is left and shows the summary."""
        if not interruption.put_off(self._stop):
            self._stop()

    def _stop(self) -> None:
        if self._joined is None:
            return
        joined, self._joined, self.active = self._joined, None, False
        with interruption.ctrl_c_waits(type(self).__name__), running.stopping(self, joined):
            self._finish()

    def _finish(self) -> None:
        if self.verbose >= 1:
            self._say_what_never_matched()
        failure.check()  # it gives memory back
        try:
            with failure.tolerated():
                with_modes_aside(self.stopped)
        except StopTraining:
            raise
        except Exception as error:  # noqa: BLE001  a tool's own failure never ends the user's run
            messages.complain(f"{type(self).__name__} could not finish its report: {messages.in_short(error)}")

    end = stop

    @property
    def results(self) -> Results:
        """What it has found since it was started, also after it has stopped."""
        if not self._was_started:
            return Results(type(self).__name__, (), (), 0)
        found = self.collected()
        found.add_not_looked_at(self._never_matched())
        return found

    def collected(self) -> Results:
        """What `results` gives, once it has been started."""
        return Results(type(self).__name__, (), (), 0)

    def __enter__(self: Self) -> Self:
        self._entered.append(self._joined is None)
        try:
            return self.start()
        except BaseException:  # whatever it is goes on, also Ctrl-C; Python will not call __exit__ then
            self._entered.pop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered and self._entered.pop():  # else it was started elsewhere, and is stopped there
            self.stop()

    def __call__(self, function: Function) -> Function:
        """As a decorator: watches each call of the function, with a summary at its end."""
        if not callable(function) or inspect.isclass(function):
            raise SettingError(f"@{type(self).__name__}() is for functions, and {function!r} is none")
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(inspect.unwrap(function)):
            raise SettingError(
                f"@{type(self).__name__}() cannot watch {function.__qualname__}, which runs in pieces: write "
                f"`with {type(self).__name__}():` inside it"
            )

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._joined is not None:  # the function calls itself, or runs in another thread as well
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        return cast(Function, watched)

    def join(self, watched: Watched) -> None:
        """Begins to watch what a session sees, or the calls of one function. An error leaves nothing behind."""
        with self._starting:
            if self._joined is None:
                self._join(watched)

    def _join(self, watched: Watched) -> None:
        is_wanted_rank = self._read_settings()
        if self.verbose >= 1:
            spelling.check(type(self).__name__, self.selection, [tool.prefix for tool in FEATURES.values()])
        if not is_wanted_rank:
            return
        with_modes_aside(self.started)
        self._joined, self.active, self.was_awake, self._was_started = watched, True, False, True
        try:
            running.add(self, watched)
        except BaseException:  # whatever it is goes on, also Ctrl-C; a tool that has half joined must not stay
            self._joined, self.active = None, False
            running.remove(self, watched)
            raise

    def abandon(self) -> None:
        super().abandon()
        self._joined = None
        self._starting = threading.RLock()  # another thread of the parent's may hold it

    def _read_settings(self) -> bool:
        """False where this rank is not to be watched."""
        ops, skip, out, steps, ranks, verbose = self._arguments
        if verbose is not None and verbose not in (0, 1, 2):
            raise SettingError(f"verbose={verbose!r} cannot be used: it must be 0, 1 or 2")
        if out is not None and (not isinstance(out, (str, os.PathLike)) or "\0" in os.fspath(out)):
            raise SettingError(f"out={out!r} cannot be used: it must be the path of a folder")
        if self.condition is not None and not callable(self.condition):
            raise SettingError(
                f"the condition {self.condition!r} cannot be called: give a function of the op's own arguments"
            )
        self.selection = selection(self.prefix, ops, skip, shares=not self.changes)
        self.out = paths.resolved(settings.OUT.get() if out is None else out)
        self.steps = settings.numbers("steps", steps, settings.STEPS)
        self.verbose = settings.VERBOSE.get() if verbose is None else verbose
        self.print_stack = settings.PRINT_STACK.get()
        wanted_ranks = settings.numbers("ranks", ranks, settings.RANKS)
        if wanted_ranks is None or this_rank() in wanted_ranks:
            return True
        if self.verbose >= 1 and this_rank() == 0 and not any(rank in wanted_ranks for rank in range(world_size())):
            messages.complain(
                f"{type(self).__name__} looks at nothing: none of the {world_size()} rank(s) of this run is in "
                f"ranks={wanted_ranks!r} (OP_TOOLS_RANKS); the first rank is 0"
            )
        return False

    def _never_matched(self) -> list[tuple[str, int, str]]:
        """What was asked for and never came, for `results`."""
        if not self.was_awake:
            return [(f"steps {self.steps!r}", 0, f"none of them came; {STEPS.described()}")]
        return [
            (entry, 0, f"no op that was called matches it{self._hint(entry)}") for entry in self.selection.unmatched()
        ]

    def _hint(self, entry: str) -> str:
        meant = self.selection.meant_instead(entry)
        return f" ({meant} was called)" if meant else ""

    def _say_what_never_matched(self) -> None:
        name = type(self).__name__
        unmatched = self.selection.unmatched()
        if not self.was_awake:
            steps = f"steps={self.steps!r} (OP_TOOLS_STEPS)"
            messages.complain(f"{name} looked at nothing: no step of {steps} came; {STEPS.described()}")
        elif unmatched:
            more = f" and {len(unmatched) - MAX_NAMED} more" if len(unmatched) > MAX_NAMED else ""
            named = ", ".join(f"{entry}{self._hint(entry)}" for entry in unmatched[:MAX_NAMED])
            text = f"{name}: no op that was called matches {named}{more}"
            hint = "full names look like torch.Tensor.add or torch.nn.functional.linear"
            is_feature = not self.names_skipped_ops
            messages.complain(text if is_feature else f"{text} in its list ({self.prefix}_LIST); {hint}")


AnyTool = Tool[Any, Any]
# the tools by their names in apply_feature; each puts itself here when it is imported
FEATURES: dict[str, type[AnyTool]] = {}


def _tell_all_arguments(cls: type[AnyTool]) -> None:
    """A tool passes the arguments of every tool on as **common: help() shall tell them, too."""
    own = [each for each in inspect.signature(cls.__init__).parameters.values() if each.name != "self"]
    if any(each.kind is each.VAR_KEYWORD for each in own):
        known = {each.name for each in own}
        common = inspect.signature(Tool.__init__).parameters.values()
        own = [each for each in own if each.kind is not each.VAR_KEYWORD]
        own += [each for each in common if each.name not in ("self", *known)]
    setattr(cls, "__signature__", inspect.Signature(own))  # noqa: B010  mypy does not know it
    if cls.__doc__ and Tool.__doc__ and "Arguments of every tool" not in cls.__doc__:
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__)}\n\n{inspect.cleandoc(Tool.__doc__).partition(chr(10) * 2)[2]}"
