"""Switches tools on and off in a running program, as `ditorch attach` asks for: looked at when a step ends.

All processes begin at the same step, without a collective of ours: each answers a command with the step it is at;
`ditorch attach` then names a step that lies ahead of all, and each says whether it has learned of it in time. Until
that step a tool is asleep. Waiting for a command costs one os.stat for a step.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ditorch_shared import control
from op_tools import settings
from op_tools.core.modes import with_modes_aside
from op_tools.core.tool import AnyTool, Tool
from op_tools.errors import OpToolsError, StopTraining
from op_tools.output import messages, process
from op_tools.run.record import Finder
from op_tools.run.tools import TOOLS, made


@dataclass
class _Switch:
    """What becomes of a tool at a step."""

    tool: AnyTool
    off_at: int


class Control:
    """`tools`: all that are at work, and those that were; it adds to them."""

    def __init__(self, run: Path, tools: list[Finder], backend: str, is_known: bool = True) -> None:
        self._run = run
        self._folder = run / control.FOLDER
        self._path = str(self._folder / control.COMMAND)
        self._tools = tools
        self._backend = backend
        self._known = control.signature(self._path) if is_known else None  # an old command is not for us
        self._switches: list[_Switch] = []
        self._began = 0.0
        self._pace = 0.0  # seconds that the last step took

    def step_began(self, step: int) -> None:
        now = time.monotonic()
        self._began, self._pace = now, now - self._began if self._began else 0.0
        if self._switches:
            self._switch_off(step)
        found = control.signature(self._path)
        if found == self._known:
            return
        self._known = found
        if found is None:
            return
        try:
            with_modes_aside(self._obey, step)
        except Exception as error:  # noqa: BLE001  whatever it is, training goes on
            messages.complain_once("control", str(error), text=f"ditorch attach is not obeyed: {error}")

    def _switch_off(self, step: int) -> None:
        due = [switch for switch in self._switches if step >= switch.off_at]
        self._switches = [switch for switch in self._switches if step < switch.off_at]
        for switch in due:
            try:
                switch.tool.stop()
            except StopTraining:
                raise
            except Exception as error:  # noqa: BLE001  a tool's own failure never ends the user's run
                messages.complain(messages.in_short(error))

    def _obey(self, step: int) -> None:
        command = control.read(Path(self._path), control.COMMAND_SCHEMA)
        if command is None:
            return
        problem, armed = None, None
        try:
            if command.get("start") is None:
                self._check(command)
            elif int(command["start"]) > step:
                self._arm(command, int(command["start"]))
                armed = int(command["start"])
        except (OpToolsError, ValueError, TypeError, KeyError, OSError) as error:
            problem = str(error)
        self._answer(command, step, armed, problem)

    def _check(self, command: control.Message) -> None:
        """What can be said against it before a step is agreed on."""
        if command["action"] == "on":
            self._check_is_off(command["tool"])
            self._made(command, 0)
        if command["action"] == "off":
            self._chosen(command)

    def _check_is_off(self, name: str) -> None:
        for tool in self._on():
            if isinstance(tool, TOOLS[name]):
                steps = "" if tool.steps is None else f" for steps {tool.steps!r}"
                raise ValueError(f"{name} is on already{steps}: switch it off first (off {name})")

    def _made(self, command: control.Message, start: int) -> AnyTool:
        count = command.get("steps")
        steps = settings.NumberRanges(f"{start}-" if count is None else f"{start}-{start + int(count) - 1}")
        arguments = {"out": self._run, "steps": steps, **command.get("arguments", {})}
        if not os.environ.get(settings.VERBOSE.name):  # silent, as in a run that began with tools
            arguments["verbose"] = 0
        return made(command["tool"], self._backend, **arguments)

    def _arm(self, command: control.Message, start: int) -> None:
        if command["action"] == "off":
            for tool in self._chosen(command):
                self._switch(tool, start)
            return
        for tool in self._on():  # a step that was agreed on earlier, and came too soon for another rank
            if isinstance(tool, TOOLS[command["tool"]]):
                tool.stop()
                self._switches = [switch for switch in self._switches if switch.tool is not tool]
                self._tools.remove(tool)
        tool = self._made(command, start)
        tool.start()
        self._tools.append(tool)
        if command.get("steps") is not None:
            self._switch(tool, start + int(command["steps"]))

    def _switch(self, tool: AnyTool, off_at: int) -> None:
        self._switches = [switch for switch in self._switches if switch.tool is not tool]
        self._switches.append(_Switch(tool, off_at))

    def _on(self) -> list[AnyTool]:
        return [tool for tool in self._tools if isinstance(tool, Tool) and tool.active]

    def _chosen(self, command: control.Message) -> list[AnyTool]:
        """The tools that are to be switched off."""
        name = command.get("tool")
        found = [tool for tool in self._on() if name is None or isinstance(tool, TOOLS[name])]
        if not found:
            raise ValueError("no tool is on" if name is None else f"{name} is not on")
        return found

    def _answer(self, command: control.Message, step: int, armed: int | None, problem: str | None) -> None:
        answer: dict[str, Any] = {
            "schema": control.ANSWER_SCHEMA,
            "id": command["id"],
            **process.identity(),
            "world_size": process.world_size(),
            "step": step,
            "seconds_per_step": self._pace,
            "armed": armed,
            "problem": problem,
            "tools": [_described(tool) for tool in self._tools],
        }
        name = "{host}-rank{rank}-pid{pid}.json".format(**process.identity())
        control.write(self._folder / name, answer)


def _described(tool: Finder) -> dict[str, Any]:
    results = tool.results
    steps = getattr(tool, "steps", None)
    return {
        "tool": results.tool,
        "is_on": getattr(tool, "active", True),
        "steps": None if steps is None else repr(steps),
        "calls": results.calls,
        "findings": results.facts.get("wrong_calls"),
    }
