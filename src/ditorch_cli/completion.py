"""`ditorch completion SHELL`: click's own script for completion by Tab, and what arguments are completed to."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

_HOW = {
    "bash": '~/.bashrc:  eval "$(ditorch completion bash)"',
    "zsh": '~/.zshrc:   eval "$(ditorch completion zsh)"',
    "fish": "~/.config/fish/completions/ditorch.fish:  ditorch completion fish | source",
}


@click.command(name="completion", epilog="\b\nPut into\n" + "\n".join(f"  {line}" for line in _HOW.values()))
@click.argument("shell", type=click.Choice(list(_HOW)))
def command(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options, tools and files of `ditorch` by Tab."""
    kind = get_completion_class(shell)
    assert kind is not None
    main = click.get_current_context().find_root().command
    click.echo(kind(main, {}, "ditorch", "_DITORCH_COMPLETE").source())


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For arguments that belong to another program, which may be anything: names of files."""
    return [CompletionItem(incomplete, type="file")]
