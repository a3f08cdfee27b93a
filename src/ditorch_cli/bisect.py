"""`ditorch bisect -- python train.py …`: which ops make it go wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ditorch_cli.exit_codes import FAILED, INTERRUPTED

if TYPE_CHECKING:
    from ditorch_diagnosis.bisection import Bisected


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--good",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="The losses are to be a good run's: its folder (`ditorch run --losses`), or a file with what it printed.",
)
@click.option(
    "--tolerance", type=click.FloatRange(min=0, min_open=True), help="How far losses may be apart, of --good."
)
@click.option("--no-nan-by", type=click.IntRange(0), metavar="STEP", help="No loss up to this one is NaN or infinite.")
@click.option(
    "--check", "check_command", metavar="COMMAND", help="COMMAND is given what the program printed, and exits with 0."
)
@click.option("--pattern", help="How losses are printed, where they are to be read there: 'loss=({})'.")
@click.option("--cast", is_flag=True, help="Run ops in float32 instead of on the CPU: which 16 bits are too few?")
@click.option("--suspects", metavar="OPS", help="Ops to try first: names, or a file of `ditorch compare --json`.")
@click.option("--out", type=click.Path(path_type=Path), help="The search's folder. The same one goes on where it was.")
@click.option("--timeout", type=click.FloatRange(min=1), metavar="SECONDS", help="For one run; then it fails.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON (ditorch.bisect/1), and no more.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    good: Path | None,
    tolerance: float | None,
    no_nan_by: int | None,
    check_command: str | None,
    pattern: str | None,
    cast: bool,
    suspects: str | None,
    out: Path | None,
    timeout: float | None,
    as_json: bool,
    program: tuple[str, ...],
) -> None:
    """Find the smallest set of ops which, when they run on the CPU, makes PROGRAM pass a check.

    Without a check, the program's own exit code is to be 0. The program is run again and again, on the accelerator that
    is here, with its children. The exit code is 1 where ops were found, 0 where the check passes as it is, 2 where no
    set of ops explains it, or nothing can be told.
    """
    from ditorch_diagnosis.bisection import Bisection, read_suspects
    from ditorch_diagnosis.checks import chosen
    from ditorch_diagnosis.errors import DiagnosisError
    from ditorch_diagnosis.journal import Journal, identity
    from ditorch_diagnosis.trial import CAST, CPU

    def told(line: str) -> None:
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

    try:
        check, way = chosen(good, no_nan_by, check_command, pattern, tolerance), CAST if cast else CPU
        likely = read_suspects(suspects) if suspects else []
        known_by = identity(program, check.name, way.tool)
        folder = (out or Path("ditorch_runs") / f"bisect-{known_by}").absolute()
        journal = Journal(folder, known_by)
        told(f"bisecting {' '.join(program)}; check: {check.name}; in {folder}")
        if journal.trials:
            told(f"{len(journal.trials)} trials are known from before")
        found = Bisection(program, check, way, journal, told, timeout).run(likely)
    except DiagnosisError as error:
        print(f"ditorch bisect: {error}", file=sys.stderr)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        print("ditorch bisect: stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if as_json:
        print(json.dumps(found.as_json(), indent=1))
    else:
        print(_text(found))
    sys.exit(found.exit_code)


def _text(found: Bisected) -> str:
    """The last lines of the screen."""
    trials = f"({len(found.trials)} trials)"
    if found.verdict == "passes":
        return f"nothing to find: the check passes as it is, {found.reason}"
    if found.verdict == "unexplained":
        return f"no set of ops explains it: {found.reason} {trials}"
    if found.verdict == "unclear":
        return f"cannot tell: {found.reason} {trials}"
    ops = "\n".join(f"  {op}" for op in found.ops)
    are = "op is" if len(found.ops) == 1 else "ops are"
    next_commands = "\n".join(f"  {line}" for line in found.next)
    return f"guilty: the check passes where {len(found.ops)} {are} {found.way} {trials}\n{ops}\nnext\n{next_commands}"
