"""`ditorch compare RUN_A RUN_B`: the first call that differs, and whether it is guilty or carries what came in."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from op_tools.compare_runs.findings import Findings
    from op_tools.compare_runs.reading import Run

_WIDTH = 120  # where there is no terminal


@click.command()
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option(
    "--healthy",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="A second run of RUN_A's side, with weights moved by a rounding error, or on another healthy device: how far "
    "its calls move is how far they may.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Captured data of RUN_B's side (`ditorch run --capture=data`), which settles suspects. Default: RUN_B's own.",
)
@click.option(
    "--limit", type=click.FloatRange(min=1), help="How many times further apart than its inputs a call may be."
)
@click.option(
    "--shard",
    "shards",
    multiple=True,
    metavar="PATTERN=DIMENSION",
    help="Along which dimension ranks share the tensors of these modules, where a run of several ranks is compared "
    "with one process and shapes do not tell; may be given again.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    help="How many replicas of the model the ranks of a run are, each on ranks that follow each other. Default: as the "
    "shapes of the parameters tell.",
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Ranks compared at a time.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where ranks are compared: here, or as tasks of a Ray cluster whose machines see both folders.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON (ditorch.compare/1), and no more.")
def command(
    run_a: Path,
    run_b: Path,
    healthy: Path | None,
    data: Path | None,
    limit: float | None,
    shards: tuple[str, ...],
    replicas: int | None,
    jobs: int,
    engine: str,
    as_json: bool,
) -> None:
    """Compare two runs by what they kept of every tensor: RUN_A is the good one, RUN_B the one in doubt.

    Each is a folder of `ditorch run --capture=statistics` (or =data), or one that OpCapture wrote. The exit code is 0
    where they agree within rounding, 1 where they differ, 2 where that cannot be told.
    """
    from op_tools.compare_runs import report
    from op_tools.compare_runs.comparison import compare
    from op_tools.compare_runs.findings import UNKNOWN
    from op_tools.compare_runs.judging import LIMIT
    from op_tools.compare_runs.reading import Run
    from op_tools.errors import CaptureError

    table = [_shard(text) for text in shards]
    try:
        a, b = Run(run_a), Run(run_b)
        third = Run(healthy) if healthy else None
        found = compare(a, b, third, limit or LIMIT, shards=table, jobs=jobs, engine=engine, replicas=replicas)
        _settle(found, a, b, data)
    except CaptureError as error:
        print(f"ditorch compare: {error}", file=sys.stderr)
        sys.exit(UNKNOWN)
    if as_json:
        print(json.dumps(report.as_json(found), indent=1))
    else:
        show(report.text(found, shutil.get_terminal_size((_WIDTH, 24)).columns))
    sys.exit(found.exit_code)


def _settle(found: Findings, a: Run, b: Run, data: Path | None) -> None:
    """By captured data, if there is any: only that needs torch."""
    folder = data or b.path
    if folder.is_dir() and next(folder.rglob("input.pth"), None) is not None:
        from op_tools.compare_runs import settling

        settling.settle(found, folder, of_suspects=data is None and b.has_data_only)
    if a.has_data_only:
        from op_tools.compare_runs import settling

        settling.doubt_good_side(found, a.path)


def _shard(text: str) -> tuple[str, int]:
    pattern, _, dimension = text.rpartition("=")
    try:
        re.compile(pattern)
        return pattern, int(dimension)
    except (ValueError, re.error):
        raise click.BadParameter(
            f"{text!r} is no PATTERN=DIMENSION, such as 'attn.(q|k|v)=-1'", param_hint="--shard"
        ) from None


def show(text: str) -> None:
    """Whatever letters the terminal knows."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
