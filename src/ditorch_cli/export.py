"""`ditorch export RUN`: the statistics of a run as a table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

SCHEMA = "ditorch.export/1"


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "form",
    type=click.Choice(["parquet", "csv", "jsonl"]),
    default="parquet",
    show_default=True,
    help="The format; Parquet needs pyarrow (pip install 'ditorch[offline]').",
)
@click.option("--out", type=click.Path(path_type=Path), help="The file. Default: statistics.FORMAT in RUN.")
@click.option("--json", "as_json", is_flag=True, help=f"Print what was written as JSON ({SCHEMA}).")
def command(run: Path, form: str, out: Path | None, as_json: bool) -> None:
    """Write the statistics of a run as one table, a row for each tensor, for pandas, Polars or DuckDB.

    RUN is a folder of `ditorch run --capture=statistics`, one that OpCapture wrote, or one file of it. Of a damaged
    file, what comes before the damage is written. The exit code is 0, or 2 where nothing could be written.
    """
    from op_tools.errors import CaptureError
    from op_tools.export import COLUMNS, export

    path = out or (run if run.is_dir() else run.parent) / f"statistics.{form}"
    try:
        count, problems = export(run, form, path)
    except CaptureError as error:
        print(f"ditorch export: {error}", file=sys.stderr)
        sys.exit(2)
    for line in problems:
        print(f"ditorch export: {line}", file=sys.stderr)
    if as_json:
        print(json.dumps({"schema": SCHEMA, "file": str(path), "format": form, "rows": count, "columns": COLUMNS}))
    else:
        print(f"{count:,} rows in {path}")
