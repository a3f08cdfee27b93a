"""`ditorch reproduce CAPTURE`: a script that needs torch only, and fails while the fault is there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from ditorch_cli.manifest import driver


@click.command()
@click.argument("capture", type=click.Path(path_type=Path))
@click.option("--shrink", is_flag=True, help="Make the inputs as small and simple as they can be while it stays wrong.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("reproduce"), show_default=True, help="The folder."
)
@click.option("--device", default=None, help="The device to run on. Default: the accelerator that is here.")
@click.option(
    "--recorded", is_flag=True, help="Run nothing on a device: take what was captured as what the device gives."
)
@click.option("--trust", multiple=True, metavar="PACKAGE", help="Import PACKAGE, and run functions that are its own.")
@click.option("--json", "as_json", is_flag=True, help="Print what was made as JSON (ditorch.reproduce/1), and no more.")
def command(
    capture: Path, shrink: bool, out: Path, device: str | None, recorded: bool, trust: tuple[str, ...], as_json: bool
) -> None:
    """Write a script for one captured op call: reproduce.py, with its data beside it and report.md for the vendor.

    CAPTURE is a folder with input.pth, as OpCapture and OpAutoCompare write them. The script runs the op on the device
    and in float64 on the CPU. The exit code is 1 where the device is wrong, 0 where it is right, 2 where that cannot be
    told.
    """
    from op_tools.errors import OpToolsError
    from op_tools.replay.runner import accelerator
    from op_tools.reproduce.writing import reproduce

    try:
        here = None if recorded else device or accelerator()[1]
        made = reproduce(capture, out, None if here == "cpu" else here, shrink, trust, _driver())
    except OpToolsError as error:
        print(f"ditorch reproduce: {error}", file=sys.stderr)
        sys.exit(2)
    if as_json:
        print(json.dumps(made.as_json(), indent=1))
    else:
        worst = max(made.ratios.items(), key=lambda item: item[1], default=("", 0.0))
        verdict = f"wrong: {worst[0]} is {worst[1]:.3g} times further off than allowed" if made.is_wrong else "right"
        shrunk = f"; {made.elements} elements after {made.tries} tries" if shrink else ""
        if made.is_wrong and made.steps and not made.tries:
            verdict += f", {made.steps[0]}"
        print(f"{made.op} on {made.device} is {verdict}{shrunk}")
        for file in made.files:
            print(f"{file} written")
    sys.exit(1 if made.is_wrong else 0)


def _driver() -> str | None:
    """Of the accelerator that is here, for the report."""
    backend = getattr(sys.modules.get("ditorch"), "_backend", None)
    return None if backend is None else driver(backend.command)
