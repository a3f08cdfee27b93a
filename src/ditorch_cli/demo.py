"""`ditorch demo`: a training run goes wrong because of one kernel. The loss shows that it does, OpAutoCompare why."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:  # help must not wait for torch
    from ditorch.demo import Run
    from ditorch.sim import faults

_FAULT = "aten.native_layer_norm_backward: tail=0.5"
_LOSS_ROWS = 7  # of the table of losses
_MAX_PLACES_NAMED = 2  # places in the program that are named


@click.command()
@click.option("--fault", default=_FAULT, show_default=True, help="The kernel to break, as in docs/faults.md.")
@click.option("--steps", default=150, show_default=True, type=click.IntRange(1), help="Training steps of each run.")
def demo(fault: str, steps: int) -> None:
    """Train a small GPT three times: on the CPU, on the accelerator, and there with one broken kernel."""
    import ditorch
    from ditorch.demo import Run
    from ditorch.sim import faults

    backend = ditorch.install()
    faults.inject(fault, backend.device_type).remove()  # a mistake in it is said before anything runs
    console = Console()
    console.print(f"A small GPT learns its own source code, {steps} steps each, on the CPU and on {backend.name}.\n")
    reference = Run("CPU")
    healthy = Run(backend.name)
    broken = Run(f"{backend.name}, broken")
    with Progress(
        TextColumn("{task.description:14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        _follow(progress, reference, "cpu", steps)
        _follow(progress, healthy, backend.device_type, steps)
        with faults.inject(fault, backend.device_type) as injection:
            _follow_broken(progress, broken, backend.device_type, steps)
    console.print()
    console.print(_losses(reference, healthy, broken))
    _summary(console, reference, healthy, broken, injection)
    _name_the_op(console, fault, backend.device_type)


def _follow(progress: Progress, run: Run, device: str, steps: int) -> None:
    from ditorch.demo import train

    task = progress.add_task(run.title, total=steps, loss="")
    for loss in train(device, steps):
        run.losses.append(loss)
        progress.update(task, advance=1, loss=f"{loss:.4f}")


def _follow_broken(progress: Progress, run: Run, device: str, steps: int) -> None:
    """A broken kernel may also fail outright, which is part of the story."""
    try:
        _follow(progress, run, device, steps)
    except Exception as error:  # noqa: BLE001 (whatever the kernel raised)
        run.failure = f"{type(error).__name__}: {error}"


def _losses(reference: Run, healthy: Run, broken: Run) -> Table:
    table = Table(title="Loss", title_justify="left")
    for name in ("step", reference.title, healthy.title, broken.title, "drift from the CPU"):
        table.add_column(name, justify="right")
    steps = len(reference.losses)
    for step in sorted({round(row * (steps - 1) / (_LOSS_ROWS - 1)) for row in range(_LOSS_ROWS)}):
        cells = [f"{run.losses[step]:.4f}" if step < len(run.losses) else "–" for run in (reference, healthy, broken)]
        drift = f"{broken.losses[step] - reference.losses[step]:+.4f}" if step < len(broken.losses) else "–"
        table.add_row(str(step + 1), *cells, drift)
    return table


def _summary(console: Console, reference: Run, healthy: Run, broken: Run, injection: faults.Injection) -> None:
    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    furthest = _distance(reference, healthy)
    told = f"the loss is never further than {furthest:.1e} from" if furthest else "every loss equals"
    say(f"{healthy.title}: {told} the CPU's.")
    if broken.failure:
        say(f"{broken.title}: stopped in step {len(broken.losses) + 1}, {broken.failure}")
    else:
        say(
            f"{broken.title}: up to {_distance(reference, broken):.3f} away; its last loss is {broken.losses[-1]:.4f} "
            f"instead of {reference.losses[-1]:.4f}."
        )
    for fault, calls in injection.struck.items():
        say(f"What was broken, in {calls} calls: {fault}")


def _name_the_op(console: Console, fault: str, device: str) -> None:
    """Two more steps of the broken run, under OpAutoCompare; the report on them stays."""
    import ditorch
    import op_tools
    from ditorch.demo import train
    from ditorch.sim import faults

    folder = _folder()
    with faults.inject(fault, device):
        compare = op_tools.OpAutoCompare(verbose=0, out=folder)
        try:
            with compare, op_tools.OpTimeMeasure(verbose=0, out=folder):
                list(train(device, 2))
        except Exception as error:  # noqa: BLE001 (whatever the kernel raised: there is nothing to compare then)
            console.print(f"OpAutoCompare: the step failed with {type(error).__name__}.", highlight=False)
            return
    console.print("\nTwo steps with op_tools.OpAutoCompare, which knows nothing of the fault:", highlight=False)
    for found in compare.summary.ranked()[:_MAX_PLACES_NAMED]:
        place = found.where.replace(str(Path(ditorch.__file__).parent.parent), "…")
        for text in (
            f"{found.name} {found.what}, {found.calls} calls",
            f"  in {found.module}: {place}",
            f"  {found.reason}",
        ):
            console.print(text, highlight=False, soft_wrap=True, markup=False)
    if not compare.summary.ranked():
        console.print("nothing wrong was found.", highlight=False)
    _report(console, folder)


def _folder() -> Path:
    """As those of `ditorch run`; somewhere else where nothing can be written here."""
    when = time.strftime("%Y-%m-%d-%H-%M-%S")
    folder = Path("ditorch_runs") / f"demo-{when}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="ditorch-demo-"))
    return folder


def _report(console: Console, folder: Path) -> None:
    from ditorch_report import contents, page
    from ditorch_report.errors import ReportError

    try:
        page.write(contents.of([folder]), folder / "report.html")
    except ReportError as error:
        console.print(f"\nNo report: {error}", highlight=False, soft_wrap=True, markup=False)
        return
    console.print("\nThe report on these two steps, for a browser:", highlight=False)
    console.print(f"  {folder / 'report.html'}", highlight=False, soft_wrap=True, markup=False)


def _distance(reference: Run, other: Run) -> float:
    return max(abs(a - b) for a, b in zip(reference.losses, other.losses))
