"""The options of `ditorch run` for the tools, as data: each stands for variables. docs/run.md has their table."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click


@dataclass(frozen=True)
class Option:
    """One option. Of one with a tool, the tool is started."""

    name: str
    help: str
    variable: str | None = None  # what its value is put into
    tool: str | None = None  # its name in OP_TOOLS
    metavar: str | None = None  # it needs a value
    choices: tuple[str, ...] = ()  # it may have one of these, after `=`

    @property
    def default(self) -> str:
        """Of its choices: what its variable says, else the first."""
        said = os.environ.get(self.variable or "", "")
        if said and said not in self.choices:
            one_of = ", ".join(self.choices)
            raise click.UsageError(f"{self.variable}={said} cannot be used with {self.name}: it is one of {one_of}.")
        return said or self.choices[0]

    @property
    def parameter(self) -> str:
        return self.name.lstrip("-").replace("-", "_")

    @property
    def shown(self) -> str:
        """As people type it."""
        if self.choices:
            return f"{self.name}[={'|'.join(self.choices)}]"
        return f"{self.name} {self.metavar}" if self.metavar else self.name

    def variables(self, value: Any) -> dict[str, str]:
        """What the option with this value sets."""
        if value is None or value is False or self.variable is None:
            return {}
        return {self.variable: "1" if value is True else str(value)}


class _Fallback(Option):
    def variables(self, value: Any) -> dict[str, str]:
        return {"OP_FALLBACK_AUTO": "1"} if value == "auto" else super().variables(value)


class _Cast(Option):
    def variables(self, value: Any) -> dict[str, str]:
        if value is None:
            return {}
        ops, _, casts = str(value).rpartition(":")
        return {"OP_DTYPE_CAST_DICT": casts, **({"OP_DTYPE_CAST_LIST": ops} if ops else {})}


class _InputsFrom(Option):
    def variables(self, value: Any) -> dict[str, str]:
        if value is None:
            return {}
        folder = Path(value).absolute()  # also for children with another working directory
        if not (folder / "modules").is_dir():
            reason = "holds no modules" if folder.is_dir() else "does not exist"
            raise click.UsageError(f"--inputs-from: {value} {reason}: make it with `ditorch run --modules PATTERNS`.")
        return {"OP_TOOLS_INPUTS_FROM": str(folder)}


class _Against(Option):
    def variables(self, value: Any) -> dict[str, str]:
        if value is None:
            return {}
        folder = Path(value).absolute()  # also for children with another working directory
        if not folder.is_dir():
            raise click.UsageError(f"--watch-against: {value} does not exist: give the folder of a run.")
        return {"OP_WATCH_AGAINST": str(folder)}


OPTIONS: tuple[Option, ...] = (
    Option(
        "--autocompare",
        "compare every op with the CPU in higher precision, or with the device itself, which is faster; device,cpu: "
        "narrower limits, and the CPU has the last word; identities: only what must hold of a result, for a pass over "
        "the data",
        "OP_AUTOCOMPARE_REFERENCE",
        "autocompare",
        choices=("cpu", "device", "device,cpu", "identities"),
    ),
    Option(
        "--until-covered",
        "compare no longer than until each call of a training step has been compared, forward and backward",
        "OP_AUTOCOMPARE_UNTIL_COVERED",
        "autocompare",
    ),
    Option(
        "--capture",
        "save the inputs, outputs and gradients of every op, or a few numbers of each tensor",
        "OP_CAPTURE_MODE",
        "capture",
        choices=("data", "statistics"),
    ),
    Option(
        "--shards",
        "with --capture=statistics: modules whose tensors all ranks share, along which dimension, and how large the "
        "whole is, block by block: qkv=-1:768+768+768. So ranks can be compared with one process",
        "OP_CAPTURE_SHARDS",
        metavar="TABLE",
    ),
    Option("--time", "measure forward and backward time of every op and collective", None, "time"),
    Option(
        "--overflow",
        "find the first NaN or Inf; stop: raise there; dump: save what the op was given",
        "OP_OVERFLOW_CHECK_ACTION",
        "overflow",
        choices=("continue", "stop", "dump"),
    ),
    Option("--observe", "print the arguments and results of every op", None, "observe"),
    _Fallback(
        "--fallback",
        "run these ops on the CPU; auto: those that the accelerator does not have",
        "OP_FALLBACK_LIST",
        "fallback",
        "OPS",
    ),
    _Cast(
        "--cast",
        "run ops in another dtype, all or these: torch.bfloat16->torch.float32",
        "OP_DTYPE_CAST_DICT",
        "cast",
        "[OPS:]MAP",
    ),
    Option("--monitor", "sample memory and CPU time of every process, and the memory of its devices", None, "monitor"),
    Option("--losses", "note the loss of every backward pass; --capture=statistics does so, too", None, "losses"),
    Option(
        "--watch",
        "keep the loss of every step, figures of weights, gradients, optimizer state and activations of every tenth, "
        "and of memory, and alert: NaN, a spike, a dead layer",
        None,
        "watch",
    ),
    Option(
        "--watch-rules",
        "other numbers for its rules, or off: spike=12,dead=off",
        "OP_WATCH_RULES",
        "watch",
        "RULES",
    ),
    _Against("--watch-against", "alert when the loss parts from that run's", "OP_WATCH_AGAINST", "watch", "RUN"),
    Option(
        "--on-alert",
        "who gets each alert as JSON: a command, on its stdin, or an address, by POST",
        "OP_WATCH_ON_ALERT",
        "watch",
        "COMMAND",
    ),
    Option("--watch-every", "look at tensors in every N-th step: 10", "OP_WATCH_EVERY", "watch", "N"),
    Option("--watch-to", "who gets the curves as well: tensorboard, wandb", "OP_WATCH_TO", "watch", "NAMES"),
    Option(
        "--modules",
        "keep the inputs, outputs and gradients of these modules, in the first step or in --steps: blocks.*",
        "OP_TOOLS_MODULES",
        "modules",
        "PATTERNS",
    ),
    _InputsFrom(
        "--inputs-from",
        "give these modules what they were given in that run, so that each shows its own error",
        "OP_TOOLS_INPUTS_FROM",
        metavar="RUN",
    ),
    Option(
        "--perturb",
        "move the weights by a rounding error before they are first used, of their own dtype or of one that they are "
        "computed in: how far healthy results move, for `ditorch compare --healthy`",
        "OP_TOOLS_PERTURB",
        "perturb",
        choices=("own", "bfloat16", "float16", "tf32"),
    ),
    Option(
        "--ops",
        "the ops that tools watch: full names and regular expressions, with commas between them",
        "OP_TOOLS_LIST",
        metavar="PATTERNS",
    ),
    Option("--skip", "ops that they leave alone", "OP_TOOLS_DISABLE_LIST", metavar="PATTERNS"),
    Option("--steps", "the training steps to look at: 10:13, or 0,10-12", "OP_TOOLS_STEPS", metavar="A:B"),
    Option("--ranks", "the ranks to look at: 0, or 0-7", "OP_TOOLS_RANKS", metavar="RANKS"),
    Option("--out", "the run's folder; otherwise a new one in ditorch_runs", "OP_TOOLS_OUT", metavar="DIR"),
    Option(
        "--live", "a page for the browser while it runs, on this machine only; at the end, report.html in the folder"
    ),
)


def variables(values: dict[str, Any]) -> dict[str, str]:
    """What the options that were given set; OP_TOOLS among them where there are tools."""
    if values.get("inputs_from") is not None and values.get("modules") is None:
        raise click.UsageError("--inputs-from needs --modules: which modules are to get that run's inputs?")
    found: dict[str, str] = {}
    tools = []
    for option in OPTIONS:
        value = values.get(option.parameter)
        found.update(option.variables(value))
        if option.tool and value not in (None, False):
            tools.append(option.tool)
    return {**found, **({"OP_TOOLS": ",".join(dict.fromkeys(tools))} if tools else {})}


class ToolCommand(click.Command):
    """A command with these options, and their own section in its help."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        for option in OPTIONS:
            kind = {"type": click.Choice(option.choices)} if option.choices else {"metavar": option.metavar}
            flag = {"is_flag": True} if not option.choices and not option.metavar else kind
            self.params.append(click.Option([option.name], help=option.help, **flag))

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        return super().parse_args(context, _with_defaults(arguments))

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        tools = [(option.shown, option.help) for option in OPTIONS]
        with formatter.section("Tools"):
            formatter.write_dl(tools)
        named = {option.parameter for option in OPTIONS}
        options = [one for one in self.get_params(context) if isinstance(one, click.Option)]
        others = [one.get_help_record(context) for one in options if one.name not in named]
        with formatter.section("Options"):
            formatter.write_dl([record for record in others if record])


def _with_defaults(arguments: list[str]) -> list[str]:
    """`--autocompare train.py` is `--autocompare=cpu train.py`: a value that may be left out stands after `=`."""
    optional = {option.name: option for option in OPTIONS if option.choices}
    take_next = {option.name for option in OPTIONS if option.metavar}
    found = list(arguments)
    position = 0
    while position < len(found) and found[position].startswith("-") and found[position] != "--":
        name = found[position]
        if name in optional:
            found[position] = f"{name}={optional[name].default}"
        position += 2 if name in take_next else 1
    return found
