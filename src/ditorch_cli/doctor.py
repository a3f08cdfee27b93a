"""`ditorch doctor`: what is on this machine, and whether it computes right."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ditorch_cli import watchdog

if TYPE_CHECKING:  # help must not wait for torch
    from ditorch.backend import Backend
    from ditorch.doctor import Device, Report
    from ditorch.surroundings import Check

_GIBIBYTE = 2**30
_GRACE_SECONDS = 10.0  # a check that hangs gives up by itself, where Python can go on


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (schema ditorch.doctor/1).")
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=60.0, show_default=True, help="How long each check may take."
)
def doctor(as_json: bool, seconds: float) -> None:
    """Show what accelerators are here, why others are not, and whether the chosen one computes right.

    The exit code is 1 if no accelerator could be chosen or a check fails.
    """
    tell: watchdog.Tell = lambda text: None  # noqa: E731
    if "torch" not in sys.modules:  # else it is too late
        tell = watchdog.guarded(seconds + _GRACE_SECONDS, _hangs)
        tell("importing torch")
    from ditorch import surroundings
    from ditorch.doctor import examine

    surroundings.CHECK_SECONDS, surroundings.announce = seconds, tell
    report = examine()
    report.surroundings.append(_helper())
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        show(report, Console(highlight=False, soft_wrap=True))
    if surroundings.is_hanging():  # nobody would end it
        sys.stdout.flush()
        os._exit(1)
    sys.exit(0 if report.healthy else 1)


def _hangs(doing: str) -> str:
    return (
        f"ditorch doctor: {doing} hangs, and not even Python can go on: a driver does not answer. "
        "The vendor's own command, or restarting the device, tells more."
    )


def _helper() -> Check:
    """The C++ helper of op_tools, which ditorch itself knows nothing of."""
    from ditorch.surroundings import answered

    def question() -> str | None:
        from op_tools import native, settings

        is_wanted = settings.NATIVE.get() and native.is_supported()
        return "it could not be built or loaded" if is_wanted and native.library() is None else None

    advice = "the tools work without it, slower: install g++ and Python's headers, or set OP_TOOLS_NATIVE=0"
    return answered("C++ helper of op_tools", question, advice)


def show(report: Report, console: Console) -> None:
    for name, version in report.versions.items():
        console.print(f"{name} {escape(version)}")
    console.print()
    console.print(_findings(report))
    if report.problem:
        console.print(f"\n[red]No accelerator is chosen.[/] {escape(report.problem)}")
    if report.backend:
        _show_chosen(report, report.backend, console)


def _findings(report: Report) -> Table:
    table = Table("backend", "chip", "here", "why not", box=box.SIMPLE_HEAD, pad_edge=False)
    for finding in report.findings:
        here = "[green]yes[/]" if finding.reason is None else "[red]fails[/]" if finding.failed else "no"
        chosen = report.backend is not None and finding.name == report.backend.name
        name = f"[bold]{finding.name} (chosen)[/]" if chosen else finding.name
        table.add_row(name, escape(finding.title), here, escape(finding.reason or ""))
    return table


def _show_chosen(report: Report, backend: Backend, console: Console) -> None:
    import ditorch

    console.print(f"\n[bold]{backend.name}[/]: {escape(backend.title)}")
    for index, device in enumerate(report.devices):
        console.print(f"  {backend.device_type}:{index}  {escape(device.name)}{_memory(device)}")
    console.print(f"  collectives: {escape(report.collectives)}")
    if ditorch._redirect is not None:
        console.print(f"  device strings that say cuda are redirected {escape(ditorch._redirect.how)}")
    if backend.migration():
        console.print(f"  {backend.migration()} turns cuda into {backend.device_type} here; ditorch leaves torch alone")
    for quirk in backend.quirks:
        console.print(f"  note: {escape(quirk)}")
    for line in (report.command or "").splitlines():
        console.print(f"  | {escape(line)}")
    console.print("\nHealth check against the CPU, forward and backward:")
    _show_checks(report.checks, console)
    console.print("\nWhat else a program needs:")
    _show_checks(report.surroundings, console)
    wrong = [check.name for check in (*report.checks, *report.surroundings) if check.problem]
    console.print(f"\n[red]Wrong: {', '.join(wrong)}.[/]" if wrong else "\n[green]All checks passed.[/]")


def _show_checks(checks: Sequence[Check], console: Console) -> None:
    for check in checks:
        mark = "[green]ok[/]   " if check.problem is None else "[red]WRONG[/]"
        console.print(f"  {mark} {check.name}{': ' + escape(check.problem) if check.problem else ''}")
    for advice in dict.fromkeys(check.advice for check in checks if check.advice):
        console.print(f"        {escape(advice)}")


def _memory(device: Device) -> str:
    if device.total_memory is None:
        return ""
    free = f", {device.free_memory / _GIBIBYTE:.1f} free" if device.free_memory is not None else ""
    return f"  {device.total_memory / _GIBIBYTE:.1f} GiB{free}"
