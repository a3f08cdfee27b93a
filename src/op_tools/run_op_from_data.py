"""Runs captured op calls again: `python -m op_tools.run_op_from_data DIR`, also known as `ditorch replay DIR`."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any

if not __package__:  # run by its path: Python looks for modules beside this file, where op_tools itself is not
    here = Path(__file__).parent.absolute()  # in a checkout, or a link to or a copy of the folder at its root
    sys.path[:1] = map(str, (here.parent, here.resolve().parent, here.parent / "src"))

import click
import torch

from op_tools.autocompare.tool import OpAutoCompare
from op_tools.errors import OpToolsError
from op_tools.output import messages
from op_tools.replay import replay
from op_tools.storage import store
from op_tools.timing.tool import OpTimeMeasure


@click.command(name="replay")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--run_times", "--run-times", default=1, show_default=True, type=click.IntRange(1), help="Runs of each call."
)
@click.option(
    "--only_run_forward",
    "--only-run-forward",
    is_flag=False,
    flag_value=True,
    default=False,
    type=bool,
    help="Leave backward out.",
)
@click.option("--sync_time_measure", "--sync-time-measure", is_flag=True, help="Measure the time of each run.")
@click.option("--acc_check", "--acc-check", is_flag=True, help="Compare each run with the CPU in higher precision.")
@click.option("--device", default=None, help="The device to run on. Default: the accelerator that is here.")
@click.option(
    "--trust", multiple=True, metavar="PACKAGE", help="Import PACKAGE, and run captured functions that are its own."
)
def command(
    directory: Path,
    run_times: int,
    only_run_forward: bool,
    sync_time_measure: bool,
    acc_check: bool,
    device: str | None,
    trust: tuple[str, ...],
) -> None:
    """Runs every op call that was captured below DIRECTORY again, forward and backward, on the accelerator."""
    framework, chosen = _accelerator(device)
    print(f"ditorch.framework: {framework}")
    for package in trust:
        _import(package)
    folders = list(store.find_captures(directory)) if directory.is_dir() else []
    if not folders:
        reason = "there is no such folder" if not directory.is_dir() else "no input.pth lies below it"
        raise click.ClickException(f"{directory} holds no capture: {reason}. OpCapture makes captures.")
    with contextlib.ExitStack() as tools:
        for tool in _tools(sync_time_measure, acc_check):
            tools.enter_context(tool)
        ran = sum(_replay(folder, chosen, run_times, only_run_forward, trust) for folder in folders)
    print(f"{ran} of {len(folders)} captured calls ran, {run_times} time{'s' if run_times > 1 else ''} each")
    if not ran:
        sys.exit(1)


def _replay(folder: Path, device: torch.device, times: int, forward_only: bool, trusted: tuple[str, ...]) -> bool:
    """False where the capture cannot be used; it is named and the others go on."""
    print(folder, flush=True)
    try:
        capture = replay.load(folder, trusted)
    except OpToolsError as error:
        messages.complain(f"skipped: {error}")
        return False
    try:
        for _ in range(times):
            replay.run(capture, device, forward_only)
    except Exception as error:  # noqa: BLE001  whatever the op raises belongs to this capture only
        messages.complain(f"{capture.name} failed on {device}: {type(error).__name__}: {error}")
        return False
    return True


def _tools(timed: bool, compared: bool) -> list[Any]:
    verbose = None if os.environ.get("OP_TOOLS_VERBOSE") else 2
    tools: list[Any] = []
    if compared:
        tools.append(OpAutoCompare(ops=None, verbose=verbose))
    if timed:
        tools.append(OpTimeMeasure(ops=None, verbose=verbose))
    return tools


def _accelerator(wanted: str | None) -> tuple[str, torch.device]:
    """What runs the ops, with its version; and the device. ditorch finds vendors' chips, and has a simulated one."""
    with contextlib.suppress(ImportError):
        backend = importlib.import_module("ditorch").install()
        module = backend.module or "torch"
        version = getattr(sys.modules.get(module), "__version__", torch.__version__)
        return f"{module}:{version}", torch.device(wanted or backend.device_type)
    current = getattr(getattr(torch, "accelerator", None), "current_accelerator", lambda: None)()
    return f"torch:{torch.__version__}", torch.device(wanted or (current.type if current is not None else "cpu"))


def _import(package: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise click.ClickException(f"--trust {package}: it cannot be imported ({error})") from None


def main() -> None:
    """An error that we foresaw is one message and exit code 1."""
    try:
        command(prog_name="python -m op_tools.run_op_from_data")
    except OpToolsError as error:
        messages.complain(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
