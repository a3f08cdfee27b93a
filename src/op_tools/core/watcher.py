"""Watcher: what the core calls of a tool. It chooses ops, and hears of their calls."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any, Callable, ClassVar, Generic, TypeVar

from op_tools.core.call import OpCall
from op_tools.core.gradients import Gradients
from op_tools.core.steps import STEPS
from op_tools.ops.selection import Selection

State = TypeVar("State")  # what `before` hands to `after`
Kept = TypeVar("Kept")  # what `after` hands to `flowed`
Condition = Callable[..., Any]


class Watcher(Generic[State, Kept]):
    """A tool overrides `before`, `after`, `flowed` to watch calls, or `run` to change what happens."""

    hook: ClassVar[str]  # as printed: `apply OpCaptureHook on torch.Tensor.mul`
    prefix: ClassVar[str]  # of its variables: OP_CAPTURE
    innermost: ClassVar[bool] = False  # its `before` and `after` stand closest to the op: a clock
    watches_gradients: ClassVar[bool] = False  # `flowed` is called
    times_gradients: ClassVar[bool] = False  # `begins` and `ends` are called as well
    changes: ClassVar[bool] = False  # `run` is called
    runs_again: ClassVar[bool] = False  # it runs the op elsewhere, or a second time

    selection: Selection
    out: Path
    condition: Condition | None = None
    steps: Container[int] | None = None
    verbose = 1
    print_stack = False
    active = False  # between start and stop
    was_awake = False  # at some step since its start
    names_skipped_ops = True  # `skip OpCaptureHook on torch.Tensor.add`
    sees_cpu = False  # also calls whose tensors are all on the CPU: replay there
    sees_shards = False  # also calls with DTensors, which others leave alone

    def started(self) -> None:
        """Called by `start`: reads further settings, opens files."""

    def stopped(self) -> None:
        """Called by `stop`: shows the summary, closes files."""

    def step_began(self, step: int) -> None:
        """Called when a training step begins."""

    def parameters_will_change(self) -> None:
        """Called when an optimizer is about to step, whether or not its ops are watched."""

    def is_awake(self) -> bool:
        """Whether the current step is one of those to look at."""
        awake = self.steps is None or STEPS.current in self.steps
        self.was_awake = self.was_awake or awake
        return awake

    def before(self, call: OpCall) -> State:
        """Called before the op runs; what it returns is handed to `after` or `failed`."""
        return None  # type: ignore[return-value]  # a tool that does not override it has no state

    def after(self, call: OpCall, state: State) -> Kept | None:
        """Called with the op's result; what it returns (not None) is handed to `flowed` when gradients flow."""

    def failed(self, call: OpCall, state: State) -> None:
        """Called instead of `after` when the op raised `call.error`."""

    def run(self, call: OpCall, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called in place of the op; `proceed(*args, **kwargs)` runs it. Only for tools with `changes`."""
        return proceed(*args, **kwargs)

    def flowed(self, call: OpCall, state: Kept, gradients: Gradients) -> None:
        """Called in backward with the gradients at the op's edge. `call` has let go of its tensors."""

    def shortcut(self, name: str, report: Callable[[Exception], None], otherwise: object) -> Callable[..., Any] | None:
        """Where it is the only tool for an op: what takes (func, args, kwargs) the whole way, if there is such.

        It returns `otherwise`, with nothing done, for a call that must go the usual way.
        """
        return None

    def begins(self, call: OpCall, state: Kept) -> None:
        """Called before each autograd node of the op, in backward."""

    def ends(self, call: OpCall, state: Kept) -> None:
        """Called after each autograd node of the op, in backward."""

    def stop(self) -> None:
        """Ends watching. See Tool."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Forgets that it was started, in a forked child: files and threads are the parent's."""
        self.active = False


AnyWatcher = Watcher[Any, Any]
