"""The command `ditorch`. Each subcommand is a file of its own, imported when it is used.

A package of its own, because a program's `import ditorch` imports torch: help must not wait for that.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from ditorch_cli.exit_codes import FAILED, INTERRUPTED

# name: (where the click command is, what it does in one line)
_COMMANDS = {
    "run": ("ditorch_cli.run:run", "Run a program written for CUDA on the accelerator that is here, without an edit."),
    "attach": ("ditorch_cli.attach:command", "Switch tools on and off in a program that runs already."),
    "demo": ("ditorch_cli.demo:demo", "Train a small GPT with one broken kernel and watch the loss go wrong."),
    "replay": ("ditorch_cli.replay:command", "Run captured op calls again, timed and compared."),
    "compare": (
        "ditorch_cli.compare:command",
        "Compare two runs: the first call that differs, and whether it is guilty.",
    ),
    "reproduce": (
        "ditorch_cli.reproduce:command",
        "Make a captured op call a small script that needs torch only and fails while the fault is there.",
    ),
    "diagnose": (
        "ditorch_cli.diagnose:command",
        "From a good run and a bad loss to the guilty op, with a script that proves it.",
    ),
    "bisect": (
        "ditorch_cli.bisect:command",
        "Find the smallest set of ops which, run on the CPU, makes a program right again.",
    ),
    "export": ("ditorch_cli.export:command", "Write the statistics of a run as a table: Parquet, CSV or JSON lines."),
    "conformance": (
        "ditorch_cli.conformance:conformance",
        "Run PyTorch's own tests and ops on this accelerator; tables, causes, comparisons.",
    ),
    "report": (
        "ditorch_cli.report:command",
        "Write one HTML file about a run: what is wrong, what is slow, and every op call.",
    ),
    "rehearse": (
        "ditorch_cli.rehearse:command",
        "Run a program on the simulated accelerator as on another chip: what is missing, what drifts, how long.",
    ),
    "monitor": ("ditorch_cli.monitor:command", "Watch the memory and utilisation of a process, or of a command."),
    "doctor": (
        "ditorch_cli.doctor:doctor",
        "Show which accelerators are here and whether the chosen one computes right.",
    ),
    "completion": (
        "ditorch_cli.completion:command",
        "Print the script that lets bash, zsh or fish complete this command.",
    ),
}

# where the base of a package's foreseen errors is
_ERRORS = {
    "ditorch.errors": "DitorchError",
    "op_tools.errors": "OpToolsError",
    "ditorch_conformance.errors": "ConformanceError",
    "ditorch_diagnosis.errors": "DiagnosisError",
}


class _LazyGroup(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            context.exit(INTERRUPTED)
        except EOFError as error:  # click would take it for Ctrl-D; no command asks anything
            raise RuntimeError("a file ends too early") from error

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names of commands: none of them is imported for it."""
        names = [
            CompletionItem(name, help=help) for name, (_, help) in _COMMANDS.items() if name.startswith(incomplete)
        ]
        return names if not incomplete.startswith("-") else click.Command.shell_complete(self, context, incomplete)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in _COMMANDS.items()])


@click.command(cls=_LazyGroup)
@click.version_option(package_name="ditorch", prog_name="ditorch")
def _group() -> None:
    """PyTorch programs written for CUDA on any accelerator, and tools for when they go wrong there."""


def main() -> None:
    """Runs the command line; an error that we foresaw is one message, without a traceback.

    Its exit code is that of a wrong command line, for 1 says that something was found.
    """
    try:
        _group(prog_name="ditorch")
    except Exception as error:  # noqa: BLE001 - shown, with its traceback where it is a mistake of ours
        if _is_foreseen(error):
            print(f"ditorch: {error}", file=sys.stderr)
        else:
            sys.excepthook(*sys.exc_info())
        sys.exit(FAILED)


def _is_foreseen(error: Exception) -> bool:
    """Whether it is an error of ours; their classes are asked for only where they can have been raised."""
    modules = [sys.modules.get(name) for name in _ERRORS]
    classes = [getattr(module, name, ()) for module, name in zip(modules, _ERRORS.values())]
    return any(isinstance(error, kind) for kind in classes)
