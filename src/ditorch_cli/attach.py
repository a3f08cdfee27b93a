"""`ditorch attach PID|DIR on TOOL | off | status`: tools in a program that runs already, without stopping it.

    ditorch attach 4711 on autocompare --steps 3
    ditorch attach ditorch_runs/train-2026-01-31-12-00-00 status

agreement.py tells how all ranks begin at the same step; attach_target.py finds the run. It imports no torch.
"""

from __future__ import annotations

import difflib
import json
import sys
import time
from pathlib import Path
from typing import Any, Callable, NoReturn, TypeVar

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ditorch_cli import attach_target
from ditorch_cli.agreement import Answer, Conversation, DisagreementError
from ditorch_cli.attach_target import NoSuchRunError, Target
from ditorch_cli.exit_codes import FAILED, INTERRUPTED
from ditorch_cli.tool_options import OPTIONS
from ditorch_shared.control import ControlError

SCHEMA = "ditorch.attach/1"
_SECONDS_UNTIL_A_WORD = 3.0
_SECONDS_BETWEEN_LOOKS = 1.0  # whether the run goes on
_ARGUMENTS = {"autocompare": "reference", "capture": "mode", "overflow": "action", "cast": "casts"}
_OPTIONS = {
    option.tool: option
    for option in reversed(OPTIONS)
    if option.tool in (*_ARGUMENTS, "time", "observe", "fallback") and option.name == f"--{option.tool}"
}
TOOLS = tuple(reversed(_OPTIONS))
Function = TypeVar("Function", bound=Callable[..., Any])


class _RunFirst(click.Group):
    """The run stands before the subcommand."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        if arguments and arguments[0] in self.commands and not Path(arguments[0]).is_dir():
            if "--help" not in arguments:
                raise click.UsageError(f"which run? It stands first: ditorch attach PID|DIR {' '.join(arguments)}")
            arguments = ["PID|DIR", *arguments]
        return super().parse_args(context, arguments)


@click.group(name="attach", cls=_RunFirst, no_args_is_help=True)
@click.argument("run", metavar="PID|DIR", type=click.Path())
@click.pass_context
def command(context: click.Context, run: str) -> None:
    """Switch tools on and off in a program that runs under `ditorch run`, with tools or without.

    PID is the number of any of its processes, DIR the run's folder. All ranks do it at the same step; the program's
    results stay what they are.
    """
    context.obj = run


class _ToolName(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer releases of click
    """TOOL or TOOL=VALUE, as the options of `ditorch run` take it."""

    name = "tool"

    def convert(self, value: Any, parameter: Any, context: Any) -> Any:
        name, _, given = str(value).partition("=")
        if name not in TOOLS:
            close = difflib.get_close_matches(name, TOOLS, 1)
            meant = f"did you mean {close[0]}?" if close else f"these are: {', '.join(TOOLS)}"
            self.fail(f"there is no tool {name}; {meant}", parameter, context)
        choices = _OPTIONS[name].choices
        if given and not (choices or _OPTIONS[name].metavar):
            self.fail(f"{name} takes no value", parameter, context)
        if choices and given and given not in choices:
            self.fail(f"{name} can be {', '.join(choices)}, and not {given}", parameter, context)
        if _OPTIONS[name].metavar and not given and context.info_name == "on":
            self.fail(f"{name} needs a value: {name}={_OPTIONS[name].metavar}", parameter, context)
        return value

    def shell_complete(self, context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name, help=_OPTIONS[name].help) for name in TOOLS if name.startswith(incomplete)]


def _with_patience(function: Function) -> Function:
    help = "Seconds to wait for the processes, which look when a step ends."
    return click.option("--wait", type=click.FloatRange(0.1), default=60.0, show_default=True, help=help)(function)


@command.command()
@click.argument("tool", type=_ToolName())
@click.option("--steps", type=click.IntRange(1), metavar="N", help="For so many steps; until `off` where unset.")
@click.option("--ops", metavar="PATTERNS", help="The ops to look at, as for `ditorch run`.")
@click.option("--skip", metavar="PATTERNS", help="Ops to leave alone.")
@_with_patience
@click.pass_obj
def on(run: str, tool: str, steps: int | None, ops: str | None, skip: str | None, wait: float) -> None:
    """Switch TOOL on, in all ranks at the same step.

    TOOL is autocompare, capture, time, overflow, observe, fallback or cast, with a value as the options of
    `ditorch run` have it: autocompare=device, capture=statistics, fallback=OPS.
    """
    name, _, value = tool.partition("=")
    arguments = {key: one for key, one in (("ops", ops), ("skip", skip)) if one is not None}
    arguments.update(_arguments(name, value))
    target = _found(run)
    start, answers = _spoken(target, wait, lambda talk: talk.switch("on", tool=name, steps=steps, arguments=arguments))
    when = f"from step {start}" if steps is None else _steps(start, steps)
    print(f"{name}: on {when}, {_ranks(answers)}")
    print(f"results go to {target.run}")
    print(f"how far it is: ditorch attach {run} status; a page about it: ditorch report {target.run}")


def _arguments(name: str, value: str) -> dict[str, Any]:
    """What the tool's class is to be called with."""
    if not value:
        return {}
    if name == "fallback":
        return {"auto": True} if value == "auto" else {"ops": value}
    if name == "cast":
        ops, _, casts = value.rpartition(":")
        return {"casts": casts, **({"ops": ops} if ops else {})}
    return {_ARGUMENTS[name]: value}


def _steps(start: int, count: int) -> str:
    return f"in step {start}" if count == 1 else f"in steps {start} to {start + count - 1}"


@command.command()
@click.argument("tool", type=_ToolName(), required=False)
@_with_patience
@click.pass_obj
def off(run: str, tool: str | None, wait: float) -> None:
    """Switch TOOL off, or all tools, in all ranks at the same step. They write what they have found."""
    target = _found(run)
    start, answers = _spoken(target, wait, lambda talk: talk.switch("off", tool=tool))
    print(f"{tool or 'all tools'}: off from step {start}, {_ranks(answers)}")


@command.command()
@click.option("--json", "as_json", is_flag=True, help=f"Print JSON ({SCHEMA}), and nothing else.")
@_with_patience
@click.pass_obj
def status(run: str, as_json: bool, wait: float) -> None:
    """Show each rank's step, the tools that are on, and what they have found."""
    target = _found(run)
    answers = _spoken(target, wait, lambda talk: talk.ask("status"))
    rows = [{key: one for key, one in answer.items() if key not in ("schema", "id", "problem")} for answer in answers]
    if as_json:
        print(json.dumps({"schema": SCHEMA, "run": str(target.run), "ranks": rows}, indent=1))
    else:
        Console().print(_table(rows))


def _found(run: str) -> Target:
    try:
        return attach_target.found(run)
    except NoSuchRunError as error:
        _give_up(error)


Spoken = TypeVar("Spoken")


def _spoken(target: Target, patience: float, speak: Callable[[Conversation], Spoken]) -> Spoken:
    began, looked, is_told = time.monotonic(), time.monotonic(), False

    def waiting(answers: list[Answer]) -> None:
        nonlocal is_told, looked
        if time.monotonic() - looked > _SECONDS_BETWEEN_LOOKS:
            if attach_target.is_over(target):
                raise NoSuchRunError(
                    f"the run in {target.run} ended before it answered: none of its processes is left on this machine"
                )
            looked = time.monotonic()
        if not is_told and time.monotonic() - began > _SECONDS_UNTIL_A_WORD:
            is_told = True
            print("ditorch attach: waiting for the end of a step …", file=sys.stderr)

    try:
        return speak(Conversation(target.run, patience, waiting))
    except (DisagreementError, ControlError, NoSuchRunError) as error:
        _give_up(error)
    except KeyboardInterrupt:
        _give_up("given up; the command is withdrawn", INTERRUPTED)


def _give_up(reason: object, code: int = FAILED) -> NoReturn:
    print(f"ditorch attach: {reason}", file=sys.stderr)
    sys.exit(code)


def _ranks(answers: list[Answer]) -> str:
    return {1: "in 1 process", 2: "on both ranks"}.get(len(answers), f"on all {len(answers)} ranks")


def _table(rows: list[dict[str, Any]]) -> Table:
    """A line for each rank and tool."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("rank", "host", "pid", "step", "tool", "", "calls", "findings"):
        table.add_column(name, justify="left" if name in ("host", "tool", "") else "right", overflow="fold")
    for row in rows:
        known = [str(row[key]) for key in ("rank", "host", "pid", "step")]
        for tool in row["tools"] or [{}]:
            table.add_row(*known, *_cells(tool))
            known = [""] * 4
    return table


def _cells(tool: dict[str, Any]) -> tuple[str, ...]:
    if not tool:
        return "none", "", "", ""
    steps = f" for steps {tool['steps']}" if tool["steps"] else ""
    found = "" if tool["findings"] is None else f"{tool['findings']:,}"
    return tool["tool"], f"{'on' if tool['is_on'] else 'off'}{steps}", f"{tool['calls']:,}", found
