"""`ditorch conformance …`: how good is this chip?

ditorch conformance ops --dtypes float32,bfloat16 --jobs 8
ditorch conformance pytorch --source ~/pytorch test_torch test_view_ops
ditorch conformance report conformance_pytorch --baseline conformance_cpu
ditorch conformance diff before after
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Callable

import click

from ditorch_cli.conformance_progress import Screen
from ditorch_cli.conformance_text import show_difference, show_summary
from ditorch_cli.exit_codes import FINE, FOUND, INTERRUPTED
from ditorch_cli.run import run_variables
from ditorch_conformance import devices, engines, known, page, profiles, pytorch_tests, summary, tables
from ditorch_conformance import diff as diffs
from ditorch_conformance.engines import Engine
from ditorch_conformance.errors import ConformanceError
from ditorch_conformance.journal import Journal
from ditorch_conformance.ops import recipe as op_matrix
from ditorch_conformance.process import Limits, Recipe
from ditorch_conformance.runner import SHARD_CASES, run
from ditorch_conformance.selection import Selection
from ditorch_shared.settings import number_of_bytes

Command = Callable[..., Any]


@click.group()
def conformance() -> None:
    """PyTorch's own tests and its list of ops on this accelerator, case by case; results and comparisons."""


def _bytes(context: click.Context, parameter: click.Parameter, value: str) -> int:
    try:
        return number_of_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _run_options(command: Command) -> Command:
    """What every run of cases has."""
    for option in reversed(
        (
            click.option(
                "--one-in",
                default=1,
                type=click.IntRange(1),
                help="Only one case in so many, the same on every device.",
            ),
            click.option(
                "--jobs", "-j", default=1, type=click.IntRange(1), show_default=True, help="Workers side by side."
            ),
            click.option(
                "--engine",
                type=click.Choice(("local", "ray")),
                default="local",
                show_default=True,
                help="ray: the workers are spread over the machines of a Ray cluster.",
            ),
            click.option(
                "--timeout",
                default=120.0,
                type=click.FloatRange(0, min_open=True),
                show_default=True,
                help="Seconds that a case may take.",
            ),
            click.option(
                "--memory", default="8GiB", callback=_bytes, show_default=True, help="That a case may take; 0: any."
            ),
            click.option(
                "--tries", default=2, type=click.IntRange(1), show_default=True, help="Attempts for what fails."
            ),
            click.option("--baseline", type=click.Path(path_type=Path), help="Results on the CPU, to compare with."),
            click.option("--known", "known_file", type=click.Path(path_type=Path), help="A file of known failures."),
            click.option("--update-known", is_flag=True, help="Write that file anew."),
            click.option(
                "--json", "as_json", is_flag=True, help="Print one JSON object (schema ditorch.conformance/1)."
            ),
        )
    ):
        command = option(command)
    return command


def _device_option(what: str) -> Callable[[Command], Command]:
    kinds = "The accelerator by the name cuda, by its own, or the CPU in plain torch."
    return click.option(
        "--device", type=click.Choice(devices.ALL), default=devices.CUDA, show_default=True, help=f"{what} {kinds}"
    )


@conformance.command()
@_device_option("What is checked.")
@click.option("--ops", default="", help="Only these: names, or patterns, with commas between them.  [default: all]")
@click.option("--dtypes", default="", help="Only these, such as float32,bfloat16.  [default: all]")
@click.option("--samples", default=0, type=click.IntRange(0), help="At most so many inputs of each.  [default: all]")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the results.  [default: ops_DEVICE]")
@_run_options
def ops(device: str, ops: str, dtypes: str, samples: int, out: Path | None, one_in: int, **rest: Any) -> None:
    """Check every op, module and optimizer of torch's own lists, in every dtype, on many inputs.

    Is it there, is it right, forward and backward, in place, with out=, on empty inputs …: docs/conformance.md. The
    same command goes on where it was interrupted. The exit code is 1 if a case fails that is not in the file of known
    failures.
    """
    folder = out or Path(f"ops_{device}")
    chosen = op_matrix.choice(ops, dtypes, samples)
    recipes = [(op_matrix.FILE, op_matrix.recipe(device, chosen, run_variables()))]
    wanted = Selection(one_in=one_in, names=tuple(chosen["ops"]))
    options = {"kind": "ops", "device": device, **chosen, **wanted.options()}
    _run(recipes, folder, options, wanted=wanted, shard_cases=op_matrix.SHARD_CASES, **rest)


@conformance.command()
@click.option("--source", required=True, type=click.Path(path_type=Path), help="A checkout of PyTorch's sources.")
@_device_option("Which of torch's classes run.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the results.  [default: conformance_DEVICE]")
@click.option("-k", "pattern", default="*", help="Only cases whose Class.name fits this pattern.")
@click.option("--forked", is_flag=True, help="Fork what cases spawn off a process that has imported the file: faster.")
@_run_options
@click.argument("files", nargs=-1)
def pytorch(
    source: Path,
    device: str,
    out: Path | None,
    pattern: str,
    forked: bool,
    one_in: int,
    files: Any,
    **rest: Any,
) -> None:
    """Run PyTorch's own test FILES, unmodified, case by case; without FILES, the usual ones.

    A case that crashes, hangs or eats memory costs only itself. The same command goes on where it was interrupted. The
    exit code is 1 if a case fails that is not in the file of known failures.
    """
    folder = out or Path(f"conformance_{device}")
    chosen = pytorch_tests.files(source, files or pytorch_tests.USUAL)
    recipes = [(file, pytorch_tests.recipe(source, file, device, run_variables(), forked)) for file in chosen]
    wanted = Selection(pattern, one_in)
    options = {"kind": "pytorch", "source": str(source.absolute()), "device": device, **wanted.options()}
    if forked:
        options["forked"] = True
    _run(recipes, folder, options, wanted=wanted, **rest)


def _run(
    recipes: list[tuple[str, Recipe]],
    folder: Path,
    options: dict[str, Any],
    *,
    wanted: Selection = Selection(),  # noqa: B008 - it cannot change
    shard_cases: int = SHARD_CASES,
    engine: str,
    jobs: int,
    timeout: float,
    memory: int,
    tries: int,
    baseline: Path | None,
    known_file: Path | None,
    update_known: bool,
    as_json: bool,
) -> None:
    if update_known and known_file is None:
        raise click.UsageError("--update-known needs --known FILE, the file to write.")
    if baseline is not None:
        tables.read(baseline)  # a mistake is said now and not after hours
    already = known.read(known_file, may_be_missing=update_known) if known_file else known.Known()
    made = _engine(engine, jobs, Limits(timeout, memory=memory), _made(folder))
    journal = Journal(folder, options)
    try:
        with Screen() as screen:
            run(
                recipes,
                made,
                journal,
                wanted=wanted,
                tries=tries,
                shard_cases=shard_cases,
                plan=screen.plan,
                progress=screen.advance,
            )
    except KeyboardInterrupt:
        contents = journal.contents
        message = f"Stopped after {len(contents.attempts):,} cases; the same command goes on from there."
        click.echo(message, err=True)
        sys.exit(INTERRUPTED)
    finally:
        journal.close()
        table = tables.read(folder)
        if table.results:
            tables.write(folder, table)
            tables.put(folder / "report.html", page.page(table))
    _tell(table, tables.read(baseline) if baseline else None, already, as_json)
    if update_known and known_file is not None:
        already.updated(table.results).write(known_file)
    elif already.news(table.results):
        sys.exit(FOUND)


@conformance.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--baseline",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Results on the CPU, to compare with; repeatable.",
)
@click.option("--known", "known_file", type=click.Path(path_type=Path), help="A file of known failures.")
@click.option(
    "--html", type=click.Path(path_type=Path), help="Write a page: op x dtype, causes, every case; searchable."
)
@click.option("--markdown", is_flag=True, help="Print the table by file, as docs/conformance.md has it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (schema ditorch.conformance/1).")
def report(
    results: tuple[Path, ...],
    baseline: tuple[Path, ...],
    known_file: Path | None,
    html: Path | None,
    markdown: bool,
    as_json: bool,
) -> None:
    """Sum up RESULTS: folders of runs, also of one under way, or a CSV, or the reference's published archive.

    With --known, the exit code is 1 if a case fails that is not in that file.
    """
    table, compared = tables.read_all(results), tables.read_all(baseline) if baseline else None
    already = known.read(known_file) if known_file else known.Known()
    if html is not None:
        tables.put(html, page.page(table))
    if markdown:
        click.echo(summary.markdown(table, compared, already))
    else:
        _tell(table, compared, already, as_json)
    if known_file and already.news(table.results):
        sys.exit(FOUND)


@conformance.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (schema ditorch.conformance.diff/1).")
def diff(before: Path, after: Path, as_json: bool) -> None:
    """What AFTER gained and lost against BEFORE: folders of runs, CSV files, published archives, disabled tests.

    The exit code is 1 if a case that passed before fails now.
    """
    found = diffs.compare(tables.read(before), tables.read(after))
    if as_json:
        click.echo(json.dumps(found.as_dictionary(), indent=1))
    else:
        show_difference(found)
    sys.exit(FOUND if found.lost else FINE)


@conformance.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--chip", required=True, help="What the chip is called.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The file to write.")
def profile(results: tuple[Path, ...], chip: str, out: Path) -> None:
    """Distil a chip's profile from RESULTS: folders of `ditorch conformance ops`, or one published table.

    `ditorch rehearse --profile FILE` and DITORCH_SIM_PROFILE=FILE make the simulated accelerator behave like that chip.
    """
    made = profiles.of_tables([tables.read(path) for path in results], chip)
    tables.put(out, profiles.text(made))
    missing = sum(bool(facts.get("missing")) for facts in made["kernels"].values())
    click.echo(f"{out}: {chip}, {made['source']}; {len(made['kernels'])} kernels, {missing} of them missing in a dtype")


def _tell(table: tables.Table, baseline: tables.Table | None, already: known.Known, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(summary.as_dictionary(table, baseline, already), indent=1))
    else:
        show_summary(table, baseline, already)


def _engine(name: str, jobs: int, limits: Limits, folder: Path) -> Engine:
    if name == "local":
        return engines.local(jobs, limits, folder)
    from ditorch_conformance import ray_engine

    return ray_engine.on_cluster(jobs, limits)


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConformanceError(f"{folder} cannot be made ({error.strerror}): choose another --out.") from None
    return folder
