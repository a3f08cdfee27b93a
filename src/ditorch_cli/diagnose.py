"""`ditorch diagnose --good RUN_A -- python train.py …`: one command from a bad loss to proof."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ditorch_cli.exit_codes import FAILED, INTERRUPTED

if TYPE_CHECKING:
    from ditorch_diagnosis.diagnosis import Diagnosed


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--good",
    type=click.Path(path_type=Path),
    required=True,
    metavar="RUN",
    help="The folder of a good run, made with `ditorch run --capture=statistics`.",
)
@click.option("--steps", metavar="A:B", help="The training steps to look at, as in `ditorch run`. Default: all.")
@click.option("--out", type=click.Path(path_type=Path), help="The folder. The same one goes on where it was.")
@click.option("--timeout", type=click.FloatRange(min=1), metavar="SECONDS", help="For one run; then it is stopped.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON (ditorch.diagnose/1), and no more.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    good: Path, steps: str | None, out: Path | None, timeout: float | None, as_json: bool, program: tuple[str, ...]
) -> None:
    """Find the op that makes PROGRAM differ from a good run, write a script that proves it, and confirm it by the loss.

    It runs the program with statistics, compares, captures the suspects' data, judges and replays it, makes it a small
    script that needs torch only, and runs the program with that op on the CPU. The exit code is 1 where an op was
    found, 0 where the runs agree, 2 where nothing can be told.
    """
    from ditorch_diagnosis.diagnosis import Diagnosis, check
    from ditorch_diagnosis.errors import DiagnosisError
    from ditorch_diagnosis.journal import identity
    from ditorch_diagnosis.stages import Stages

    def told(line: str) -> None:
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

    try:
        if not good.is_dir():
            raise DiagnosisError(
                f"--good {good} is no folder: make it with `ditorch run --capture=statistics --out DIR`"
            )
        check(good.absolute())
        known_by = identity(program, str(good.absolute()), steps or "")
        folder = (out or Path("ditorch_runs") / f"diagnose-{known_by}").absolute()
        stages = Stages(folder, known_by, told)
        told(f"diagnosing {' '.join(program)} in {folder}")
        found = Diagnosis(program, good.absolute(), stages, timeout, steps).run()
    except DiagnosisError as error:
        print(f"ditorch diagnose: {error}", file=sys.stderr)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        print("ditorch diagnose: stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if as_json:
        print(json.dumps(found.as_json(), indent=1))
    else:
        print("\n".join(_lines(found)))
    sys.exit(found.exit_code)


def _lines(found: Diagnosed) -> list[str]:
    """The last lines of the screen."""
    if found.verdict == "same":
        return [f"nothing to find: {found.reason}"]
    next_lines = ["next", *(f"  {line}" for line in found.next)] if found.next else []
    if found.verdict == "unexplained":
        return [f"no op was found guilty: {found.reason}", *next_lines]
    place = found.place or {}
    module = f" in {place['module']}" if place.get("module") else ""
    where = [f"  {place['where']}"] if place.get("where") else []
    proof = (
        [f"  {found.wrong}", f"  {found.reproducer} shows it with torch alone"]
        if found.reproducer
        else ["  it does not show when the call runs alone"]
    )
    confirmed = {True: "confirmed: with it on the CPU the losses come back", False: found.reason, None: found.reason}
    return [f"guilty: {found.op}{module}", *where, *proof, confirmed[found.is_confirmed], *next_lines]
