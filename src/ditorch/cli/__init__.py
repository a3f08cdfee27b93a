"""The command `ditorch`. Each subcommand is a file of its own, imported when it is used."""

from __future__ import annotations

import importlib
import sys

import click

import ditorch
from ditorch.errors import DitorchError

# name: (where the click command is, what it does in one line)
_COMMANDS = {
    "run": ("ditorch.cli.run:run", "Run a program written for CUDA on the accelerator that is here, without an edit."),
    "demo": ("ditorch.cli.demo:demo", "Train a small GPT with one broken kernel and watch the loss go wrong."),
    "replay": ("op_tools.run_op_from_data:command", "Run captured op calls again, timed and compared."),
    "doctor": (
        "ditorch.cli.doctor:doctor",
        "Show which accelerators are here and whether the chosen one computes right.",
    ),
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

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in _COMMANDS.items()])


@click.command(cls=_LazyGroup)
@click.version_option(ditorch.__version__, prog_name="ditorch")
def _group() -> None:
    """PyTorch programs written for CUDA on any accelerator, and tools for when they go wrong there."""


def main() -> None:
    """Runs the command line; an error that we foresaw is one message and exit code 1, without a traceback."""
    try:
        _group(prog_name="ditorch")
    except DitorchError as error:
        print(f"ditorch: {error}", file=sys.stderr)
        sys.exit(1)
