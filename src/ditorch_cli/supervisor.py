"""Runs a program with tools as a child: hands on signals, sums up what the tools found, and ends as it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ditorch_cli import manifest, progress, screen, summary
from ditorch_shared import messages

if TYPE_CHECKING:
    from ditorch_report.live import LivePage

_HANDED_ON = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT") if hasattr(signal, name)
)
MESSAGES = "messages.txt"
_SECONDS_FOR_OTHERS = 10.0  # other ranks may end a little later


def supervise(command: list[str], environment: dict[str, str], folder: Path, is_live: bool = False) -> NoReturn:
    """Of several ranks, the first one keeps the manifest, shows the summary, and serves the live page."""
    is_first = environment.get("RANK", environment.get("SLURM_PROCID", "0")) in ("0", "")
    live, line = None, None
    environment[messages.VARIABLE] = os.environ[messages.VARIABLE] = str(folder.absolute() / MESSAGES)
    if is_first:
        _begin(folder, command, environment)
        live = _serve(folder) if is_live else None
        line = progress.ProgressLine(folder) if progress.is_wanted(sys.stderr) else None
        if line is not None or live is not None:
            environment.setdefault("OP_TOOLS_RECORD_INTERVAL", str(progress.SECONDS_BETWEEN_RECORDS))
    status = _run(command, environment, line)
    if is_first:
        with contextlib.suppress(KeyboardInterrupt):
            _end(folder, status)
            if live is not None:
                live.end()
                _write_report(folder)
    _end_likewise(status)


def _serve(folder: Path) -> LivePage:
    from ditorch_report.live import LivePage

    live = LivePage(folder, lambda: _known(folder))
    sys.stderr.write(f"ditorch: live page at {live.url}\n")  # not into the file: its address is a password
    return live


def _known(folder: Path) -> dict[str, Any] | None:
    """What the tools have found by now."""
    try:
        return summary.of(folder, None)
    except (OSError, ValueError):
        return None


def _write_report(folder: Path) -> None:
    from ditorch_report import contents, page

    try:
        page.write(contents.of([folder]), folder / "report.html")
        _say(f"report in {folder / 'report.html'}")
    except Exception as error:  # noqa: BLE001  the program ends as it ended, whatever becomes of its report
        _say(f"no report: {error or type(error).__name__}")


def _say(text: str) -> None:
    sys.stderr.write(f"ditorch: {text}\n")
    messages.keep(f"ditorch: {text}")


def _begin(folder: Path, command: list[str], environment: dict[str, str]) -> None:
    if (folder / manifest.FILE).exists():
        raise click.UsageError(f"{folder} holds a run already: give another folder, or remove it.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        manifest.write(folder, manifest.begun(command, environment))
    except OSError as error:
        raise click.UsageError(f"{folder} cannot be written ({error.strerror}): give another folder (--out).") from None


def _run(command: list[str], environment: dict[str, str], line: progress.ProgressLine | None) -> int:
    """Its exit status, as subprocess has it: negative for a signal."""
    if line is None:
        return _waited_for(command, environment)
    line.begin()
    try:
        return _waited_for(command, environment)
    finally:
        line.end()


def _waited_for(command: list[str], environment: dict[str, str]) -> int:
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise click.UsageError(f"{command[0]} cannot be started: {error.strerror}.") from None

    def hand_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    for number in _HANDED_ON:
        signal.signal(number, hand_on)
    # a terminal sends it to both of us, others only to this process
    signal.signal(signal.SIGINT, signal.SIG_IGN if sys.stdin is not None and sys.stdin.isatty() else hand_on)
    return process.wait()


def _end(folder: Path, status: int) -> None:
    _wait_for_others(folder)
    try:
        found = summary.of(folder, status)
        manifest.write(folder, manifest.ended(folder, found, summary.model(folder), status))
        in_words = screen.text(found, width=100)
        summary.write(folder, found, in_words)
        messages.keep(in_words)
    except OSError as error:
        _say(f"the summary in {folder} cannot be written: {error.strerror}")
        return
    screen.show(found)


def _wait_for_others(folder: Path) -> None:
    until = time.monotonic() + _SECONDS_FOR_OTHERS
    while time.monotonic() < until and any(summary.is_running(record) for record in summary.records(folder)):
        time.sleep(0.1)


def _end_likewise(status: int) -> NoReturn:
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status if status >= 0 else 128 - status)
