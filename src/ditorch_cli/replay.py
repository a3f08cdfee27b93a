"""`ditorch replay DIR`, also known as `python -m op_tools.run_op_from_data DIR`: runs captured op calls again.

The exit code is 0 where all is right, 1 where a call is wrong, failed or could not be used, 2 where the command itself
cannot be understood.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import click

_FLAGS = {"--only_run_forward", "--only-run-forward", "--sync_time_measure", "--sync-time-measure"}
_FLAGS |= {"--acc_check", "--acc-check"}
_TRUTHS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
_WIDTH = 120  # where there is no terminal


class _Command(click.Command):
    """Its flags may have a value: `--only_run_forward` and `--only_run_forward True` are the same."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        left, plain = list(args), []
        while left:
            argument = left.pop(0)
            name, has_value, value = argument.partition("=")
            if name not in _FLAGS:
                plain.append(argument)
                continue
            if not has_value and left and left[0].lower() in _TRUTHS:
                has_value, value = "=", left.pop(0)
            if has_value and value.lower() not in _TRUTHS:
                raise click.UsageError(f"{name} is a flag: give it no value, or True or False", context)
            if not has_value or _TRUTHS[value.lower()]:
                plain.append(name)
        return super().parse_args(context, plain)


@click.command(name="replay", cls=_Command)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--run_times", "--run-times", default=1, show_default=True, type=click.IntRange(1), help="Runs of each call."
)
@click.option("--only_run_forward", "--only-run-forward", is_flag=True, help="Leave backward out.")
@click.option("--sync_time_measure", "--sync-time-measure", is_flag=True, help="Measure the time of each run.")
@click.option(
    "--acc_check",
    "--acc-check",
    is_flag=True,
    help="Compare each run with the CPU in higher precision; with --device cpu also what the capture's device gave.",
)
@click.option("--ops", metavar="PATTERNS", help="Only these: full names and regular expressions, with commas.")
@click.option(
    "--warm_up", "--warm-up", default=0, show_default=True, type=click.IntRange(0), help="Runs before, not looked at."
)
@click.option(
    "--jobs", default=1, show_default=True, type=click.IntRange(1), help="Processes that replay at the same time."
)
@click.option("--device", default=None, help="The device to run on. Default: the accelerator that is here.")
@click.option(
    "--trust", multiple=True, metavar="PACKAGE", help="Import PACKAGE, and run captured functions that are its own."
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON (ditorch.replay/1), and nothing else.")
def command(
    directory: Path,
    run_times: int,
    only_run_forward: bool,
    sync_time_measure: bool,
    acc_check: bool,
    ops: str | None,
    warm_up: int,
    jobs: int,
    device: str | None,
    trust: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run every op call that was captured below DIRECTORY again, forward and backward, on the accelerator.

    What is wrong is shown, and one table; OP_TOOLS_VERBOSE=2 shows every call. The exit code is 1 if a call is wrong,
    fails or cannot be used.
    """
    if jobs > 1 and sync_time_measure:
        raise click.UsageError("--sync_time_measure needs the device for itself: leave --jobs out.")
    from op_tools.errors import SettingError
    from op_tools.replay.runner import Options, replay_all, replay_these
    from op_tools.replay.shares import replay as replay_in_shares

    chosen = tuple(name.strip() for name in (ops or "").split(",") if name.strip())
    options = Options(
        directory, run_times, only_run_forward, sync_time_measure, acc_check, device, trust, chosen, warm_up, jobs
    )
    told = (lambda line: None) if as_json else lambda line: print(line, flush=True)
    try:
        with _bar(as_json) as progress:
            results = replay_all(options, told, progress, replay_in_shares if jobs > 1 else replay_these)
    except SettingError as error:
        print(f"ditorch replay: {error}", file=sys.stderr)
        sys.exit(2)
    if as_json:
        print(json.dumps(results.as_json(), indent=1))
    else:
        _show(results.text(shutil.get_terminal_size((_WIDTH, 24)).columns))
    sys.exit(results.exit_code)


def _show(text: str) -> None:
    """Whatever letters the terminal knows."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


@contextlib.contextmanager
def _bar(is_silent: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, where somebody sits before it; it is gone at the end."""
    if is_silent or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("replay"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replay", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
