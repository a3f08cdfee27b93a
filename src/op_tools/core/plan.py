"""Which tools the calls of one op go through: decided at its first call, and said then."""

from __future__ import annotations

from copy import copy
from typing import Any, Callable

from ditorch_shared.collectives import is_collective
from op_tools.core import guard, where
from op_tools.core.call import OpCall
from op_tools.core.steps import STEPS
from op_tools.core.watcher import AnyWatcher
from op_tools.ops.catalogue import moves_to_device
from op_tools.output import messages

OTHERWISE = object()  # what a shortcut returns for a call that it leaves to the tools


class Plan:
    """Which tools an op's calls go through, and in which order."""

    def __init__(self, key: Any, name: str, tools: list[AnyWatcher], inside_mode: bool) -> None:
        is_opaque = inside_mode or is_collective(name)
        # what communicates or has other effects must not be run a second time unless the user names it
        chosen = [
            tool
            for tool in tools
            if name in tool.selection and not (is_opaque and tool.runs_again and not tool.selection.names(name))
        ]
        self.key = key
        self.name = name
        self.inside_mode = inside_mode
        self.skipping = [tool for tool in tools if tool not in chosen]
        self.watchers = sorted((tool for tool in chosen if not tool.changes), key=lambda tool: tool.innermost)
        self.changers = [tool for tool in chosen if tool.changes]
        self.watches_gradients = any(tool.watches_gradients for tool in self.watchers)
        self.conditional = any(tool.condition is not None for tool in chosen)
        self.moves = moves_to_device(name)
        self.sees_cpu = any(tool.sees_cpu for tool in chosen)
        self.print_stack = any(tool.print_stack for tool in chosen)
        self.announced = False
        self.shortcut: Callable[..., Any] | None = None
        self.is_for_shards = False
        self._for_shards: Plan | None = None

    def for_shards(self) -> Plan | None:
        """The same for calls with DTensors, which few tools know; None where none does."""
        known = [tool for tool in self.watchers if tool.sees_shards]
        if known and self._for_shards is None:
            self._for_shards = copy(self)
            self._for_shards.watchers, self._for_shards.changers = known, []
            self._for_shards.is_for_shards = True
        return self._for_shards

    def only_watches(self) -> None:
        """For a call that has run already: nothing can be changed or timed."""
        for tool in (*self.changers, *(tool for tool in self.watchers if tool.innermost)):
            messages.say_not_seen_once(
                "compiled",
                tool.hook,
                text=f"{type(tool).__name__} does not reach into what Inductor has compiled: "
                "run with TORCHDYNAMO_DISABLE=1",
            )
        self.watchers = [tool for tool in self.watchers if not tool.innermost]
        self.changers = []

    def announce(self) -> bool:
        """Says which tools apply, at the first call that concerns them. False when none does."""
        self.announced = True
        for tool in self.skipping:
            if tool.verbose >= 1 and tool.names_skipped_ops:
                messages.say_once("skip", tool.hook, self.name, text=f"skip {tool.hook} on {self.name}")
        for tool in (*self.watchers, *self.changers):
            if tool.verbose >= 1 and tool.condition is None:
                announce_applied(tool, self.name)
        self._find_shortcut()
        return bool(self.watchers or self.changers)

    def _find_shortcut(self) -> None:
        special = self.conditional or self.print_stack or self.inside_mode
        if special or self.changers or len(self.watchers) != 1:
            return
        tool, name, func = self.watchers[0], self.name, self.key

        def report(error: Exception) -> None:
            guard.report(tool, OpCall(name, func, (), {}, where.here(), STEPS.current), error)

        self.shortcut = tool.shortcut(name, report, OTHERWISE)


def announce_applied(tool: AnyWatcher, name: str) -> None:
    messages.say_once("apply", tool.hook, name, text=f"apply {tool.hook} on {name}")
